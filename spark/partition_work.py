"""Work and ack by partition: each part of a batch is worked on and acked in its own transaction.

A task of Spark may run twice: again after its executor died, or beside itself under speculation, and the
first run may have committed without the driver hearing of it. So each run takes the leases of its part for
its transaction (a fence), does the work, acks the leases and commits. A second run waits at the fence, finds
the leases acked, and is done. If the first run dies, its transaction rolls back and the second does the work.
Either way the work of a part is committed once.

The task that works on a part also reads its messages. So work and ack cover the same messages, which would
not hold for rows that went through a shuffle.

An error of the function does not run the job again: the part's transaction rolls back, the other parts
go on, and the driver gets the error. Only an error of the machinery, such as a broken connection, ends the
task, and Spark runs it again. After an error that the database asks to repeat, a deadlock or a serialization
failure, the work is repeated at once.
"""

from __future__ import annotations

import importlib.machinery
import json
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import psycopg2
from psycopg2.extensions import ISOLATION_LEVEL_READ_COMMITTED
from pyspark.sql.functions import udf

from duewheel.spark.lease_partition import LeasePartition
from duewheel.spark.lease_states import handle_prefix, refusal
from duewheel.spark.message_reader import read_leases
from duewheel.spark.statements import statement
from duewheel.spark.undocumented import cloudpickle
from duewheel.store.consuming.lease_states import GIVEN_BACK, HELD, handles_of, lease_states
from duewheel.store.database.connections import DriverConnection, fetch
from duewheel.store.values.errors import AlreadyAnswered, DueWheelError, InvalidArgument, LeaseLost
from duewheel.store.values.reasons import as_reason

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from duewheel.store.values.leases import Lease

Work = Callable[[DriverConnection, "Iterator[pa.RecordBatch]"], object]
"""The function that works on a part; its arguments are the open transaction and the messages."""

TRIES = 5
_FENCE = statement("fence_leases")
_ACK = statement("ack_leases")
_XID = "select pg_current_xact_id()::text"

_TO_BE_REPEATED = ("40001", "40P01")
"""Serialization failure and deadlock: the transaction was right, only its moment was not."""

PartResult = tuple[int, int, str | None, str | None]
_RESULT_COLUMNS = "part bigint, messages bigint, reason string, trace string"


@dataclass(frozen=True)
class FailedPart:
    """A part whose work failed; its transaction was rolled back and its messages are unanswered.

    Attributes:
        leases: its leases.
        messages: how many messages it has.
        reason: the error in a line.
        trace: the traceback on the executor.
    """

    leases: tuple[Lease, ...]
    messages: int
    reason: str
    trace: str = field(repr=False)


class PartitionsFailed(DueWheelError):
    """The work of some parts failed and was rolled back; the other parts are acked.

    The messages of the parts in ``failures`` are unanswered; a nack of the batch delivers them again.
    ``acked`` is the number of messages that are done.
    """

    def __init__(self, failures: list[FailedPart], acked: int, parts: int) -> None:
        first = failures[0]
        messages = sum(failure.messages for failure in failures)
        super().__init__(
            f"the work failed in {len(failures)} of {parts} partitions, with {messages} messages, which are "
            f"unanswered; {acked} messages are acked. The first error: {first.reason}"
        )
        self.failures = failures
        self.acked = acked


@dataclass(frozen=True)
class Part:
    """The messages that one task reads, and the leases that it answers."""

    to_read: LeasePartition
    leases: tuple[Lease, ...]

    @property
    def count(self) -> int:
        """How many messages it has."""
        return self.to_read.count


@dataclass(frozen=True)
class PartitionWork:
    """The work of all parts, as it is sent to the executors."""

    dsn: str = field(repr=False)
    parts: tuple[Part, ...]
    function: bytes = field(repr=False)
    batch_bytes: int
    columns: tuple[str, ...]

    def run(self, spark: SparkSession) -> tuple[int, list[FailedPart], int]:
        """Work on all parts, one task for each; returns how many messages are acked, the parts that failed,
        and how many there are."""
        # Plain rows, as each part yields only one, and Arrow's functions import pandas on every executor.
        task = udf(self.do, _RESULT_COLUMNS, useArrow=False).asNondeterministic()
        numbers = spark.range(0, len(self.parts), 1, len(self.parts))
        results = [row.result for row in numbers.select(task("id").alias("result")).collect()]
        failed = [
            FailedPart(self.parts[result.part].leases, result.messages, result.reason, result.trace)
            for result in sorted(results, key=lambda result: int(result.part))
            if result.reason is not None
        ]
        done = sum(result.messages for result in results if result.reason is None)
        return done, failed, len(self.parts)

    def do(self, number: int) -> PartResult:
        """Work on one part, on an executor."""
        part = self.parts[number]
        return number, part.count, *attempted(self.dsn, partial(self._in_transaction, part))

    def _in_transaction(self, part: Part, connection: DriverConnection) -> None:
        held, _, xid = fenced(connection, part.leases)
        if not held:
            # Another run of this task has committed.
            connection.rollback()
            return
        names = {handle_prefix(lease) for lease in held}
        to_read = tuple(lease for lease in part.to_read.leases if lease.handle in names)
        with closing(read_leases(self.dsn, to_read, self.batch_bytes, self.columns)) as messages:
            worked(self.function, connection, messages, xid)
        # A lease is answered, too, when the function has given back each of its messages.
        left = [state.lease for state in lease_states(connection, held) if state.state not in GIVEN_BACK]
        if left:
            ack_leases(connection, left)
        connection.commit()


def fenced(
    connection: DriverConnection,
    leases: tuple[Lease, ...],
    unanswered: Callable[[], set[int]] | None = None,
) -> tuple[list[Lease], set[int], str]:
    """Take leases of one group that are not acked for the connection's transaction, which has not begun.

    Args:
        unanswered: the numbers of the messages to take of the only lease; None takes whole leases.

    Returns:
        These leases, the numbers of their messages if not all are wanted, and the id of the transaction; no
        leases when all is acked.

    Raises:
        LeaseLost: a lease has ended or was given back, or some of its messages were answered one by one.
    """
    refused: AlreadyAnswered | None = None
    for _ in range(TRIES):
        states = lease_states(connection, leases)
        lost = refusal(states)
        if lost is not None:
            raise lost
        held = [state.lease for state in states if state.state == HELD]
        numbers = None if unanswered is None else unanswered()
        if not held or numbers == set():
            return [], set(), ""
        # Always in this order, so that two answers to the same leases never wait for each other in a circle.
        held.sort(key=lambda lease: (lease.group_id, *lease.place))
        try:
            ((*_, xid),) = fetch(connection, _FENCE, (*handles_of(held), _chosen(numbers)))
        except AlreadyAnswered as error:
            # Another run committed while this one waited for it: look again.
            connection.rollback()
            refused = error
            continue
        return held, numbers or set(), xid
    raise LeaseLost(
        f"the part cannot be worked on as a whole ({refused}): reject single messages inside the function"
    )


def ack_leases(connection: DriverConnection, leases: list[Lease], numbers: set[int] | None = None) -> None:
    """Ack leases in the transaction that has fenced them, whole or these messages of the only lease."""
    fetch(connection, _ACK, (*handles_of(leases), _chosen(numbers)))


def _chosen(numbers: set[int] | None) -> str | None:
    return None if numbers is None else json.dumps([sorted(numbers)])


def attempted(dsn: str, in_transaction: Callable[[DriverConnection], None]) -> tuple[str | None, str | None]:
    """Work on a part in a transaction that ``in_transaction`` commits, again after a deadlock; returns its
    error in a line and its traceback, if it failed."""
    try:
        for attempt in range(TRIES):
            try:
                _connected(dsn, in_transaction)
                break
            except psycopg2.Error as error:
                if error.pgcode not in _TO_BE_REPEATED or attempt == TRIES - 1:
                    raise
    except _ConnectionBroke as error:
        raise error.cause from None
    except Exception as error:  # noqa: BLE001 - the other parts go on, and the driver raises it
        return as_reason(error), "".join(traceback.format_exception(error))
    return None, None


def _connected(dsn: str, in_transaction: Callable[[DriverConnection], None]) -> None:
    # An error before the transaction begins is one of the machinery.
    try:
        connection = psycopg2.connect(dsn)
    except psycopg2.OperationalError as error:
        raise _ConnectionBroke(error) from error
    with closing(connection):
        connection.isolation_level = ISOLATION_LEVEL_READ_COMMITTED
        connection.readonly = connection.deferrable = False
        try:
            in_transaction(connection)
        except Exception as error:
            if connection.closed:
                # The commit may have happened or not. The next task finds out at the fence.
                raise _ConnectionBroke(error) from error
            raise


def worked(
    function: bytes, connection: DriverConnection, batches: Iterator[pa.RecordBatch], xid: str
) -> None:
    """Call the user's function, which has to leave the transaction open."""
    pickle.loads(function)(connection, batches)
    if connection.autocommit or fetch(connection, _XID, ())[0][0] != xid:
        raise InvalidArgument(
            "the function ended its transaction (commit, rollback or autocommit), so its work and the "
            "ack of its messages are no longer committed together: leave the transaction open"
        )


def dumped(function: Callable[..., object]) -> bytes:
    """Pickle a function for executors: by value if its module is found on no path.

    Pickle names a function of a module and leaves it to the other side to import it. Airflow loads a DAG file
    under its own name, and a program's own modules may be where no executor looks. Functions of such
    modules travel with their code.

    Example:
        >>> import pickle
        >>> pickle.loads(dumped(len))("four")
        4
    """
    name = getattr(function, "__module__", None)
    module = sys.modules.get(name) if isinstance(name, str) else None
    if module is None or name == "__main__" or _is_importable(module.__name__):
        return bytes(cloudpickle.dumps(function))
    cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(function))
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _is_importable(name: str) -> bool:
    top = name.partition(".")[0]
    return top in sys.builtin_module_names or importlib.machinery.PathFinder.find_spec(top) is not None


class _ConnectionBroke(Exception):
    """The task has to run again; ``cause`` is the reason."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause
