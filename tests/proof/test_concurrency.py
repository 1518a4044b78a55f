"""Everything at once, on real processes, the real clock, and with SIGKILL (design: measured, snapshot ticks).

Senders keep transactions open and roll some back, two wheels tick, consumers are killed while they hold
leases, one keeps receives open until others pass its lock, recalls race the release, a wheel is killed
wherever it happens to be, and the server's backends stop and go on in the midst of what they do. In the
second test the server itself is killed and recovers. Afterwards the logs of all processes are put together.
What must come out: nothing lost, nothing doubled but what an ended lease or a failure gave out again, nothing
early by the database's clock, and nothing delivered that was recalled.

``DUEWHEEL_SOAK_SECONDS=600`` goes on for longer.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.proof import traffic
from tests.proof.stalling import stalls
from tests.proof.traffic import GROUPS, TOPIC
from tests.waiting import PATIENCE_SECONDS, until

from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.store.broker import Broker
from duewheel.store.values.errors import LeaseLost

#: Long enough to ack; the end waits for the instant at which the last lease would have ended.
UNHURRIED = timedelta(seconds=5)

SECONDS = float(os.environ.get("DUEWHEEL_SOAK_SECONDS", "10"))


@dataclass
class Traffic:
    """The running processes and where they log."""

    dsn: str
    directory: Path
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    killed: list[subprocess.Popen[bytes]] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)

    def start(self, role: str) -> subprocess.Popen[bytes]:
        """Start one more process of a role; it goes on until :meth:`end`."""
        number = len(self.running) + len(self.killed)
        with (self.directory / f"{role}{number}.err").open("wb") as errors:
            process = subprocess.Popen(
                [
                    *(sys.executable, traffic.__file__, role, self.dsn),
                    *(str(self.directory / f"{role}{number}.log"), str(number)),
                ],
                stdin=subprocess.DEVNULL,
                stderr=errors,
            )
        self.running.append(process)
        self.names[process.pid] = f"{role}{number}.log"
        return process

    def has_received(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether a consumer has been given anything."""
        log = self.directory / self.names[process.pid]
        return log.exists() and '"received"' in log.read_text()

    def has_got_on(self, receives: int) -> bool:
        """Whether there were more receives than so many."""
        return self.receives() > receives

    def receives(self) -> int:
        """How many receives brought something."""
        return sum(1 for _ in self.lines("received"))

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """SIGKILL, wherever it is."""
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.running.remove(process)
        self.killed.append(process)

    def lines(self, what: str) -> Iterator[dict[str, Any]]:
        """All that was logged under a name."""
        for path in sorted(self.directory.glob("*.log")):
            for text in path.read_text().splitlines(keepends=True):
                if not text.endswith("\n"):
                    # It is being written.
                    break
                line = json.loads(text)
                if line["what"] == what:
                    yield line

    def is_enough(self) -> bool:
        """Whether there was something of everything that is held against the promises."""
        outcomes = {line["outcome"] for line in self.lines("recall")}
        return len(self.sent()) > 100 and outcomes == {"recalled", "already_released"}

    def sent(self) -> set[str]:
        """The bodies of what was committed."""
        return {body for line in self.lines("sent") for body in line["bodies"]}

    def end(self) -> None:
        """Let all that were not killed come to their end; each must end well."""
        traffic.enough_of(self.directory).touch()
        for process in self.running:
            process.wait(timeout=PATIENCE_SECONDS)
        errors = [path.read_text() for path in self.directory.glob("*.err") if path.stat().st_size]
        assert [process.returncode for process in self.running] == [0] * len(self.running), errors


@contextmanager
def traffic_on(dsn: str, directory: Path) -> Iterator[Traffic]:
    """Traffic until the block is left; nothing stays behind."""
    with Broker(dsn) as broker:
        broker.create_topic(TOPIC, queues=3)
        broker.maintain()
        for group in GROUPS:
            broker.consumer(TOPIC, group)
    going = Traffic(dsn, directory)
    try:
        yield going
    finally:
        for process in going.running:
            if process.poll() is None:
                process.kill()
            process.wait()


def drain(broker: Broker) -> Counter[tuple[str, str]]:
    """Receive and ack until nothing is left, leases of the killed included; how often each body came."""
    got: Counter[tuple[str, str]] = Counter()
    deadline = time.monotonic() + PATIENCE_SECONDS
    for group in GROUPS:
        consumer = broker.consumer(TOPIC, group)

        def is_empty(group: str = group) -> bool:
            (bell,) = broker.doorbells([TOPIC], [group])
            return not bell.ready and not bell.inflight and bell.next_at is None

        while True:
            batch = consumer.receive(1_000, UNHURRIED)
            if batch:
                try:
                    consumer.ack(batch)
                except LeaseLost:
                    # Too slow: they come again, and count then.
                    continue
                got.update((group, message.body.decode()) for message in batch)
            elif is_empty():
                break
            assert time.monotonic() < deadline, f"{group} is still not done"
    return got


def account(going: Traffic, broker: Broker, *, server_died: bool) -> None:
    """Put the logs together and hold them against what was promised."""
    last = drain(broker)
    sent = going.sent()
    rolled_back = {body for line in going.lines("rolled back") for body in line["bodies"]}
    tried = {body for line in going.lines("sending") for body in line["bodies"]}
    recalled = {line["body"] for line in going.lines("recall") if line["outcome"] == "recalled"}
    received: dict[str, list[tuple[str, str, int]]] = {group: [] for group in GROUPS}
    early = [body for line in going.lines("received") for body in line["early"]]
    for line in going.lines("received"):
        for body, identity, attempt in line["messages"]:
            received[line["group"]].append((body, identity, attempt))
    maybe_recalled = {line["body"] for line in going.lines("recalling")}

    assert early == [], "received before deliver_at by the database's clock"
    for group in GROUPS:
        delivered = Counter(body for body, _, _ in received[group])
        delivered.update({body: n for (of, body), n in last.items() if of == group})
        assert set(delivered) <= tried, "delivered what nobody sent"
        assert not set(delivered) & rolled_back, "delivered what was rolled back"
        assert not set(delivered) & recalled, "delivered although recalled"
        # A recall whose answer a crash swallowed may have counted.
        unknown = maybe_recalled if server_died else set()
        # A killed consumer may have acked what it did not live to log.
        acked = {b for line in going.lines("acking") if line["group"] == group for b in line["bodies"]}
        lost = sent - recalled - set(delivered) - unknown - acked
        assert lost == set(), f"{len(lost)} of {len(sent)} lost"
        if not server_died:
            attempts = Counter((body, attempt) for body, _, attempt in received[group])
            doubled = {body for (body, _), times in attempts.items() if times > 1}
            assert doubled == set(), "given out twice as the same attempt"
            finals = Counter(
                body for line in going.lines("acked") if line["group"] == group for body in line["bodies"]
            )
            assert {body for body, times in finals.items() if times > 1} == set(), "acked twice"
            assert not {body for of, body in last if of == group} & set(finals), "came again after its ack"
        identities = {(body, identity) for body, identity, _ in received[group]}
        assert len({body for body, _ in identities}) == len(identities), "the id changed"
    assert going.is_enough()


@pytest.mark.slow
@pytest.mark.tenfold
def test_nothing_is_lost_doubled_or_early_with_everything_at_once(dsn: str, tmp_path: Path) -> None:
    ends = time.monotonic() + SECONDS
    with traffic_on(dsn, tmp_path) as going, Broker(dsn) as broker:
        with stalls(dsn):
            for role in (*("sender",) * 3, "ticker", "recaller", "consumer", "consumer", "dawdler"):
                going.start(role)
            wheel, victim = going.start("wheel"), going.start("consumer")
            rounds = 0
            while rounds < 2 or time.monotonic() < ends or not going.is_enough():
                # Somewhere in what it does after its first messages.
                until(partial(going.has_received, victim), "the consumer to be in the midst of it")
                rounds += 1
                going.kill(victim)
                victim = going.start("consumer")
                if rounds % 2:
                    going.kill(wheel)
                    wheel = going.start("wheel")
            going.end()
        account(going, broker, server_died=False)


def runs_no_more(server: EmbeddedPostgres, pid: int) -> bool:
    """Whether the server with this process id has ended."""
    return server.pid != pid


@pytest.mark.slow
@pytest.mark.tenfold
def test_d16_nothing_accepted_is_lost_when_the_server_is_killed(tmp_path: Path) -> None:
    """With fsync on, as in production: what a sender was answered survives."""
    logs = tmp_path / "logs"
    logs.mkdir()
    with EmbeddedPostgres(tmp_path / "server", settings={"shared_buffers": "64MB"}) as server:
        dsn = server.ensure_database("traffic")
        with Broker(dsn) as broker:
            broker.upgrade()
        with traffic_on(dsn, logs) as going, Broker(dsn) as broker:
            for role in ("sender", "sender", "ticker", "recaller", "consumer", "consumer"):
                going.start(role)
            for _ in range(2):
                until(partial(going.has_got_on, going.receives() + 10), "messages to be received")
                pid = server.pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                until(partial(runs_no_more, server, pid), "the server to be gone")
                server.start()
            until(going.is_enough, "recalls that were in time and such that were not")
            going.end()
            account(going, broker, server_died=True)
