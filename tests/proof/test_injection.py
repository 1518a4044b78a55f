"""Text that looks like SQL is text: in every field that takes any, through Python and through SQL."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg2
import pytest
from tests.acting import AT_ONCE

from duewheel.store import Broker, DueWheelError, InvalidFilter, RecallOutcome
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.values.retry_policy import RetryPolicy

LATER = timedelta(minutes=10)

#: What ends a literal, an identifier, a dollar quote, an array or a format, and goes on with a statement.
ATTEMPTS = (
    "'; drop schema duewheel cascade; --",
    '"; drop schema duewheel cascade; --',
    "$$; drop schema duewheel cascade; --",
    "') or true; delete from duewheel.any_message; --",
    "\\'; delete from duewheel.any_message; --",
    "x' || (select nextval('injected')) || '",
    "' union select body from duewheel.any_message --",
    '{a,b}","\'NULL',
    "%s %% %(x)s %1$I %L {0}",
    "*/ drop table duewheel.topic; /*",
    "E'\\047; drop table duewheel.topic'",
    "tail\\",
    "line\n;drop table duewheel.topic;",
    "ʼ’＇; drop table duewheel.topic; --",
)
#: The same as one word, for fields that take no spaces.
WORDS = tuple(re.sub(r"[\s|*]+", "/**/", attempt) for attempt in ATTEMPTS)


@pytest.fixture
def shop(broker: Broker, dsn: str) -> Iterator[Broker]:
    """A broker with a message that has to survive, and a schema that has to stay as it is."""
    broker.create_topic("t", queues=1, granularity=timedelta(milliseconds=1))
    canary = broker.send("t", b"canary", delay=LATER, key="canary")
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("create sequence public.injected")
        connection.commit()
        before = inventory(dsn)
        yield broker
        cursor.execute("select is_called from public.injected")
        assert cursor.fetchall() == [(False,)]
    assert inventory(dsn) == before
    found = broker.find(canary.message_id)
    assert found is not None
    assert (found.body, found.recalled) == (b"canary", False)


def inventory(dsn: str) -> list[tuple[Any, ...]]:
    """The tables, views and functions there are."""
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "select relname::text from pg_class where relnamespace = 'duewheel'::regnamespace"
            " and not relispartition and relkind in ('r', 'p', 'v')"
            " union all select oid::regprocedure::text from pg_proc"
            " where pronamespace = 'duewheel'::regnamespace order by 1"
        )
        return cursor.fetchall()


def refused(call: Callable[[], object]) -> None:
    """The broker says no, in an error of its own."""
    with pytest.raises(DueWheelError) as caught:
        call()
    assert "syntax error" not in str(caught.value)


def received(consumer: Consumer) -> Any:
    (message,) = consumer.receive(wait=timedelta(seconds=5))
    return message


# --- through Python: stored and found again as they are, or refused


def test_x02_a_key_is_text(shop: Broker) -> None:
    for attempt in ATTEMPTS:
        sent = shop.send("t", b"1", delay=LATER, key=attempt)
        assert [m.message_id for m in shop.find_key("t", attempt)] == [sent.message_id]
        again = shop.send("t", b"2", delay=LATER, key=attempt, on_conflict="keep")
        assert again.message_id == sent.message_id
        shop.send("t", b"3", delay=LATER, key=attempt, on_conflict="replace")
        shop.reschedule_key("t", attempt, delay=2 * LATER)
        assert shop.recall_many("t", key_prefix=attempt, dry_run=True).matched == 1
        assert shop.recall_key("t", attempt).outcome is RecallOutcome.RECALLED
        (copied,) = shop.send_many("t", [{"body": b"4", "delay": LATER, "key": attempt}])
        assert shop.find(copied.message_id).key == attempt  # type: ignore[union-attr]


def test_d12_x07_what_a_message_carries_is_text(shop: Broker) -> None:
    for attempt in ATTEMPTS:
        properties = {attempt: attempt, "nested": {"x": [attempt]}}
        message = {"body": attempt, "delay": LATER, "properties": properties, "message_group": attempt}
        identities = [shop.send("t", **message).message_id, shop.send_many("t", [message])[0].message_id]  # type: ignore[arg-type]
        for identity in identities:
            found = shop.find(identity)
            assert found is not None
            assert found.body == attempt.encode()
            assert found.properties == {**properties, "content-type": "text/plain; charset=utf-8"}
            assert found.message_group == attempt
        again = {"body": b"", "delay": LATER, "idempotency_key": attempt}
        first = shop.send("t", **again)  # type: ignore[arg-type]
        assert shop.send("t", **again).message_id == first.message_id  # type: ignore[arg-type]
        assert shop.send_many("t", [again])[0].message_id == first.message_id


def test_d12_a_tag_and_a_tag_expression_are_text(shop: Broker) -> None:
    def spelled(tag: str) -> str:
        """A tag as an expression names it."""
        return f'"{tag}"' if "," in tag else tag

    for number, (attempt, word) in enumerate(zip(ATTEMPTS, WORDS, strict=True)):
        sent = shop.send("t", b"1", delay=AT_ONCE, tag=word)
        shop.send_many("t", [{"body": b"2", "delay": LATER, "tag": word}])
        consumer = shop.consumer("t", f"g{number}", tags=spelled(word))
        assert received(consumer).message_id == sent.message_id
        assert shop.recall_many("t", tag=word, dry_run=True).matched == 2
        consumer = shop.consumer("t", f"h{number}", tags=f"other || {spelled(word)}")
        consumer.nack(received(consumer), AT_ONCE)
        assert received(consumer).tag == word
        if re.search(r"\s", attempt):
            refused(partial(shop.consumer, "t", "g", tags=attempt))


def test_d12_a_filter_is_no_sql(shop: Broker) -> None:
    for attempt in ATTEMPTS:
        with pytest.raises(InvalidFilter):
            shop.consumer("t", "g", filter=attempt)
        number = ATTEMPTS.index(attempt)
        shop.send("t", b"1", delay=AT_ONCE, properties={"a": attempt, "n": number})
        quoted = json.dumps(attempt)
        consumer = shop.consumer("t", f"g{number}", filter=f"$.a == {quoted}")
        assert received(consumer).properties["a"] == attempt
        others = shop.consumer("t", f"h{number}", filter=f"$.a != {quoted} && $.n == {number}")
        assert not others.receive()


def test_d11_x19_names_and_ids_are_names_and_ids(shop: Broker) -> None:
    """Of topics, groups, messages, leases and schedules; and words of which some are known."""
    every = {"every": LATER}
    for attempt in ATTEMPTS:
        calls = [
            partial(shop.create_topic, attempt),
            partial(shop.update_topic, attempt, retention=LATER),
            partial(shop.delete_topic, attempt),
            partial(shop.send, attempt, b"", delay=LATER),
            partial(shop.send_many, attempt, [{"body": b"", "delay": LATER}]),
            partial(shop.find_key, attempt, "k"),
            partial(shop.recall_key, attempt, "k"),
            partial(shop.recall_many, attempt, everything=True),
            partial(shop.reschedule_key, attempt, "k", delay=LATER),
            partial(shop.tick, attempt),
            partial(shop.consumer, attempt, "g"),
            partial(shop.consumer, "t", attempt),
            partial(shop.dead_letters, attempt),
            partial(shop.redrive, attempt),
            partial(shop.create_topic, "u", message_type=attempt),
            partial(shop.create_topic, "u", out_of_range=attempt),
            partial(shop.send, "t", b"", delay=LATER, key="k", on_conflict=attempt),
            partial(shop.consumer, "t", "g", start=attempt),
            partial(shop.consumer, "t", "g", mode=attempt),
            partial(shop.pause_group, attempt),
            partial(shop.pause_group, "g", topic=attempt),
            partial(shop.resume_group, attempt),
            partial(shop.leases, topic=attempt),
            partial(shop.leases, group=attempt),
            partial(shop.release_lease, attempt),
            partial(shop.release_lease, "1.1.0.1.1" + attempt),
            partial(shop.retry_now, attempt, ["00" * 22]),
            partial(shop.retry_now, "g", [attempt]),
            partial(shop.create_schedule, attempt, "t", b"", **every),
            partial(shop.create_schedule, "s", attempt, b"", **every),
            partial(shop.create_schedule, "s", "t", b"", cron=attempt),
            partial(shop.create_schedule, "s", "t", b"", cron="0 5 * * *", timezone=attempt),
            partial(shop.create_schedule, "s", "t", b"", **every, misfire=attempt),
            partial(shop.pause_schedule, attempt),
            partial(shop.resume_schedule, attempt),
            partial(shop.delete_schedule, attempt),
        ]
        for identity in (attempt, attempt[:44].ljust(44, "0")):
            calls += [partial(call, identity) for call in (shop.find, shop.recall, shop.history)]
            calls.append(partial(shop.reschedule, identity, delay=LATER))
        for call in calls:
            refused(call)
        assert shop.doorbells([attempt, "t"], ["g", attempt]) == []
        assert shop.release_lease("1.1.0.9.1", attempt) is None
        assert shop.schedules() == []


def test_x08_consumers_and_reasons_are_text(shop: Broker) -> None:
    for attempt in ATTEMPTS:
        sent = shop.send("t", b"1", delay=AT_ONCE)
        consumer = shop.consumer("t", "g", name=attempt)
        consumer.nack(received(consumer), AT_ONCE, reason=attempt)
        consumer.ack(received(consumer))
        history = shop.history(sent.message_id)
        assert {entry.consumer for entry in history if entry.consumer is not None} == {attempt}
        assert attempt in [entry.reason for entry in history]


def test_x12_what_chooses_dead_letters_is_text(shop: Broker) -> None:
    consumer = shop.consumer("t", "g", retry=RetryPolicy.unordered(max_retries=0))
    for attempt in ATTEMPTS:
        sent = shop.send("t", b"1", delay=AT_ONCE, key=attempt)
        consumer.nack(received(consumer), AT_ONCE, reason=f"because {attempt}")
        (letter,) = shop.dead_letters("g", redriven=False)
        assert (letter.message_id, letter.reason) == (sent.message_id, f"because {attempt}")
        assert shop.redrive("g", tag=attempt, dry_run=True).matched == 0
        refused(partial(shop.redrive, "g", topic=attempt))
        refused(partial(shop.redrive, "g", message_ids=[attempt]))
        found = shop.redrive("g", reason_contains=attempt, key_prefix=attempt)
        assert (found.matched, found.redriven) == (1, 1)
        consumer.ack(received(consumer))


def test_d18_what_a_schedule_sends_is_text(shop: Broker) -> None:
    for attempt in ATTEMPTS:
        shop.create_schedule("s", "t", attempt, every=LATER, key=attempt, properties={attempt: attempt})
        (schedule,) = shop.schedules()
        assert (schedule.body, schedule.key) == (attempt.encode(), attempt)
        shop.delete_schedule("s")


# --- through SQL: every text parameter of every function that somebody may call

#: What the other parameters get: by name where a name means something, else by type.
BY_NAME = {
    "topic": "'t'",
    "p_topic": "'t'",
    "topics": "array['t']",
    "p_topics": "array['t']",
    "name": "'t'",
    "consumer_group": "'g'",
    "p_group": "'g'",
    "p_groups": "array['g']",
    "p_start": "'earliest'",
    "message_type": "'DELAY'",
    "out_of_range": "'reject'",
    "on_conflict": "'allow'",
    "tags": "'*'",
    "p_action": "'ack'",
    "delay": "interval '10 min'",
    "deliver_at": "null",
    "delay_level": "null",
    "invisible": "interval '1 min'",
}
BY_TYPE = {
    "text": "'x'",
    "text[]": "array['x']",
    "integer": "1",
    "integer[]": "array[1]",
    "bigint": "1",
    "bigint[]": "array[1]",
    "smallint": "1::smallint",
    "boolean": "false",
    "real": "0.5",
    "double precision": "0.5",
    "bytea": "'\\x00'",
    "jsonb": "'{}'",
    "jsonpath": "'$.a == 1'",
    "interval": "interval '1 min'",
    "interval[]": "array[interval '1 min']",
    "timestamp with time zone": "null",
    "timestamp with time zone[]": "array[now()]",
}
#: Syntax errors, names that are not there, rights; and errors of the server itself.
NEVER = ("42", "XX", "0A", "53", "57", "58")


def entry_points(dsn: str) -> list[tuple[str, list[str], list[str], list[str]]]:
    """Each with its call, up to the parameters, their names, their types, and a value for each."""
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "select format('%s duewheel.%I', case p.prokind when 'p' then 'call' else 'select * from' end,"
            " p.proname),"
            " coalesce(p.proargnames[1:p.pronargs], '{}'),"
            " array(select format_type(t, null)"
            " from unnest(p.proargtypes) with ordinality a (t, n) order by n)"
            " from pg_proc p where p.pronamespace = 'duewheel'::regnamespace"
            " and p.proname in (select function_name from duewheel.entry_points())"
            " order by p.oid::regprocedure::text"
        )
        found = cursor.fetchall()
    return [
        (
            *(call, names, types),
            [
                f"({BY_NAME.get(name, BY_TYPE.get(kind, 'null'))})::{kind}"
                for name, kind in zip(names, types, strict=True)
            ],
        )
        for call, names, types in found
    ]


def calls(dsn: str) -> list[tuple[str, str]]:
    """For each text parameter of an entry point, what it is and the statement with one parameter for it."""
    statements = []
    for call, names, types, values in entry_points(dsn):
        for place, kind in enumerate(types):
            if kind in ("text", "text[]"):
                given = values.copy()
                given[place] = "%s::text" if kind == "text" else "array[%s]::text[]"
                statements.append((f"{call}.{names[place]}", f"{call}({', '.join(given)})"))
    return statements


@pytest.mark.slow
def test_every_text_parameter_of_every_function_is_text(shop: Broker, dsn: str) -> None:
    consumer = shop.consumer("t", "g")
    shop.send("t", b"1", delay=AT_ONCE)
    received(consumer)
    statements = calls(dsn)
    assert len(statements) > 60
    errors = []
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        for what, statement in statements:
            for attempt in (*ATTEMPTS, *WORDS):
                try:
                    cursor.execute(statement, (attempt,))
                    cursor.fetchall()
                    # What is judged at a commit is judged now.
                    cursor.execute("set constraints all immediate")
                except psycopg2.Error as error:
                    errors.append((error.pgcode or "XX", what, str(error)))
                finally:
                    connection.rollback()
    assert [error for error in errors if error[0].startswith(NEVER)] == []


@pytest.mark.parametrize("call", ["ack({})", "nack({})", "change_invisible_duration({}, '1 min')"])
def test_receipt_handles_are_handles(shop: Broker, call: str) -> None:
    with closing(psycopg2.connect(shop.dsn)) as connection, connection.cursor() as cursor:
        for attempt in ATTEMPTS:
            with pytest.raises(psycopg2.Error, match="is not a receipt handle") as caught:
                cursor.execute(f"select duewheel.{call.format('array[%s]')}", (f"1.1.0.1.1.{attempt}",))
            assert caught.value.pgcode == "DW010"
            connection.rollback()
