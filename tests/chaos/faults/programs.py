"""Programs as they are shipped: stopped, forked, upgraded, and restored beside their origin."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from datetime import timedelta

from tests.chaos.arena import Arena
from tests.chaos.fault import fault
from tests.chaos.traffic import GROUPS, TOPIC
from tests.next_version import NextVersion
from tests.restoring import dump, restore

from duewheel.store.broker import Broker

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


def _shipped(arena: Arena) -> list[subprocess.Popen[str]]:
    """A wheel, a watch and a push consumer of a group of its own."""
    commands = [
        ["-m", "duewheel.cli", "wheel", "run", "--dsn", arena.dsn],
        ["-m", "duewheel.cli", "watch", "--interval", "100ms", "--dsn", arena.dsn],
        ["-c", _PUSH_CONSUMER, arena.dsn, TOPIC, "pushed"],
    ]
    return [
        subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command in commands
    ]


@fault("stopped-gracefully", "SIGTERM to the shipped wheel, watch and push consumer under load")
def stopped_gracefully(arena: Arena) -> str:
    """Each ends well, and within the time that an orchestrator gives it."""
    longest, stopped = 0.0, 0
    for _ in arena.rounds():
        running = _shipped(arena)
        try:
            for process in running:
                assert process.stdout is not None
                assert process.stdout.readline(), "it did not begin"
            arena.receive_more()
            began = time.monotonic()
            for process in running:
                process.send_signal(signal.SIGTERM)
            for process in running:
                said, _ = process.communicate(timeout=GRACE_SECONDS)
                assert process.returncode == 0, said
                stopped += 1
            longest = max(longest, time.monotonic() - began)
        finally:
            for process in running:
                process.kill()
                process.wait()
    with Broker(arena.dsn) as broker:
        broker.delete_group("pushed", TOPIC)
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
