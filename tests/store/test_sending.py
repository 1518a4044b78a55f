"""Sending one message and many: what comes of it, in whose transaction, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg2
import psycopg2.extras
import pytest
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.orm import Session
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

HOUR = timedelta(hours=1)

#: Sends one message, by whichever way: topic and the parameters of send.
Way = Callable[..., SendReceipt]


WAYS = ["send", "mapping", "NewMessage", "one by one"]


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
            (receipt,) = broker.send_many(topic, [{"body": body, "idempotency_key": "a", **given}])
        return receipt

    return send


@pytest.fixture
def topics(timed_broker: Broker) -> Broker:
    """A broker whose clock stands at NOW, with a topic of each sort."""
    make_topics(timed_broker)
    return timed_broker


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, topics: Broker) -> Way:
    """Each way to send a message, on ``topics``."""
    return sends(topics, request.param)


@pytest.fixture(scope="module")
def refusing(fresh_database: Callable[[], tuple[str, str]]) -> Iterator[Broker]:
    """The same for tests that write nothing, and therefore share it."""
    _, dsn = fresh_database()
    with Broker(dsn, clock=lambda: NOW) as broker:
        make_topics(broker)
        yield broker


def count(broker: Broker) -> int:
    """How many messages there are."""
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute("select count(*) from duewheel.any_message")
        (number,) = cursor.fetchone()
        return int(number)


# --- what is sent


def test_d13_the_receipt_names_the_message_that_is_stored(way: Way, topics: Broker) -> None:
    receipt = way(
        "delay", b"\0\xff", delay=HOUR, key="k", tag="t", properties={"a": [1, "ü"]}, message_group="g"
    )
    found = topics.find(receipt.message_id)
    assert found is not None
    assert receipt.outcome is SendOutcome.SENT
    assert receipt.deliver_at == found.deliver_at == NOW + HOUR
    assert (found.topic, found.body, found.key, found.tag) == ("delay", b"\0\xff", "k", "t")
    assert (found.properties, found.message_group) == ({"a": [1, "ü"]}, "g")
    assert (found.born_at, found.asked_at, found.recalled, found.released) == (NOW, None, False, False)


@pytest.mark.parametrize("deliver_at", [NOW + HOUR, 1767609000000])
def test_d01_an_instant_may_be_a_datetime_or_unix_milliseconds(way: Way, deliver_at: datetime | int) -> None:
    assert way("delay", deliver_at=deliver_at).deliver_at == NOW + HOUR


def test_d02_a_delay_counts_from_the_clock(way: Way) -> None:
    assert way("delay", delay=timedelta(microseconds=1)).deliver_at == NOW + timedelta(microseconds=1)


@pytest.mark.parametrize(
    "past",
    [
        {"deliver_at": NOW - HOUR},
        {"deliver_at": 0},
        {"delay": -HOUR},
        {"delay": timedelta.min},
        {"delay": timedelta(0)},
    ],
)
def test_d03_a_past_time_is_delivered_at_once(way: Way, topics: Broker, past: dict[str, Any]) -> None:
    receipt = way("delay", **past)
    assert receipt.deliver_at == NOW
    found = topics.find(receipt.message_id)
    assert found is not None
    assert found.asked_at is None or found.asked_at < NOW


@pytest.mark.parametrize("beyond", [{"delay": timedelta.max}, {"deliver_at": NOW + 25 * HOUR}])
def test_d04_a_lenient_topic_delivers_what_is_out_of_range_at_once(way: Way, beyond: dict[str, Any]) -> None:
    assert way("lenient", **beyond).deliver_at == NOW


@pytest.mark.parametrize(
    ("level", "seconds"), [(0, 0), (1, 1), (2, 5), (9, 300), (18, 7200), (19, 7200), (2**40, 7200)]
)
def test_l01_l02_l03_delay_levels(way: Way, level: int, seconds: int) -> None:
    assert way("delay", delay_level=level).deliver_at == NOW + timedelta(seconds=seconds)


def test_d10_a_normal_topic_takes_messages_without_a_time(way: Way) -> None:
    assert way("normal").deliver_at == NOW
    assert way("normal", delay_level=0).deliver_at == NOW


def test_a_message_group_stays_in_one_queue_however_it_is_sent(topics: Broker) -> None:
    many = topics.send_many(
        "delay", [{"body": b"", "delay": HOUR, "message_group": f"g{n % 7}"} for n in range(70)]
    )
    for n in range(7):
        alone = topics.send("delay", b"", delay=HOUR, message_group=f"g{n}")
        assert {receipt.message_id[8:12] for receipt in (alone, *many[n::7])} == {alone.message_id[8:12]}


def test_many_messages_spread_over_the_queues(topics: Broker) -> None:
    receipts = topics.send_many("delay", [{"body": b"", "delay": HOUR}] * 8)
    assert sorted(receipt.message_id[8:12] for receipt in receipts) == sorted(
        ["0000", "0001", "0002", "0003"] * 2
    )


def test_x07_the_same_idempotency_key_is_one_message(topics: Broker) -> None:
    first = topics.send("delay", b"1", delay=HOUR, idempotency_key="a")
    again = topics.send("delay", b"2", delay=2 * HOUR, idempotency_key="a")
    assert again == SendReceipt(first.message_id, first.deliver_at, SendOutcome.DUPLICATE)
    (many,) = topics.send_many("delay", [NewMessage(b"3", delay=HOUR, idempotency_key="a")])
    assert many == again
    assert count(topics) == 1


def test_x04_conflicts_of_keys(topics: Broker) -> None:
    first = topics.send("delay", b"1", delay=HOUR, key="k")
    kept = topics.send("delay", b"2", delay=HOUR, key="k", on_conflict="keep")
    assert (kept.message_id, kept.outcome) == (first.message_id, SendOutcome.KEPT)
    replaced = topics.send("delay", b"3", delay=HOUR, key="k", on_conflict=OnConflict.REPLACE)
    assert replaced.outcome is SendOutcome.REPLACED
    (once_more,) = topics.send_many(
        "delay", [{"body": b"4", "delay": HOUR, "key": "k", "on_conflict": "REPLACE"}]
    )
    assert once_more.outcome is SendOutcome.REPLACED
    found = {one.body: one.recalled for one in topics.find_key("delay", "k")}
    assert found == {b"1": True, b"3": True, b"4": False}


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
    (WrongMessageType, "of type NORMAL", "normal", {"deliver_at": NOW - HOUR}),
    (WrongMessageType, "of type NORMAL", "normal", {"delay_level": 1}),
    (DelayOutOfRange, "the limit of topic", "delay", {"delay": 24 * HOUR + timedelta(microseconds=1)}),
    (DelayOutOfRange, "the limit of topic", "delay", {"delay": timedelta.max}),
    (DelayOutOfRange, "the limit of topic", "delay", {"deliver_at": datetime.max.replace(tzinfo=UTC)}),
    (InvalidInstant, "no time zone", "delay", {"deliver_at": datetime(2026, 1, 5, 10)}),  # noqa: DTZ001
    (InvalidInstant, "not an instant", "delay", {"deliver_at": "soon"}),
    (InvalidInstant, "years 1 to 9999", "delay", {"deliver_at": 10**18}),
    (InvalidArgument, "give a timedelta", "delay", {"delay": 60}),
    (InvalidArgument, "more than one of", "delay", {"delay": HOUR, "deliver_at": NOW}),
    (InvalidArgument, "more than one of", "delay", {"delay": HOUR, "delay_level": 1}),
    (InvalidDelayLevel, "the limit is 0", "delay", {"delay_level": -1}),
    (InvalidDelayLevel, "the limit is 0", "delay", {"delay_level": -(2**40)}),
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
    (InvalidKey, "256 characters; the limit is 1 to 255", "delay", {"delay": HOUR, "key": TOO_LONG}),
    (InvalidArgument, "key is an int", "delay", {"delay": HOUR, "key": 17}),
    (InvalidTag, "is not a tag", "delay", {"delay": HOUR, "tag": "a b"}),
    (InvalidTag, "is not a tag", "delay", {"delay": HOUR, "tag": "a|b"}),
    (InvalidTag, "is not a tag", "delay", {"delay": HOUR, "tag": ""}),
    (InvalidTag, "is not a tag", "delay", {"delay": HOUR, "tag": "x" * 128}),
    (InvalidArgument, "message group", "delay", {"delay": HOUR, "message_group": ""}),
    (InvalidArgument, "message group", "delay", {"delay": HOUR, "message_group": TOO_LONG}),
    (NulInText, "key", "delay", {"delay": HOUR, "key": "a\0"}),
    (NulInText, "tag", "delay", {"delay": HOUR, "tag": "a\0"}),
    (NulInText, "message_group", "delay", {"delay": HOUR, "message_group": "a\0"}),
    (NulInText, "properties", "delay", {"delay": HOUR, "properties": {"a": "\0"}}),
    (NulInText, "topic", "de\0lay", {"delay": HOUR}),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("error", "says", "topic", "given"), BAD)
def test_bad_input_is_refused_by_name_and_nothing_is_written(
    refusing: Broker, way: str, error: type[DueWheelError], says: str, topic: str, given: Mapping[str, Any]
) -> None:
    with pytest.raises(DueWheelError) as caught:
        sends(refusing, way)(topic, **given)
    assert type(caught.value) is error
    assert says in str(caught.value)
    assert count(refusing) == 0


@pytest.mark.parametrize(("error", "says", "topic", "given"), BAD)
def test_one_bad_message_among_many_is_named_and_none_is_written(
    refusing: Broker, error: type[DueWheelError], says: str, topic: str, given: Mapping[str, Any]
) -> None:
    good = {"body": b"", **({} if topic == "normal" else {"delay": HOUR})}
    with pytest.raises(error) as caught:
        refusing.send_many(topic, [good, {"body": b"", **given}, good])
    assert caught.value.index == (None if "topic" in says and error in (UnknownTopic, NulInText) else 1)
    assert count(refusing) == 0


@pytest.mark.parametrize("properties", [{"a": nested(99)}, {"a": [10**308] * 9}, {"a": "1" * 400}])
def test_properties_up_to_their_limits_come_as_they_were_sent(
    topics: Broker, properties: dict[str, Any]
) -> None:
    sent = topics.send("delay", b"", delay=HOUR, properties=properties)
    (many,) = topics.send_many("delay", [{"body": b"", "delay": HOUR, "properties": properties}])
    for message_id in (sent.message_id, many.message_id):
        found = topics.find(message_id)
        assert found is not None
        assert found.properties == properties


@pytest.mark.parametrize("instant", ["4000-01-01 BC", "0001-01-01 00:00+14", "-infinity"])
def test_an_instant_that_python_cannot_read_is_delivered_at_once(topics: Broker, instant: str) -> None:
    with connected(topics.dsn) as connection:
        ((message_id, deliver_at),) = ask(
            connection,
            "select message_id, deliver_at from duewheel.send('delay', '', deliver_at => %s)",
            instant,
        )
    found = topics.find(message_id)
    assert found is not None
    assert (found.deliver_at, found.asked_at) == (deliver_at, None)


def test_an_empty_or_too_long_idempotency_key_is_refused(refusing: Broker) -> None:
    for key in ("", "x" * 513):
        with pytest.raises(InvalidKey, match="1 to 512"):
            refusing.send("delay", b"", delay=HOUR, idempotency_key=key)
    with pytest.raises(NulInText, match="idempotency_key"):
        refusing.send_many("delay", [{"body": b"", "delay": HOUR, "idempotency_key": "\0"}])
    assert count(refusing) == 0


def test_a_conflict_needs_a_key_and_a_known_way(refusing: Broker) -> None:
    with pytest.raises(InvalidKey, match="no key"):
        refusing.send("delay", b"", delay=HOUR, on_conflict="keep")
    with pytest.raises(InvalidArgument, match="'allow', 'keep', 'replace'"):
        refusing.send("delay", b"", delay=HOUR, key="k", on_conflict="ignore")
    assert count(refusing) == 0


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"delay": HOUR}, "give body"),
        ({"body": b"", "delya": HOUR}, "'delya'"),
        (b"body", "is a bytes"),
        (None, "is None"),
    ],
)
def test_what_is_no_message_is_refused(refusing: Broker, message: Any, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says) as caught:
        refusing.send_many("delay", [{"body": b"", "delay": HOUR}, message])
    assert caught.value.index == 1
    assert count(refusing) == 0


# --- many


def test_no_messages_are_sent_in_no_time(topics: Broker) -> None:
    assert list(topics.send_many("delay", iter([]))) == []


def test_receipts_come_in_the_order_given(topics: Broker) -> None:
    chance = random.Random(1)
    delays = [timedelta(milliseconds=chance.randrange(80_000_000)) for _ in range(500)]
    receipts = topics.send_many("delay", ({"body": str(n), "delay": delay} for n, delay in enumerate(delays)))
    assert len(receipts) == 500
    assert [receipt.deliver_at for receipt in receipts] == [NOW + delay for delay in delays]
    for n in (0, 17, 499, -1):
        found = topics.find(receipts[n].message_id)
        assert found is not None
        assert found.body == str(n % 500).encode()
    assert receipts[2:4] == [receipts[2], receipts[3]]
    assert len({receipt.message_id for receipt in receipts}) == 500
    with pytest.raises(IndexError):
        receipts[500]


def test_ids_made_in_python_are_those_of_sql(topics: Broker) -> None:
    receipts = topics.send_many("delay", [{"body": b"", "delay_level": level} for level in range(19)])
    with topics.connection() as connection, connection.cursor() as cursor:
        cursor.execute(
            "select duewheel.message_id(topic_id, queue, deliver_at, seq)"
            " from duewheel.any_message order by seq"
        )
        assert [one for (one,) in cursor.fetchall()] == [receipt.message_id for receipt in receipts]


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
    with topics.connection() as connection, connection.cursor() as cursor:
        cursor.execute("select (duewheel.slot_at(%s)).table_name", (NOW + HOUR,))
        (table,) = cursor.fetchone()
        cursor.execute(f"drop table duewheel.{table}; delete from duewheel.slot where table_name = '{table}'")
    topics.send_many("delay", [message, message])
    assert count(topics) == 2
    topics.maintain()
    with topics.connection() as connection, connection.cursor() as cursor:
        cursor.execute(f"select count(*) from duewheel.{table}")
        assert cursor.fetchall() == [(2,)]


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


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("commits", [False, True])
def test_x06_psycopg2_order_and_timeout_stand_or_fall_together(
    topics: Broker, caller: psycopg2.extensions.connection, many: bool, commits: bool
) -> None:
    with caller.cursor() as cursor:
        cursor.execute("insert into orders values (1)")
    place(topics, caller, many)
    assert count(topics) == 0
    caller.commit() if commits else caller.rollback()
    assert count(topics) == (2 if commits else 0)
    with caller.cursor() as cursor:
        cursor.execute("select number from orders")
        assert len(cursor.fetchall()) == (1 if commits else 0)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("commits", [False, True])
@pytest.mark.parametrize("orm", [False, True])
@pytest.mark.parametrize("first", ["the order", "the message"])
def test_x06_sqlalchemy_order_and_timeout_stand_or_fall_together(
    topics: Broker,
    caller: psycopg2.extensions.connection,
    many: bool,
    commits: bool,
    orm: bool,
    first: str,
) -> None:
    engine = create_engine(
        "postgresql+psycopg2://", creator=lambda: psycopg2.connect(topics.dsn), poolclass=NullPool
    )
    with Session(engine) if orm else engine.connect() as connection:
        if first == "the message":
            place(topics, connection, many)
        connection.execute(text("insert into orders values (1)"))
        if first == "the order":
            place(topics, connection, many)
        assert count(topics) == 0
        if commits:
            connection.commit()
    assert count(topics) == (2 if commits else 0)
    with caller.cursor() as cursor:
        cursor.execute("select number from orders")
        assert len(cursor.fetchall()) == (1 if commits else 0)


def test_x06_sqlalchemy_commits_a_message_that_is_all_there_is(topics: Broker) -> None:
    engine = create_engine(
        "postgresql+psycopg2://", creator=lambda: psycopg2.connect(topics.dsn), poolclass=NullPool
    )
    with engine.connect() as connection:
        place(topics, connection, many=True)
        connection.commit()
    with engine.begin() as connection:
        place(topics, connection, many=False)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        place(topics, connection, many=True)
    with closing(engine.raw_connection()) as connection:
        place(topics, connection, many=True)
        connection.commit()
    assert count(topics) == 8


def test_many_on_an_autocommit_connection_are_all_or_none(topics: Broker, caller: Any) -> None:
    caller.autocommit = True
    with pytest.raises(InvalidDelayLevel):
        topics.send_many("delay", [{"body": b"", "delay": HOUR}, {"body": b"", "delay_level": -1}], caller)
    assert caller.info.transaction_status == psycopg2.extensions.TRANSACTION_STATUS_IDLE
    place(topics, caller, many=True)
    assert count(topics) == 2


def test_a_refusal_of_python_leaves_the_callers_transaction_usable(topics: Broker, caller: Any) -> None:
    with caller.cursor() as cursor:
        cursor.execute("insert into orders values (1)")
    with pytest.raises(InvalidInstant):
        topics.send("delay", b"", deliver_at="soon", connection=caller)  # type: ignore[arg-type]
    place(topics, caller, many=False)
    caller.commit()
    assert count(topics) == 2


def test_the_client_encoding_of_the_caller_is_kept(topics: Broker, caller: Any) -> None:
    caller.set_client_encoding("LATIN1")
    topics.send_many("delay", [{"body": "ü", "delay": HOUR, "key": "ü"}], caller)
    with pytest.raises(InvalidArgument, match="client_encoding UTF8"):
        topics.send_many("delay", [{"body": "漢", "delay": HOUR, "key": "漢"}], caller)
    caller.commit()
    (found,) = topics.find_key("delay", "ü")
    assert found.body == "ü".encode()


@pytest.mark.parametrize("connection", ["postgresql://", object(), 7])
def test_what_is_no_connection_is_refused(topics: Broker, connection: Any) -> None:
    with pytest.raises(InvalidArgument, match="give a connection of psycopg2 or psycopg 3"):
        topics.send("delay", b"", delay=HOUR, connection=connection)
    with pytest.raises(InvalidArgument, match="give a connection of psycopg2 or psycopg 3"):
        topics.send_many("delay", [{"body": b"", "delay": HOUR}], connection)
    assert count(topics) == 0


# --- telling the wheel


def heard(dsn: str, act: Callable[[], object]) -> list[str]:
    """What is notified to the wheel by an act."""
    with connected(dsn) as listener:
        ask(listener, "listen duewheel_due")
        act()
        # A round trip after the act's commit: its notification is there before the answer.
        ask(listener, "select 1")
        return [notify.payload for notify in listener.notifies]


@pytest.mark.owner
def test_only_what_is_due_soon_is_told_to_the_wheel_and_once(broker: Broker) -> None:
    broker.create_topic("t")
    soon = timedelta(milliseconds=50)
    assert heard(broker.dsn, lambda: broker.send_many("t", [{"body": b"", "delay": HOUR}] * 5)) == []
    mixed = [{"body": b"", "delay": delay} for delay in (HOUR, 2 * soon, soon, 3 * soon)]
    (said,) = heard(broker.dsn, lambda: broker.send_many("t", mixed))
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute(
            "select topic_id, duewheel.unix_micros(min(deliver_at)) from duewheel.any_message group by 1"
        )
        assert said == "{} {}".format(*cursor.fetchone())
