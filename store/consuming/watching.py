"""Queries of a program that watches groups; each statement ends within a limit.

The server cancels a statement that takes longer, so none is left running. A wait for a lock ends after half
of the limit, so the error tells which of the two it was.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from psycopg2.errors import LockNotAvailable, QueryCanceled

from duewheel.store.consuming.doorbells import Asked, doorbell_of, query
from duewheel.store.consuming.filtering import check_filters
from duewheel.store.consuming.ticking import TICK_GROUPS
from duewheel.store.database.connections import DriverConnection, Rows, fetch
from duewheel.store.values.bodies import check_text
from duewheel.store.values.errors import GroupBusy
from duewheel.store.values.instants import Instant, to_datetime

if TYPE_CHECKING:
    from duewheel.store.database.connected import Connected
    from duewheel.store.values.doorbells import Doorbell

_SUBSCRIBE = """
select from duewheel.subscribe(
    %s, %s, %s, %s, %s, tags => %s, filter => %s::jsonpath)
"""


def subscribe(
    broker: Connected,
    topic: str,
    group: str,
    start: str | Instant,
    *,
    tags: str | None,
    filter: str | None,  # noqa: A002 -- as the consumer's parameter
    limit_seconds: float,
) -> None:
    """Make a clustering group, or nothing if it reads the topic already, and check the filter to poll with.

    Args:
        broker: the broker.
        topic: the topic.
        group: the group.
        start: where a new group begins; see :meth:`duewheel.store.broker.Broker.consumer`.
        tags, filter: the messages that the group receives; see
            :meth:`duewheel.store.broker.Broker.consumer`.
        limit_seconds: the longest time of a statement.

    Raises:
        UnknownTopic: no topic has this name.
        InvalidArgument: the group's name is not valid, or the group has the other mode, other tags or
            another filter.
        InvalidTagExpression: the tags cannot be understood.
        InvalidFilter: the filter is not a predicate of jsonpath; no group was made.
        GroupBusy: it took longer.

    Example::

        subscribe(broker, "order-timeout", "canceller", "earliest", tags=None, filter=None, limit_seconds=1)
    """
    check_text(topic, "topic")
    check_text(group, "group")
    by_name = isinstance(start, str)
    parameters = (
        topic,
        group,
        start if by_name else "earliest",
        None if isinstance(start, str) else to_datetime(start, "start"),
        broker.now(),
        tags,
        filter,
    )
    with broker.connection() as connection:
        check_filters(partial(fetch, connection), filter)
        _fetch(connection, _SUBSCRIBE, parameters, limit_seconds)


def poll(
    broker: Connected, asked: Sequence[Asked], *, release: bool, limit_seconds: float, turn_seconds: float
) -> tuple[list[Doorbell], int]:
    """The doorbells of groups: of all, or of as many as there is time for.

    Args:
        broker: the broker.
        asked: the groups; groups without a subscription are left out.
        release: whether to release due messages first.
        limit_seconds: the longest time of a statement.
        turn_seconds: after this time no further group is polled.

    Returns:
        The doorbells, and how many of the groups, from the first on, were polled: at least one.

    Raises:
        GroupBusy: it took longer than the limit.

    Example::

        doorbells, looked_at = poll(
            broker, [Asked("order-timeout", "canceller")], release=True, limit_seconds=1, turn_seconds=1
        )
    """
    statement, parameters = query(asked, broker.now(), timedelta(seconds=turn_seconds))
    with broker.connection() as connection:
        if release:
            names = [one.topic for one in asked], [one.group for one in asked]
            _fetch(connection, TICK_GROUPS, (*names, broker.now()), limit_seconds)
        rows = _fetch(connection, statement, parameters, limit_seconds)
    looked_at = len(asked)
    if rows and rows[-1][1] is None:
        looked_at = rows.pop()[0] - 1
    return [doorbell_of(asked, row) for row in rows], looked_at


def _fetch(
    connection: DriverConnection, statement: str, parameters: Sequence[Any], limit_seconds: float
) -> Rows:
    try:
        if statement.startswith("call "):
            # A procedure that commits cannot follow a setting in one message.
            with _cancelled_after(limit_seconds, connection):
                return fetch(connection, statement, parameters)
        limit_ms = max(2, int(limit_seconds * 1_000))
        limits = f"set local statement_timeout = {limit_ms}; set local lock_timeout = {limit_ms // 2}; "
        return fetch(connection, limits + statement, parameters)
    except LockNotAvailable as error:
        raise GroupBusy(
            "an open transaction holds a lock that the call needs: try again when that transaction has ended"
        ) from error
    except QueryCanceled as error:
        raise GroupBusy(
            f"it took longer than {limit_seconds:g} s and was cancelled. An open transaction may have "
            "locked the group or the topic, or a filter or a backlog costs much: try again later"
        ) from error


@contextmanager
def _cancelled_after(seconds: float, connection: DriverConnection) -> Iterator[None]:
    timer = threading.Timer(seconds, connection.cancel)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
