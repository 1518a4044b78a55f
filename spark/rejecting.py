"""Rejecting messages of a stream or a batch that a DataFrame names, on the executors, each with a reason.

A rejected message is retried by its group's policy, as a nacked one is; the other messages can be acked. The
messages of a lease are gathered in a row, so one task answers the lease, and no message goes to the driver.
A task that Spark runs again finds its messages rejected and changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql.types import StringType

from duewheel.spark.lease_states import handle_prefix, refusal
from duewheel.spark.statements import statement
from duewheel.store.consuming.lease_states import (
    FAILED,
    HELD,
    LeaseState,
    lease_states,
    lost_error,
    raise_if_lost,
)
from duewheel.store.database.connections import Database, fetch, libpq_dsn
from duewheel.store.values import errors
from duewheel.store.values.errors import DueWheelError, InvalidArgument
from duewheel.store.values.instants import to_span
from duewheel.store.values.reasons import as_reason

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from duewheel.store.broker import Broker
    from duewheel.store.values.errors import LeaseLost
    from duewheel.store.values.leases import Lease

HANDLE = "receipt_handle"
MESSAGE_ID = "message_id"
REASON = "reason"

_REJECT = statement("reject_messages")
_STREAM_REJECT = statement("stream_reject")
_STREAM_SHARES = 16
"""The handles of one queue of a stream are cut into this many shares, so that no row becomes large.

The database locks a share by the same number.
"""

_RejectResult = tuple[int, str | None, str | None]
_RESULT_COLUMNS = "messages bigint, error string, said string"


def reject(
    messages: DataFrame, reason: str | None = None, *, dsn: str, delay: timedelta | None = None
) -> int:
    """Reject messages of a stream: it reads them again, or they are dead letters after their last retry.

    For ``foreachBatch``, before or after the rest is written. A micro-batch that runs again rejects each
    message once.

    Args:
        messages: a DataFrame with the column ``receipt_handle`` of messages that the stream has read. A
            column ``reason``, if it has one, gives the reason for each message.
        reason: the reason where that column is missing or null.
        dsn: the broker's database, as given to the stream.
        delay: until the next delivery, counted from now; None is the group's interval for that retry.

    Returns:
        How many messages are rejected.

    Raises:
        InvalidArgument: a column is missing, no reason is given, or a handle is not from a stream.
        UnknownMessage: retention has dropped a message.
        GroupBusy: the group no longer belongs to this stream.

    Example::

        def write(orders, _number):
            bad = orders.where("key is null")
            reject(bad, "no key", dsn=dsn)
            orders.where("key is not null").write...

        messages.writeStream.foreachBatch(write)...
    """
    named = named_messages(messages, reason)
    if named.columns[0] != HANDLE:
        raise InvalidArgument(f"the messages of a stream are rejected by their {HANDLE}: select that column")
    # 0.topic.queue.instant.stream.number.group
    seq = f.get(f.split(HANDLE, r"\."), f.lit(5)).try_cast("bigint")
    share = f.pmod(f.shiftright(seq, 20) + seq, f.lit(_STREAM_SHARES))
    queue = f.concat_ws(".", f.substring_index(HANDLE, ".", 3), share)
    return _rejected(named, queue, _Rejecting(libpq_dsn(dsn), _checked(delay), None, is_stream=True))


def reject_leased(named: DataFrame, dsn: str, delay: timedelta | None, now: datetime | None) -> int:
    """Reject messages by the handles of their leases; returns how many they are."""
    lease = f.substring_index(HANDLE, ".", 5)
    return _rejected(named, lease, _Rejecting(dsn, delay, now, is_stream=False))


def named_messages(messages: DataFrame, reason: str | None) -> DataFrame:
    """The messages to reject: ``receipt_handle``, or ``message_id`` if that column is missing, and
    ``reason``.

    Raises:
        InvalidArgument: both columns are missing, the column is not a string, or no reason is given.
    """
    # Column names of Spark are not case-sensitive.
    given = {name.lower(): name for name in messages.columns}
    columns = [name for name in (HANDLE, MESSAGE_ID) if name in given]
    if not columns:
        raise InvalidArgument(f"nothing names the messages: select the column {HANDLE} or {MESSAGE_ID}")
    used = columns[:1]
    if REASON in given:
        used.append(REASON)
    elif not reason:
        raise InvalidArgument(f"the reason is missing: give a reason, or a column {REASON!r}")
    for name in used:
        kind = messages.schema[given[name]].dataType
        if not isinstance(kind, StringType):
            raise InvalidArgument(f"the column {name} is {kind.simpleString()}: it has to be string; cast it")
    why = f.lit(as_reason(reason) if reason else None).cast("string")
    return messages.select(
        f.col(given[columns[0]]).alias(columns[0]),
        (f.coalesce(given[REASON], why) if REASON in used else why).alias(REASON),
    )


def _checked(delay: timedelta | None) -> timedelta | None:
    return None if delay is None else to_span(delay, "delay")


@dataclass(frozen=True)
class _Rejecting:
    """The work of an executor: it rejects the messages of a row."""

    dsn: str = field(repr=False)
    delay: timedelta | None
    now: datetime | None
    is_stream: bool

    def do(self, messages: Sequence[tuple[str, str | None]]) -> _RejectResult:
        """Reject the messages of one lease, or a share of a stream's queue; on an executor."""
        handles = [handle for handle, _ in messages]
        reasons = [None if reason is None else as_reason(reason) for _, reason in messages]
        try:
            with closing(Database(self.dsn).connect()) as connection:
                if self.is_stream:
                    fetch(connection, _STREAM_REJECT, (handles, reasons, self.delay))
                else:
                    lease = [int(part) for part in handles[0].split(".")[:5]]
                    seqs = [int(handle.rpartition(".")[2]) for handle in handles]
                    named = (json.dumps([seqs]), self.delay, self.now, json.dumps([reasons]))
                    fetch(connection, _REJECT, (*lease, *named))
        except errors.BrokerUnreachable:
            # The task runs again.
            raise
        except DueWheelError as error:
            return 0, type(error).__name__, str(error)
        return len(set(handles)), None, None


def _rejected(named: DataFrame, group: object, work: _Rejecting) -> int:
    # Plain rows: they are few, and Arrow's functions import pandas on every executor.
    task = f.udf(work.do, _RESULT_COLUMNS, useArrow=False).asNondeterministic()
    gathered = (
        named.groupBy(group.alias("part"))  # type: ignore[attr-defined] # a Column, classic or Connect
        .agg(f.collect_list(f.struct(HANDLE, REASON)).alias("messages"))
        .select(task("messages").alias("result"))
    )
    # A row for each lease, or share of a queue.
    results = [row.result for row in gathered.collect()]
    for result in results:
        if result.error is not None:
            raise getattr(errors, result.error, DueWheelError)(result.said)
    return sum(result.messages for result in results)


class OwnRejects:
    """What the work on a batch gave back, so that the batch does not count it as lost.

    Attributes:
        leases: the leases of which every message was rejected.
    """

    def __init__(self) -> None:
        self.leases: set[Lease] = set()
        # A count and not a flag: several threads may reject at once.
        self._under_way = 0

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """While the block runs, leases may be given back whose number is not known yet."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1

    def loss(self, states: Sequence[LeaseState]) -> LeaseLost | None:
        """The error to raise when messages may be with others although the work gave none of them back."""
        if self._under_way:
            return lost_error(states)
        return refusal(state for state in states if state.lease not in self.leases)


def reject_of_batch(
    broker: Broker,
    leases: Sequence[Lease],
    read: Callable[[Sequence[Lease], Sequence[str]], DataFrame],
    own: OwnRejects,
    messages: DataFrame,
    reason: str | None,
    delay: timedelta | None,
) -> int:
    """Reject messages that all belong to a batch, as :meth:`duewheel.spark.batch.Batch.reject`.

    Args:
        leases: those of the batch.
        read: reads columns of leases, also of messages that were rejected before.
        own: what the batch remembers of its rejects.
    """
    named = named_messages(messages, reason)
    span = _checked(delay)
    given = named.columns[0]
    with broker.connection() as connection:
        states = lease_states(connection, leases, broker.now())
    raise_if_lost(states)
    # Messages rejected before belong to the batch, too, and stay rejected.
    held = [state.lease for state in states if state.state == HELD]
    known = read(held, [given] if given == HANDLE else [given, HANDLE])
    handle = known[HANDLE].alias("handle")
    found = named.join(
        known.select(known[given].alias("known"), handle), named[given] == f.col("known"), "left"
    )
    # Read once, for the check and for the answers.
    found = found.select(named[given].alias("given"), f.col("handle").alias(HANDLE), REASON).persist()
    try:
        again = _require_known(found, _whole(own.leases) if given == HANDLE and own.leases else None)
        with own.under_way():
            known_now = found.where(f.col(HANDLE).isNotNull()).select(HANDLE, REASON)
            rejected = again + reject_leased(known_now, broker.dsn, span, broker.now())
            with broker.connection() as connection:
                states = lease_states(connection, leases, broker.now())
            # Another consumer gave back a lease that is returned: messages are rejected as failed.
            own.leases = {state.lease for state in states if state.state == FAILED}
    finally:
        found.unpersist()
    return rejected


def _whole(leases: set[Lease]) -> Column:
    """Whether a handle is of a lease that is rejected as a whole, whose messages cannot be looked up."""
    return f.substring_index("given", ".", 5).isin([handle_prefix(lease) for lease in leases])


def _require_known(found: DataFrame, whole: Column | None) -> int:
    """Refuse messages that are not of the batch; how many of the others were rejected with their lease."""
    foreign = found.where(f.col(HANDLE).isNull())
    again = 0
    if whole is not None:
        again = foreign.where(whole).select("given").distinct().count()
        foreign = foreign.where(f.coalesce(~whole, f.lit(True)))
    examples = foreign.limit(1).collect()
    if examples:
        raise InvalidArgument(
            f"{foreign.count()} of the {found.count()} messages are not of this batch, or were "
            f"answered before, such as {examples[0].given}; none is rejected: give only messages "
            "that the batch holds"
        )
    return again
