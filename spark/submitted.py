"""The driver's side of an application file that ``SparkConsumeMessagesOperator(application=...)`` runs.

The operator keeps the leases alive, and when the application has ended it answers the messages that have no
answer. The application watches the leases: when they are given back or end, its jobs are ended. So a driver
that can no longer be reached, because its Airflow worker died, does not work on messages that others hold.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from duewheel.spark.batch import Batch
from duewheel.spark.session import (
    cancel_jobs,
    ended_with_the_lease,
    register,
    running_session,
    ui_address,
)
from duewheel.spark.submission import BATCH_VARIABLE, SubmittedBatch
from duewheel.store.broker import Broker
from duewheel.store.consuming.lease_states import lease_states
from duewheel.store.leases import from_json
from duewheel.store.values.errors import DueWheelError, InvalidArgument

if TYPE_CHECKING:
    from duewheel.store.values.errors import LeaseLost

log = logging.getLogger(__name__)


@contextmanager
def submitted_batch() -> Iterator[Batch]:
    """The batch of an application file, until the block ends.

    The session is the one that ``spark-submit`` was asked for. It is stopped at the end of the block, unless
    the application had made it before. When the block ends without an error and the program with exit code 0,
    the operator acks the unanswered messages. Otherwise it keeps or nacks them.

    Raises:
        InvalidArgument: this program was not started by the operator, so it has no batch.
        LeaseLost: the leases were given back, or ended, while the block ran.
    """
    given = _given()
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(given.dsn))
        spark = running_session()
        if spark is None:
            spark = SparkSession.builder.getOrCreate()
            stack.callback(spark.stop)
        register(spark)
        address = ui_address(spark)
        if address is not None:
            # The operator reads this line in the program's output.
            sys.stdout.write(f"Spark UI: {address}\n")
            sys.stdout.flush()
        consumer = broker.consumer(given.topic, given.group, name=given.name)
        batch = Batch(
            broker,
            consumer,
            from_json(given.leases),
            timedelta(seconds=given.invisible_seconds),
            given.partitions,
            given.min_partitions,
        ).on(spark, given.columns)
        with _ended_with_the_leases(spark, broker, batch):
            yield batch


def _given() -> SubmittedBatch:
    try:
        return _read(os.environ[BATCH_VARIABLE])
    except (KeyError, FileNotFoundError):
        raise InvalidArgument(
            "this program has no batch: it is run by SparkConsumeMessagesOperator(application=...). In a "
            "program of your own, give consume() the session, the address, the topic and the group"
        ) from None


@cache
def _read(batch_file: str) -> SubmittedBatch:
    # A killed worker would leave the file behind, with the password. A second block takes the batch from
    # memory.
    path = Path(batch_file)
    given = SubmittedBatch(**json.loads(path.read_text()))
    path.unlink()
    return given


@contextmanager
def _ended_with_the_leases(spark: SparkSession, broker: Broker, batch: Batch) -> Iterator[None]:
    """End the session's jobs, one after the other, once a lease is lost while the block runs."""
    seen: list[LeaseLost | None] = [None]
    lost: list[LeaseLost] = []

    def is_lost() -> bool:
        if not lost:
            before, seen[0] = seen[0], _loss(broker, batch)
            # Twice in a row, since an answer of the application itself may be on its way.
            if before is not None and seen[0] is not None:
                log.error("%s", seen[0])
                lost.append(seen[0])
        return bool(lost)

    try:
        with ended_with_the_lease(is_lost, partial(cancel_jobs, spark)):
            yield
    except Exception as error:
        if lost:
            raise lost[0] from error
        raise
    if lost:
        raise lost[0]


def _loss(broker: Broker, batch: Batch) -> LeaseLost | None:
    try:
        with broker.connection() as connection:
            states = lease_states(connection, batch.leases, broker.now())
    except DueWheelError as error:
        log.warning("The leases could not be checked; trying again: %s", error)
        return None
    # Leases that the application itself has answered are no loss.
    return None if batch.answered else batch.loss(states)
