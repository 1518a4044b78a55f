"""A watcher that cannot ring is logged once, with what to do, and is counted in a metric."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.airflow_runs import connection_json
from tests.logged import logged
from tests.logins import login
from tests.waiting import until_on_loop

from duewheel.hooks.broker import DueWheelHook
from duewheel.store import Broker
from duewheel.triggers import metrics, wheel_stream
from duewheel.triggers.timing_wheel import TimingWheelTrigger

if TYPE_CHECKING:
    from tests.triggers.conftest import Triggerer

LOG = "duewheel.triggers.wheel_stream"
TRIES = 5


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The connections that a stream looked up, each time it did; it pauses for next to nothing in between."""
    tries: list[str] = []
    resolve = DueWheelHook.aresolve

    async def noted(self: DueWheelHook) -> Any:
        tries.append(self.duewheel_conn_id)
        return await resolve(self)

    monkeypatch.setattr(DueWheelHook, "aresolve", noted)
    monkeypatch.setattr(wheel_stream, "FIRST_PAUSE_SECONDS", 0.001)
    return tries


def errors(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What the stream has logged as an error."""
    return [each for each in caplog.records if each.name == LOG and each.levelno >= logging.ERROR]


async def test_an_unknown_connection_is_logged_once_with_its_cure(
    broker: Broker,
    airflow: Triggerer,
    tries: list[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker.create_topic("orders")
    broker.send("orders", b"x", delay=timedelta(0))
    events = airflow.run(TimingWheelTrigger("orders", "g", duewheel_conn_id="later"))
    await until_on_loop(lambda: len(tries) >= TRIES, "further tries")
    (error,) = errors(caplog)
    assert "The conn_id `later` isn't defined. Make this connection in Airflow" in error.getMessage()
    assert "group g on topic orders, watched by trigger" in error.getMessage()
    assert error.exc_info is None
    with logged(LOG, "The wheel of connection later works again") as mended:
        monkeypatch.setenv("AIRFLOW_CONN_LATER", connection_json(broker.dsn))
        await events.get()
        await asyncio.to_thread(mended.wait)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("host=127.0.0.1 port=1 dbname=shop", "that the server runs"),
        ("no schema", "run `duewheel db upgrade`"),
        ("no role", "needs the role"),
    ],
)
async def test_a_broker_that_is_of_no_use_is_logged_once_with_its_cure(
    address: str,
    said: str,
    dsn: str,
    postgres: Any,
    airflow: Triggerer,
    tries: list[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_no_use = {"no schema": postgres.dsn, "no role": lambda: login(dsn, None)}.get(
        address, lambda: address
    )()
    monkeypatch.setenv("AIRFLOW_CONN_OF_NO_USE", connection_json(of_no_use))
    airflow.run(TimingWheelTrigger("orders", "g", duewheel_conn_id="of_no_use"))
    await until_on_loop(lambda: len(tries) >= TRIES, "further tries")
    (error,) = errors(caplog)
    assert said in error.getMessage()
    assert error.exc_info is None


async def test_an_unexpected_error_keeps_its_traceback(
    airflow: Triggerer,
    tries: list[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wheel_stream.LonePoller, "poll", lambda *_: 1 / 0)
    airflow.run(TimingWheelTrigger("orders", "g"))
    await until_on_loop(lambda: len(tries) >= TRIES, "further tries")
    (error,) = errors(caplog)
    assert error.exc_info is not None


async def test_watchers_that_cannot_ring_are_a_metric(
    broker: Broker, airflow: Triggerer, tries: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")
    monkeypatch.setattr(metrics, "EVERY_SECONDS", 0.01)
    monkeypatch.setenv("AIRFLOW__DUEWHEEL__METRICS_INTERVAL_SECONDS", "0.01")
    sent: dict[tuple[str, str, str], int] = {}

    def gauge(name: str, value: int, tags: dict[str, str] | None = None) -> None:
        if name == "duewheel.watchers.failing" and tags:
            sent[tags["connection"], tags["topic"], tags["group"]] = value

    monkeypatch.setattr(metrics.stats, "gauge", gauge)
    unknown, mistyped, right = ("unknown", "orders", "g"), ("c", "oders", "g"), ("c", "orders", "g")
    monkeypatch.setenv("AIRFLOW_CONN_C", connection_json(broker.dsn))
    broker.create_topic("orders")
    for conn_id, topic, group in (unknown, mistyped, right):
        airflow.run(TimingWheelTrigger(topic, group, duewheel_conn_id=conn_id))
    airflow.run(TimingWheelTrigger("oders", "g", duewheel_conn_id="c", min_messages=2))
    await until_on_loop(lambda: sent == {unknown: 1, mistyped: 2, right: 0}, "the numbers")
    broker.create_topic("oders")
    await until_on_loop(lambda: sent.get(mistyped) == 0, "a topic that is made to count")
    await airflow.stop()
    none = dict.fromkeys((unknown, mistyped, right), 0)
    await until_on_loop(lambda: sent == none, "a stream that has ended to be silent")
