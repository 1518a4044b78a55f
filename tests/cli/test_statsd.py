"""The metrics of `duewheel wheel run`."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from threading import Event

import click
import pytest
from tests.logins import login
from tests.waiting import PATIENCE_SECONDS, beside

from duewheel.cli import statsd
from duewheel.store import Broker
from duewheel.store.metrics.metering import Measured


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A StatsD server."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(PATIENCE_SECONDS)
        yield server


def test_x08_a_wheel_outside_airflow_sends_the_same_metrics(broker: Broker, server: socket.socket) -> None:
    broker.create_topic("orders")
    broker.consumer("orders", "g")
    broker.send("orders", b"x", delay=timedelta(0))
    broker.tick("orders")
    stopping = Event()
    with beside() as start:
        sending = start(lambda: statsd.keep_sending(broker, server.getsockname(), stopping))
        try:
            heard = [server.recv(65_536).decode() for _ in range(12)]
        finally:
            stopping.set()
        sending.result(PATIENCE_SECONDS)
    of = f"connection={broker.dsn.rpartition('/')[2]}"
    assert heard == [
        f"airflow.duewheel.wheel.turning,{of}:1|g",
        f"airflow.duewheel.upkeep.age_seconds,{of}:{heard[1].rpartition(':')[2]}",
        f"airflow.duewheel.upkeep.held_up_seconds,{of}:0|g",
        f"airflow.duewheel.waiting,{of},topic=orders:0|g",
        f"airflow.duewheel.ready,{of},topic=orders,group=g:1|g",
        *(
            f"airflow.duewheel.{name},{of},topic=orders,group=g:0|g"
            for name in (
                *("inflight", "retries", "dead_letters", "dead_letters.dropped_soon"),
                *("paused", "abandoned_seconds", "kept_bytes"),
            )
        ),
    ]
    last = ""
    while "wheel.turning" not in last:
        last = server.recv(65_536).decode()
    assert last == f"airflow.duewheel.wheel.turning,{of}:0|g"


def test_what_cannot_be_read_or_sent_is_logged_and_ends_nothing(
    broker: Broker, server: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    stopping = Event()
    stopping.set()
    with Broker(login(broker.dsn, None)) as stranger:
        statsd.keep_sending(stranger, server.getsockname(), stopping)
    assert caplog.text.count("The metrics failed this time") == 1
    assert [server.recv(65_536).decode().rpartition(":")[2] for _ in range(2)] == ["1|g", "0|g"]
    statsd.keep_sending(broker, ("nowhere.invalid", 9125), stopping)
    assert caplog.text.count("The metrics failed this time") == 3


def test_a_timing_is_in_milliseconds_and_tags_keep_their_places() -> None:
    late = Measured("timing", "lateness", timedelta(milliseconds=1.5), {"topic": "a,b=c:d|e f"})
    assert statsd.line(late, "c") == "airflow.duewheel.lateness,connection=c,topic=a_b_c_d_e_f:1.5|ms"


def test_an_address_is_a_host_and_a_port() -> None:
    assert statsd.address("::1:9125") == ("::1", 9125)
    assert statsd.address("host:65535") == ("host", 65535)
    for given in ("", "host", ":1", "host:", "host:x", "host:0", "host:65536"):
        with pytest.raises(click.BadParameter, match="HOST:PORT"):
            statsd.address(given)
