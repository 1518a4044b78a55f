"""Forks of a program whose other threads are at work: what a child cannot make anew is whole."""

from __future__ import annotations

import ast
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread

import pytest
from tests.waiting import PATIENCE_SECONDS

from duewheel.store.database import forking

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

STORE = Path(__file__).parents[2] / "store"
#: Of an upgrade or the embedded server, which no program does in a thread while another one forks; and the
#: driver's module that is there before each other, and psycopg 3's with the caller's own.
ALONE = {"broker", "database.migration", "database.rebasing", "database.connections", "database.psycopg3"}
#: Loads a module late, forks in the midst, and loads it in the child.
LOADING = """
import os, signal, sys, threading, time
from importlib.abc import MetaPathFinder
from duewheel.store.broker import Broker

loading = threading.Event()

class Slow(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "duewheel.store.operations.copying":
            loading.set()
            # The fork is to wait for this, so nothing can say that it has begun.
            time.sleep(0.2)

def load():
    from duewheel.store.operations import copying

sys.meta_path.insert(0, Slow())
broker = Broker("host=127.0.0.1")
thread = threading.Thread(target=load)
thread.start()
loading.wait()
child = os.fork()
if child == 0:
    signal.alarm(10)
    load()
    os._exit(0)
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def child_of_fork(status: Callable[[], int] = lambda: 0) -> int:
    """The process id of a child that ends at once, with a status that it works out."""
    if (child := os.fork()) == 0:
        os._exit(status())
    return child


def imported_in_functions(path: Path) -> set[str]:
    """Modules of the store that functions of a file import."""
    functions = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    found = set()
    for node in (inner for function in functions for inner in ast.walk(function)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("duewheel.store."):
            module = node.module.removeprefix("duewheel.store.")
            parts = [f"{module}.{name.name}" for name in node.names]
            found |= {part if (STORE / f"{part.replace('.', '/')}.py").exists() else module for part in parts}
    return found


def test_modules_that_a_call_loads_late_are_loaded_before_a_fork() -> None:
    late = set().union(*(imported_in_functions(path) for path in STORE.rglob("*.py")))
    assert late - ALONE == set(forking.LATE)


def test_a_child_is_not_forked_while_a_thread_loads_a_module() -> None:
    program = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", LOADING],
        timeout=PATIENCE_SECONDS,
        check=False,
        capture_output=True,
        text=True,
    )
    assert (program.returncode, program.stderr) == (0, "")


def test_a_fork_does_not_wait_for_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "LONGEST_WAIT_SECONDS", 0.1)
    connecting, forked = Event(), Event()

    def connect() -> bool:
        with forking.no_fork_meanwhile():
            connecting.set()
            return forked.wait(PATIENCE_SECONDS)

    with ThreadPoolExecutor(1) as threads:
        connection = threads.submit(connect)
        connecting.wait(PATIENCE_SECONDS)
        if (child := os.fork()) == 0:
            with forking.no_fork_meanwhile():
                os._exit(0)
        forked.set()

        assert connection.result(PATIENCE_SECONDS)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_no_child_is_forked_amid_connects_that_overlap() -> None:
    done, began = Event(), Event()
    connecting: set[int] = set()

    def connect_again_and_again(number: int) -> None:
        while not done.is_set():
            with forking.no_fork_meanwhile():
                connecting.add(number)
                began.set()
                # So that the blocks of the three overlap.
                time.sleep(0.05)
                connecting.remove(number)

    seen = []
    with ThreadPoolExecutor(3) as threads:
        for number in range(3):
            threads.submit(connect_again_and_again, number)
        began.wait(PATIENCE_SECONDS)
        try:
            for _ in range(5):
                child = child_of_fork(lambda: len(connecting))
                seen.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        finally:
            done.set()
    assert seen == [0] * 5


def test_a_thread_with_the_lock_of_logging_can_connect_in_a_fork(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forking, "LONGEST_WAIT_SECONDS", 0.1)
    holding, forking_now, connected = Event(), Event(), Event()

    def connect() -> None:
        # Logging's own handler takes it before a fork; it has no public name.
        with logging._lock:  # type: ignore[attr-defined]
            holding.set()
            forking_now.wait(PATIENCE_SECONDS)
            with forking.no_fork_meanwhile():
                connected.set()

    os.register_at_fork(before=forking_now.set)
    with ThreadPoolExecutor(1) as threads:
        connection = threads.submit(connect)
        holding.wait(PATIENCE_SECONDS)
        child = child_of_fork()
        connection.result(PATIENCE_SECONDS)
    os.waitpid(child, 0)
    assert connected.is_set()


def test_a_thread_that_forks_while_it_connects_does_not_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forking, "LONGEST_WAIT_SECONDS", 10 * PATIENCE_SECONDS)

    def fork() -> None:
        with forking.no_fork_meanwhile():
            os.waitpid(child_of_fork(), 0)

    thread = Thread(target=fork, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_a_program_ends_silently_though_closures_hold_its_broker(dsn: str) -> None:
    program = f"""
from duewheel.store import Broker
with Broker({dsn!r}) as broker:
    for call in (lambda: broker.topics(), lambda: broker.find_key("nowhere", "1")):
        try:
            call()
        except Exception as error:
            pass
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert (done.returncode, done.stderr) == (0, "")
