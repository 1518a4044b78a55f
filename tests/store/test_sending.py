"""Sending one message and many: what comes of it, in whose transaction, and what is refused."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg2
import psycopg2.extras
import pytest
from sqlalchemy import NullPool, create_engine
from tests.acting import AT_ONCE, HOUR, MICROSECOND, MILLISECOND, SECOND, rows
from tests.clock import NOW
from tests.waiting import ask, connected

from duewheel.store.broker import Broker
from duewheel.store.values.errors import (
    BodyTooLarge,
    DelayOutOfRange,
    DueWheelError,
    InvalidArgument,
    InvalidDelayLevel,
    InvalidInstant,
    InvalidKey,
    InvalidTag,
    NulInText,
    PropertiesTooLarge,
    UnknownTopic,
    WrongMessageType,
)
from duewheel.store.values.messages import NewMessage, OnConflict, SendOutcome, SendReceipt

#: Sends one message, by whichever way: topic and the parameters of send.
Way = Callable[..., SendReceipt]


WAYS = ["send", "mapping", "NewMessage", "one by one"]
NUMBERS = itertools.count()


def make_topics(broker: Broker) -> None:
    """A topic of each sort."""
    broker.create_topic("delay")
    broker.create_topic("lenient", out_of_range="deliver")
    broker.create_topic("normal", message_type="NORMAL")


def sends(broker: Broker, way: str) -> Way:
    """One way to send a message; all must agree."""

    def send(topic: str, body: object = b"body", **given: Any) -> SendReceipt:
        if way == "send":
            return broker.send(topic, body, **given)
        if way == "mapping":
            (receipt,) = broker.send_many(topic, [{"body": body, **given}])
        elif way == "NewMessage":
            (receipt,) = broker.send_many(topic, [NewMessage(body, **given)])
        else:
            key = f"{next(NUMBERS)}"
            (receipt,) = broker.send_many(topic, [{"body": body, "idempotency_key": key, **given}])
        return receipt

    return send


@pytest.fixture
def topics(timed_broker: Broker) -> Broker:
    """A broker whose clock stands at NOW, with a topic of each sort."""
    make_topics(timed_broker)
    return timed_broker


@pytest.fixture(scope="module")
def refusing(fresh_database: Callable[[], tuple[str, str]]) -> Iterator[Broker]:
    """The same for tests that write nothing, and therefore share it."""
    _, dsn = fresh_database()
    with Broker(dsn, clock=lambda: NOW) as broker:
        make_topics(broker)
        yield broker


def count(broker: Broker) -> int:
    """How many messages there are."""
    ((number,),) = rows(broker, "select count(*) from duewheel.any_message")
    return int(number)


# --- what is sent


INSTANTS: list[tuple[str, dict[str, Any], timedelta]] = [
    ("delay", {"deliver_at": NOW + HOUR}, HOUR),
    ("delay", {"deliver_at": 1767609000000}, HOUR),
    ("delay", {"delay": MICROSECOND}, MICROSECOND),
    *(("delay", past, AT_ONCE) for past in ({"deliver_at": NOW - HOUR}, {"deliver_at": 10**11})),
    *(("delay", {"delay": past}, AT_ONCE) for past in (-HOUR, timedelta.min, AT_ONCE)),
    *(("lenient", beyond, AT_ONCE) for beyond in ({"delay": timedelta.max}, {"deliver_at": NOW + 25 * HOUR})),
    *(
        ("delay", {"delay_level": level}, seconds * SECOND)
        for level, seconds in ((0, 0), (1, 1), (2, 5), (9, 300), (18, 7200), (19, 7200), (2**40, 7200))
    ),
    ("normal", {}, AT_ONCE),
    ("normal", {"delay_level": 0}, AT_ONCE),
]


@pytest.mark.parametrize("way", WAYS)
def test_d01_d02_d03_d04_l01_d13_all_ways_to_send_agree(topics: Broker, way: str) -> None:
    send = sends(topics, way)
    extras = {"key": "k", "tag": "t", "properties": {"a": [1, "ü"]}, "message_group": "g"}
    receipt = send("delay", b"\0\xff", delay=HOUR, **extras)
    found = topics.find(receipt.message_id)
    assert found is not None
    assert receipt.outcome is SendOutcome.SENT
    assert receipt.deliver_at == found.deliver_at == NOW + HOUR
    assert (found.topic, found.body, found.key, found.tag) == ("delay", b"\0\xff", "k", "t")
    assert (found.properties, found.message_group) == ({"a": [1, "ü"]}, "g")
    assert (found.born_at, found.asked_at, found.recalled, found.released) == (NOW, None, False, False)
    for topic, given, delay in INSTANTS:
        receipt = send(topic, **given)
        assert (receipt.outcome, receipt.deliver_at) == (SendOutcome.SENT, NOW + delay), given
        found = topics.find(receipt.message_id)
        assert found is not None
        assert found.asked_at is None or found.asked_at < NOW or topic == "lenient"


def test_x04_x07_conflicts_of_keys_are_those_of_one_and_of_many(topics: Broker) -> None:
    first = topics.send("delay", b"1", delay=HOUR, idempotency_key="a")
    duplicate = SendReceipt(first.message_id, first.deliver_at, SendOutcome.DUPLICATE)
    assert topics.send("delay", b"2", delay=2 * HOUR, idempotency_key="a") == duplicate
    assert topics.send_many("delay", [NewMessage(b"3", delay=HOUR, idempotency_key="a")])[0] == duplicate
    assert count(topics) == 1
    first = topics.send("delay", b"1", delay=HOUR, key="k")
    kept = topics.send("delay", b"2", delay=HOUR, key="k", on_conflict="keep")
    assert (kept.message_id, kept.outcome) == (first.message_id, SendOutcome.KEPT)
    replaced = topics.send("delay", b"3", delay=HOUR, key="k", on_conflict=OnConflict.REPLACE)
    again = [{"body": b"4", "delay": HOUR, "key": "k", "on_conflict": "REPLACE"}]
    assert [replaced.outcome, topics.send_many("delay", again)[0].outcome] == [SendOutcome.REPLACED] * 2
    found = {one.body: one.recalled for one in topics.find_key("delay", "k")}
    assert found == {b"1": True, b"3": True, b"4": False}


def test_messages_spread_over_queues_and_message_groups_do_not(topics: Broker) -> None:
    def queues(receipts: Iterable[SendReceipt]) -> list[str]:
        return [receipt.message_id[8:12] for receipt in receipts]

    spread = topics.send_many("delay", [{"body": b"", "delay": HOUR}] * 8)
    assert sorted(queues(spread)) == sorted(["0000", "0001", "0002", "0003"] * 2)
    grouped = [{"body": b"", "delay": HOUR, "message_group": f"g{n % 7}"} for n in range(70)]
    many = topics.send_many("delay", grouped)
    for n in range(7):
        alone = topics.send("delay", b"", delay=HOUR, message_group=f"g{n}")
        assert set(queues(many[n::7])) == set(queues([alone]))


# --- what is refused


def nested(depth: int) -> Any:
    """Lists in each other, and a number in the innermost."""
    return [nested(depth - 1)] if depth else 1


TOO_LONG = "x" * 256
BAD: list[tuple[type[DueWheelError], str, str, dict[str, Any]]] = [
    (UnknownTopic, 'there is no topic "none"', "none", {"delay": HOUR}),
    (UnknownTopic, "no topic", "%RETRY%x", {"delay": HOUR}),
    (WrongMessageType, "of type DELAY and the message has no delivery time", "delay", {}),
    (WrongMessageType, "of type NORMAL and the message has a delivery time", "normal", {"delay": HOUR}),
    (DelayOutOfRange, "the limit of topic", "delay", {"delay": 24 * HOUR + MICROSECOND}),
    (DelayOutOfRange, "the limit of topic", "delay", {"deliver_at": datetime.max.replace(tzinfo=UTC)}),
    (InvalidInstant, "no time zone", "delay", {"deliver_at": datetime(2026, 1, 5, 10)}),  # noqa: DTZ001
    (InvalidInstant, "not an instant", "delay", {"deliver_at": "soon"}),
    (InvalidInstant, "years 1 to 9999", "delay", {"deliver_at": 10**18}),
    (InvalidArgument, "give a timedelta", "delay", {"delay": 60}),
    (InvalidArgument, "more than one of", "delay", {"delay": HOUR, "deliver_at": NOW}),
    (InvalidDelayLevel, "must be 0", "delay", {"delay_level": -1}),
    (InvalidArgument, "delay_level is a float", "delay", {"delay_level": 1.0}),
    (InvalidArgument, "delay_level is a bool", "delay", {"delay_level": True}),
    (BodyTooLarge, "4194304", "delay", {"delay": HOUR, "body": bytes(4 * 1024 * 1024 + 1)}),
    (InvalidArgument, "written as JSON", "delay", {"delay": HOUR, "body": object()}),
    (PropertiesTooLarge, "16384", "delay", {"delay": HOUR, "properties": {"a": "x" * 16384}}),
    # Python writes 1e300 in 5 characters; Postgres writes it in 301.
    (PropertiesTooLarge, "16384", "delay", {"delay": HOUR, "properties": {"a": [1e300] * 1000}}),
    (InvalidArgument, "100 deep", "delay", {"delay": HOUR, "properties": {"a": nested(100)}}),
    (InvalidArgument, "beyond 1e308", "delay", {"delay": HOUR, "properties": {"a": [{"b": -(10**309)}]}}),
    (InvalidArgument, "mapping of names", "delay", {"delay": HOUR, "properties": [1]}),
    (InvalidKey, "1 to 255", "delay", {"delay": HOUR, "key": ""}),
    (InvalidKey, "must have 1 to 255 characters; got 256", "delay", {"delay": HOUR, "key": TOO_LONG}),
    (InvalidArgument, "key is an int", "delay", {"delay": HOUR, "key": 17}),
    (InvalidTag, "is not a tag", "delay", {"delay": HOUR, "tag": "a b"}),
    (InvalidTag, "is not a tag", "delay", {"delay": HOUR, "tag": ""}),
    (InvalidTag, "is not a tag", "delay", {"delay": HOUR, "tag": "x" * 128}),
    (InvalidArgument, "message group", "delay", {"delay": HOUR, "message_group": ""}),
    (InvalidArgument, "message group", "delay", {"delay": HOUR, "message_group": TOO_LONG}),
    (NulInText, "key", "delay", {"delay": HOUR, "key": "a\0"}),
    (NulInText, "tag", "delay", {"delay": HOUR, "tag": "a\0"}),
    (NulInText, "message_group", "delay", {"delay": HOUR, "message_group": "a\0"}),
    (NulInText, "properties", "delay", {"delay": HOUR, "properties": {"a": "\0"}}),
    (NulInText, "topic", "de\0lay", {"delay": HOUR}),
    (NulInText, "idempotency_key", "delay", {"delay": HOUR, "idempotency_key": "\0"}),
    (InvalidKey, "1 to 512", "delay", {"delay": HOUR, "idempotency_key": ""}),
    (InvalidKey, "1 to 512", "delay", {"delay": HOUR, "idempotency_key": "x" * 513}),
    (InvalidKey, "no key", "delay", {"delay": HOUR, "on_conflict": "keep"}),
    (
        InvalidArgument,
        "'allow', 'keep', 'replace'",
        "delay",
        {"delay": HOUR, "key": "k", "on_conflict": "ignore"},
    ),
]


def test_bad_input_is_refused_by_name_and_nothing_is_written(refusing: Broker) -> None:
    for error, says, topic, given in BAD:
        for way in WAYS:
            with pytest.raises(DueWheelError) as caught:
                sends(refusing, way)(topic, **given)
            assert type(caught.value) is error, says
            assert says in str(caught.value)
        good = {"body": b"", **({} if topic == "normal" else {"delay": HOUR})}
        with pytest.raises(error) as caught:
            refusing.send_many(topic, [good, {"body": b"", **given}, good])
        assert caught.value.index == (None if "topic" in says and error in (UnknownTopic, NulInText) else 1)
        assert count(refusing) == 0
    wrong: list[tuple[Any, str]] = [
        ({"delay": HOUR}, "give body"),
        ({"body": b"", "delya": HOUR}, "'delya'"),
        (b"body", "is a bytes"),
        (None, "is None"),
    ]
    for message, says in wrong:
        with pytest.raises(InvalidArgument, match=says) as refused:
            refusing.send_many("delay", [{"body": b"", "delay": HOUR}, message])
        assert refused.value.index == 1
        assert count(refusing) == 0


def test_properties_up_to_their_limits_come_as_they_were_sent(topics: Broker) -> None:
    for properties in ({"a": nested(99)}, {"a": [10**308] * 9}, {"a": "1" * 400}):
        message = {"body": b"", "delay": HOUR, "properties": properties}
        for receipt in (topics.send("delay", **message), *topics.send_many("delay", [message])):
            found = topics.find(receipt.message_id)
            assert found is not None
            assert found.properties == properties


def test_an_instant_that_python_cannot_read_is_delivered_at_once(topics: Broker) -> None:
    sent = "select message_id, deliver_at from duewheel.send('delay', '', deliver_at => %s)"
    for instant in ("4000-01-01 BC", "0001-01-01 00:00+14", "-infinity"):
        ((message_id, deliver_at),) = rows(topics, sent, instant)
        found = topics.find(message_id)
        assert found is not None
        assert (found.deliver_at, found.asked_at) == (deliver_at, None)


# --- many


def test_receipts_come_in_the_order_given_with_the_ids_of_sql(topics: Broker) -> None:
    assert list(topics.send_many("delay", iter([]))) == []
    chance = random.Random(1)
    delays = [chance.randrange(80_000_000) * MILLISECOND for _ in range(500)]
    receipts = topics.send_many("delay", ({"body": str(n), "delay": delay} for n, delay in enumerate(delays)))
    assert len(receipts) == 500
    assert [receipt.deliver_at for receipt in receipts] == [NOW + delay for delay in delays]
    for n in (0, 17, 499, -1):
        found = topics.find(receipts[n].message_id)
        assert found is not None
        assert found.body == str(n % 500).encode()
    assert receipts[2:4] == [receipts[2], receipts[3]]
    with pytest.raises(IndexError):
        receipts[500]
    ids = (
        "select duewheel.message_id(topic_id, queue, deliver_at, seq) from duewheel.any_message order by seq"
    )
    assert [one for (one,) in rows(topics, ids)] == [receipt.message_id for receipt in receipts]


def test_more_than_one_block_of_numbers(topics: Broker) -> None:
    receipts = topics.send_many("delay", [{"body": b"", "delay": HOUR}] * 65_537)
    assert count(topics) == 65_537
    assert topics.find(receipts[65_536].message_id) is not None
    after = topics.send("delay", b"", delay=HOUR)
    assert int(after.message_id[-16:], 16) > int(receipts[-1].message_id[-16:], 16)


def test_text_that_would_need_escapes_in_other_forms(topics: Broker) -> None:
    awkward = "\\N\t\n\r\"'\\x41 {},;  é漢😀"
    (receipt,) = topics.send_many(
        "delay",
        [
            {
                "body": awkward,
                "delay": HOUR,
                "key": awkward,
                "properties": {awkward: awkward},
                "message_group": awkward,
            }
        ],
    )
    found = topics.find(receipt.message_id)
    assert found is not None
    assert (found.body, found.key, found.message_group) == (awkward.encode(), awkward, awkward)
    assert found.properties == {awkward: awkward, "content-type": "text/plain; charset=utf-8"}


@pytest.mark.owner
def test_a_slot_that_retention_dropped_is_made_again(topics: Broker) -> None:
    message = {"body": b"", "delay": HOUR}
    topics.maintain()
    topics.send_many("delay", [message])
    ((table,),) = rows(topics, "select (duewheel.slot_at(%s)).table_name", NOW + HOUR)
    rows(topics, f"drop table duewheel.{table}; delete from duewheel.slot where table_name = '{table}'")
    topics.send_many("delay", [message, message])
    assert count(topics) == 2
    topics.maintain()
    assert rows(topics, f"select count(*) from duewheel.{table}") == [(2,)]


# --- in the caller's transaction


@pytest.fixture
def caller(dsn: str) -> Iterator[psycopg2.extensions.connection]:
    """A connection of the caller, with habits of its own."""
    connection = psycopg2.connect(dsn, cursor_factory=psycopg2.extras.RealDictCursor)
    with closing(connection), connection.cursor() as cursor:
        cursor.execute("create table orders (number integer primary key)")
        connection.commit()
        yield connection


def place(broker: Broker, connection: Any, many: bool) -> None:
    if many:
        broker.send_many(
            "delay", [{"body": b"1", "delay": HOUR}, {"body": b"2", "delay": 3 * HOUR}], connection
        )
    else:
        broker.send("delay", b"1", delay=HOUR, connection=connection)
        broker.send("delay", b"2", delay=3 * HOUR, connection=connection)


def test_x06_sqlalchemy_commits_in_each_of_its_ways(topics: Broker) -> None:
    """What any connection does with the caller's transaction is tested in test_callers_connections.py."""
    engine = create_engine(
        "postgresql+psycopg2://", creator=lambda: psycopg2.connect(topics.dsn), poolclass=NullPool
    )
    with engine.begin() as connection:
        place(topics, connection, many=False)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        place(topics, connection, many=True)
    with closing(engine.raw_connection()) as connection:
        place(topics, connection, many=True)
        connection.commit()
    assert count(topics) == 6


def test_a_refusal_leaves_the_callers_connection_as_it_was(topics: Broker, caller: Any) -> None:
    with caller.cursor() as cursor:
        cursor.execute("insert into orders values (1)")
    with pytest.raises(InvalidInstant):
        topics.send("delay", b"", deliver_at="soon", connection=caller)  # type: ignore[arg-type]
    place(topics, caller, many=False)
    caller.commit()
    assert count(topics) == 2
    caller.autocommit = True
    with pytest.raises(InvalidDelayLevel):
        topics.send_many("delay", [{"body": b"", "delay": HOUR}, {"body": b"", "delay_level": -1}], caller)
    assert caller.info.transaction_status == psycopg2.extensions.TRANSACTION_STATUS_IDLE
    place(topics, caller, many=True)
    assert count(topics) == 4


def test_the_client_encoding_of_the_caller_is_kept(topics: Broker, caller: Any) -> None:
    caller.set_client_encoding("LATIN1")
    topics.send_many("delay", [{"body": "ü", "delay": HOUR, "key": "ü"}], caller)
    with pytest.raises(InvalidArgument, match="client_encoding UTF8"):
        topics.send_many("delay", [{"body": "漢", "delay": HOUR, "key": "漢"}], caller)
    caller.commit()
    (found,) = topics.find_key("delay", "ü")
    assert found.body == "ü".encode()


def test_a_wrong_connection_is_refused(refusing: Broker) -> None:
    for connection in ("postgresql://", object(), 7):
        with pytest.raises(InvalidArgument, match="give a connection of psycopg2 or psycopg 3"):
            refusing.send("delay", b"", delay=HOUR, connection=connection)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="give a connection of psycopg2 or psycopg 3"):
            refusing.send_many("delay", [{"body": b"", "delay": HOUR}], connection)  # type: ignore[arg-type]
    assert count(refusing) == 0


# --- telling the wheel


@pytest.mark.owner
def test_a_send_notifies_once_and_only_if_due_soon(broker: Broker) -> None:
    broker.create_topic("t")

    def heard(*delays: timedelta) -> list[str]:
        """What is notified to the wheel by messages of these delays."""
        with connected(broker.dsn) as listener:
            ask(listener, "listen duewheel_due")
            broker.send_many("t", [{"body": b"", "delay": delay} for delay in delays])
            # A round trip after the commit: its notification is there before the answer.
            ask(listener, "select 1")
            return [notify.payload for notify in listener.notifies]

    soon = 50 * MILLISECOND
    assert heard(*[HOUR] * 5) == []
    (said,) = heard(HOUR, 2 * soon, soon, 3 * soon)
    first = "select topic_id, duewheel.unix_micros(min(deliver_at)) from duewheel.any_message group by 1"
    assert rows(broker, first) == [tuple(map(int, said.split()))]


@pytest.mark.owner
def test_a_topic_created_during_a_send_gets_the_message(broker: Broker) -> None:
    looks_again = "return duewheel.send_checked("
    ((function,),) = rows(
        broker,
        "select pg_get_functiondef(oid) from pg_proc where proname = 'send'"
        f" and prosrc like '%%{looks_again}%%' and pronamespace = 'duewheel'::regnamespace",
    )
    rows(broker, function.replace(looks_again, f"perform duewheel.create_topic('t'); {looks_again}"))
    broker.send("t", b"one", delay=HOUR)
    assert [message.deliver_at for message in broker.list_messages("t").messages]
