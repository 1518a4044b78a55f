"""Runs an application over a leased batch in a process that outlives its task: ``python -m`` this module.

The task submits and is deferred, and the process goes on by itself. It keeps the leases alive, and answers
them when the application has ended: exit code 0 acks what the application has not answered, anything else
nacks it. So the leases live exactly as long as somebody works, and the broker alone tells how the job stands:
when this process or its machine dies, the leases end, and when they are taken away, the job ends. So it does
when the time of its task is over: Airflow then fails the task and tells nobody.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from duewheel.spark.lease_watcher import ended_with_the_lease
from duewheel.spark.leased_batch import LeasedBatch
from duewheel.spark.submission import Application, ApplicationFailed, Submission, SubmittedBatch
from duewheel.store.broker import Broker
from duewheel.store.consuming.lease_states import RETURNED, lease_states, raise_if_lost
from duewheel.store.leases import from_json
from duewheel.store.values.backoff import Backoff
from duewheel.store.values.errors import BrokerUnreachable, DueWheelError
from duewheel.store.values.reasons import as_reason

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

END_SECONDS = 3.0
"""How long an application may take to end after it was asked to."""
_JOB = "job.json"
_OUTPUT = "output.log"


def detach(application: Application, batch: SubmittedBatch, most_seconds: float | None = None) -> Path:
    """Start a process of its own for an application, and return the file that it writes its output to.

    The job is handed over as the process's standard input, since it has the broker's password: in a file that
    only this user may read, and that has no name any more when the process begins. The folder of its output
    is removed when the job has succeeded.

    Args:
        application: what to run.
        batch: the batch that it works on.
        most_seconds: after how long it is ended; None is no limit.
    """
    folder = Path(tempfile.mkdtemp(prefix="duewheel-job-"))
    job, output = folder / _JOB, folder / _OUTPUT
    given = {"application": asdict(application), "batch": asdict(batch), "most_seconds": most_seconds}
    try:
        job.touch(mode=0o600)
        job.write_text(json.dumps(given))
        with job.open("rb") as handed:
            job.unlink()
            os.posix_spawn(
                sys.executable,
                [sys.executable, "-m", "duewheel.spark.detached", str(folder)],
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, handed.fileno(), 0),
                    (os.POSIX_SPAWN_OPEN, 1, str(output), os.O_WRONLY | os.O_CREAT, 0o600),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                setsid=True,
            )
    except BaseException:
        shutil.rmtree(folder)
        raise
    return output


def run(application: Application, given: SubmittedBatch, most_seconds: float | None = None) -> None:
    """Run the application, keep its leases alive meanwhile, and answer them.

    Raises:
        ApplicationFailed: it ended with an exit code other than 0, or was ended after ``most_seconds``; what
            it has not answered is nacked.
        LeaseLost: the leases were given back, as by an operator that was killed, or ended.
    """
    ends_at = None if most_seconds is None else time.monotonic() + most_seconds
    is_late = threading.Event()
    with Broker(given.dsn) as broker:
        consumer = broker.consumer(
            given.topic, given.group, tags=given.tags, filter=given.filter, name=given.name
        )
        span = timedelta(seconds=given.invisible_seconds)
        batch = LeasedBatch(
            broker, consumer, from_json(given.leases), span, given.partitions, given.min_partitions
        )
        submission = Submission(application, given)

        def has_to_end() -> bool:
            if ends_at is not None and time.monotonic() >= ends_at:
                is_late.set()
            return is_late.is_set() or keeper.lost.is_set() or _is_taken_back(broker, batch)

        # The leases were taken before this process began.
        _persistently(
            lambda: raise_if_lost(consumer.answer_held("extend", batch.leases, duration=span)), span
        )
        with batch.kept_alive() as keeper:
            # The program watches its leases itself, and knows which ones it has given back.
            batch.let_others_reject()
            try:
                with ended_with_the_lease(has_to_end, partial(submission.end, END_SECONDS)):
                    submission.run(log.info)
            except ApplicationFailed as error:
                keeper.stop()
                if keeper.error is not None:
                    raise keeper.error from error
                failure = error
                if is_late.is_set():
                    failure = ApplicationFailed(
                        f"{application.path} was ended after {most_seconds:g} s, the execution_timeout of "
                        f"its task: {error}"
                    )
                _persistently(partial(_nack_unanswered, batch, as_reason(failure)), span)
                raise failure from error
            except SystemExit:
                # Told to stop, as the machine shuts down: others begin at once.
                batch.give_back(reason="the job was told to stop")
                raise
        acked: list[int] = []
        _persistently(lambda: acked.append(batch.ack_unanswered()), span)
        log.info("Acked %d messages; the application had answered %d", acked[0], batch.count - acked[0])


def _nack_unanswered(batch: LeasedBatch, reason: str) -> None:
    if batch.outcome().unanswered:
        batch.nack(reason=reason)


def _is_taken_back(broker: Broker, batch: LeasedBatch) -> bool:
    """Whether the task was ended: its trigger has given leases back, which no program does that works on."""
    try:
        with broker.connection() as connection:
            return any(
                found.state == RETURNED for found in lease_states(connection, batch.leases, broker.now())
            )
    except DueWheelError as error:
        log.warning("The leases could not be checked; trying again: %s", error)
        return False


def _persistently(answer: Callable[[], object], span: timedelta) -> None:
    """Answer, and repeat while the broker is away, until the leases have ended."""
    until = time.monotonic() + span.total_seconds()
    backoff = Backoff()
    while True:
        try:
            answer()
            return
        except BrokerUnreachable:
            if time.monotonic() >= until:
                raise
            time.sleep(backoff.next_seconds())


def _main(folder: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    signal.signal(signal.SIGTERM, _end)
    given: dict[str, Any] = json.load(sys.stdin)
    # The application has no part in it.
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    run(Application(**given["application"]), SubmittedBatch(**given["batch"]), given["most_seconds"])
    shutil.rmtree(folder)


def _end(_number: int, _frame: object) -> NoReturn:
    # As an exception, which ends the application as well.
    raise SystemExit(128 + signal.SIGTERM)


if __name__ == "__main__":
    _main(sys.argv[1])
