"""Work and ack by lease on the rows of a DataFrame that was made of a batch's messages, as by a join.

One task gets all rows of the messages of a lease. It takes the lease for its transaction, works on the
rows whose messages have no answer yet, acks these messages and commits. So a second run of the task, or a row
that came to two frames, finds its messages answered and does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, simplefilter

import pyarrow as pa
from pyspark.sql import functions as f

from duewheel.spark.partition_work import FailedPart, ack_leases, attempted, fenced, worked
from duewheel.spark.rejecting import HANDLE
from duewheel.spark.statements import statement
from duewheel.store.consuming.lease_states import GIVEN_BACK, lease_states
from duewheel.store.database.connections import DriverConnection, fetch
from duewheel.store.values.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from duewheel.store.values.leases import Lease

_ANSWERED = statement("answered_messages")
_RESULT_COLUMNS = "lease string, messages bigint, reason string, trace string"


@dataclass(frozen=True)
class FrameWork:
    """The work on a frame, as it is sent to the executors."""

    dsn: str = field(repr=False)
    #: By the beginning of their receipt handles.
    leases: Mapping[str, Lease]
    function: bytes = field(repr=False)

    def run(self, frame: DataFrame, partitions: int) -> tuple[int, list[FailedPart], int]:
        """Work on all rows; returns how many messages are done, the parts that failed, and how many parts
        there were.

        Raises:
            InvalidArgument: the frame has no column ``receipt_handle``.
        """
        # However the frame spells it: column names of Spark are not case-sensitive.
        frame = frame.withColumnRenamed(HANDLE, HANDLE)
        if HANDLE not in frame.columns:
            raise InvalidArgument(
                f"the frame has no column {HANDLE}, which names the messages to ack: keep it in the select"
            )
        lease = f.substring_index(HANDLE, ".", 5)
        gathered = frame.repartition(partitions, lease).groupBy(lease.alias("lease"))
        with catch_warnings():
            # Of a new pandas, which is not used here.
            simplefilter("ignore", FutureWarning)
            # Not annotated: Spark would look the annotations up.
            worked_on = gathered.applyInArrow(
                lambda key, rows: self.do(key[0].as_py(), rows), _RESULT_COLUMNS
            )
        results = worked_on.collect()
        failed = [
            FailedPart(
                (self.leases[result.lease],) if result.lease in self.leases else (),
                *(result.messages, result.reason, result.trace),
            )
            for result in results
            if result.reason is not None
        ]
        return sum(result.messages for result in results if result.reason is None), failed, len(results)

    def do(self, prefix: str | None, rows: pa.Table) -> pa.Table:
        """Work on the rows of one lease, on an executor."""
        lease = self.leases.get(prefix or "")
        numbers = [int(handle.rpartition(".")[2]) for handle in rows[HANDLE].to_pylist() if handle]
        reason, trace = attempted(self.dsn, partial(self._in_transaction, lease, rows, numbers))
        result = {
            "lease": [prefix],
            "messages": [len(set(numbers)) or rows.num_rows],
            "reason": [reason],
            "trace": [trace],
        }
        kinds: Any = [pa.string(), pa.int64(), pa.string(), pa.string()]
        return pa.table(result, schema=pa.schema(list(zip(result, kinds, strict=True))))

    def _in_transaction(
        self, lease: Lease | None, rows: pa.Table, numbers: list[int], connection: DriverConnection
    ) -> None:
        if lease is None:
            raise InvalidArgument(
                f"{rows.num_rows} rows of the frame name no message of this batch by their {HANDLE}, such as "
                f"{rows[HANDLE][0].as_py()!r}: leave them out, as by an inner join"
            )
        named = set(numbers)
        held, unanswered, xid = fenced(connection, (lease,), lambda: named - _answered(connection, lease))
        if not held:
            # Another run of this task has committed.
            connection.rollback()
            return
        left = rows.filter(pa.array([number in unanswered for number in numbers]))
        worked(self.function, connection, iter(left.to_batches()), xid)
        # The function may have given back some, or all.
        (state,) = lease_states(connection, held)
        unanswered -= _answered(connection, lease)
        if unanswered and state.state not in GIVEN_BACK:
            ack_leases(connection, held, unanswered)
        connection.commit()


def _answered(connection: DriverConnection, lease: Lease) -> set[int]:
    ((numbers,),) = fetch(connection, _ANSWERED, (lease.group_id, *lease.place))
    return set(numbers)
