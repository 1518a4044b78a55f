"""An instant or a span of any size is taken, or refused by an error of duewheel, at every entry point."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta

import psycopg2
import pytest
from tests.clock import NOW
from tests.waiting import ask, connected

from duewheel.store import Broker

#: Values at and behind the ends of what Postgres reckons with.
EXTREMES = {
    "interval": (
        "178000000 years",
        "-178000000 years",
        "300000 years",
        "-300000 years",
        "2147483647 days",
        "-2147483648 days",
        "2562047788 hours",
        "-2562047788 hours",
        "1 microsecond",
    ),
    "timestamp with time zone": (
        "infinity",
        "-infinity",
        "294276-12-31 23:59:59.999999+00",
        "4714-11-24 00:00:00+00 BC",
        "4000-01-01 00:00:00+00 BC",
        "290000-01-01 00:00:00+00",
    ),
}
EXTREMES["interval[]"] = tuple(f'{{"{span}"}}' for span in EXTREMES["interval"])

#: Arguments that get a call as far as to its instants; others are null.
GIVEN = {
    "text": "t",
    "text[]": "{t}",
    "integer": "1",
    "integer[]": "{1}",
    "smallint": "0",
    "bigint": "1",
    "bigint[]": "{1}",
    "boolean": "true",
    "bytea": "x",
    "consumer_group": "g",
    "p_group": "g",
    "p_group_id": "1",
    "name": "s",
    "misfire": "once",
    "anchor_at": "2026-01-01 00:00:00+00",
    "p_action": "nack",
    "message_type": "DELAY",
    "on_conflict": "allow",
    "message_group": None,
    "delay_level": None,
    "queues": "1",
}

SIGNATURES = """
select case p.prokind when 'p' then 'call ' else 'select * from ' end || 'duewheel.' || p.proname,
    p.oid::regprocedure::text,
    (select json_agg(json_build_array(a.name, format_type(a.type, null)) order by a.place)::text
     from unnest(p.proargnames, coalesce(p.proallargtypes, p.proargtypes::oid[]),
                 coalesce(p.proargmodes, array_fill('i'::"char", array[p.pronargs::integer])))
          with ordinality a (name, type, mode, place)
     where a.mode in ('i', 'b'))
from pg_proc p
where p.pronamespace = 'duewheel'::regnamespace and p.proargnames is not null and ({which})
order by 2
"""

#: A call with its mistake, and its error if it was refused.
Tried = tuple[str, psycopg2.Error | None]


def tried(
    dsn: str,
    which: str,
    given: Mapping[str, str | None],
    mistakes_in: Callable[[str, str], Iterable[str | None]],
) -> list[Tried]:
    """Call functions, each time with one mistake in one argument.

    Args:
        dsn: the broker's database, which gets a topic, a group and a message.
        which: the condition of ``pg_proc p`` for these functions.
        given: the other arguments, by their names or types; what it lacks is null.
        mistakes_in: the mistakes in an argument of this name and type.
    """
    with Broker(dsn) as broker:
        broker.create_topic("t")
        broker.consumer("t", "g")
        message_id = broker.send("t", b"", delay=timedelta(hours=1), key="t").message_id
    found: list[Tried] = []
    with connected(dsn) as connection:
        for call, signature, text in ask(connection, SIGNATURES.format(which=which)):
            parameters = json.loads(text or "[]")
            arguments = ", ".join(f"{name} => %s::{kind}" for name, kind in parameters)
            usual = [
                message_id if name == "message_id" else given.get(name, given.get(kind))
                for name, kind in parameters
            ]
            for place, (parameter, kind) in enumerate(parameters):
                for mistake in mistakes_in(parameter, kind):
                    # A procedure commits.
                    connection.rollback()
                    connection.autocommit = call.startswith("call")
                    error = None
                    try:
                        ask(connection, f"{call}({arguments})", *usual[:place], mistake, *usual[place + 1 :])
                    except psycopg2.Error as refused:
                        error = refused
                    found.append((f"{signature} {parameter} => {mistake}", error))
    return found


def told(call: str, error: psycopg2.Error) -> str:
    """A line on a call that was refused with a raw error."""
    return f"{call}: {error.pgcode} {error}".strip()


@pytest.mark.slow
@pytest.mark.owner
def test_d04_an_extreme_instant_or_span_is_refused_by_name(dsn: str) -> None:
    entry_points = "p.proname in (select e.function_name from duewheel.entry_points() e)"
    calls = tried(
        dsn,
        entry_points,
        GIVEN,
        lambda name, kind: () if name in ("now", "p_now") else EXTREMES.get(kind, ()),
    )
    assert len(calls) > 200
    raw = [told(call, error) for call, error in calls if error and (error.pgcode or "").startswith("22")]
    assert not raw, "\n".join(raw)


def test_d04_a_delay_of_300_000_years_is_out_of_range(topic: Broker) -> None:
    topic.create_topic("lenient", out_of_range="deliver")
    for span in EXTREMES["interval"]:
        send = "select deliver_at::text from duewheel.send(%s, 'x', delay => %s, now => %s)"
        with connected(topic.dsn) as connection:
            ((at,),) = ask(connection, send, "lenient", span, NOW)
            assert (at,) == ask(connection, "select %s::timestamptz::text", NOW)[0] or "microsecond" in span
            if span.startswith(("-", "1 micro")):
                ask(connection, send, "t", span, NOW)
            else:
                with pytest.raises(psycopg2.Error, match=r"more than .* ahead") as refusal:
                    ask(connection, send, "t", span, NOW)
                assert refusal.value.pgcode == "DW004"


#: Values that an argument of a type may have by mistake, next to null.
MISTAKES = {
    "integer": ("-1", "0", "2147483647"),
    "bigint": ("-1", "0", "9223372036854775807"),
    "real": ("-1", "NaN"),
    "text": ("", "x"),
    "text[]": ("{}", "{null}", "{{a},{b}}"),
    "interval[]": ("{}", "{null}"),
    "jsonb": ("5", "{}", "[]", "null", '"x"', "[5]", "[[1.5]]", '{"group_id": "x"}'),
}

#: Functions for programs, and those whose arguments come from users of this package. All others are internal:
#: this package alone calls them, with arguments that it has checked.
PUBLIC = (
    "obj_description(p.oid, 'pg_proc') is not null"
    " or p.proname in ('answer', 'create_schedule', 'receive_few', 'waiting_retries')"
)


@pytest.mark.slow
@pytest.mark.owner
def test_x24_a_null_or_mistaken_argument_is_refused_by_name(dsn: str) -> None:
    given = GIVEN | {
        "interval": "1 minute",
        "every": None,
        "start": "earliest",
        "out_of_range": "reject",
        "p_seqs": None,
    }
    calls = tried(dsn, PUBLIC, given, lambda _, kind: (None, *MISTAKES.get(kind, ())))
    assert len(calls) > 500
    raw = [told(call, error) for call, error in calls if error and not (error.pgcode or "").startswith("DW")]
    assert not raw, "\n".join(raw)


def test_d08_a_group_starts_at_most_ten_years_ahead(topic: Broker) -> None:
    for start_at in ("infinity", "294276-12-31 23:59:59+00", str(NOW + timedelta(days=3661))):
        with (
            connected(topic.dsn) as connection,
            pytest.raises(psycopg2.Error, match="start_at must be at most 3660 days from now") as refused,
        ):
            ask(connection, "select duewheel.subscribe('t', 'g', start_at => %s, now => %s)", start_at, NOW)
        assert refused.value.pgcode == "DW010"
    topic.consumer("t", "g", start=NOW + timedelta(days=3660))


def test_x08_a_topic_that_never_existed_is_not_called_deleted(topic: Broker) -> None:
    for function, places in (("receive_few", "1"), ("receive_batch", "0")):
        with (
            connected(topic.dsn) as connection,
            pytest.raises(psycopg2.Error, match=r"no topic with the id 99999: .* or the id is wrong"),
        ):
            ask(connection, f"select duewheel.{function}(1, 99999, 1, interval '1 min', 'c', {places}, true)")
