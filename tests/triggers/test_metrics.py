"""The wheel's numbers as a StatsD server hears them: a socket of the test's own."""

from __future__ import annotations

import asyncio
import re
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest
from airflow._shared.observability.metrics import stats as core_stats
from airflow.observability.metrics.stats_utils import get_stats_factory as core_stats_factory
from airflow.sdk import serde
from airflow.sdk._shared.observability.metrics import stats as metrics_backend
from airflow.sdk.configuration import conf
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics.stats_utils import get_stats_factory
from tests.logins import login
from tests.waiting import PATIENCE_SECONDS, beside, until

from duewheel.store import Broker, RetryPolicy
from duewheel.store.metrics.reporting import claim_report
from duewheel.triggers import metrics, wheel_stream
from duewheel.triggers.timing_wheel import TimingWheelTrigger

if TYPE_CHECKING:
    from tests.triggers.conftest import Triggerer

OF_CONNECTION = ",connection=duewheel_default"
OF_TOPIC = f"{OF_CONNECTION},topic=orders"
OF_GROUP = f"{OF_TOPIC},group=g"


class Listener:
    """A StatsD server."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(PATIENCE_SECONDS)
        self.port = self._socket.getsockname()[1]

    def hear(self, wanted: Mapping[str, float | None]) -> None:
        """Listen until each counter and gauge has the value that is wanted; None is any."""
        heard: dict[str, float] = {}
        ends = monotonic() + PATIENCE_SECONDS
        while not all(name in heard and value in (None, heard[name]) for name, value in wanted.items()):
            assert monotonic() < ends, {name: heard.get(name) for name in wanted}
            for line in self._socket.recv(65_536).decode().splitlines():
                name, _, said = line.removeprefix("airflow.duewheel.").partition(":")
                value, _, kind = said.partition("|")
                heard[name] = float(value) + (heard.get(name, 0) if kind == "c" else 0)

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    """Where Airflow sends its metrics, from now on."""
    listener = Listener()
    for name, value in {
        "statsd_on": "True",
        "statsd_host": "127.0.0.1",
        "statsd_port": str(listener.port),
        "statsd_influxdb_enabled": "True",
    }.items():
        monkeypatch.setenv(f"AIRFLOW__METRICS__{name.upper()}", value)
    # What Airflow's triggerer does when it starts, with the core's own copy of the module.
    core_stats.initialize(
        factory=core_stats_factory(), export_legacy_names=conf.getboolean("metrics", "legacy_names_on")
    )
    # The copy of the SDK, which triggers use, is made ready with the serializers the triggerer needs.
    serde._register()
    yield listener
    backend: Any = metrics_backend._get_backend()
    backend.statsd.close()
    monkeypatch.undo()
    for module, factory in ((stats, get_stats_factory), (core_stats, core_stats_factory)):
        module.initialize(factory=factory(), export_legacy_names=True)
    listener.close()


@pytest.mark.slow
async def test_x08_the_numbers_of_a_broker_are_airflows_metrics(
    broker: Broker, airflow: Triggerer, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "EVERY_SECONDS", 0.1)
    monkeypatch.setenv("AIRFLOW__DUEWHEEL__METRICS_INTERVAL_SECONDS", "0.2")
    broker.create_topic("orders")
    once = broker.consumer("orders", "g", retry=RetryPolicy.unordered(max_retries=1))
    broker.consumer("orders", "resting")
    broker.pause_group("resting", topic="orders")
    for _ in range(5):
        broker.send("orders", b"x", delay_level=0)
    broker.send("orders", b"x", delay=timedelta(hours=1))
    once.nack(once.receive(max_messages=1), reason="no", delay=timedelta(hours=1))
    once.receive(max_messages=1, invisible=timedelta(hours=1))
    # Last, so that it is the wheel that finds its end, on however slow a machine. The message is due again.
    once.receive(max_messages=1, invisible=timedelta(seconds=1))

    rings = airflow.run(TimingWheelTrigger("orders", "g", ring_again=3600))
    await rings.get()
    await asyncio.to_thread(
        listener.hear,
        {
            f"waiting{OF_TOPIC}": 1,
            f"released{OF_TOPIC}": 5,
            f"lateness{OF_TOPIC}": None,
            f"ready{OF_GROUP}": 3,
            f"inflight{OF_GROUP}": 1,
            f"retries{OF_GROUP}": 1,
            f"dead_letters{OF_GROUP}": 0,
            f"dead_letters.dropped_soon{OF_GROUP}": 0,
            f"paused{OF_GROUP}": 0,
            f"paused{OF_GROUP.replace('=g', '=resting')}": 1,
            f"abandoned_seconds{OF_GROUP}": 0,
            f"kept_bytes{OF_GROUP}": 0,
            f"expired_leases{OF_GROUP}": 1,
            f"rings{OF_GROUP}": 1,
            f"wheel.turning{OF_CONNECTION}": 1,
            f"upkeep.age_seconds{OF_CONNECTION}": None,
            f"upkeep.held_up_seconds{OF_CONNECTION}": 0,
            "ready.duewheel_default.orders.g": 3,
        },
    )
    await airflow.stop()
    await asyncio.to_thread(listener.hear, {f"wheel.turning{OF_CONNECTION}": 0})


def test_x08_of_several_triggerers_one_reports_what_happened(broker: Broker) -> None:
    broker.create_topic("orders")
    broker.consumer("orders", "g")
    broker.send("orders", b"x", delay_level=0)
    every = timedelta(hours=1)
    assert claim_report(broker, every) is not None
    assert claim_report(broker, every) is None


def test_x08_each_connection_of_a_broker_sends_its_gauges(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("orders")
    broker.consumer("orders", "g")
    sent: list[tuple[str, str]] = []
    monkeypatch.setattr(
        metrics.stats, "gauge", lambda name, _, tags=None: tags and sent.append((tags["connection"], name))
    )
    for conn_id in ("team_a", "team_b"):
        metrics.Metrics(conn_id)._report(broker, Counter())
    gauges = ("wheel.turning", "upkeep.age_seconds", "upkeep.held_up_seconds", "waiting", "ready", "inflight")
    gauges += (
        "retries",
        "dead_letters",
        "dead_letters.dropped_soon",
        "paused",
        "abandoned_seconds",
        "kept_bytes",
    )
    assert sent == [(conn_id, f"duewheel.{name}") for conn_id in ("team_a", "team_b") for name in gauges]


def test_x08_a_triggerer_without_a_wheel_sends_metrics_too(
    broker: Broker, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("orders")
    broker.consumer("orders", "g")
    sent: dict[str, Any] = {}
    for kind in ("gauge", "incr"):
        monkeypatch.setattr(metrics.stats, kind, lambda name, value, tags=None: sent.update({name: value}))
    with Broker(login(dsn, "duewheel_consumer")) as watching:

        def report() -> int:
            metrics.Metrics("c")._report(watching, Counter(), turns=False)
            turning: int = sent["duewheel.wheel.turning"]
            return turning

        assert report() == 0
        assert sent["duewheel.ready"] == 0
        broker.send("orders", b"x", delay_level=0)
        broker.tick("orders")
        stop = Event()
        with beside() as start:
            turned = start(lambda: broker.wheel().run(stop))
            try:
                until(report, "a wheel to be reported")
            finally:
                stop.set()
            turned.result(PATIENCE_SECONDS)
        assert sent["duewheel.ready"] == 1


def test_every_metric_is_in_the_reference() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "airflow.md").read_text()
    listed = dict(re.findall(r"^\| `duewheel\.([\w.]+)` \| \w+ \| (.*?) ?\|", page, re.MULTILINE))
    assert listed == {
        **dict.fromkeys(("lateness", "released", "waiting"), "topic"),
        **dict.fromkeys(
            (
                *("ready", "inflight", "retries", "dead_letters", "dead_letters.dropped_soon"),
                *("paused", "abandoned_seconds", "kept_bytes", "expired_leases", "rings"),
                "watchers.failing",
            ),
            "topic, group",
        ),
        **dict.fromkeys(("wheel.turning", "upkeep.age_seconds", "upkeep.held_up_seconds"), ""),
    }


@pytest.mark.long
def test_without_metrics_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in wheel_stream.METRICS_ARE_ON:
        monkeypatch.setenv(f"AIRFLOW__METRICS__{option.upper()}", "False")
    assert wheel_stream._metrics("duewheel_default") is None
