"""An instant or a span of any size is taken, or refused by an error of duewheel, at every entry point."""

from __future__ import annotations

import json
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
    "p_action": "nack",
    "message_type": "DELAY",
    "on_conflict": "allow",
    "message_group": None,
    "delay_level": None,
    "queues": "1",
}

ENTRY_POINTS = """
select case p.prokind when 'p' then 'call ' else 'select * from ' end || 'duewheel.' || p.proname,
    p.oid::regprocedure::text,
    (select json_agg(json_build_array(a.name, format_type(a.type, null)) order by a.place)::text
     from unnest(p.proargnames, coalesce(p.proallargtypes, p.proargtypes::oid[]),
                 coalesce(p.proargmodes, array_fill('i'::"char", array[p.pronargs::integer])))
          with ordinality a (name, type, mode, place)
     where a.mode = 'i')
from pg_proc p join duewheel.entry_points() e on e.function_name = p.proname
where p.pronamespace = 'duewheel'::regnamespace and p.proargnames is not null
order by 2
"""


@pytest.mark.slow
@pytest.mark.owner
def test_d04_an_extreme_instant_or_span_is_refused_by_name(dsn: str) -> None:
    with Broker(dsn) as broker:
        broker.create_topic("t")
        broker.consumer("t", "g")
        message_id = broker.send("t", b"", delay=timedelta(hours=1), key="t").message_id
    raw = []
    tried = 0
    with connected(dsn) as connection:
        for call, signature, text in ask(connection, ENTRY_POINTS):
            parameters = json.loads(text or "[]")
            for place, (parameter, kind) in enumerate(parameters):
                if parameter in ("now", "p_now"):
                    continue
                for extreme in EXTREMES.get(kind, ()):
                    values = [
                        message_id if other == "message_id" else GIVEN.get(other, GIVEN.get(type_name))
                        for other, type_name in parameters
                    ]
                    for at, (other, type_name) in enumerate(parameters):
                        if type_name in EXTREMES or other in ("now", "p_now"):
                            values[at] = None
                    values[place] = extreme
                    given = ", ".join(f"{name} => %s::{type_name}" for name, type_name in parameters)
                    tried += 1
                    # A procedure commits.
                    connection.rollback()
                    connection.autocommit = call.startswith("call")
                    try:
                        ask(connection, f"{call}({given})", *values)
                    except psycopg2.Error as error:
                        if (error.pgcode or "").startswith("22"):
                            raw.append(
                                f"{signature} {parameter} => {extreme}: {error.pgcode} {error}".strip()
                            )
    assert tried > 200
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

#: Functions for programs, and the answer that consumers of this package send.
PUBLIC = """
select case p.prokind when 'p' then 'call ' else 'select * from ' end || 'duewheel.' || p.proname,
    p.oid::regprocedure::text,
    (select json_agg(json_build_array(a.name, format_type(a.type, null)) order by a.place)::text
     from unnest(p.proargnames, coalesce(p.proallargtypes, p.proargtypes::oid[]),
                 coalesce(p.proargmodes, array_fill('i'::"char", array[p.pronargs::integer])))
          with ordinality a (name, type, mode, place)
     where a.mode in ('i', 'b'))
from pg_proc p
where p.pronamespace = 'duewheel'::regnamespace and p.proargnames is not null
  and (obj_description(p.oid, 'pg_proc') is not null
       or p.proname in ('answer', 'receive_few', 'waiting_retries'))
order by 2
"""


@pytest.mark.slow
@pytest.mark.owner
def test_x24_a_null_or_mistaken_argument_is_refused_by_name(dsn: str) -> None:
    with Broker(dsn) as broker:
        broker.create_topic("t")
        broker.consumer("t", "g")
        message_id = broker.send("t", b"", delay=timedelta(hours=1), key="t").message_id
    given = GIVEN | {"interval": "1 minute", "start": "earliest", "out_of_range": "reject", "p_seqs": None}
    raw = []
    tried = 0
    with connected(dsn) as connection:
        for call, signature, text in ask(connection, PUBLIC):
            parameters = json.loads(text or "[]")
            arguments = ", ".join(f"{name} => %s::{kind}" for name, kind in parameters)
            for place, (parameter, kind) in enumerate(parameters):
                for mistake in (None, *MISTAKES.get(kind, ())):
                    values = [
                        message_id if name == "message_id" else given.get(name, given.get(type_name))
                        for name, type_name in parameters
                    ]
                    values[place] = mistake
                    tried += 1
                    # A procedure commits.
                    connection.rollback()
                    connection.autocommit = call.startswith("call")
                    try:
                        ask(connection, f"{call}({arguments})", *values)
                    except psycopg2.Error as error:
                        if not (error.pgcode or "").startswith("DW"):
                            raw.append(
                                f"{signature} {parameter} => {mistake}: {error.pgcode} {error}".strip()
                            )
    assert tried > 500
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
