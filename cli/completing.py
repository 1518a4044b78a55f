"""Completion for `--topic` and `--group`: TAB offers the names that the broker has.

Only a broker whose address is given is asked, so a TAB never starts an embedded one. If the broker refuses,
or does not answer within 2 s (the address may set another limit), no names are offered, because an error
message would appear in the middle of the line being typed.
"""

from __future__ import annotations

import click
import psycopg2
from click.shell_completion import CompletionItem
from psycopg2.extensions import make_dsn, parse_dsn

from duewheel.store import Broker, DueWheelError

_HURRY = {"connect_timeout": "2", "options": "-c statement_timeout=2s"}
_TOPICS = "select distinct topic from duewheel.topics where starts_with(topic, %s) order by 1 limit 100"
_GROUPS = """
select distinct consumer_group from duewheel.groups where starts_with(consumer_group, %s) order by 1 limit 100
"""


def topics(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the topics whose names begin with the typed text."""
    return _names(ctx, _TOPICS, incomplete)


def groups(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the consumer groups whose names begin with the typed text."""
    return _names(ctx, _GROUPS, incomplete)


def _names(ctx: click.Context, statement: str, incomplete: str) -> list[CompletionItem]:
    dsn = ctx.params.get("dsn")
    if not dsn:
        return []
    try:
        address = make_dsn(**(_HURRY | parse_dsn(Broker(dsn).dsn)))
        with (
            Broker(address, listen=False) as broker,
            broker.connection() as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(statement, (incomplete,))
            return [CompletionItem(name) for (name,) in cursor.fetchall()]
    except (DueWheelError, psycopg2.Error):
        return []
