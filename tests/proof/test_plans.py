"""Every hot statement touches a bounded number of pages, however much waits (design: measured).

A topic with 300 000 waiting messages in its slots and 100 000 that have no slot yet, due over three years,
and one busy topic beside it. The functions were first called, and their plans made, while all tables were
empty: those plans must stay good. What counts is what the server counts: the pages a call touches
(``EXPLAIN (ANALYZE, BUFFERS)``, nested statements included) and the sequential scans and tuples of tables in
``pg_stat_xact_user_tables``. Nothing here measures time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from tests.acting import DAY, HOUR, TICKS_ANYWHERE
from tests.busy_brokers import LEASES, build_groups
from tests.conftest import execute
from tests.waiting import ask, connected

from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.store.broker import Broker
from duewheel.store.database.connections import DriverConnection

pytestmark = pytest.mark.slow

#: Due over 29 hours.
WAITING = 300_000
#: Due after the last slot, over three years.
FAR = 100_000
QUEUES = 4
#: One page per partition and index would be more than this; what a call needs is far less.
PAGES_OF_ONE_CALL = 1_500


@dataclass
class Grown:
    """The database after it grew, and the session whose plans are older than that."""

    broker: Broker
    connection: DriverConnection
    group_id: int
    topic_id: int
    now: datetime

    @contextmanager
    def undone(self) -> Iterator[None]:
        """A transaction that leaves nothing behind for the next test."""
        ask(self.connection, "begin")
        try:
            yield
        finally:
            ask(self.connection, "rollback")

    def pages(self, statement: str, *parameters: object) -> int:
        """The pages that one execution touches."""
        ((plan,),) = ask(self.connection, f"explain (analyze, buffers, format json) {statement}", *parameters)
        top = plan[0]["Plan"]
        return int(top["Shared Hit Blocks"]) + int(top["Shared Read Blocks"])

    def scans(self, statement: str, *parameters: object) -> dict[str, tuple[int, int]]:
        """For each table one execution looked at: sequential scans, and tuples read by any way."""
        before = self._counters()
        ask(self.connection, statement, *parameters)
        after = self._counters()
        return {
            name: (counts[0] - before.get(name, (0, 0))[0], counts[1] - before.get(name, (0, 0))[1])
            for name, counts in after.items()
            if counts != before.get(name, (0, 0))
        }

    def _counters(self) -> dict[str, tuple[int, int]]:
        """What this session has counted in its transaction."""
        rows = ask(
            self.connection,
            "select relname, coalesce(seq_scan, 0),"
            " coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)"
            " from pg_stat_xact_user_tables where schemaname = 'duewheel'",
        )
        return {name: (scans, tuples) for name, scans, tuples in rows}


@pytest.fixture(scope="module")
def grown(postgres: EmbeddedPostgres, template_dsn: str) -> Iterator[Grown]:
    """The messages wait; plans were made before there was one."""
    assert template_dsn
    execute(postgres.dsn(), "CREATE DATABASE plans TEMPLATE template_duewheel STRATEGY wal_log")
    dsn = postgres.dsn("plans")
    now = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
    try:
        with Broker(dsn, clock=lambda: now) as broker, connected(dsn) as connection:
            ask(connection, TICKS_ANYWHERE)
            for name in ("grown", "idle"):
                broker.create_topic(name, queues=QUEUES, max_delay=3660 * DAY)
            consumer = broker.consumer("grown", "g")
            found = Grown(broker, connection, consumer.group_id, consumer.topic_id, now)
            # The slots of the template are of another time.
            ask(connection, DROP_SLOTS)
            # First, as new slots make a session plan anew.
            broker.maintain()
            for _ in range(7):
                # More often than it takes a session to settle for a plan.
                warm_up(found)
            ask(
                connection,
                "insert into duewheel.message"
                " (topic_id, queue, deliver_at, seq, xid, born_at, key, tag, body)"
                " select %s, n %% %s, %s + n * interval '350 milliseconds' + interval '1 second',"
                "  (1000000 + n)::bigint * 65536, pg_current_xact_id(), %s, 'key' || n, 'tag', 'x'"
                " from generate_series(1, %s) n",
                found.topic_id, QUEUES, now, now, WAITING,
            )  # fmt: skip
            ask(
                connection,
                "insert into duewheel.far_message"
                " (topic_id, queue, deliver_at, seq, xid, born_at, key, tag, body)"
                " select %s, n %% %s, %s + n * interval '1000 seconds',"
                "  (10000000 + n)::bigint * 65536, pg_current_xact_id(), %s, 'far' || n, 'tag', 'x'"
                " from generate_series(1, %s) n",
                found.topic_id, QUEUES, now + 10 * DAY, now, FAR,
            )  # fmt: skip
            yield found
    finally:
        execute(postgres.dsn(), "DROP DATABASE plans WITH (FORCE)")


DROP_SLOTS = """
do $$
declare
    v_table text;
begin
    for v_table in delete from duewheel.slot returning table_name loop
        execute format('drop table duewheel.%I', v_table);
    end loop;
end
$$
"""
SEND = "select duewheel.send('grown', 'x'::text, delay => '30 minutes', key => 'new', now => %s)"
SEND_FAR = "select duewheel.send('grown', 'x'::text, delay => '3000 days', key => 'new', now => %s)"
SETTLE = "select settled from duewheel.settle_far(%s, %s)"
TICK = "select duewheel.tick_topic(%s, %s)"
LEASE = (
    "select (lease).topic_id, (lease).queue, (lease).n, (lease).token"
    " from duewheel.receive_batch(%s, %s, %s, '60 s', 'c', 0, true, %s) where lease is not null"
)
ACK = "select duewheel.answer('ack', %s, %s, %s, %s, %s::bigint[], null, null, null, null, %s)"
RECEIVE = "select * from duewheel.receive_batch(%s, %s, %s, '60 s', 'c', 0, true, %s)"
NEXT_DUE = "select duewheel.next_due(%s, %s, %s)"
DUE_SOON = "select * from duewheel.due_soon(%s, %s)"
DUE_TOPICS = "select * from duewheel.due_topics(0, 500, null, %s)"
LEASE_ENDS = "select * from duewheel.lease_ends(%s, %s)"
DOORBELLS = "select * from duewheel.group_doorbells(array['grown'], array['g'], p_now => %s)"
FIND = "select * from duewheel.find(%s)"
FIND_KEY = "select * from duewheel.find_key('grown', %s)"
RECALL = "select duewheel.recall(%s, %s)"
RECALL_KEY = "select outcome from duewheel.recall_key('grown', %s, %s)"
RECALL_CHUNK = (
    "select matched from duewheel.recall_chunk('grown', null, %s, %s, %s, false, false, %s, null, %s)"
)
RESCHEDULE_KEY = "select deliver_at from duewheel.reschedule_key('grown', %s, null, '30 minutes', now => %s)"


def warm_up(found: Grown) -> None:
    """Every statement once, in the session that is looked at later."""
    now = found.now
    ((receipt,),) = ask(
        found.connection,
        "select (duewheel.send('grown', 'x'::text, delay => '1 hour', now => %s)).message_id",
        now,
    )
    ask(found.connection, RECALL, receipt, now)
    ask(found.connection, RECALL_KEY, "none", now)
    ask(found.connection, TICK, found.topic_id, now)
    ask(found.connection, "select duewheel.send('idle', 'x'::text, delay => '0', now => %s)", now)
    idle = found.broker.consumer("idle", "g")
    ask(found.connection, TICK, idle.topic_id, now)
    leases = ask(found.connection, LEASE, idle.group_id, idle.topic_id, 10, now)
    ask(found.connection, ACK, idle.group_id, *map(list, zip(*leases, strict=True)), now)
    ask(found.connection, RECEIVE, found.group_id, found.topic_id, 10, now)
    ask(found.connection, NEXT_DUE, found.group_id, found.topic_id, now)
    ask(found.connection, DUE_SOON, now, now)
    ask(found.connection, DUE_TOPICS, now)
    ask(found.connection, LEASE_ENDS, now, now)
    ask(found.connection, DOORBELLS, now)
    ask(found.connection, FIND, receipt)
    ask(found.connection, FIND_KEY, "none")


def sequential(scans: dict[str, tuple[int, int]]) -> dict[str, int]:
    """The tables that were read from end to end; those of a few rows and pages do not count."""
    return {
        name: counts[0]
        for name, counts in scans.items()
        if counts[0] and name.startswith(("message", "far_message", "lease", "tick"))
    }


def tuples_of_messages(scans: dict[str, tuple[int, int]]) -> int:
    """How many messages were looked at."""
    return sum(read for name, (_, read) in scans.items() if name.startswith(("message", "far_message")))


def identity_of(found: Grown, key: str) -> str:
    """The id of a waiting message."""
    ((identity,),) = ask(found.connection, "select message_id from duewheel.find_key('grown', %s)", key)
    return str(identity)


def check(found: Grown, pages: int, statement: str, *parameters: object) -> None:
    """One execution for the counters, one for the pages; neither reads from end to end."""
    with found.undone():
        assert sequential(found.scans(statement, *parameters)) == {}
    with found.undone():
        touched = found.pages(statement, *parameters)
    assert touched <= pages, f"{touched} pages"


def test_x17_ten_years_ahead_are_a_few_partitions(grown: Grown) -> None:
    """Every session loads, locks and plans all of them."""
    count = "select count(*) from pg_inherits where inhparent = 'duewheel.message'::regclass"
    ((partitions,),) = ask(grown.connection, count)
    assert 4 < partitions <= 20


def test_sending_one(grown: Grown) -> None:
    check(grown, PAGES_OF_ONE_CALL, SEND, grown.now)
    check(grown, PAGES_OF_ONE_CALL, SEND_FAR, grown.now)


def test_a_tick_with_nothing_due(grown: Grown) -> None:
    check(grown, PAGES_OF_ONE_CALL, TICK, grown.topic_id, grown.now)


def test_a_tick_with_one_due_and_one_with_ten_thousand(grown: Grown) -> None:
    """The release of ten thousand costs what the release of one does."""
    one, many = grown.now + timedelta(seconds=1.4), grown.now + HOUR
    for instant in (one, many):
        with grown.undone():
            scans = grown.scans(TICK, grown.topic_id, instant)
        assert sequential(scans) == {}
        assert tuples_of_messages(scans) <= 100, scans
        check(grown, PAGES_OF_ONE_CALL, TICK, grown.topic_id, instant)


def test_receiving_nothing_one_and_a_thousand(grown: Grown) -> None:
    arguments = (grown.group_id, grown.topic_id)
    check(grown, PAGES_OF_ONE_CALL, RECEIVE, *arguments, 32, grown.now)
    later = grown.now + HOUR
    for most in (1, 1_000):
        with grown.undone():
            ask(grown.connection, TICK, grown.topic_id, later)
            scans = grown.scans(RECEIVE, *arguments, most, later)
            assert sequential(scans) == {}
            # The rows handed out, and a look beyond them.
            assert most <= tuples_of_messages(scans) <= 2 * most + 200, scans
        with grown.undone():
            ask(grown.connection, TICK, grown.topic_id, later)
            assert grown.pages(RECEIVE, *arguments, most, later) <= PAGES_OF_ONE_CALL + 4 * most


def test_acking_a_thousand(grown: Grown) -> None:
    later = grown.now + 2 * HOUR
    with grown.undone():
        ask(grown.connection, TICK, grown.topic_id, later)
        leases = ask(grown.connection, LEASE, grown.group_id, grown.topic_id, 1_000, later)
        assert leases
        columns = [list(column) for column in zip(*leases, strict=True)]
        touched = grown.pages(ACK, grown.group_id, *columns, later)
    assert touched <= 200, f"{touched} pages"


def test_recalling(grown: Grown) -> None:
    for key in ("key200000", "far20000"):
        check(grown, PAGES_OF_ONE_CALL, RECALL, identity_of(grown, key), grown.now)
        check(grown, PAGES_OF_ONE_CALL, RECALL_KEY, key, grown.now)


def test_recalling_many(grown: Grown) -> None:
    """A prefix walks the index of the keys, a window the messages in it; one call walks one chunk."""
    nothing = (None, None)
    for prefix, found in (("key20000", 11), ("key200001", 1), ("far2000", 11), ("none", 0)):
        with grown.undone():
            assert ask(grown.connection, RECALL_CHUNK, prefix, *nothing, 100, grown.now) == [(found,)]
        check(grown, 2 * PAGES_OF_ONE_CALL, RECALL_CHUNK, prefix, *nothing, 100, grown.now)
    window = (grown.now + 10 * HOUR, grown.now + 10 * HOUR + timedelta(seconds=7))
    for criteria, most in (((None, *window), 100), ((None, *nothing), 1_000), (("key", *nothing), 1_000)):
        with grown.undone():
            scans = grown.scans(RECALL_CHUNK, *criteria, most, grown.now)
            assert sequential(scans) == {}
            assert tuples_of_messages(scans) <= 20_000, scans
        with grown.undone():
            touched = grown.pages(RECALL_CHUNK, *criteria, most, grown.now)
            assert touched <= PAGES_OF_ONE_CALL + 20 * most, f"{touched} pages"


def test_rescheduling_by_key(grown: Grown) -> None:
    for key in ("key200001", "far20001"):
        check(grown, PAGES_OF_ONE_CALL, RESCHEDULE_KEY, key, grown.now)


def test_moving_into_slots(grown: Grown) -> None:
    """What is moved costs, and not what goes on waiting; nothing to move costs next to nothing."""
    with grown.undone():
        assert ask(grown.connection, SETTLE, 1_000, grown.now) == [(0,)]
    check(grown, 200, SETTLE, 1_000, grown.now)
    with connected(grown.broker.dsn) as other:
        later = grown.now + 12 * DAY
        for days in range(9, 13):
            ask(other, "select duewheel.make_slots_ahead(%s)", grown.now + days * DAY)
        # Told of, and then opened.
        for _ in range(2):
            ask(other, "select duewheel.open_slots()")
    for most in (1, 100):
        with grown.undone():
            scans = grown.scans(SETTLE, most, later)
            assert sequential(scans) == {}
            assert tuples_of_messages(scans) <= 4 * most + 20, scans
        with grown.undone():
            assert ask(grown.connection, SETTLE, most, later) == [(most,)]
        with grown.undone():
            touched = grown.pages(SETTLE, most, later)
            assert touched <= PAGES_OF_ONE_CALL + 60 * most, f"{touched} pages"


def test_looking_up(grown: Grown) -> None:
    for key in ("key150000", "far50000"):
        check(grown, PAGES_OF_ONE_CALL, FIND, identity_of(grown, key))
        check(grown, PAGES_OF_ONE_CALL, FIND_KEY, key)


def test_what_the_wheel_and_the_doorbells_ask(grown: Grown) -> None:
    soon = grown.now + timedelta(seconds=3)
    check(grown, PAGES_OF_ONE_CALL, NEXT_DUE, grown.group_id, grown.topic_id, grown.now)
    check(grown, PAGES_OF_ONE_CALL, LEASE_ENDS, grown.now, soon)
    check(grown, PAGES_OF_ONE_CALL, DUE_SOON, grown.now, soon)
    check(grown, PAGES_OF_ONE_CALL, DUE_TOPICS, soon)
    check(grown, PAGES_OF_ONE_CALL, DOORBELLS, grown.now)


def test_numbers_of_all_that_waits(grown: Grown) -> None:
    pages_of_all_waiting = WAITING // 100
    assert grown.pages("select * from duewheel.topic_stats(%s)", grown.now) < pages_of_all_waiting
    assert grown.pages("select * from duewheel.group_stats(%s)", grown.now) < pages_of_all_waiting
    # As autovacuum does after so many inserts.
    ask(grown.connection, "analyze duewheel.message, duewheel.far_message")
    ((waiting, exact),) = ask(
        grown.connection,
        "select waiting, waiting_is_exact from duewheel.topic_stats(%s) where topic = 'grown'",
        grown.now,
    )
    assert not exact
    assert (WAITING + FAR) / 2 < waiting < (WAITING + FAR) * 2


def test_x08_a_list_by_key_prefix_reads_the_keys_that_begin_so(grown: Grown) -> None:
    statement = "select * from duewheel.list_messages('grown', key_prefix => %s, max_messages => %s)"
    for prefix, most in (("key77", 50), ("key277777", 50)):
        assert grown.pages(statement, prefix, most) < WAITING // 100


def test_x25_the_numbers_of_a_group_read_no_leases_of_others(broker: Broker, dsn: str) -> None:
    """Nor do its doorbell and its receive. The leases of many topics lie between each other."""
    names = [f"busy-{number}" for number in range(12)]
    for name in (*names, "idle"):
        broker.create_topic(name)
    groups = [broker.consumer(name, "g") for name in names]
    idle = broker.consumer("idle", "g")
    with connected(dsn) as connection:
        ask(
            connection,
            "insert into duewheel.lease (topic_id, group_id, queue, n, token, from_at, from_seq, to_at,"
            "  to_seq, straggler_from, straggler_to, message_count, leased_at, expires_at, revived_to)"
            " select g.topic_id, g.group_id, q, n, n, now(), n, now(), n, 0, 0, 1, now(),"
            "  now() + interval '1 hour' + (n * 100 + g.topic_id) * interval '1 ms', now()"
            " from generate_series(1, 500) n, generate_series(0, 3) q,"
            "  unnest(%s::integer[], %s::integer[]) g (topic_id, group_id)"
            " order by n, g.topic_id returning 1",
            [group.topic_id for group in groups],
            [group.group_id for group in groups],
        )
        ask(connection, "analyze duewheel.lease, duewheel.lease_event; select 1")
    place = f"{idle.group_id}, {idle.topic_id}"
    receive = f"select * from duewheel.receive_batch({place}, 1, '1 min', 'c', 1, true)"
    with connected(dsn) as connection:
        asked = Grown(broker, connection, idle.group_id, idle.topic_id, datetime.now(UTC))
        for statement in (
            "select * from duewheel.group_stats(null, array['idle'])",
            "select * from duewheel.group_doorbells(array['idle'], array['g'])",
            "select stalled_since from duewheel.groups where topic = 'idle'",
            receive,
        ):
            ask(connection, statement)
            assert asked.pages(statement) < 500, statement


def test_x08_numbers_of_all_groups_are_cheap_with_100_000_leases(broker: Broker, dsn: str) -> None:
    """Half of them are answered, and none has run out. The strip and the first view ask for these numbers."""
    build_groups(broker, 300)
    every = "select * from duewheel.group_stats(max_leases => %s)"
    with connected(dsn) as connection:
        asked = Grown(broker, connection, 0, 0, datetime.now(UTC))
        ask(connection, every, 0)
        without_leases = asked.pages(every, 0)
        ask(connection, LEASES)
        ask(connection, "analyze duewheel.lease, duewheel.lease_event; select 1")
        # Each of 1 200 queues looks at the first of its leases.
        assert asked.pages(every, 0) < 1.5 * without_leases
        one = "select inflight, inflight_is_exact from duewheel.group_stats(null, array['t-001'], %s)"
        assert ask(connection, one, 1_000) == [(4 * 42, True)]
        # Of those that end first, the odd ones are answered.
        assert ask(connection, one, 20) == [(4 * 10, False)]
        assert asked.pages(one, 20) < asked.pages(one, 1_000) / 2
        # Of each of 336 leases its end, its final event, and whether some of its messages are answered.
        assert asked.pages(one, 1_000) < 8 * 336
        assert ask(connection, one, 0) == [(0, False)]


def test_x08_numbers_of_groups_look_up_ticks_once_a_topic(broker: Broker, dsn: str) -> None:
    """Not once a queue; and a topic without messages is looked at once."""
    build_groups(broker, 300)
    waiting = "select * from duewheel.waiting_messages(now(), 10000)"
    scans = "select pg_stat_get_xact_numscans(%s::regclass)"
    with connected(dsn, autocommit=False) as connection:
        assert ask(connection, "select count(*) from duewheel.group_stats()") == [(300,)]
        # The ticks of the topic and of its retries; the latter again before retries are counted.
        assert ask(connection, scans, "duewheel.tick_pkey") == [(900,)]
    with connected(dsn, autocommit=False) as connection:
        assert ask(connection, waiting) == [(0, True)]
        assert ask(connection, scans, "duewheel.held_back_pkey") == [(0,)]


def test_x25_numbers_of_groups_read_no_passed_stragglers(broker: Broker, dsn: str) -> None:
    build_groups(broker, 1)
    with connected(dsn, autocommit=False) as connection:
        # The plan is made while there are none.
        ask(connection, "select count(*) from duewheel.group_stats()")
        ask(
            connection,
            "insert into duewheel.straggler (tick_id, topic_id, queue, deliver_at, seq, behind_at)"
            " select 1, s.topic_id, 0, now(), n, now()"
            " from generate_series(1, 5000) n, duewheel.subscription s",
        )
        ask(connection, "update duewheel.lease set straggler_to = 1000000")
        read = "select sum(pg_stat_get_xact_tuples_returned(i)) from unnest(%s::regclass[]) i"
        indexes = ["duewheel.straggler_pkey", "duewheel.straggler_message"]
        ((before,),) = ask(connection, read, indexes)
        ask(connection, "select count(*) from duewheel.group_stats()")
        assert ask(connection, read, indexes) == [(before,)]


def test_x25_numbers_of_groups_look_up_the_groups_of_each_topic(broker: Broker, dsn: str) -> None:
    """A join that compares all groups with all topics reads the same rows: counts of rows do not show it."""
    for number in range(3):
        broker.create_topic(f"t-{number}")
    with connected(dsn) as connection:
        for number in range(300):
            ask(connection, "select 1 from duewheel.subscribe('t-1', %s)", f"g-{number}")
        ask(connection, "analyze duewheel.topic, duewheel.subscription; select 1")
    with connected(dsn, autocommit=False) as connection:
        assert ask(connection, "select count(*) from duewheel.group_stats()") == [(300,)]
        scans = "select pg_stat_get_xact_numscans('duewheel.subscription_topic'::regclass)"
        assert ask(connection, scans) == [(3,)]
