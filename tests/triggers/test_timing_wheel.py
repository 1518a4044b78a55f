"""The wheel in the triggerer, on Airflow's shared streams and a real broker."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg2
import pytest
from airflow.exceptions import AirflowProviderDeprecationWarning
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import Asset, AssetWatcher
from airflow.serialization.encoders import encode_trigger
from airflow.triggers.base import BaseEventTrigger
from airflow.triggers.shared_stream import SharedStreamManager
from tests.airflow_runs import connection_json
from tests.conftest import execute
from tests.logged import logged
from tests.logins import login
from tests.outages import outage
from tests.triggers.conftest import Triggerer
from tests.waiting import ask, connected, until_on_loop

from duewheel.store import Broker
from duewheel.store.values.errors import DueWheelError, InvalidArgument
from duewheel.triggers import polling, wheel_stream
from duewheel.triggers.doorbell import DoorbellTrigger
from duewheel.triggers.due_messages import DueMessagesTrigger
from duewheel.triggers.timing_wheel import TimingWheelTrigger

if TYPE_CHECKING:
    from collections.abc import Callable

    from duewheel.store import EmbeddedPostgres

SOON = timedelta(milliseconds=100)
LOG = "duewheel.triggers.wheel_stream"


def connections(postgres: EmbeddedPostgres, dsn: str, application_name: str = "%") -> int:
    """How many connections of such a name the database has."""
    query = "select count(*) from pg_stat_activity where datname = %s and application_name like %s"
    ((count,),) = execute(
        postgres.dsn(), query, psycopg2.extensions.parse_dsn(dsn)["dbname"], application_name
    )
    return int(count)


async def test_d16_a_due_message_rings_the_bell_of_its_group(broker: Broker, airflow: Triggerer) -> None:
    broker.create_topic("orders")
    events = airflow.run(TimingWheelTrigger("orders", "canceller"))
    receipt = broker.send("orders", b"x", delay=SOON)
    event = await events.get()
    assert event.payload == {
        "topic": "orders",
        "group": "canceller",
        "ready": 1,
        "oldest_deliver_at": receipt.deliver_at.isoformat(),
    }
    assert json.loads(json.dumps(event.payload)) == event.payload


async def test_w02_many_triggers_share_one_wheel(
    broker: Broker, airflow: Triggerer, postgres: EmbeddedPostgres
) -> None:
    for number in range(5):
        broker.create_topic(f"t{number}")
    queues = [airflow.run(TimingWheelTrigger(f"t{number}", "g")) for number in range(5)]
    queues.append(airflow.run(DueMessagesTrigger("t0", "other")))
    for number in range(5):
        broker.send(f"t{number}", b"x", delay=SOON)
    for number, events in enumerate(queues):
        assert (await events.get()).payload["topic"] == f"t{number % 5}"
    assert len(airflow.streams._groups) == 1
    # The wheel goes to work without waiting until it listens.
    await until_on_loop(
        lambda: connections(postgres, broker.dsn, "duewheel wheel listening") == 1,
        "it to listen",
    )


async def test_it_rings_once_for_the_rest_while_messages_are_consumed(
    broker: Broker, airflow: Triggerer
) -> None:
    broker.create_topic("orders", message_type="NORMAL", queues=1)
    consumer = broker.consumer("orders", "g")
    for _ in range(3):
        broker.send("orders", b"x")
    events = airflow.run(TimingWheelTrigger("orders", "g", ring_again=3600))
    assert (await events.get()).payload["ready"] == 3
    batch = consumer.receive(max_messages=2)
    assert (await events.get()).payload["ready"] == 1
    await airflow.looks(3)
    assert events.empty()
    other = broker.consumer("orders", "g", name="another run").receive(max_messages=1)
    consumer.ack(batch)
    consumer.ack(other)
    await airflow.looks(3)
    assert events.empty()


async def test_a_ring_without_an_answer_is_repeated(broker: Broker, airflow: Triggerer) -> None:
    broker.create_topic("orders")
    broker.send("orders", b"x", delay=SOON)
    events = airflow.run(TimingWheelTrigger("orders", "g", ring_again=timedelta(milliseconds=10)))
    first, second, third = [await events.get() for _ in range(3)]
    assert first.payload == second.payload == third.payload


async def test_x14_a_watcher_rings_after_its_queue_overflowed(broker: Broker, airflow: Triggerer) -> None:
    """Airflow ends a subscriber that is so slow, and starts it again, as its row is still there."""

    broker.create_topic("orders")
    broker.create_topic("others")
    airflow.streams = SharedStreamManager(max_subscriber_queue=2)
    other = airflow.run(TimingWheelTrigger("others", "g"))
    trigger = TimingWheelTrigger("orders", "canceller")
    key = trigger.shared_stream_key()
    stream = airflow.streams.subscribe(trigger_id=-1, trigger=trigger, key=key)
    events = trigger.filter_shared_stream(stream)
    broker.send("orders", b"x", delay=SOON)
    await anext(events)
    # Nobody takes the next one, and the looks go on.
    await airflow.looks(3)
    with pytest.raises(Exception, match="exceeded maxsize=2"):
        await anext(events)
    await airflow.streams.unsubscribe(-1, key)
    again = airflow.run(TimingWheelTrigger("orders", "canceller"))
    assert (await again.get()).payload["ready"] == 1
    broker.send("others", b"x", delay=SOON)
    assert (await other.get()).payload["topic"] == "others"


async def test_it_rings_for_few_messages_after_their_longest_wait(broker: Broker, airflow: Triggerer) -> None:
    broker.create_topic("orders")
    many = airflow.run(TimingWheelTrigger("orders", "many", min_messages=3))
    patient = airflow.run(TimingWheelTrigger("orders", "patient", min_messages=3, max_wait=0.2))
    sent = broker.send("orders", b"x", delay=SOON)
    event = await patient.get()
    assert event.payload["ready"] == 1
    assert datetime.fromisoformat(event.payload["oldest_deliver_at"]) == sent.deliver_at
    assert many.empty()
    for _ in range(2):
        broker.send("orders", b"x", delay=SOON)
    assert (await many.get()).payload["ready"] == 3


async def test_x14_an_outage_of_the_database_only_makes_it_late(
    broker: Broker, airflow: Triggerer, postgres: EmbeddedPostgres
) -> None:
    broker.create_topic("orders")
    events = airflow.run(TimingWheelTrigger("orders", "g"))
    await airflow.looks(1)
    broker.send("orders", b"x", delay=SOON)
    with logged(LOG, "stopped: ") as stopped, outage(postgres, broker.dsn):
        await asyncio.to_thread(stopped.wait)
    assert (await events.get()).payload["ready"] == 1


async def test_x18_a_locked_new_group_silences_no_other(broker: Broker, airflow: Triggerer) -> None:
    broker.create_topic("orders")
    broker.create_topic("others")
    with connected(broker.dsn, autocommit=False) as open_, logged(polling.__name__, "No doorbell") as said:
        ask(open_, "select from duewheel.receive('orders', 'new')")
        kept = airflow.run(TimingWheelTrigger("orders", "new"))
        events = airflow.run(TimingWheelTrigger("others", "g", ring_again=0.01))
        await asyncio.to_thread(said.wait)
        broker.send("others", b"x", delay=SOON)
        for _ in range(3):
            assert (await events.get()).payload["topic"] == "others"
        assert kept.empty()
    broker.send("orders", b"x", delay=SOON)
    assert (await kept.get()).payload["topic"] == "orders"


async def test_the_wheel_moves_with_its_connection(
    broker: Broker,
    airflow: Triggerer,
    fresh_database: Callable[[], tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wheel_stream, "READ_AGAIN_SECONDS", 0.05)
    with Broker(fresh_database()[1]) as other:
        for each in (broker, other):
            each.create_topic("orders")
        events = airflow.run(TimingWheelTrigger("orders", "canceller"))
        broker.send("orders", b"x", delay=SOON)
        await events.get()
        with logged(LOG, "can no longer be read; its wheel keeps the address read before") as warned:
            monkeypatch.delenv("AIRFLOW_CONN_DUEWHEEL_DEFAULT")
            await asyncio.to_thread(warned.wait)
        monkeypatch.setenv("AIRFLOW_CONN_DUEWHEEL_DEFAULT", connection_json(other.dsn))
        receipt = other.send("orders", b"x", delay=SOON)
        while (await events.get()).payload["oldest_deliver_at"] != receipt.deliver_at.isoformat():
            pass


async def test_two_triggerers_do_each_others_work_without_harm(broker: Broker, airflow: Triggerer) -> None:
    broker.create_topic("orders")
    other = Triggerer()
    try:
        first = airflow.run(TimingWheelTrigger("orders", "a"))
        second = other.run(TimingWheelTrigger("orders", "b"))
        broker.send("orders", b"x", delay=SOON)
        assert (await first.get()).payload["ready"] == 1
        assert (await second.get()).payload["ready"] == 1
        await airflow.looks(2)
        await other.looks(2)
        assert first.empty()
        assert second.empty()
    finally:
        await other.stop()


async def test_without_listen_it_rings_as_well(
    broker: Broker, airflow: Triggerer, postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("orders")
    monkeypatch.setenv("AIRFLOW_CONN_DUEWHEEL_DEFAULT", connection_json(broker.dsn, listen=False))
    events = airflow.run(TimingWheelTrigger("orders", "g"))
    broker.send("orders", b"x", delay=SOON)
    await events.get()
    assert connections(postgres, broker.dsn, "duewheel wheel listening") == 0


async def test_x19_a_consumers_login_rings_without_a_wheel(
    broker: Broker, airflow: Triggerer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("orders")
    dsn = login(broker.dsn, "duewheel_consumer")
    user = psycopg2.extensions.parse_dsn(dsn)["user"]
    monkeypatch.setenv("AIRFLOW_CONN_DUEWHEEL_DEFAULT", connection_json(dsn))
    monkeypatch.setattr(wheel_stream, "ASK_FOR_THE_RIGHT_SECONDS", 0.05)
    with logged(LOG, "may not turn the wheel") as said, logged(LOG, "may turn the wheel now") as turning:
        events = airflow.run(TimingWheelTrigger("orders", "g"))
        await airflow.looks(2)
        broker.send("orders", b"x", delay=SOON)
        assert (await events.get()).payload["ready"] == 1
        said.wait()
        execute(broker.dsn, f"grant duewheel_admin to {user}")
        try:
            await asyncio.to_thread(turning.wait)
        finally:
            execute(broker.dsn, f"revoke duewheel_admin from {user}")


async def test_a_trigger_alone_runs_a_wheel_of_its_own(broker: Broker, airflow: Triggerer) -> None:
    broker.create_topic("orders")
    for _ in range(2):
        broker.send("orders", b"x", delay=SOON)
    events = TimingWheelTrigger("orders", "g", min_messages=2).run()
    assert (await anext(events)).payload["ready"] == 2
    await events.aclose()
    # That of a deferred task fires once and ends.
    once = [event async for event in DueMessagesTrigger("orders", "g", min_messages=2).run()]
    assert [event.payload["ready"] for event in once] == [2]


async def test_when_the_last_trigger_leaves_nothing_is_left_behind(
    dsn: str, airflow: Triggerer, postgres: EmbeddedPostgres
) -> None:
    with Broker(dsn) as broker:
        broker.create_topic("orders")
    airflow.run(TimingWheelTrigger("orders", "g"))
    await airflow.looks(2)
    await until_on_loop(lambda: connections(postgres, dsn, "duewheel wheel%") > 1, "the wheel to turn")
    await airflow.stop()
    # The server takes a moment to notice that a connection was closed.
    await until_on_loop(lambda: not connections(postgres, dsn), "the connections to end")


def test_stored_arguments_are_numbers_and_text() -> None:
    trigger = TimingWheelTrigger(
        "orders", "g", ring_again=timedelta(minutes=2), min_messages=5, max_wait=timedelta(seconds=1.5)
    )
    path, arguments = trigger.serialize()
    assert path == "duewheel.triggers.timing_wheel.TimingWheelTrigger"
    assert arguments == {
        "topic": "orders",
        "group": "g",
        "duewheel_conn_id": "duewheel_default",
        "ring_again": 120.0,
        "min_messages": 5,
        "max_wait": 1.5,
        "tags": None,
        "filter": None,
        "start": "earliest",
    }
    assert TimingWheelTrigger(**json.loads(json.dumps(arguments))).serialize() == (path, arguments)
    spans = TimingWheelTrigger("orders", "g", ring_again="PT1M", max_wait="0:00:30")
    assert (spans.ring_again, spans.max_wait) == (60.0, 30.0)


@pytest.mark.parametrize(
    "start", [datetime(2030, 1, 5, tzinfo=UTC), "2030-01-05T01:00:00+01:00", 1_893_801_600_000]
)
def test_an_instant_from_which_a_group_begins_is_stored_as_text(start: Any) -> None:
    arguments = TimingWheelTrigger("orders", "g", start=start).serialize()[1]
    assert arguments["start"] == "2030-01-05T00:00:00+00:00"
    assert TimingWheelTrigger(**arguments).serialize()[1] == arguments


@pytest.mark.parametrize(("start", "had"), [("earliest", 3), ("latest", 1), ("an hour ago", 2)])
@pytest.mark.parametrize("kind", [TimingWheelTrigger, DueMessagesTrigger])
async def test_the_group_that_it_makes_begins_where_it_is_told_to(
    broker: Broker, airflow: Triggerer, kind: type[DoorbellTrigger], start: str, had: int
) -> None:
    hour = timedelta(hours=1)
    broker.create_topic("orders")
    began = datetime.now(UTC) - 2 * hour
    with Broker(broker.dsn, clock=lambda: began) as before:
        before.send("orders", b"two hours ago", delay_level=0)
        before.send("orders", b"half an hour ago", delay=1.5 * hour)
    broker.tick("orders")
    given = kind("orders", "g", min_messages=had, start=began + hour if start == "an hour ago" else start)
    # As Airflow stores it.
    events = airflow.run(kind(**given.serialize()[1]))
    await until_on_loop(lambda: broker.groups(), "the group to be made")
    broker.send("orders", b"now", delay_level=0)
    assert (await events.get()).payload["ready"] == had


def test_two_dags_that_watch_the_same_have_one_trigger() -> None:
    one = encode_trigger(TimingWheelTrigger("orders", "g", ring_again=60))
    other = encode_trigger(TimingWheelTrigger("orders", "g", ring_again=timedelta(minutes=1)))
    assert BaseEventTrigger.hash(**one) == BaseEventTrigger.hash(**other)


def test_message_queue_trigger_and_asset_watcher_reach_it() -> None:
    trigger = MessageQueueTrigger(scheme="duewheel", topic="orders", group="g", min_messages=7)
    assert trigger.serialize() == TimingWheelTrigger("orders", "g", min_messages=7).serialize()
    asset = Asset("unpaid", watchers=[AssetWatcher(name="timeouts", trigger=trigger)])
    assert asset.watchers[0].trigger is trigger


def test_the_common_message_queue_trigger_takes_an_address() -> None:
    with pytest.warns(AirflowProviderDeprecationWarning):
        trigger = MessageQueueTrigger(
            queue="duewheel://shop/orders?group=g&min_messages=7&filter=%24.a%3E5%26%26%24.b%3E1",
            max_wait="PT1M",
        )
    same = TimingWheelTrigger(
        "orders",
        "g",
        duewheel_conn_id="shop",
        min_messages=7,
        filter="$.a>5&&$.b>1",
        max_wait="PT1M",
    )
    assert trigger.serialize() == same.serialize()


async def test_d12_it_rings_only_for_the_messages_it_was_told_of(broker: Broker, airflow: Triggerer) -> None:
    broker.create_topic("orders")
    paid = airflow.run(TimingWheelTrigger("orders", "g", tags="paid"))
    dear = airflow.run(TimingWheelTrigger("orders", "h", filter="$.amount > 100"))
    broker.send("orders", b"x", delay=SOON, tag="open")
    broker.send("orders", b"x", delay=SOON, tag="open", properties={"amount": 200})
    assert (await dear.get()).payload["ready"] == 1
    await airflow.looks(2)
    assert paid.empty()
    broker.send("orders", b"x", delay=SOON, tag="paid")
    assert (await paid.get()).payload["ready"] == 1


async def test_r02_a_broadcasting_group_silences_no_other(broker: Broker, airflow: Triggerer) -> None:
    broker.create_topic("orders")
    broker.consumer("orders", "everyone", mode="broadcasting", name="one")
    refused = airflow.run(TimingWheelTrigger("orders", "everyone"))
    sensor = airflow.start(DueMessagesTrigger("orders", "everyone"))
    events = airflow.run(TimingWheelTrigger("orders", "g"))
    broker.send("orders", b"x", delay=SOON)
    assert (await events.get()).payload["ready"] == 1
    assert refused.empty()
    with pytest.raises(InvalidArgument, match="everyone"):
        await sensor


async def test_the_log_names_the_task_that_watches_a_refused_group(
    broker: Broker, airflow: Triggerer
) -> None:
    trigger = DueMessagesTrigger("orders", "everyone")
    trigger.task_instance = SimpleNamespace(dag_id="cancel", task_id="wait", run_id="manual__1")  # type: ignore[assignment]
    trigger.trigger_id = 7
    broker.create_topic("orders")
    broker.consumer("orders", "everyone", mode="broadcasting", name="one")
    watcher = "task wait of DAG cancel in run manual__1, trigger 7"
    with logged(polling.__name__, f"group everyone on topic orders, watched by {watcher}: ") as said:
        with pytest.raises(InvalidArgument, match="everyone"):
            await airflow.start(trigger)
        said.wait()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"group": "my group"}, '"my group" is not a group name'),
        ({"topic": "my topic"}, '"my topic" is not a topic name'),
        ({"topic": None}, "topic is missing"),
        ({"tags": "a b"}, "'a b' is not a tag expression"),
        ({"filter": "amount > 5"}, "the filter 'amount > 5' names no property"),
        ({"ring_again": -1}, "ring_again must be more than 0; got -1"),
        ({"ring_again": "60"}, "ring_again '60' is not a span of time"),
        ({"max_wait": "soon"}, "max_wait 'soon' is not a span of time"),
        ({"min_messages": 0}, "min_messages must be 1 to 10000; got 0"),
        ({"min_messages": 10_001}, "min_messages must be 1 to 10000; got 10001"),
        ({"start": "lately"}, 'start must be "earliest", "latest" or an instant; got "lately"'),
        ({"start": ""}, 'start must be "earliest", "latest" or an instant; got ""'),
        ({"start": datetime(2030, 1, 5)}, "has no time zone"),  # noqa: DTZ001 -- that is the mistake
    ],
)
def test_a_mistake_is_refused_when_the_dag_is_read(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(DueWheelError, match=re.escape(said)):
        TimingWheelTrigger(**{"topic": "orders", "group": "g", **arguments})


@pytest.mark.parametrize(
    ("queue", "said"),
    [
        ("duewheel://shop?group=g", "queue lacks its topic;"),
        ("duewheel:///orders?group=g", "queue lacks its connection;"),
        ("duewheel://shop/orders", "queue lacks its group;"),
        ("duewheel://shop/orders?group=g&tags=", "queue has no value for its argument tags;"),
        ("duewheel://shop/orders?group=g&group=h", "queue has its argument group twice;"),
        ("duewheel://shop/orders?group=g&max_wait=PT5M", "queue has its argument max_wait twice;"),
        ("duewheel://shop/orders?group=g&grup=h", "queue has an argument that is unknown;"),
        ("duewheel://shop/orders?group=g&hunter2=h", "queue has an argument that is unknown;"),
        ("duewheel://shop/orders?group=", ""),
        ("duewheel://shop/orders?group=g&tags=a#b", ""),
        ("duewheel://shop/orders?group=g#", ""),
        ("duewheel://[shop/orders?group=g", ""),
        ("duewheel://app:hunter2@db/orders?group=g", ""),
        ("duewheel://app:hunter2@d\N{SCRIPT SMALL L}\N{ACCOUNT OF}/orders?group=g", ""),
        ("duewheel://db:5432/orders?group=g", ""),
        ("duewheel://app:hunter2@db/orders", ""),
    ],
)
def test_a_mistaken_address_is_refused(queue: str, said: str) -> None:
    with pytest.warns(AirflowProviderDeprecationWarning):
        trigger = MessageQueueTrigger(queue=queue, max_wait="PT1M")
    with pytest.raises(InvalidArgument, match=r"CONNECTION/TOPIC\?group=GROUP") as refused:
        trigger.serialize()
    assert said in str(refused.value)
    assert "hunter2" not in str(refused.value)
