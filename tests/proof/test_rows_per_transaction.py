"""No transaction's work grows with what waits.

Each function that a role may call, and each step of upkeep, is called where ten and where a hundred portions
wait. Postgres counts the rows that a transaction reads in tables and indexes and writes. That count may not
grow. Nothing here measures time. A function that is new needs a call here, or a reason why it has none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import psycopg2
import pytest
from tests.acting import AT_ONCE, DAY, HOUR, MINUTE, SECOND, TICKS_ANYWHERE
from tests.clock import Clock, believe
from tests.conftest import drop_database
from tests.upkeeping import only
from tests.waiting import ask, connected, until

from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.store.broker import Broker
from duewheel.store.wheel.upkeep import STEP

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.owner]

PORTION: Final = 1_000
FEW, MANY = 10 * PORTION, 100 * PORTION
#: Of a tree that is a level higher, and of what a plan looks up.
MORE_ROWS = 500

#: The portions that are not parameters, made as small as the others.
SMALL_PORTIONS = f"""
create or replace function duewheel.late_limit() returns integer language sql immutable
return {PORTION};
create or replace function duewheel.portion() returns integer language sql immutable
return {PORTION};
"""
#: A call deals with the places that fit into 50 ms: here with one, however fast the machine is.
ONE_PLACE_A_CALL = """
do $$
begin
    execute replace(pg_get_functiondef('duewheel.upkeep_step'::regproc), '50 milliseconds', '0 milliseconds');
end
$$
"""
READ_AND_WRITTEN = """
select sum(pg_stat_get_xact_tuples_inserted(c.oid) + pg_stat_get_xact_tuples_updated(c.oid)
           + pg_stat_get_xact_tuples_deleted(c.oid) + pg_stat_get_xact_tuples_fetched(c.oid)
           + pg_stat_get_xact_tuples_returned(c.oid))::bigint
from pg_class c where c.relnamespace = 'duewheel'::regnamespace and c.relkind in ('r', 'i')
"""
#: What a role may call, and whether it is a procedure.
ENTRY_POINTS = """
select distinct p.proname, p.prokind = 'p' from pg_proc p
where p.pronamespace = 'duewheel'::regnamespace and exists (
    select from pg_roles r where r.rolname ~ '^duewheel_'
      and has_function_privilege(r.oid, p.oid, 'execute'))
"""


@dataclass
class Shop:
    """A database in which so much waits, of each kind on a topic of its own."""

    dsn: str
    now: datetime
    #: Names in the statements below.
    names: dict[str, Any]

    def rows_of(self, statement: str) -> int:
        """The rows that a transaction reads and writes which runs this alone; it is rolled back."""
        with closing(psycopg2.connect(self.dsn)) as connection, connection.cursor() as cursor:
            cursor.execute(statement.format(**self.names), {"now": self.now})
            ((count,),) = ask(connection, READ_AND_WRITTEN)
            connection.rollback()
        return int(count)


#: Topics of one queue, with a group g that has read nothing.
TOPICS = (
    "unread",
    "recalled",
    "waiting",
    "retried",
    "dead",
    "late",
    "tagged",
    "moved",
    "expired",
    "acked",
    "whole",
)
#: FIFO topics of one queue: ten failed message groups, failed ones alone, one that its first message blocks.
ORDERED = ("ordered", "failed", "blocked")


def fill(broker: Broker, clock: Clock, count: int) -> dict[str, Any]:
    """So much waits of each kind; returns names of some."""
    chunk = 10_000

    def send(topic: str, **fields: Any) -> None:
        for first in range(0, count, chunk):
            broker.send_many(
                topic, [{"body": b"", "key": f"{topic}-{first + n}", **fields} for n in range(chunk)]
            )

    for topic in TOPICS:
        broker.create_topic(topic, queues=1, max_delay=30 * DAY)
    for topic in ORDERED:
        broker.create_topic(topic, message_type="FIFO", queues=1)
    broker.create_topic("empty")
    # Its keys outlive its messages.
    broker.create_topic("deleted", retention=365 * DAY)
    for first in range(0, count, chunk):
        keys = [{"body": b"", "delay": AT_ONCE, "idempotency_key": f"{first + n}"} for n in range(chunk)]
        broker.send_many("deleted", keys)
    broker.delete_topic("deleted")
    consumers = {topic: broker.consumer(topic, "g") for topic in (*TOPICS, *ORDERED)}
    broker.maintain()
    send("unread", delay=AT_ONCE)
    send("recalled", delay=HOUR)
    broker.recall_many("recalled", everything=True)
    last = broker.send("recalled", b"last", delay=HOUR + MINUTE)
    send("tagged", delay=AT_ONCE, tag="other")
    broker.send("tagged", b"chosen", delay=AT_ONCE, tag="chosen")
    send("waiting", delay=2 * DAY)
    waiting = broker.send("waiting", b"one", delay=2 * DAY, key="one")
    send("moved", delay=2 * DAY)
    for topic, delay in (("retried", 10 * DAY), ("dead", None)):
        send(topic, delay=AT_ONCE)
        clock.advance(SECOND)
        while batch := consumers[topic].receive(chunk, invisible=HOUR):
            if delay:
                consumers[topic].nack(batch, delay=delay)
            else:
                consumers[topic].dead_letter(batch, reason="why")
    with connected(broker.dsn, autocommit=False) as sending:
        for _ in range(0, count, chunk):
            broker.send_many("late", [{"body": b"", "delay": SECOND}] * chunk, connection=sending)
        broker.send("late", b"", delay=SECOND)
        clock.advance(MINUTE)
        broker.tick("late")
        sending.commit()
    # One portion of these late messages is released.
    with connected(broker.dsn) as owner:
        tick = "select duewheel.tick_topic(topic_id, %s) from duewheel.topic where name = 'late'"
        ask(owner, tick, clock())
    for first in range(0, count, chunk):
        for topic in ("ordered", "failed"):
            broker.send_many(topic, [{"body": b"", "message_group": f"{first + n}"} for n in range(chunk)])
        broker.send_many("blocked", [{"body": b"", "message_group": "one"}] * chunk)
    send("expired", delay=AT_ONCE)
    send("whole", delay=AT_ONCE)
    send("acked", delay=AT_ONCE)
    clock.advance(2 * HOUR)
    for topic in ("unread", "recalled", "retried", "tagged", "expired", "whole", "acked", *ORDERED):
        broker.tick(topic)
    consumers["ordered"].nack(consumers["ordered"].receive(10), delay=DAY)
    while batch := consumers["failed"].receive(chunk, invisible=HOUR):
        consumers["failed"].nack(batch, delay=DAY)
    first_of_group = consumers["blocked"].receive(1, invisible=HOUR)
    for _ in range(0, count, chunk):
        assert not consumers["blocked"].receive(1)
    consumers["blocked"].nack(first_of_group, delay=DAY)
    names = {"waiting": waiting.message_id, "last": last.message_id, "blocking": first_of_group[0].message_id}
    return {**_more(broker.dsn, clock, count), **names}


def _more(dsn: str, clock: Clock, count: int) -> dict[str, Any]:
    """What only SQL makes quickly, and names of all that the statements below need."""
    with connected(dsn) as owner:

        def one(statement: str, *parameters: object) -> Any:
            ((value,),) = ask(owner, statement, *parameters)
            return value

        topics = dict(ask(owner, "select name, topic_id from duewheel.topic where parent_topic_id is null"))
        groups = dict(
            ask(
                owner,
                "select t.name || '_group', s.group_id from duewheel.subscription s"
                " join duewheel.topic t using (topic_id) where s.group_name = 'g'",
            )
        )
        after: Any = None
        while True:
            after = one(
                "select next from duewheel.reschedule_chunk('moved', null, 'moved', null, null, %s,"
                " false, 10000, %s, %s)",
                clock() + 3 * DAY,
                json.dumps(after) if after else None,
                clock(),
            )
            if after is None:
                break
        one(
            "select count(*) from duewheel.receive_batch(%s, %s, %s, '10 s', 'one', 0, false,"
            " %s, false, 100)",
            groups["expired_group"],
            topics["expired"],
            count,
            clock(),
        )
        # As few leases as there may be.
        one(
            "select count(*) from duewheel.receive_batch(%s, %s, %s, '10 s', 'one', 0, false, %s)",
            groups["whole_group"],
            topics["whole"],
            count,
            clock(),
        )
        # Leases of one message that end one after another, and are answered.
        one(
            "select count(*) from duewheel.receive_batch(%s, %s, %s, '10 s', 'one', 0, false,"
            " %s, false, 1, false)",
            groups["acked_group"],
            topics["acked"],
            count,
            clock(),
        )
        ask(
            owner,
            "with acked as ("
            " update duewheel.lease set expires_at = leased_at - interval '1 min' + n * interval '1 us',"
            "   revived_to = '-infinity' where topic_id = %s returning *"
            ") insert into duewheel.lease_event (n, at, topic_id, group_id, queue, kind)"
            " select n, leased_at, topic_id, group_id, queue, 'acked' from acked where message_count > 0",
            topics["acked"],
        )
        # By the clock of the tests.
        ask(owner, "update duewheel.topic set deleted_at = %s where deleted_at is not null", clock())
        one("select 1 from duewheel.stage_part('staged', 1)")
        ask(
            owner,
            "insert into duewheel.staged_message (part_id, place, body, delay_microseconds)"
            " select 1, n, '', 0 from generate_series(1, %s) n",
            count,
        )
        schedule = one(
            "select s.schedule_id from (select %s::timestamptz) n (n), duewheel.create_schedule('daily',"
            " 'waiting', '', null, '1 day', 'UTC', null, 'all', null, null, null, n, n, n) s",
            clock(),
        )
        stream = one("select group_id from duewheel.subscribe('unread', 'stream', now => %s)", clock())
        choosing = {
            f"{topic}_choosing": one(
                "select group_id from duewheel.subscribe(%s, 'h', now => %s, tags => 'chosen',"
                " filter => '$.a == 1')",
                topic,
                clock(),
            )
            for topic in ("tagged", "late")
        }
        one("select count(*) from duewheel.stream_start(%s, %s, 's', 'group')", stream, topics["unread"])
        ask(owner, "analyze")
        retried = one("select min(message_id) from duewheel.waiting_retries('g', 'retried')")
        lease = one(
            "select lease_id from duewheel.running_leases(%s, of_topic => 'expired') limit 1", clock()
        )
        receive = "select receipt_handle from duewheel.receive('unread', 'g', 1, '2 h', now => %s)"
        handle = one(receive, clock())
    return {
        **topics,
        **groups,
        "waiting_topic": topics["waiting"],
        **choosing,
        "stream": stream,
        "retry": retried,
        "schedule": schedule,
        "lease": lease,
        "handle": handle,
        "held": ", ".join(handle.split(".")[:4]),
        "n": handle.split(".")[3],
        "token": handle.split(".")[4],
        "topics": "array[" + ", ".join(f"'{name}'" for name in topics) + "]",
        "groups": "array[" + ", ".join("'g'" for _ in topics) + "]",
    }


@pytest.fixture(scope="module")
def without_autovacuum(postgres: EmbeddedPostgres) -> Iterator[None]:
    """Its snapshot keeps index entries of the rows that a portion has moved: the next portion reads them."""
    workers = "select from pg_stat_activity where backend_type = 'autovacuum worker'"
    with connected(postgres.dsn()) as server:
        ask(server, "alter system set autovacuum = off")
        ask(server, "select pg_reload_conf()")
        until(lambda: not ask(server, workers), "the workers of autovacuum to end")
        yield
        ask(server, "alter system reset autovacuum")
        ask(server, "select pg_reload_conf()")


@pytest.fixture(scope="module")
def shops(
    postgres: EmbeddedPostgres, fresh_database: Callable[[], tuple[str, str]], without_autovacuum: None
) -> Iterator[tuple[Shop, Shop]]:
    """One with ten portions of each kind, and one with a hundred."""
    made, names = [], []
    for count in (FEW, MANY):
        name, dsn = fresh_database()
        names.append(name)
        clock = Clock(datetime.fromisoformat("2026-01-05T10:30:00+00:00"))
        believe(dsn, clock())
        clock.upkeep_dsn = dsn
        with connected(dsn) as owner:
            ask(owner, TICKS_ANYWHERE)
            ask(owner, SMALL_PORTIONS)
        with Broker(dsn, clock=clock) as broker:
            found = fill(broker, clock, count)
        made.append(Shop(dsn, clock(), found))
    yield made[0], made[1]
    for name in names:
        drop_database(postgres, name)


#: From the beginning of a queue to its end, as places of a stream.
STREAM = "array[{unread}], array[0], array[null::bigint], array[0::bigint], array[0::bigint]"
STREAM_END = "array[2000000000000000], array[1::bigint], array[0::bigint]"
PART = "{unread}, 0, null, -1, 2000000000000000, 0, 0, 0"
RECEIVE = "select * from duewheel.receive_batch({%s_group}, {%s}, 32, '1 min', 'me', 1, true, %%(now)s)"
LEASES = "select * from duewheel.lease_evenly({%s_group}, {%s}, 100, 4, '1 min', 'me', %%(now)s)"
CHOSEN, CHOSEN_LEASES = (call.replace("_group}", "_choosing}") for call in (RECEIVE, LEASES))
HANDLE = "array['{handle}']"

#: What each function of a role is called with; {waiting} is a message id, {handle} a receipt handle, and the
#: name of a topic is its number.
CALLS: Final[dict[str, tuple[str, ...]]] = {
    "all_properties": ("select duewheel.all_properties('j', null)",),
    "answer_key": ("select duewheel.answer_key('waiting', 'one', '{{}}', now => %(now)s)",),
    "begin_wait": ("select duewheel.begin_wait('waiting', 'one', interval '1 hour', now => %(now)s)",),
    "answers": ("select * from duewheel.answers(array['{waiting}', '{last}'], pg_current_snapshot())",),
    "early_answers": ("select * from duewheel.early_answers()",),
    "withdraw_early_answer": ("select duewheel.withdraw_early_answer('waiting', 'none')",),
    "count_rewound": (
        "select * from duewheel.count_rewound('g', 'retried', start => 'earliest', max_counted => 1000)",
    ),
    "unsettled_topics_between": ("select * from duewheel.unsettled_topics_between(0, 1000000)",),
    "ack": (f"select duewheel.ack({HANDLE}, now => %(now)s)",),
    "create_schedule": (
        (
            "select duewheel.create_schedule('new', 'waiting', '', null, '1 day', 'UTC', null, 'all', null,"
            " null, null,"
            " %(now)s, %(now)s, %(now)s)"
        ),
    ),
    "advance_schedule": (
        (
            "select duewheel.advance_schedule({schedule}, 0, %(now)s, array[%(now)s + interval '1 day'],"
            " %(now)s + interval '2 day', %(now)s)"
        ),
    ),
    "answer": (
        (
            "select duewheel.answer('ack', {unread_group}, array[{unread}], array[0], array[{n}::bigint],"
            " array[{token}::bigint], '[null]', null, null, null, %(now)s)"
        ),
    ),
    "asked_instant": (
        (
            "select duewheel.asked_instant('waiting', 'DELAY', '1 day', 'reject', null, %(now)s, '1"
            " hour', null, null)"
        ),
    ),
    "begin_copy": ("select * from duewheel.begin_copy('waiting', 1)",),
    "begin_turning": ("select duewheel.begin_turning()",),
    "change_invisible_duration": (
        f"select duewheel.change_invisible_duration({HANDLE}, '1 min', now => %(now)s)",
    ),
    "check_bulk_recall": ("select duewheel.check_bulk_recall('tag', null, null, null, false)",),
    "check_filter": ("select duewheel.check_filter('$.a == 1')",),
    "check_message": ("select duewheel.check_message('', null, null, null, null, null)",),
    "check_message_group": ("select duewheel.check_message_group('ordered', 'FIFO', 'one')",),
    "claim_report": ("select * from duewheel.claim_report('1 s')",),
    "create_topic": ("select duewheel.create_topic('new')",),
    "dead_letter": (f"select duewheel.dead_letter({HANDLE}, now => %(now)s)",),
    "dead_letter_page": (
        "select * from duewheel.dead_letter_page('g', max_messages => 100)",
        "select * from duewheel.dead_letter_page('g', 'dead', reason_contains => 'x', max_looked_at => 1000)",
    ),
    "dead_letter_reasons": (
        "select * from duewheel.dead_letter_reasons('g', max_looked_at => 1000, max_open => 1000)",
    ),
    "delete_group": (
        *(
            f"select duewheel.delete_group('g', '{topic}')"
            for topic in ("unread", "retried", "dead", "expired", "ordered")
        ),
        "select duewheel.delete_group('g')",
    ),
    "delete_topic": tuple(
        f"select duewheel.delete_topic('{topic}')"
        for topic in ("unread", "waiting", "retried", "dead", "late", "expired", "ordered", "moved")
    ),
    "discard_staged": ("select duewheel.discard_staged('staged')",),
    "due_histogram": (
        "select * from duewheel.due_histogram(%(now)s - interval '1 day', '1 hour', 100, max_ms => 10000)",
    ),
    "due_schedules": ("select * from duewheel.due_schedules('1 day', '1 min', 100, p_now => %(now)s)",),
    "due_soon": (
        "select * from duewheel.due_soon(%(now)s, %(now)s + interval '1 min')",
        "select * from duewheel.due_soon(%(now)s - interval '1 day', %(now)s + interval '10 days')",
    ),
    "due_topics": ("select * from duewheel.due_topics(0, 100, null, %(now)s + interval '10 days')",),
    "expired_between": (
        "select * from duewheel.expired_between(%(now)s - interval '1 day', %(now)s, max_leases => 1000)",
    ),
    "fence": (f"select duewheel.fence({HANDLE}, now => %(now)s)",),
    "find": ("select * from duewheel.find('{waiting}')",),
    "find_key": ("select * from duewheel.find_key('waiting', 'one')",),
    "flow_histogram": (
        (
            "select * from duewheel.flow_histogram(%(now)s - interval '1 day', '1 hour', 24, max_leases =>"
            " 50, max_ms => 10000)"
        ),
    ),
    "from_unix_micros": ("select duewheel.from_unix_micros(0)",),
    "give_back": (f"select duewheel.give_back({HANDLE}, now => %(now)s)",),
    "group_doorbells": (
        "select * from duewheel.group_doorbells({topics}, {groups}, p_now => %(now)s)",
        "select * from duewheel.group_doorbells(array['tagged', 'late'], array['h', 'h'], p_now => %(now)s)",
    ),
    "group_stats": ("select * from duewheel.group_stats(now => %(now)s)",),
    "history": (
        "select * from duewheel.history('{waiting}', now => %(now)s)",
        "select * from duewheel.history('{retry}', now => %(now)s)",
    ),
    "hold_back": ("select duewheel.hold_back({waiting_topic}, '-infinity')",),
    "is_fifo": ("select duewheel.is_fifo({ordered})",),
    "is_turning": ("select duewheel.is_turning()",),
    "lease_ends": ("select * from duewheel.lease_ends(%(now)s, %(now)s + interval '1 s')",),
    "lease_ends_of_topics": (
        "select * from duewheel.lease_ends_of_topics(0, 1000, %(now)s + interval '1 min')",
    ),
    "lease_evenly": (
        LEASES % ("unread", "unread"),
        LEASES % ("recalled", "recalled"),
        CHOSEN_LEASES % ("tagged", "tagged"),
        LEASES % ("late", "late"),
    ),
    "lease_query": ("select duewheel.lease_query({held})",),
    "lease_rows": ("select * from duewheel.lease_rows({held})",),
    "lease_runs": (
        "select * from duewheel.lease_runs({expired_group}, array[{expired}], array[0], array[1::bigint])",
    ),
    "lease_states": (
        (
            "select * from duewheel.lease_states({expired_group}, array[{expired}], array[0],"
            " array[1::bigint], array[0::bigint], %(now)s)"
        ),
    ),
    "lease_topic": ("select duewheel.lease_topic({unread})",),
    "list_messages": (
        "select * from duewheel.list_messages('waiting')",
        "select * from duewheel.list_messages()",
        "select * from duewheel.list_messages('waiting', tag => 'other')",
        "select * from duewheel.list_messages('waiting', 'recalled')",
        "select * from duewheel.list_messages('recalled', 'waiting')",
        "select * from duewheel.list_messages('waiting', key_prefix => 'waiting', tag => 'other')",
        "select * from duewheel.list_messages('waiting', 'released', key_prefix => 'waiting')",
        "select * from duewheel.list_messages('moved', 'all')",
    ),
    "message_at": ("select * from duewheel.message_at({unread}, 0::smallint, %(now)s, 1)",),
    "lock_keys": ("select duewheel.lock_keys('waiting', array['one', 'two'], array['three'])",),
    "message_id": ("select duewheel.message_id(1, 1, %(now)s, 1)",),
    "messages_by_name": (
        "select * from duewheel.messages_by_name('one', 'expired', 'g', max_leases => 50, max_ms => 10000)",
    ),
    "nack": (f"select duewheel.nack({HANDLE}, now => %(now)s)",),
    "next_due": tuple(
        f"select duewheel.next_due({{{topic}_group}}, {{{topic}}}, %(now)s)"
        for topic in ("unread", "recalled", "retried", "late", "expired", "ordered")
    ),
    "notify_due": ("select duewheel.notify_due({unread}, %(now)s)",),
    "open_messages": ("select * from duewheel.open_messages({held})",),
    "overdue_topics": ("select * from duewheel.overdue_topics(%(now)s + interval '5 days')",),
    "pause_group": (
        "select duewheel.pause_group('g', 'unread', now => %(now)s)",
        "select duewheel.pause_group('g', 'expired', now => %(now)s)",
    ),
    "pause_schedule": ("select duewheel.pause_schedule('daily', %(now)s)",),
    "paused_schedule": ("select duewheel.paused_schedule('daily', %(now)s)",),
    "peek_cuts": ("select * from duewheel.peek_cuts('empty', null, null, 100, 10000)",),
    "progress": ("select * from duewheel.progress({unread_group}, {unread}, %(now)s)",),
    "rebase": ("select * from duewheel.rebase(%(now)s)",),
    "recall": ("select duewheel.recall('{waiting}', %(now)s)",),
    "recall_chunk": (
        "select duewheel.recall_chunk('waiting', null, null, null, null, false, true, 100, null, %(now)s)",
        "select duewheel.recall_chunk('waiting', 'none', null, null, null, false, true, 100, null, %(now)s)",
        (
            "select duewheel.recall_chunk('waiting', 'none', 'waiting', null, null, false, true, 100,"
            " null, %(now)s)"
        ),
        "select duewheel.recall_chunk('unread', null, 'unread', null, null, false, true, 100, null, %(now)s)",
        "select duewheel.recall_chunk('recalled', null, null, null, null, false, true, 100, null, %(now)s)",
    ),
    "recall_key": ("select outcome from duewheel.recall_key('waiting', 'one', %(now)s)",),
    "recall_of": ("select * from duewheel.recall_of({unread}, 0, %(now)s, 1)",),
    "receive": (
        "select * from duewheel.receive('unread', 'g', now => %(now)s)",
        "select * from duewheel.receive('recalled', 'g', now => %(now)s)",
        "select * from duewheel.receive('retried', 'g', now => %(now)s)",
        "select * from duewheel.receive('late', 'g', now => %(now)s)",
        "select * from duewheel.receive('expired', 'g', now => %(now)s)",
        "select * from duewheel.receive('ordered', 'g', now => %(now)s)",
        "select * from duewheel.receive('failed', 'g', now => %(now)s + interval '2 days')",
        "select * from duewheel.receive('blocked', 'g', now => %(now)s + interval '2 days')",
        "select * from duewheel.receive('tagged', 'h', now => %(now)s)",
        "select * from duewheel.receive('late', 'h', now => %(now)s)",
    ),
    "receive_batch": (
        RECEIVE % ("unread", "unread"),
        RECEIVE % ("recalled", "recalled"),
        RECEIVE % ("late", "late"),
        CHOSEN % ("late", "late"),
        CHOSEN % ("tagged", "tagged"),
    ),
    "receive_few": tuple(
        call.replace("receive_batch", "receive_few")
        for call in (
            RECEIVE % ("unread", "unread"),
            RECEIVE % ("recalled", "recalled"),
            CHOSEN % ("late", "late"),
        )
    ),
    "redrive_chunk": (
        (
            "select duewheel.redrive_chunk('g', null, null, null, null, null, null, null, 100, false,"
            " null, %(now)s)"
        ),
        (
            "select duewheel.redrive_chunk('g', null, null, null, null, 'no', null, null, 100, false,"
            " null, %(now)s)"
        ),
    ),
    "release_lateness": (
        "select * from duewheel.release_lateness(%(now)s - interval '1 day', max_ms => 10000)",
    ),
    "release_lease": ("select duewheel.release_lease('{lease}', now => %(now)s)",),
    "delete_schedule": ("select duewheel.delete_schedule('daily', %(now)s)",),
    "rename_group": ("select duewheel.rename_group('g', 'renamed')",),
    "replace_keys": (
        "select duewheel.replace_keys({waiting_topic}, array['one', 'two'], array['new', 'newer'], %(now)s)",
    ),
    "portion": ("select duewheel.portion()",),
    "reschedule": ("select duewheel.reschedule('{waiting}', delay => '1 day', now => %(now)s)",),
    "reschedule_chunk": (
        (
            "select duewheel.reschedule_chunk('waiting', null, 'waiting', null, null, %(now)s + interval"
            " '1 day', false,"
            " 100, null, %(now)s)"
        ),
        (
            "select duewheel.reschedule_chunk('waiting', 'none', 'waiting', null, null, %(now)s +"
            " interval '1 day',"
            " false, 100, null, %(now)s)"
        ),
    ),
    "reschedule_key": ("select duewheel.reschedule_key('waiting', 'one', delay => '1 day', now => %(now)s)",),
    "resume_group": ("select duewheel.resume_group('g', 'unread', %(now)s)",),
    "resume_schedule": ("select duewheel.resume_schedule({schedule}, 0, %(now)s, %(now)s)",),
    "retry_now": (
        "select duewheel.retry_now('g', array['{retry}'], %(now)s)",
        "select duewheel.retry_now('g', array['{blocking}'], %(now)s)",
    ),
    "revive_chunk": (
        "select duewheel.revive_chunk({unread_group}, {unread}, %(now)s)",
        "select duewheel.revive_chunk({expired_group}, {expired}, %(now)s)",
        "select duewheel.revive_chunk({expired_group}, {expired}, %(now)s + interval '1 min')",
        "select duewheel.revive_chunk({whole_group}, {whole}, %(now)s + interval '1 min')",
        "select duewheel.revive_chunk({acked_group}, {acked}, %(now)s + interval '1 min')",
        "select duewheel.revive_chunk({ordered_group}, {ordered}, %(now)s)",
    ),
    "rewind": (
        *(
            f"select * from duewheel.rewind('{topic}', 'g', start => 'earliest', now => %(now)s)"
            for topic in ("unread", "retried", "ordered", "failed", "expired", "acked", "late")
        ),
        *(
            f"select * from duewheel.rewind('{topic}', 'g', start => 'latest', now => %(now)s)"
            for topic in ("blocked", "expired")
        ),
        "select * from duewheel.rewind('retried', 'g', start => 'latest', now => %(now)s)",
    ),
    "rewind_chunk": (
        (
            "select duewheel.rewind_chunk(rest, %(now)s) from duewheel.rewind("
            "'retried', 'g', start => 'earliest', now => %(now)s)"
        ),
    ),
    "running_leases": ("select * from duewheel.running_leases(%(now)s, max_looked_at => 50)",),
    "schedules": ("select * from duewheel.schedules(%(now)s)",),
    "send": (
        "select duewheel.send('waiting', 'x'::text, delay => '1 day', key => 'one', now => %(now)s)",
        (
            "select duewheel.send('waiting', 'x'::text, delay => '1 day', key => 'one', on_conflict =>"
            " 'replace', now => %(now)s)"
        ),
        (
            "select duewheel.send('waiting', 'x'::text, delay => '1 day', idempotency_key => 'one', now"
            " => %(now)s)"
        ),
        "select duewheel.send('waiting', '{{}}'::jsonb, delay => '1 day', now => %(now)s)",
        "select duewheel.send('waiting', ''::bytea, delay => '1 day', now => %(now)s)",
        "select duewheel.send('ordered', 'x'::text, message_group => '1', now => %(now)s)",
    ),
    "set_subscription": (
        "select duewheel.set_subscription('tagged', 'h', 'other', now => %(now)s)",
        "select duewheel.set_subscription('unread', 'g', 'other', now => %(now)s)",
    ),
    "set_retry_policy": ("select duewheel.set_retry_policy('unread', 'g', 3, array['1 s'::interval])",),
    "settings": ("select duewheel.settings(%(now)s)",),
    "skip": (f"select duewheel.skip({HANDLE}, now => %(now)s)",),
    "stage_part": ("select duewheel.stage_part('staged', 2)",),
    "stream_commit": (
        (
            "select duewheel.stream_commit({stream}, {unread}, 's', array[{unread}], array[0],"
            " array[0::bigint], array[1::bigint], array[0::bigint])"
        ),
    ),
    "stream_cut": (f"select * from duewheel.stream_cut({STREAM}, {STREAM_END}, 100, null)",),
    "stream_lag": (f"select * from duewheel.stream_lag({{stream}}, {{unread}}, {STREAM})",),
    "stream_latest": (
        f"select * from duewheel.stream_latest(array[{{stream}}], array[{{unread}}], null, {STREAM})",
        (
            "select * from duewheel.stream_latest(array[{late_group}], array[{late}], null, array[{late}],"
            " array[0], array[null::bigint], array[null::bigint], array[0::bigint])"
        ),
    ),
    "stream_lost": (
        "select * from duewheel.stream_lost({stream}, {unread}, array[{unread}], array[0], array[1::bigint])",
    ),
    "stream_query": (f"select duewheel.stream_query({PART})",),
    "stream_start": (
        "select duewheel.stream_start({tagged_group}, {tagged}, 't', 'earliest')",
        "select duewheel.stream_start({late_group}, {late}, 't', 'at', %(now)s)",
    ),
    "subscribe": (
        "select duewheel.subscribe('unread', 'new', now => %(now)s)",
        "select duewheel.subscribe('unread', 'new', 'latest', now => %(now)s)",
        "select duewheel.subscribe('late', 'new', start_at => %(now)s, now => %(now)s)",
    ),
    "subscriptions_named": ("select * from duewheel.subscriptions_named({topics}, {groups}, %(now)s)",),
    "tick_over": ("select * from duewheel.tick_over({unread}, %(now)s)",),
    "tick_topic": (
        "select duewheel.tick_topic({late}, %(now)s)",
        "select duewheel.tick_topic({waiting_topic}, %(now)s + interval '5 days')",
    ),
    "topic_by_name": ("select duewheel.topic_by_name('unread')",),
    "topic_stats": ("select * from duewheel.topic_stats(now => %(now)s)",),
    "topic_with_retries": ("select * from duewheel.topic_with_retries('unread')",),
    "topics_to_tick": (
        "select * from duewheel.topics_to_tick({unread_group}, {unread}, %(now)s)",
        "select * from duewheel.topics_to_tick({retried_group}, {retried}, %(now)s + interval '20 days')",
    ),
    "unix_micros": ("select duewheel.unix_micros(%(now)s)",),
    "unread_body_bytes": tuple(
        f"select duewheel.unread_body_bytes({{{topic}_group}}, {{{topic}}})"
        for topic in ("unread", "recalled", "late")
    ),
    "unsettled_topics": ("select * from duewheel.unsettled_topics(array[{late}])",),
    "update_settings": ("select duewheel.update_settings(1000000000)",),
    "update_topic": (
        "select duewheel.update_topic('unread', retention => '2 days')",
        "select duewheel.update_topic('unread', dead_letter_retention => '9 days')",
    ),
    "upkeep_holders": ("select duewheel.upkeep_holders(%(now)s)",),
    "upkeep_state": ("select duewheel.upkeep_state(%(now)s)",),
    "waiting_consumers": ("select * from duewheel.waiting_consumers()",),
    "waiting_messages": ("select * from duewheel.waiting_messages(%(now)s - interval '1 day', 10000)",),
    "waiting_retries": (
        "select * from duewheel.waiting_retries()",
        "select * from duewheel.waiting_retries('g', 'retried')",
    ),
    "watched_groups": ("select * from duewheel.watched_groups({topics}, {groups})",),
    "tag_expression": ("select duewheel.tag_expression(array['a'])",),
    "wheels": ("select * from duewheel.wheels()",),
}

#: Functions that read or write as much as their caller names, and why.
EXEMPT: Final = {
    "publish_batch": "publishes the whole of a batch, or nothing",
    "recall_many": "recalls all that matches in the caller's transaction; recall_chunk takes portions",
    "redrive": "redrives all that matches in the caller's transaction; redrive_chunk takes portions",
    "released_rows": "reads a range that the caller names, and is inlined",
    "straggler_rows": "reads a range that the caller names, and is inlined",
    "releases_between": "counts as long as its caller lets it",
    "stream_cuts": "cuts a range that the caller names into parts",
    "stream_reject": "rejects the messages that the caller names",
    "stream_rows": "reads a range that the caller names",
    "take_over": "reads the ends of all leases that a group holds, for 200 leases",
    "upkeep_step": "has a test of its own below",
    "with_attempt": "changes a row that it is given",
}


def test_x25_every_function_of_a_role_is_called_here(shops: tuple[Shop, Shop]) -> None:
    """A procedure commits, and what it calls are functions of a role, too."""
    with connected(shops[0].dsn) as owner:
        entries = {name for name, is_procedure in ask(owner, ENTRY_POINTS) if not is_procedure}
    assert entries - {*CALLS, *EXEMPT} == set(), (
        "add a call of each to CALLS, or a reason to EXEMPT, or take its line `-- role:` away"
    )
    assert {*CALLS, *EXEMPT} - entries == set(), "no role may call these: take them out of CALLS or EXEMPT"
    assert not {*CALLS} & {*EXEMPT}


def grows(few: int, many: int) -> bool:
    return many > 2 * few + MORE_ROWS


def test_x25_no_call_reads_or_writes_more_where_more_waits(shops: tuple[Shop, Shop]) -> None:
    few, many = shops
    statements = [statement for calls in CALLS.values() for statement in calls]
    counted = {statement: (few.rows_of(statement), many.rows_of(statement)) for statement in statements}
    growing = {statement: rows for statement, rows in counted.items() if grows(*rows)}
    assert not growing, growing


STEPS = (
    *("prepare", "settle", "note_over", "sweep", "watch", "forget"),
    *("move_out", "drop", "drop_over_limit", "forget_outlived"),
    # What was in the slots.
    *("forget", "report"),
)


def test_x25_no_step_of_upkeep_does_more_where_more_is_over(shops: tuple[Shop, Shop]) -> None:
    """Its first portion, and each further one, after forty days."""
    most: dict[str, list[int]] = {}
    for shop in shops:
        now = shop.now + 40 * DAY
        believe(shop.dsn, now)
        with connected(shop.dsn) as owner, owner.cursor() as cursor:
            cursor.execute(ONE_PLACE_A_CALL)
        for number, step in enumerate(STEPS):
            state, largest = only(step), 0
            with closing(psycopg2.connect(shop.dsn)) as connection:
                while not state.get("finished"):
                    # The session may not have handed over the rows of the last transaction yet.
                    ((before,),) = ask(connection, READ_AND_WRITTEN)
                    ((state,),) = ask(connection, STEP, json.dumps(state), PORTION, now)
                    ((count,),) = ask(connection, READ_AND_WRITTEN)
                    largest = max(largest, int(count - before))
                    connection.commit()
            assert state["failed"] == []
            with connected(shop.dsn) as owner, owner.cursor() as cursor:
                # Else the next scan would visit the index entries of all rows that the step has moved.
                cursor.execute("vacuum")
            most.setdefault(f"{number} {step}", []).append(largest)
    growing = {step for step, (few, many) in most.items() if grows(few, many)}
    assert not growing, "\n".join(f"{step}: {rows}" for step, rows in most.items())
