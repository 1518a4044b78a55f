"""What Airflow does to a watcher: no room for it, its row deleted, its DAG paused, its event loop blocked."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.airflow_runs import AirflowHome
from tests.triggers.triggerers import WATCHING, Triggerers
from tests.waiting import until, wheels_listening

from duewheel.store import Broker

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]

AT_ONCE = timedelta(0)
PATIENCE = timedelta(seconds=30)

#: Its triggers are in a module of their own beside it.
STRANGE = """
from strangers import Stranger
from airflow.sdk import DAG, Asset, AssetWatcher

strange = Asset("strange", watchers=[AssetWatcher(name="stranger", trigger=Stranger())])
dag = DAG("strange", schedule=[strange], is_paused_upon_creation=False)
"""
#: It never fires. Told to, it blocks the event loop of all triggers.
STRANGERS = """
import asyncio, os, time
from pathlib import Path
from airflow.triggers.base import BaseEventTrigger

class Stranger(BaseEventTrigger):
    def serialize(self):
        return "strangers.Stranger", {}

    async def run(self):
        place = Path(os.environ["STRANGERS_PLACE"])
        while True:
            await asyncio.sleep(0.1)
            if (place / "block").exists():
                (place / "block").unlink()
                (place / "blocking").touch()
                time.sleep(10)
                (place / "blocked").touch()
        yield
"""


#: The triggers of the DAG ``watching``.
WHEELS = "trigger where classpath like '%TimingWheelTrigger'"


def on_an_empty_airflow(place: Path, broker: Broker) -> Triggerers:
    """The broker has a topic and a group; Airflow knows no DAG yet."""
    broker.create_topic("t")
    broker.consumer("t", "g")
    modules = place / "modules"
    modules.mkdir()
    (modules / "strangers.py").write_text(STRANGERS)
    variables = {"PYTHONPATH": str(modules), "STRANGERS_PLACE": str(place)}
    return Triggerers(AirflowHome(place, broker.dsn, **variables), place)


class Running(NamedTuple):
    """A triggerer at work with the stranger and a watcher.

    Attributes:
        triggerers: its Airflow.
        process: itself.
        broker: what it watches.
        place: where the stranger is told to block.
    """

    triggerers: Triggerers
    process: subprocess.Popen[bytes]
    broker: Broker
    place: Path


@pytest.fixture(scope="module")
def running(
    fresh_database: Callable[[], tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """One triggerer for the tests that leave it at work and the topic empty."""
    place = tmp_path_factory.mktemp("running")
    with Broker(fresh_database()[1]) as broker:
        triggerers = on_an_empty_airflow(place, broker)
        triggerers.add("strange", STRANGE, reads=False)
        triggerers.add("watching", WATCHING)
        with triggerers.start() as process:
            triggerers.until(process, lambda: wheels_listening(broker.dsn) == 1, "the wheel")
            yield Running(triggerers, process, broker, place)


def take(broker: Broker, body: bytes) -> None:
    """The message comes, and is acked."""
    consumer = broker.consumer("t", "g")
    batch = consumer.receive(wait=PATIENCE)
    assert [message.body for message in batch] == [body]
    consumer.ack(batch)


def test_x14_a_watcher_without_a_triggerer_only_delays_messages(broker: Broker, tmp_path: Path) -> None:
    triggerers = on_an_empty_airflow(tmp_path, broker)
    triggerers.add("strange", STRANGE)
    with triggerers.start(AIRFLOW__TRIGGERER__CAPACITY="1") as full:
        triggerers.until(
            full,
            lambda: triggerers.ask("select 1 from trigger where triggerer_id is not null") == [(1,)],
            "the stranger to have the only place",
        )
        triggerers.add("watching", WATCHING)
        said = triggerers.log().count("has reached the maximum capacity")
        triggerers.until(
            full,
            lambda: triggerers.log().count("has reached the maximum capacity") > said + 1,
            "the triggerer to say that it has no room",
        )
        assert triggerers.triggerer() is None
        # No wheel turns: a consumer releases what is due.
        broker.send("t", b"late", delay=AT_ONCE)
        take(broker, b"late")
        assert not wheels_listening(broker.dsn)
        broker.send("t", b"waits", delay=AT_ONCE)
        with triggerers.start(AIRFLOW__TRIGGERER__CAPACITY="1") as second:
            triggerers.until_ring(second)
            take(broker, b"waits")
        assert full.poll() is None


def test_x14_a_deleted_watcher_returns_with_the_next_parse(
    running: Running,
) -> None:
    triggerers, process, broker, _ = running
    broker.send("t", b"1", delay=AT_ONCE)
    triggerers.until_ring(process)
    triggerers.ask(f"delete from asset_watcher where trigger_id in (select id from {WHEELS})")
    triggerers.ask(f"delete from {WHEELS}")
    until(lambda: not wheels_listening(broker.dsn), "the wheel to have ended", pause_seconds=0.1)
    # What came meanwhile is late, and not lost.
    broker.send("t", b"2", delay=AT_ONCE)
    rings = triggerers.rings()
    triggerers.airflow("dags", "reserialize")
    triggerers.until(process, lambda: triggerers.rings() > rings, "a ring of the new watcher")
    consumer = broker.consumer("t", "g")
    came = list(consumer.receive(wait=PATIENCE))
    assert sorted(message.body for message in came) == [b"1", b"2"]
    consumer.ack(came)


def test_x14_a_dag_parsed_again_has_one_watcher(
    running: Running,
) -> None:
    triggerers, process, broker, _ = running
    rows = triggerers.ask(f"select id from {WHEELS}")
    triggerers.airflow("dags", "reserialize")
    assert triggerers.ask(f"select id from {WHEELS}") == rows
    triggerers.airflow("dags", "pause", "--yes", "watching")
    triggerers.airflow("dags", "reserialize")
    until(lambda: not wheels_listening(broker.dsn), "the wheel to have ended", pause_seconds=0.1)
    broker.send("t", b"paused", delay=AT_ONCE)
    rings = triggerers.rings()
    triggerers.airflow("dags", "unpause", "--yes", "watching")
    triggerers.airflow("dags", "reserialize")
    triggerers.until(process, lambda: triggerers.rings() > rings, "a ring for what came meanwhile")
    assert len(triggerers.ask(f"select id from {WHEELS}")) == 1
    take(broker, b"paused")


def test_x14_a_trigger_that_blocks_the_loop_only_delays(
    running: Running,
) -> None:
    triggerers, process, broker, place = running
    broker.send("t", b"before", delay=AT_ONCE)
    triggerers.until_ring(process)
    take(broker, b"before")
    (place / "block").touch()
    triggerers.until(process, (place / "blocking").exists, "the event loop to be blocked")
    broker.send("t", b"meanwhile", delay=timedelta(seconds=1))
    rings = triggerers.rings()
    triggerers.until(process, (place / "blocked").exists, "the event loop to go on")
    triggerers.until(process, lambda: triggerers.rings() > rings, "a ring for what came meanwhile")
    take(broker, b"meanwhile")
