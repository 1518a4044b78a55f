"""What a topic and a group cost does not depend on what others have done.

A session makes its plans while all tables are empty, and every index looks the same then. After that a
neighbour fills every log: leases that ended or will, answers, retries, stragglers, recalls, releases. The
same statements, on a topic and a group of their own, have to touch as few pages as before
(``EXPLAIN (ANALYZE, BUFFERS)``, nested statements included). Nothing here measures time.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from tests.acting import TICKS_ANYWHERE
from tests.clock import NOW
from tests.conftest import execute
from tests.waiting import ask, connected

from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.store.broker import Broker
from duewheel.store.database.connections import DriverConnection

pytestmark = pytest.mark.slow

SOON = NOW + timedelta(seconds=3)
#: An instant of many.
FAR = NOW + timedelta(days=900)
#: Of each kind, a second apart, half of them before now.
NEIGHBOURS = 10_000
#: Indexes of one page have three levels now. To read the neighbour's rows takes hundreds of pages.
TIMES, MORE_PAGES = 3, 20

#: The neighbour's rows: its columns, and what stands in them.
ROWS = {
    "lease": (
        (
            "topic_id, group_id, queue, n, from_at, from_seq, to_at, to_seq, straggler_from, straggler_to,"
            " token, leased_at, expires_at, revived_to, message_count, consumer"
        ),
        "{topic}, {group}, 0, 1000 + n, at, 0, at, n, 0, n, n, at, at, at, 1, 'neighbour'",
    ),
    "lease_event": (
        "topic_id, group_id, queue, n, at, kind, reason",
        "{topic}, {group}, 0, 1000 + n, at, 'expired', 'why'",
    ),
    "lease_extension": (
        "topic_id, group_id, queue, n, extension_id, at, expires_at",
        "{topic}, {group}, 0, 1000 + n, 1, at, at",
    ),
    "lease_answer": (
        "topic_id, group_id, queue, n, seq, at, answered_count, kind",
        "{topic}, {group}, 0, 1000 + n, n, at, 1, 'acked'",
    ),
    "lease_message": (
        (
            "topic_id, group_id, queue, n, place, deliver_at, seq, source_topic_id, attempt, source_queue,"
            " message_group"
        ),
        "{topic}, {group}, 0, 1000 + n, n, at, n, {topic}, 1, 0, 'a'",
    ),
    "fifo_backlog": (
        (
            "topic_id, group_id, queue, place, deliver_at, seq, due_at, source_topic_id, attempt,"
            " source_queue, message_group"
        ),
        "{topic}, {group}, 0, n, at, n, at, {topic}, 1, 0, 'a'",
    ),
    "straggler": (
        "topic_id, queue, tick_id, deliver_at, seq, behind_at",
        "{topic}, 0, 1000000 + n, at, n, at",
    ),
    "held_back": ("topic_id, queue, deliver_at, seq", "{topic}, 0, at, n"),
    "recall": ("topic_id, queue, deliver_at, seq, recalled_at", "{topic}, 0, at, n, at"),
    "moved_id": ("topic_id, queue, deliver_at, seq, first_seq, since_at", "{topic}, 0, at, n, n, at"),
    "redrive": (
        "topic_id, deliver_at, seq, redriven_at, is_discarded",
        "{topic}, at, n, at, false",
    ),
    "idempotency": (
        "topic_id, idempotency_key, queue, deliver_at, seq, until_at",
        "{topic}, 'key' || n, 0, at, n, at",
    ),
    "message": (
        "topic_id, queue, deliver_at, seq, xid, born_at, key, tag, body",
        "{topic}, 0, at, {seq}, pg_current_xact_id(), at, 'key' || n, 'tag', 'x'",
    ),
    "far_message": (
        "topic_id, queue, deliver_at, seq, xid, born_at, key, tag, body",
        "{topic}, 0, %(far)s, {seq}, pg_current_xact_id(), at, 'far' || n, 'tag', 'x'",
    ),
    "tick": (
        (
            "topic_id, tick_id, lo, hi, snapshot, tick_xid, open_count, ticked_at, by_wheel, stragglers,"
            " queue_hi"
        ),
        (
            "{topic}, 1000000 + n, at - interval '1 s', at, '4:4:', '4', 0, at, true, 0,"
            " array[at, '-infinity', '-infinity', '-infinity']"
        ),
    ),
}
FILL = """
insert into duewheel.{table} ({columns}) overriding system value
select {values} from (
    select n, %(now)s + (n - {neighbours} / 2) * interval '1 second' as at
    from generate_series(1, {neighbours}) n
) n
"""


class Session:
    """A session and what it asks, of a topic and a group of its own."""

    def __init__(self, broker: Broker, connection: DriverConnection, kind: str) -> None:
        consumer = broker.consumer(kind, "own")
        self.connection = connection
        self.topic_id, self.group_id = consumer.topic_id, consumer.group_id
        self.kind = kind

    def statements(self) -> Iterator[tuple[str, str, tuple[Any, ...]]]:
        """Names, texts and parameters, in an order in which each finds something to do."""
        own = (self.group_id, self.topic_id)
        order = {"message_group": "'a'"} if self.kind == "FIFO" else {"delay": "interval '0'"}
        given = ", ".join(f"{name} => {value}" for name, value in order.items())
        for key in ("one", "two", "three"):
            yield (
                f"send {key}",
                f"select duewheel.send('{self.kind}', 'x'::text, {given}, key => %s, now => %s)",
                (key, NOW),
            )
        yield "find_key", f"select * from duewheel.find_key('{self.kind}', %s)", ("one",)
        yield "recall_key", f"select outcome from duewheel.recall_key('{self.kind}', %s, %s)", ("three", NOW)
        if self.kind == "DELAY":
            far = "(select message_id from duewheel.find_key('DELAY', 'far') limit 1)"
            yield (
                "send far",
                "select duewheel.send('DELAY', 'x'::text, deliver_at => %s, key => 'far', now => %s)",
                (FAR, NOW),
            )
            yield "find far", f"select * from duewheel.find({far})", ()
            yield "history far", f"select * from duewheel.history({far}, %s)", (NOW,)
            yield "reschedule far", f"select duewheel.reschedule({far}, delay => '5 days', now => %s)", (NOW,)
            yield "recall far", f"select duewheel.recall({far}, %s)", (NOW,)
        found = f"(select message_id from duewheel.find_key('{self.kind}', %s))"
        yield "find", f"select * from duewheel.find({found})", ("one",)
        yield "history", f"select * from duewheel.history({found}, %s)", ("one", NOW)
        yield "recall", f"select duewheel.recall({found}, %s)", ("three", NOW)
        yield "list", "select * from duewheel.list_messages(%s, key_prefix => 'tw')", (self.kind,)
        yield "tick", "select duewheel.tick_topic(%s, %s)", (self.topic_id, SOON)
        yield "idle tick", "select duewheel.tick_topic(%s, %s)", (self.topic_id, SOON)
        receive = "select * from duewheel.receive_batch(%s, %s, %s, '60 s', 'c', 0, true, %s)"
        yield "receive", receive, (*own, 1, SOON)
        yield "answer", ANSWER.format(how="ack"), (*own, *own, SOON)
        yield "receive again", receive, (*own, 1, SOON)
        yield "nack", ANSWER.format(how="nack"), (*own, *own, SOON)
        yield "receive nothing", receive, (*own, 10, SOON)
        yield "history of a retry", f"select * from duewheel.history({found}, %s)", ("one", SOON)
        yield "history of one acked", f"select * from duewheel.history({found}, %s)", ("two", SOON)
        yield "dead_letters", "select * from duewheel.dead_letter_page('own', %s)", (self.kind,)
        yield (
            "redrive",
            "select * from duewheel.redrive('own', %s, dry_run => true, now => %s)",
            (self.kind, SOON),
        )
        yield "progress", "select duewheel.progress(%s, %s, %s)", (*own, SOON)
        yield "next_due", "select duewheel.next_due(%s, %s, %s)", (*own, SOON)
        yield "revive", "select * from duewheel.revive_chunk(%s, %s, %s)", (*own, SOON + timedelta(minutes=2))
        yield (
            "doorbells",
            f"select * from duewheel.group_doorbells(array['{self.kind}'], array['own'], p_now => %s)",
            (SOON,),
        )
        yield (
            "group_stats",
            "select * from duewheel.group_stats(%s, array[%s])",
            (SOON, self.kind),
        )
        yield "topic_stats", "select * from duewheel.topic_stats(%s, left(%s, -1), 1)", (SOON, self.kind)

    def pages(self, statement: str, parameters: tuple[Any, ...]) -> int:
        """The pages that one execution touches."""
        ((plan,),) = ask(self.connection, f"explain (analyze, buffers, format json) {statement}", *parameters)
        top = plan[0]["Plan"]
        return int(top["Shared Hit Blocks"]) + int(top["Shared Read Blocks"])

    def measured(self) -> dict[str, int]:
        """The pages of each statement, in a transaction that leaves nothing behind."""
        ask(self.connection, "begin")
        try:
            return {name: self.pages(text, parameters) for name, text, parameters in self.statements()}
        finally:
            ask(self.connection, "rollback")


#: Of a lease that has no answer yet.
ANSWER = """
select duewheel.answer('{how}', %s, array[%s], array[l.queue::integer], array[l.n], array[l.token],
    null, null, null, null, s.now)
from (select %s::integer, %s::integer, %s::timestamptz) s (group_id, topic_id, now)
cross join lateral (
    select * from duewheel.lease l
    where l.topic_id = s.topic_id and l.group_id = s.group_id and l.message_count > 0
      and not exists (
        select from duewheel.lease_event e
        where e.topic_id = l.topic_id and e.group_id = l.group_id and e.queue = l.queue and e.n = l.n)
    limit 1) l
"""


@pytest.fixture(scope="module")
def pages(postgres: EmbeddedPostgres, template_dsn: str) -> Iterator[dict[str, tuple[int, int]]]:
    """The pages of each statement before and after the neighbour filled the logs."""
    assert template_dsn
    execute(postgres.dsn(), "CREATE DATABASE neighbours TEMPLATE template_duewheel STRATEGY wal_log")
    try:
        with (
            Broker(dsn := postgres.dsn("neighbours"), clock=lambda: NOW) as broker,
            connected(dsn) as connection,
            connected(dsn) as other,
        ):
            for kind in ("DELAY", "FIFO"):
                broker.create_topic(kind, message_type=kind, queues=4, max_delay=timedelta(days=3660))
                broker.create_topic(f"{kind}-neighbour", message_type=kind, queues=4)
            sessions = [Session(broker, connection, kind) for kind in ("DELAY", "FIFO")]
            crowd = [broker.consumer(f"{kind}-neighbour", "neighbour") for kind in ("DELAY", "FIFO")]
            broker.maintain()
            for table in ROWS:
                if table != "message":
                    ask(other, f"alter table duewheel.{table} set (autovacuum_enabled = false)")
            ask(other, TICKS_ANYWHERE)
            before: dict[str, int] = {}
            # More often than it takes a session to settle for a plan.
            for _ in range(7):
                for session in sessions:
                    before |= {f"{session.kind} {name}": count for name, count in session.measured().items()}
            for table, (columns, values) in ROWS.items():
                for consumer in crowd:
                    fill = FILL.format(
                        table=table,
                        columns=columns,
                        values=values.format(
                            topic=consumer.topic_id,
                            group=consumer.group_id,
                            seq=f"({consumer.topic_id} * 1000000 + n)::bigint * 65536",
                        ),
                        neighbours=NEIGHBOURS,
                    )
                    with other.cursor() as cursor:
                        cursor.execute(fill, {"now": NOW, "far": FAR})
            after: dict[str, int] = {}
            for session in sessions:
                after |= {f"{session.kind} {name}": count for name, count in session.measured().items()}
            yield {name: (count, after[name]) for name, count in before.items()}
    finally:
        execute(postgres.dsn(), "DROP DATABASE neighbours WITH (FORCE)")


def test_x17_a_neighbours_logs_cost_nothing(pages: dict[str, tuple[int, int]]) -> None:
    """Not one statement reads what belongs to others."""
    assert len(pages) > 30
    worse = {name: found for name, found in pages.items() if found[1] > TIMES * found[0] + MORE_PAGES}
    assert worse == {}, "\n".join(f"{name}: {before} -> {after}" for name, (before, after) in pages.items())
