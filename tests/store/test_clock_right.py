"""What time it is, is the database's to say: a login with a role cannot give another instant (X19)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg2
import pytest
from tests.logins import ROLES, SUPERUSER, as_user, login
from tests.waiting import ask, connected

from duewheel.store import Broker
from duewheel.store.values.errors import InvalidArgument, NotAllowed

#: Takes an instant and reckons with it: it reads nothing and changes nothing.
ARITHMETIC = {"asked_instant"}

#: Arguments that get every call as far as to its look at the clock; others are null.
GIVEN = {
    "text": "t",
    "text[]": "{t}",
    "integer": "1",
    "bigint": "1",
    "bytea": "x",
    "jsonb": "{}",
    "message_id": f"{1:08x}{0:04x}{0:016x}{0:016x}",
    "receipt_handles": "{1.1.0.1.1.1}",
    "p_after": None,
    "consumer_group": "g",
    "p_group": "g",
}


@pytest.fixture
def owner(dsn: str) -> Iterator[Broker]:
    """The owner's broker with all that the calls are about."""
    with Broker(dsn) as broker:
        broker.create_topic("t")
        broker.consumer("t", "g")
        broker.create_schedule("t", "t", b"", every=timedelta(hours=1))
        yield broker


def calls(dsn: str) -> list[tuple[str, str, str, list[tuple[str, str]]]]:
    """Call, signature and role of every entry point that is told an instant, with its parameters."""
    with connected(dsn) as connection:
        found = ask(
            connection,
            """
            select case p.prokind when 'p' then 'call ' else 'select * from ' end || 'duewheel.' || p.proname,
                p.proname::text, p.oid::regprocedure::text, e.role_name,
                (select json_agg(json_build_array(a.name, format_type(a.type, null)) order by a.place)::text
                 from unnest(coalesce(p.proargnames, '{}'), coalesce(p.proallargtypes, p.proargtypes::oid[]),
                             coalesce(p.proargmodes, array_fill('i'::"char", array[p.pronargs::integer])))
                      with ordinality a (name, type, mode, place)
                 where a.mode in ('i', 'b'))
            from pg_proc p join duewheel.entry_points() e on e.function_name = p.proname
            where p.pronamespace = 'duewheel'::regnamespace
            order by 3
            """,
        )
    return [
        (call, signature, role, parameters)
        for call, name, signature, role, text in found
        for parameters in [[(each[0], each[1]) for each in json.loads(text or "[]")]]
        if {"now", "p_now"} & {each[0] for each in parameters} and name not in ARITHMETIC
    ]


@pytest.mark.slow
def test_x19_no_role_may_move_the_clock(owner: Broker) -> None:
    entry_points = calls(owner.dsn)
    assert len(entry_points) > 30
    forgotten = []
    for call, signature, role, parameters in entry_points:
        arguments = []
        values: list[object] = []
        for parameter, kind in parameters:
            if parameter in ("now", "p_now"):
                values.append(datetime.now(UTC) + timedelta(days=25))
            else:
                values.append(GIVEN.get(parameter, GIVEN.get(kind)))
            arguments.append(f"{parameter} => %s::{kind}")
        # A procedure commits.
        with connected(login(owner.dsn, role), autocommit=call.startswith("call")) as connection:
            try:
                ask(connection, f"{call}({', '.join(arguments)})", *values)
            except psycopg2.errors.InsufficientPrivilege as refusal:
                if "only an owner of the schema" in str(refusal):
                    continue
                forgotten.append(f"{signature}: {refusal}")
            except psycopg2.Error as error:
                forgotten.append(f"{signature}: {error}")
            else:
                forgotten.append(signature)
    assert not forgotten, "\n".join(forgotten)


def test_x19_a_broker_with_its_own_clock_is_refused_with_a_cause(owner: Broker) -> None:
    at = datetime.now(UTC)
    for role in ROLES:
        refusal = rf'"{role}_login" passed now .* only an owner .* Leave now out'
        with Broker(login(owner.dsn, role), clock=lambda: at) as broker:
            if role in ("duewheel_producer", "duewheel_admin"):
                with pytest.raises(NotAllowed, match=refusal):
                    broker.send("t", b"", delay=timedelta(0))
            if role in ("duewheel_consumer", "duewheel_admin"):
                with pytest.raises(NotAllowed, match=refusal):
                    broker.consumer("t", "g")
            if role in ("duewheel_answerer", "duewheel_admin"):
                with pytest.raises(NotAllowed, match=refusal):
                    broker.answer_key("t", "k")


def test_x19_the_owner_cannot_stop_the_clock_at_infinity(owner: Broker) -> None:
    with connected(owner.dsn) as connection:
        for instant in ("infinity", "-infinity"):
            with pytest.raises(psycopg2.Error) as refusal:
                ask(connection, "select * from duewheel.receive('t', 'g', now => %s)", instant)
            assert refusal.value.pgcode == InvalidArgument.sqlstate


def test_x19_a_member_of_the_owner_may_say_what_time_it_is(owner: Broker) -> None:
    superuser = as_user(owner.dsn, SUPERUSER)
    with connected(superuser) as connection:
        owns = "select nspowner::regrole::text from pg_namespace where nspname = 'duewheel'"
        ((name,),) = ask(connection, owns)
        ask(connection, "create role deputy_login login password 'of-a-test'")
        ask(connection, f"grant {name} to deputy_login")
    try:
        at = datetime.now(UTC)
        with Broker(
            psycopg2.extensions.make_dsn(owner.dsn, user="deputy_login", password="of-a-test"),
            clock=lambda: at,
        ) as deputy:
            deputy.consumer("t", "deputy")
    finally:
        with connected(superuser) as connection:
            ask(connection, "drop role deputy_login")
