"""A clock for all of a database, which is stopped until it is moved.

The broker reads the time only from its database. So in a database of a test the broker's functions ask
the clock of the schema ``duewheel_testing`` instead of Postgres' own. That holds for every program that
reaches the database: the test, a task of Airflow in another process, psql. Deadlines of the functions
themselves, such as "wait for a lock until", use the real clock, because the server waits in real time.

The clock advances by a microsecond each time it is read, because the broker's logs rely on an order of
instants. The sequence that counts is unlogged: a logged one gives its transaction an id at every 33rd
reading, and a tick begins without an id.
"""

from __future__ import annotations

import re
from contextlib import closing
from datetime import datetime
from threading import Lock
from typing import Any, Final

import psycopg2

#: Postgres' clock, as the functions ask for it.
_REAL: Final = "clock_timestamp()"
_OURS: Final = "duewheel_testing.read_clock()"
#: The names of deadlines: a line with such a name keeps the real clock.
_DEADLINE: Final = re.compile(r"until|stop_at")
#: The clock that counts if the caller gives no instant, which is never a deadline.
_UNLESS_GIVEN: Final = re.compile(r"(coalesce\([\w.]+, )clock_timestamp\(\)")

_SCHEMA: Final = """
create schema duewheel_testing;
create table duewheel_testing.clock (stands_at timestamptz not null);
create unlogged sequence duewheel_testing.reading;
create function duewheel_testing.read_clock() returns timestamptz
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$ select c.stands_at + nextval('duewheel_testing.reading') * interval '1 microsecond'
      from duewheel_testing.clock c $$;
grant usage on schema duewheel_testing to public;
insert into duewheel_testing.clock values (date_trunc('second', clock_timestamp()));
"""
_FUNCTIONS: Final = """
select pg_get_functiondef(p.oid) from pg_proc p
where p.pronamespace = 'duewheel'::regnamespace and p.prokind in ('f', 'p')
  and position('clock_timestamp()' in pg_get_functiondef(p.oid)) > 0
"""
_DEFAULTS: Final = """
select format('alter table %s alter column %I set default %s', d.adrelid::regclass, a.attname,
              replace(pg_get_expr(d.adbin, d.adrelid), 'clock_timestamp()', 'duewheel_testing.read_clock()'))
from pg_attrdef d
join pg_class c on c.oid = d.adrelid
join pg_attribute a on a.attrelid = d.adrelid and a.attnum = d.adnum
where c.relnamespace = 'duewheel'::regnamespace and pg_get_expr(d.adbin, d.adrelid) like '%clock_timestamp()%'
"""


def install(dsn: str) -> None:
    """Let the broker in a database use a clock that is stopped at the present."""
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(_SCHEMA)
        cursor.execute(_FUNCTIONS)
        for (definition,) in cursor.fetchall():
            cursor.execute(with_test_clock(definition))
        cursor.execute(_DEFAULTS)
        for (statement,) in cursor.fetchall():
            cursor.execute(statement)


def with_test_clock(definition: str) -> str:
    """The definition of a function that asks the test's clock, except for its deadlines.

    Example:
        >>> with_test_clock("v_now := clock_timestamp();")
        'v_now := duewheel_testing.read_clock();'
        >>> with_test_clock("exit when clock_timestamp() > v_until;")
        'exit when clock_timestamp() > v_until;'
    """
    given = _UNLESS_GIVEN.sub(rf"\1{_OURS}", definition)
    return "".join(
        line if _DEADLINE.search(line) else line.replace(_REAL, _OURS)
        for line in given.splitlines(keepends=True)
    )


def stand_at_present(dsn: str) -> None:
    """Stop the clock of a database at the present whole second."""
    StandingClock(dsn).set(None)


class StandingClock:
    """The clock of a database of a test; give it to ``Broker(dsn, clock=...)``. Threads may share it.

    Args:
        dsn: the database's address.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._lock = Lock()
        self._connection: Any = None

    def __call__(self) -> datetime:
        """Read it, which advances it by a microsecond."""
        return self._ask("select duewheel_testing.read_clock()")

    def stands_at(self) -> datetime:
        """The instant at which it was set, without the microseconds of readings."""
        return self._ask("select stands_at from duewheel_testing.clock")

    def set(self, to: datetime | None) -> None:
        """Set it to an instant, which is not before its present one; None is the present."""
        self._ask(
            "update duewheel_testing.clock set stands_at = coalesce(%s, date_trunc('second', now())) "
            "returning stands_at",
            to,
        )

    def close(self) -> None:
        """Close its connection; the next reading opens another."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _ask(self, statement: str, *parameters: object) -> datetime:
        with self._lock:
            if self._connection is None:
                self._connection = psycopg2.connect(self._dsn)
                self._connection.autocommit = True
            with self._connection.cursor() as cursor:
                cursor.execute(statement, parameters or None)
                ((answer,),) = cursor.fetchall()
        instant: datetime = answer
        return instant
