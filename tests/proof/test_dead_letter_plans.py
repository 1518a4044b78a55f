"""The reasons of dead letters are found behind any number of done ones, and what is read for them is bounded.

200 000 dead letters, of which the oldest 150 000 were sent again, in tables that nobody has analyzed or
vacuumed, in a session whose plans were made while they were empty and which compiles whatever it may. What
counts are the rows that the server read; nothing here measures time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest
from tests.conftest import execute
from tests.waiting import ask, connected

from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.store.broker import Broker
from duewheel.store.database.connections import DriverConnection

pytestmark = pytest.mark.slow

LETTERS, DONE = 200_000, 150_000
#: What the function looks at from each end, and counts at most.
LOOKED_AT, COUNTED = 50_000, 20_000
REDRIVE = (
    "select matched, next::text from duewheel.redrive_chunk('g', 't', null, null, null, null, null, null,"
    " 100, true, %s::jsonb, null)"
)
NOTE = "select duewheel.note_redrive_from(dead_letter_topic_id) from duewheel.subscription"
REASONS = "select messages, first_dead_at, complete from duewheel.dead_letter_reasons('g')"


@dataclass
class Dead:
    """The session, and the topic of the dead letters."""

    connection: DriverConnection
    topic_id: int
    #: Before the first of them; 50 ms lie between two.
    begins_at: datetime

    def send_again(self, first: int, last: int) -> None:
        """As a redrive has left them; the first one is 1."""
        ask(
            self.connection,
            "insert into duewheel.redrive"
            " (topic_id, deliver_at, seq, redriven_at, is_discarded)"
            " select topic_id, deliver_at, seq, deliver_at, false from duewheel.message"
            " where topic_id = %s and seq between %s and %s",
            self.topic_id, first * 65536, last * 65536,
        )  # fmt: skip

    def read(self) -> dict[str, tuple[int, int]]:
        """For each table its sequential scans and the rows read in this transaction."""
        rows = ask(
            self.connection,
            "select regexp_replace(relname, '^message_\\d+$', 'message'), sum(coalesce(seq_scan, 0))::int,"
            " sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::int"
            " from pg_stat_xact_user_tables where schemaname = 'duewheel' group by 1",
        )
        return {name: (scans, tuples) for name, scans, tuples in rows}


def rows_read(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]], table: str) -> int:
    """The rows of a table that were read between two counts, all of them through an index."""
    scans, rows = (now - then for now, then in zip(after[table], before[table], strict=True))
    assert scans == 0, table
    return rows


@pytest.fixture(scope="module")
def dead(postgres: EmbeddedPostgres, template_dsn: str) -> Iterator[Dead]:
    """Plans first, then the dead letters."""
    assert template_dsn
    execute(postgres.dsn(), "CREATE DATABASE dead_plans TEMPLATE template_duewheel STRATEGY wal_log")
    dsn = postgres.dsn("dead_plans")
    try:
        with Broker(dsn) as broker, connected(dsn) as connection:
            broker.create_topic("t", message_type="NORMAL", queues=1)
            broker.consumer("t", "g")
            ((topic_id,),) = ask(connection, "select dead_letter_topic_id from duewheel.subscription")
            slots = ask(connection, "select table_name, starts_at from duewheel.slot order by starts_at")
            begins_at = slots[0][1]
            for name in ("far_message", "redrive", *(name for name, _ in slots)):
                ask(connection, f"alter table duewheel.{name} set (autovacuum_enabled = false)")
            ask(connection, "set jit = on")
            ask(connection, "set jit_above_cost = 0")
            for _ in range(7):
                # More often than it takes a session to settle for a plan.
                assert ask(connection, REASONS) == []
            ask(
                connection,
                "insert into duewheel.message"
                " (topic_id, queue, deliver_at, seq, born_at, reason, body)"
                " select %s, 0, at, n * 65536::bigint, at, 'HTTP 50' || n %% 4, ''"
                " from generate_series(1, %s) n, lateral (select %s + n * interval '50 ms') a (at)",
                topic_id, LETTERS, begins_at,
            )  # fmt: skip
            found = Dead(connection, topic_id, begins_at)
            found.send_again(1, DONE)
            yield found
    finally:
        execute(postgres.dsn(), "DROP DATABASE dead_plans WITH (FORCE)")


def test_x12_reasons_are_found_behind_any_number_of_done_ones(dead: Dead) -> None:
    found = ask(dead.connection, REASONS)
    assert [messages for messages, _, _ in found] == [COUNTED // 4] * 4
    # The newest ones: all of the oldest are done.
    first = LETTERS - COUNTED + 1
    assert min(at for _, at, _ in found) == dead.begins_at + first * timedelta(milliseconds=50)
    assert not any(complete for *_, complete in found)


def test_x12_reading_reasons_is_bounded_and_resumable(dead: Dead) -> None:
    ask(dead.connection, "begin")
    try:
        dead.send_again(DONE + 1, LETTERS)
        ask(dead.connection, "delete from duewheel.redrive where seq = %s", LETTERS // 2 * 65536)
        before = dead.read()
        # One in the midst is open, out of reach.
        assert ask(dead.connection, REASONS) == [(0, None, False)]
        after = dead.read()
    finally:
        ask(dead.connection, "rollback")
    for table in ("message", "redrive"):
        assert LOOKED_AT < rows_read(before, after, table) <= 2 * LOOKED_AT + 100, table


def test_x12_a_redrive_passes_done_ones_without_lookups(dead: Dead) -> None:
    """Each portion reads its dead letters and the done ones of the same range, once."""
    scans = "select pg_stat_get_xact_numscans('duewheel.redrive_pkey'::regclass)"
    # As autovacuum does after so many inserts.
    ask(dead.connection, "analyze duewheel.message, duewheel.redrive")
    ask(dead.connection, "begin")
    try:
        before = dead.read()
        ((scanned,),) = ask(dead.connection, scans)
        portions, matched, place = 0, 0, '{"before": 9000000000000000000}'
        while not matched:
            ((matched, place),) = ask(dead.connection, REDRIVE, place)
            portions += 1
        ((now_scanned,),) = ask(dead.connection, scans)
        after = dead.read()
    finally:
        ask(dead.connection, "rollback")
    assert matched == 100
    assert portions == DONE // 10_000 + 1
    assert now_scanned - scanned <= 4 * portions
    for table, most in (("message", 2), ("redrive", 1)):
        assert after[table][1] - before[table][1] <= most * (DONE + 10_000) + 100, table


def test_x12_redrives_begin_where_upkeep_found_open_ones(dead: Dead) -> None:
    """However many were done before, a redrive reads two portions; upkeep reads one or two at a time."""
    ask(dead.connection, "analyze duewheel.message, duewheel.redrive")
    ask(dead.connection, "begin")
    try:
        notes, is_further = 0, True
        while is_further:
            before = dead.read()
            ((is_further,),) = ask(dead.connection, NOTE)
            after = dead.read()
            notes += 1
            for table in ("message", "redrive"):
                assert after[table][1] - before[table][1] <= 15_000, table
        assert notes == DONE // 10_000 + 1
        before = dead.read()
        ((matched, _place),) = ask(dead.connection, REDRIVE, '{"before": 9000000000000000000}')
        after = dead.read()
    finally:
        ask(dead.connection, "rollback")
    assert matched == 100
    for table, most in (("message", 2), ("redrive", 1)):
        assert after[table][1] - before[table][1] <= most * 10_000 + 100, table


def test_x12_open_dead_letters_are_counted_without_the_done_ones(dead: Dead) -> None:
    ask(dead.connection, "begin")
    try:
        dead.send_again(DONE + 1, LETTERS - 10)
        while ask(dead.connection, NOTE) == [(True,)]:
            pass
        before = dead.read()
        assert ask(dead.connection, "select dead from duewheel.group_stats()") == [(10,)]
        after = dead.read()
    finally:
        ask(dead.connection, "rollback")
    for table in ("message", "redrive"):
        assert rows_read(before, after, table) <= 100, table
