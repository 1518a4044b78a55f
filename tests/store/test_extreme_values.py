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
