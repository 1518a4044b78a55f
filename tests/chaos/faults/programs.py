"""Programs as they are shipped: stopped, forked, upgraded, and restored beside their origin."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import timedelta

from tests.chaos.arena import Arena
from tests.chaos.fault import fault
from tests.chaos.traffic import GROUPS, TOPIC
from tests.next_version import NextVersion
from tests.restoring import dump, restore
from tests.waiting import until

from duewheel.store.broker import Broker
from duewheel.store.values.retry_policy import RetryPolicy

#: An orchestrator's patience, before it kills.
GRACE_SECONDS = 10

_PUSH_CONSUMER = """
import sys
from datetime import timedelta
from duewheel.cli.stopping import stopped_by_signal
from duewheel.store import Broker

stopping = stopped_by_signal()
with Broker(sys.argv[1]) as broker, broker.push_consumer(sys.argv[2], sys.argv[3], lambda message: "success"):
    print("ready", flush=True)
    stopping.wait()
"""


_LINES_OF_A_PORTION = 1_000
_LETTERS = 3
_PATIENCE = timedelta(seconds=30)


def _started(at_the_end: ExitStack, *command: str) -> subprocess.Popen[str]:
    process = at_the_end.enter_context(
        subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    )
    at_the_end.callback(process.kill)
    return process


def _staying(at_the_end: ExitStack, dsn: str) -> list[subprocess.Popen[str]]:
    """A wheel, a watch and a push consumer of a group of its own; each says when it has begun."""
    running = [
        _started(at_the_end, "-m", "duewheel.cli", "wheel", "run", "--dsn", dsn),
        _started(at_the_end, "-m", "duewheel.cli", "watch", "--interval", "100ms", "--dsn", dsn),
        _started(at_the_end, "-c", _PUSH_CONSUMER, dsn, TOPIC, "pushed"),
    ]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline(), "it did not begin"
    return running


def _in_the_midst(at_the_end: ExitStack, broker: Broker) -> list[subprocess.Popen[str]]:
    """Commands that take long: a send of what a pipe brings, a slow redrive, and a receive that waits."""
    letters = broker.consumer("stopped", "stopped", retry=RetryPolicy.unordered(max_retries=0))
    broker.send_many("stopped", [{"body": b"x", "delay": timedelta(0)}] * _LETTERS)
    failed = 0
    while failed < _LETTERS:
        batch = letters.receive(_LETTERS, wait=_PATIENCE)
        letters.nack(batch, timedelta(0))
        failed += len(batch)
    running = [
        _started(at_the_end, "-m", "duewheel.cli", *command, "--dsn", broker.dsn)
        for command in (
            ("message", "send", "--topic", "piped", "--file", "-", "--delay", "1h"),
            ("dead-letter", "redrive", "--group", "stopped", "--per-second", "0.2"),
            ("message", "receive", "--topic", "piped", "--group", "waiting", "--wait", "30s"),
        )
    ]
    pipe = running[0].stdin
    assert pipe is not None
    pipe.write('{"body": "x"}\n' * (_LINES_OF_A_PORTION + 1))
    pipe.flush()
    until(
        lambda: (
            _piped(broker)
            and broker.dead_letters("stopped", redriven=True)
            and any(group.group == "waiting" for group in broker.groups())
        ),
        "the commands to be in the midst of it",
        pause_seconds=0.1,
    )
    return running


def _piped(broker: Broker) -> int:
    """How many messages the pipe has brought."""
    return next(topic.waiting for topic in broker.stats().topics if topic.topic == "piped")


@fault("stopped-gracefully", "SIGTERM to every shipped program that goes on for long, under load")
def stopped_gracefully(arena: Arena) -> str:
    """Those that stay end well; a command ends where it is, and leaves whole transactions."""
    longest, stopped = 0.0, 0
    with Broker(arena.dsn) as broker:
        broker.create_topic("piped")
        broker.create_topic("stopped")
        for _ in arena.rounds():
            with ExitStack() as at_the_end:
                staying = _staying(at_the_end, arena.dsn)
                running = staying + _in_the_midst(at_the_end, broker)
                arena.receive_more()
                began = time.monotonic()
                for process in running:
                    process.send_signal(signal.SIGTERM)
                for process in running:
                    said, _ = process.communicate(timeout=GRACE_SECONDS)
                    assert process.returncode == (0 if process in staying else -signal.SIGTERM), said
                    stopped += 1
                longest = max(longest, time.monotonic() - began)
            assert _piped(broker) % _LINES_OF_A_PORTION == 0, "a part of a transaction"
            broker.delete_group("waiting", topic="piped")
        broker.delete_group("pushed", topic=TOPIC)
    return f"{stopped} programs, all within {longest:.1f} s"


@fault("forked", "Threads and children of fork that share one broker")
def forked(arena: Arena) -> str:
    """Each child opens connections of its own."""
    for _ in range(2):
        arena.crew.start("forker")
    for _ in arena.rounds():
        pass
    return "2 programs with 4 threads and 4 children at a time"


@fault("restored-beside", "A dump restored beside its origin in the same cluster")
def restored_beside(arena: Arena) -> str:
    """Both deliver; neither rings for the other, or holds it up."""
    restored = 0
    file = arena.directory / "dump"
    for number in arena.rounds():
        dump(arena.dsn, file)
        copy = arena.server.ensure_database(f"copy_{number}")
        restore(file, copy)
        with Broker(copy) as broker:
            broker.rebase()
            broker.tick(TOPIC)
            for group in GROUPS:
                broker.consumer(TOPIC, group).receive(100, timedelta(seconds=2))
            broker.maintain()
        restored += 1
    return f"{restored} copies"


@fault("upgraded", "An upgrade to the next version while programs of this one go on")
def upgraded(arena: Arena) -> str:
    """Its revision changes the tables that each send and receive uses."""
    folder = arena.directory / "next"
    folder.mkdir()
    version = NextVersion(folder)
    for number in arena.rounds():
        if number == 1:
            version.upgrade(arena.dsn)
    return "once, with a new column of every message"
