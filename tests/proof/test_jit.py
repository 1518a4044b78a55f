"""No call has a plan compiled, on a server that compiles dear plans.

A plan that may not use a way to read a table, and has no other, costs ten thousand million on servers up to
17. So do all that hold one, and a session that makes such a plan has it compiled for a second. Debian's and
managed servers are set up so. The tables here were empty when the plans were made, and were never analyzed.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import psycopg2
import pytest
from tests.acting import AT_ONCE, MILLISECOND, SECOND
from tests.proof.test_injection import entry_points
from tests.servers import jit_server
from tests.turning import turning
from tests.waiting import ask, connected

from duewheel.store import Broker
from duewheel.store.values.retry_policy import RetryPolicy

pytestmark = pytest.mark.slow

LATER = timedelta(minutes=10)
SOON = 50 * MILLISECOND
PATIENCE = 30 * SECOND

COMPILED = "select jit_functions, query from pg_stat_statements where jit_functions > 0 order by 1 desc"
#: SQL functions are part of the statement that calls them.
NOT_CALLED = """
select p.proname::text from pg_proc p join pg_language l on l.oid = p.prolang
where p.pronamespace = 'duewheel'::regnamespace and l.lanname = 'plpgsql'
  and p.proname in (select function_name from duewheel.entry_points())
group by p.proname
having not bool_or(p.oid in (select f.funcid from pg_stat_user_functions f))
order by 1
"""


@pytest.fixture(scope="module")
def compiling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker on a server that compiles dear plans."""
    with jit_server(tmp_path_factory.mktemp("jit") / "data") as dsn:
        with connected(dsn) as connection:
            assert ask(connection, "select pg_jit_available(), current_setting('jit')") == [(True, "on")]
            ask(connection, "create extension pg_stat_statements")
        with Broker(dsn) as broker:
            broker.upgrade()
            broker.create_topic("t", granularity=MILLISECOND, max_delay=timedelta(days=3000))
            broker.create_topic("ordered", message_type="FIFO")
            yield broker


def forget(broker: Broker) -> None:
    with connected(broker.dsn) as connection:
        ask(connection, "select pg_stat_statements_reset()")


def compiled(broker: Broker) -> list[str]:
    with connected(broker.dsn) as connection:
        return [f"{functions} functions of: {query}" for functions, query in ask(connection, COMPILED)]


def test_the_server_compiles_a_dear_plan_and_says_so(compiling: Broker) -> None:
    with connected(compiling.dsn) as connection:
        ask(connection, "set enable_seqscan = off")
        ask(connection, "select count(*) from duewheel.broker b where b.system_identifier > 0")
    assert "duewheel.broker" in "".join(compiled(compiling))


def test_no_plan_of_a_sender_is_compiled(compiling: Broker) -> None:
    forget(compiling)
    for message in (
        {"delay": LATER},
        {"delay": LATER, "key": "k", "tag": "x", "properties": {"p": 1}, "message_group": "g"},
        {"delay": LATER, "idempotency_key": "i"},
        {"delay": LATER, "idempotency_key": "i"},
        {"delay": LATER, "key": "k", "on_conflict": "keep"},
        {"delay": LATER, "key": "k", "on_conflict": "replace"},
        {"delay": timedelta(days=2900), "key": "far"},
        {"delay_level": 3},
    ):
        compiling.send("t", b"x", **message)  # type: ignore[arg-type]
        compiling.send_many("t", [{"body": b"x", **message}])
    compiling.send("ordered", b"x", message_group="g")
    compiling.send_many("ordered", [{"body": b"x", "message_group": "g"}] * 3)
    sent = compiling.send("t", b"x", delay=LATER, key="k")
    moved = compiling.reschedule(sent.message_id, delay=LATER)
    moved = compiling.reschedule(moved.message_id, delay=LATER, idempotency_key="move")
    compiling.reschedule_key("t", "k", delay=LATER)
    compiling.reschedule_key("t", "k", delay=LATER, idempotency_key="move all")
    compiling.recall_key("t", "k")
    compiling.recall(moved.message_id)
    for criteria in (
        {"tag": "x"},
        {"key_prefix": "k"},
        {"due_until": moved.deliver_at},
        {"everything": True},
    ):
        compiling.recall_many("t", dry_run=True, **criteria)  # type: ignore[arg-type]
        compiling.recall_many("t", **criteria)  # type: ignore[arg-type]
    compiling.create_schedule("s", "t", b"x", every=LATER)
    compiling.advance_schedules()
    compiling.pause_schedule("s")
    compiling.resume_schedule("s")
    compiling.delete_schedule("s")
    assert compiled(compiling) == []


def test_no_plan_of_the_wheel_or_of_a_consumer_is_compiled(compiling: Broker) -> None:
    forget(compiling)
    with turning(compiling):
        for topic, policy, message in (
            ("t", RetryPolicy.unordered(max_retries=1), {"delay": SOON, "key": "k"}),
            ("ordered", RetryPolicy.ordered(max_retries=1), {"message_group": "g"}),
        ):
            consumer = compiling.consumer(topic, topic, retry=policy)
            for _ in range(12):
                compiling.send(topic, b"x", **message)  # type: ignore[arg-type]
            # Failed, without an answer, and failed again: a dead letter.
            (first,) = consumer.receive(1, wait=PATIENCE)
            consumer.nack(first, AT_ONCE)
            assert consumer.receive(3, wait=PATIENCE, invisible=SECOND)
            while not compiling.dead_letters(topic):
                consumer.nack(consumer.receive(1, wait=PATIENCE), AT_ONCE)
            held = consumer.receive(3, wait=PATIENCE)
            consumer.change_invisible_duration(held, LATER)
            consumer.ack(held)
            compiling.history(first.message_id)
            compiling.redrive(topic)
            compiling.rewind(topic, topic, "earliest")
            consumer.ack(consumer.receive(100, wait=PATIENCE))
        every = compiling.consumer("t", "all", mode="broadcasting", name="one")
        every.ack(every.receive(100, wait=PATIENCE))
        compiling.stats()
        compiling.doorbells(["t"], ["t"])
        compiling.list_messages("t")
        compiling.find_key("t", "k")
        compiling.maintain()
    assert compiled(compiling) == []


@pytest.mark.parametrize("collation", ["default", "C"])
def test_no_plan_of_any_entry_point_is_compiled(compiling: Broker, collation: str) -> None:
    """Whatever table of the caller's the texts come from: an index serves one collation alone."""
    forget(compiling)
    compiling.consumer("t", "g")
    compiling.send("t", b"x", delay=LATER, key="t")
    refused: set[type[psycopg2.Error]] = set()
    for call, _, types, values in entry_points(compiling.dsn):
        given = [
            f'{value} collate "{collation}"' if kind in ("text", "text[]") else value
            for kind, value in zip(types, values, strict=True)
        ]
        # The first of its session: all plans are its own.
        with connected(compiling.dsn, autocommit=False) as connection:
            try:
                ask(connection, f"{call}({', '.join(given)})")
            except psycopg2.Error as error:
                # Many are refused when they have looked: those did the whole of it above.
                refused.add(type(error))
    with connected(compiling.dsn) as connection:
        assert ask(connection, NOT_CALLED) == []
    assert not refused & {psycopg2.errors.IndeterminateCollation, psycopg2.OperationalError}
    assert compiled(compiling) == []
