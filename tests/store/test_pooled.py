"""Through a pooler that shares sessions, by a program that does not say so."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.acting import AT_ONCE, SECOND
from tests.pooler import pooler, through

from duewheel.cli.main import main
from duewheel.store.broker import Broker

#: More than the pooler has sessions, so that they change hands.
THREADS = 12


@pytest.mark.slow
@pytest.mark.owner
@pytest.mark.needs("pgbouncer")
def test_sessions_of_a_pooler_fail_no_call(dsn: str, tmp_path: Path) -> None:
    with pooler(Path("/usr/sbin/pgbouncer"), tmp_path / "pooler", dsn) as port, Broker(dsn) as direct:
        direct.create_topic("t")
        direct.consumer("t", "g")

        def work(_: int) -> int:
            with Broker(through(dsn, port)) as broker:
                consumer, received = broker.consumer("t", "g"), 0
                for _ in range(20):
                    broker.send("t", b"", delay=AT_ONCE)
                    batch = consumer.receive(wait=SECOND)
                    consumer.ack(batch)
                    received += len(batch)
            return received

        with ThreadPoolExecutor(THREADS) as threads:
            received = sum(threads.map(work, range(THREADS)))
        last = direct.consumer("t", "g")
        while batch := last.receive():
            received += len(batch)
            last.ack(batch)
        assert received == THREADS * 20
        said = CliRunner().invoke(main, ["doctor", "--json", "--dsn", through(dsn, port)]).stdout
    (found,) = [check for check in json.loads(said)["checks"] if check["check"] == "connection"]
    assert found["status"] == "warning"
    assert "through a pooler" in found["says"]
    assert "listen=False" in found["advice"]
