"""The Spark operator with ``deferrable``: its application outlives the task; the triggerer waits for it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.models.taskinstance import TaskInstance
from airflow.sdk.exceptions import AirflowNotFoundException, TaskDeferred
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from tests.spark.test_operator import CONTEXT, TOPIC, application, consumer, operator
from tests.waiting import until

from duewheel.hooks.broker import BrokerAddress, DueWheelHook
from duewheel.operators.spark import SparkConsumeMessagesOperator
from duewheel.spark.detached import detach, run
from duewheel.spark.lease_states import BatchOutcome
from duewheel.spark.leased_batch import LeasedBatch
from duewheel.spark.leasing import lease_messages
from duewheel.spark.submission import Application, ApplicationFailed, Submission, SubmittedBatch
from duewheel.store import Broker
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.database.connections import fetch
from duewheel.store.leases import from_json, to_json
from duewheel.store.values.errors import BrokerUnreachable, InvalidArgument, LeaseLost
from duewheel.triggers.submitted_job import SubmittedJobTrigger

__all__ = ["consumer"]

#: Works until the file that is its argument is gone, and ends with the status that the file had.
WAITING = """
import json, os, sys, time
given = json.load(open(os.environ["DUEWHEEL_BATCH"]))
print(f"working in at least {given['min_partitions']} of {given['partitions']} partitions", flush=True)
while os.path.exists(sys.argv[1]):
    status = open(sys.argv[1]).read() or "0"
    time.sleep(0.05)
sys.exit(int(status))
"""


#: Gives back all messages of its leases, each for a reason of its own, and succeeds.
REJECTING = """
import json, os
from duewheel.store import Broker
from duewheel.store.leases import from_json
given = json.load(open(os.environ["DUEWHEEL_BATCH"]))
with Broker(given["dsn"]) as broker:
    broker.consumer(given["topic"], given["group"]).nack(from_json(given["leases"]), reason="no such order")
"""


#: A mapped one.
TASK = cast("TaskInstance", SimpleNamespace(dag_id="orders", task_id="cancel", run_id="run", map_index=3))


class Job:
    """A deferred task and the process that it has left behind."""

    def __init__(self, running: SparkConsumeMessagesOperator, folder: Path, status: str = "0") -> None:
        self.running = running
        self.hold = folder / "hold"
        self.hold.write_text(status)
        with pytest.raises(TaskDeferred) as deferred:
            running.execute(CONTEXT)
        self.deferred = deferred.value
        path, arguments = self.deferred.trigger.serialize()
        assert path == "duewheel.triggers.submitted_job.SubmittedJobTrigger"
        # As another triggerer makes it, from what Airflow has stored.
        self.arguments = json.loads(json.dumps(arguments)) | {"look_seconds": 0.1}
        self.output = Path(self.deferred.kwargs["output"].partition(":")[2])
        # What the process was given, with the password, has no name any more.
        assert {one.name for one in self.output.parent.iterdir()} <= {"output.log"}

    def trigger(self) -> SubmittedJobTrigger:
        trigger = SubmittedJobTrigger(**self.arguments)
        trigger.task_instance = TASK
        return trigger

    def event(self) -> dict[str, Any]:
        async def fired() -> dict[str, Any]:
            async for event in self.trigger().run():
                return dict(event.payload)
            raise AssertionError("the trigger ended without an event")

        return asyncio.run(fired())

    def complete(self, event: dict[str, Any]) -> int:
        done: int = getattr(self.running, self.deferred.method_name)(CONTEXT, event, **self.deferred.kwargs)
        return done

    def pids(self) -> list[int]:
        """The processes of the job that still run."""
        found = subprocess.run(
            ["pgrep", "-f", str(self.hold)], stdout=subprocess.PIPE, text=True, check=False
        )
        runner = subprocess.run(
            ["pgrep", "-f", str(self.output.parent)], stdout=subprocess.PIPE, text=True, check=False
        )
        return [int(pid) for pid in (found.stdout + runner.stdout).split()]

    def ends(self) -> None:
        until(lambda: not self.pids(), "the job to end")

    def works(self) -> None:
        until(lambda: "working" in self.output.read_text(), "the application to work")


@pytest.fixture
def job(consumer: Consumer, spark3_submit: None, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Begins a job, which ends with the test at the latest."""
    jobs: list[Job] = []

    def begin(status: str = "0", program: str = WAITING, **arguments: Any) -> Job:
        path = application(tmp_path, program)
        running = operator(
            None,
            application=path,
            application_args=[str(tmp_path / "hold")],
            spark_conn_id="spark_default",
            deferrable=True,
            **arguments,
        )
        jobs.append(Job(running, tmp_path, status))
        return jobs[-1]

    yield begin
    for begun in jobs:
        begun.hold.unlink(missing_ok=True)
        begun.ends()


@pytest.mark.slow
def test_task_is_deferred_until_its_application_has_ended(
    job: Callable[..., Job], consumer: Consumer, broker: Broker
) -> None:
    """A trigger that is ended, as with its triggerer, changes nothing for the job; the next one looks on."""
    broker.send_many(TOPIC, [{"body": os.urandom(100_000), "delay": timedelta(0)}] * 10)
    begun = job(partitions=7)
    begun.works()
    # As many as its large messages are worth.
    assert "working in at least 7 of 7 partitions" in begun.output.read_text()
    assert not [path for path in begun.output.parent.iterdir() if path != begun.output]

    async def ended() -> None:
        looking = asyncio.ensure_future(anext(begun.trigger().run()))
        await asyncio.sleep(0)
        looking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looking

    asyncio.run(ended())
    assert not consumer.receive()
    begun.hold.unlink()
    event = begun.event()
    assert set(event["states"]) == {"acked"}
    assert begun.complete(event) == 20
    assert not consumer.receive()
    begun.ends()
    assert not begun.output.parent.exists()


@pytest.mark.slow
def test_application_that_rejects_every_message_has_succeeded(
    job: Callable[..., Job], tmp_path: Path, broker: Broker
) -> None:
    """With and without ``deferrable``: its exit code alone decides."""
    begun = job(program=REJECTING)
    assert begun.complete(begun.event()) == 10
    begun.ends()
    (found,) = broker.find_key(TOPIC, "1")
    assert "no such order" in (broker.history(found.message_id)[-1].reason or "")
    broker.send(TOPIC, b"", delay=timedelta(0))
    path = application(tmp_path, REJECTING)
    assert operator(None, application=path, spark_conn_id="spark_default").execute(CONTEXT) == 1


@pytest.mark.slow
def test_r03_application_that_fails_gives_its_messages_back(job: Callable[..., Job], broker: Broker) -> None:
    begun = job("3")
    begun.works()
    begun.hold.unlink()
    event = begun.event()
    with pytest.raises(
        ApplicationFailed, match=r"job\.py gave 10 messages back and acked 0; its output is in"
    ):
        begun.complete(event)
    (found,) = broker.find_key(TOPIC, "1")
    last = broker.history(found.message_id)[-1]
    assert last.state == "WaitingRetry"
    assert "ended with exit code 3" in (broker.history(found.message_id)[-1].reason or "")


@pytest.mark.long
@pytest.mark.slow
def test_r03_application_is_ended_when_the_time_of_its_task_is_over(
    job: Callable[..., Job], broker: Broker
) -> None:
    """Airflow fails the task then, and calls nobody."""
    begun = job(execution_timeout=timedelta(seconds=1))
    assert begun.deferred.timeout == timedelta(seconds=1)
    event = begun.event()
    begun.ends()
    with pytest.raises(ApplicationFailed, match=r"job\.py gave 10 messages back and acked 0"):
        begun.complete(event)
    (found,) = broker.find_key(TOPIC, "1")
    reason = broker.history(found.message_id)[-1].reason or ""
    assert "was ended after 1 s, the execution_timeout of its task" in reason


def test_trigger_looks_again_while_airflow_is_away(
    consumer: Consumer, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end would fail the task while the job works on."""
    leases = lease_messages(broker, consumer)
    trigger = SubmittedJobTrigger(TOPIC, consumer.group, to_json(leases), look_seconds=0.01)
    consumer.ack(leases)
    resolve = DueWheelHook.aresolve
    answers: list[Exception] = [ConnectionError("no API server"), TimeoutError("none in time")]

    async def away(hook: DueWheelHook) -> BrokerAddress:
        if answers:
            raise answers.pop(0)
        return await resolve(hook)

    async def look() -> set[str]:
        return set((await anext(trigger.run())).payload["states"])

    monkeypatch.setattr(DueWheelHook, "aresolve", away)
    assert asyncio.run(look()) == {"acked"}
    answers.append(AirflowNotFoundException("no such connection"))
    with pytest.raises(AirflowNotFoundException, match="no such connection"):
        asyncio.run(look())


@pytest.mark.slow
def test_x11_leases_of_a_killed_job_end(
    job: Callable[..., Job], broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = job()
    begun.works()
    for pid in begun.pids():
        # The death of one may end another.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    later = datetime.now(UTC) + timedelta(hours=1)
    monkeypatch.setattr(BrokerAddress, "open", lambda address, *_: Broker(address.dsn, clock=lambda: later))
    event = begun.event()
    with pytest.raises(LeaseLost, match="leases were lost"):
        begun.complete(event)


@pytest.mark.slow
def test_x11_a_job_whose_runner_is_told_to_stop_ends_and_gives_its_messages_back(
    job: Callable[..., Job], consumer: Consumer
) -> None:
    """As a machine that shuts down tells it: they are ready again at once, as the same attempt."""
    begun = job(invisible=timedelta(minutes=10))
    begun.works()
    runner = subprocess.run(
        ["pgrep", "-f", str(begun.output.parent)], stdout=subprocess.PIPE, text=True, check=True
    )
    os.kill(int(runner.stdout), signal.SIGTERM)
    until(lambda: not begun.pids(), "the job to end")
    assert {message.attempt for message in consumer.receive(10)} == {1}


@pytest.mark.slow
def test_x10_job_ends_when_its_task_is_killed_or_its_leases_are_lost(
    job: Callable[..., Job], consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trigger gives the leases back: the messages are ready again at once, as the same attempt."""
    begun = job(invisible=timedelta(seconds=20))
    begun.works()
    asked = []

    def failed(**task: Any) -> dict[str, Any]:
        asked.append(task)
        return {"run": {"cancel_3": "failed"}}

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", failed)
    asyncio.run(begun.trigger().on_kill())
    assert asked == [{"dag_id": "orders", "map_index": 3, "task_ids": ["cancel"], "run_ids": ["run"]}]
    assert {message.attempt for message in consumer.receive(10)} == {1}
    begun.ends()


@pytest.fixture
def given(consumer: Consumer, broker: Broker) -> SubmittedBatch:
    """Ten messages that a task has leased for a minute, and the job keeps for ten."""
    leases = to_json(lease_messages(broker, consumer, invisible=timedelta(minutes=1)))
    return SubmittedBatch(broker.dsn, TOPIC, consumer.group, "*", None, None, leases, 600.0, 4, 1)


def test_x11_job_extends_its_leases_before_its_application_begins(
    given: SubmittedBatch, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run since before its process began."""
    lease = from_json(given.leases)[0]
    ends: list[datetime] = []

    def look(_submission: Submission, _log: Callable[[str], object]) -> None:
        with broker.connection() as connection:
            place = (lease.group_id, lease.topic_id, lease.queue, lease.n)
            ((end,),) = fetch(connection, "select duewheel.lease_end(%s, %s, %s, %s)", place)
        ends.append(end)

    monkeypatch.setattr(Submission, "run", look)
    run(Application("job.py", [], "job", "local[1]"), given)
    assert ends[0] > lease.expires_at + timedelta(minutes=5)


def test_r03_failed_job_waits_for_the_broker_before_it_gives_back(
    given: SubmittedBatch, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_submission: Submission, _log: Callable[[str], object]) -> None:
        raise ApplicationFailed("job.py ended with exit code 3")

    outcome = LeasedBatch.outcome
    breaks = [BrokerUnreachable("the connection is gone")]

    def break_once(batch: LeasedBatch) -> BatchOutcome:
        if breaks:
            raise breaks.pop()
        return outcome(batch)

    monkeypatch.setattr(Submission, "run", fail)
    monkeypatch.setattr(LeasedBatch, "outcome", break_once)
    with pytest.raises(ApplicationFailed, match="exit code 3"):
        run(Application("job.py", [], "job", "local[1]"), given)
    (found,) = broker.find_key(TOPIC, "1")
    assert broker.history(found.message_id)[-1].state == "WaitingRetry"


def test_job_that_cannot_be_started_leaves_no_password_behind(
    given: SubmittedBatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> int:
        raise OSError("no more processes")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "posix_spawn", refuse)
    with pytest.raises(OSError, match="no more processes"):
        detach(Application("job.py", [], "job", "local[1]"), given)
    assert not list(tmp_path.iterdir())


def _unreachable(**_: Any) -> dict[str, Any]:
    raise ConnectionError("no API server")


@pytest.mark.parametrize(
    "states", [lambda **_: {"run": {"cancel_3": "deferred"}}, _unreachable], ids=["deferred", "unknown"]
)
def test_x10_job_goes_on_when_another_triggerer_has_its_trigger(
    consumer: Consumer,
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    states: Callable[..., dict[str, Any]],
) -> None:
    """Airflow then tells the first triggerer the same as when a user has ended the task."""
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", states)
    trigger = SubmittedJobTrigger(TOPIC, consumer.group, to_json(lease_messages(broker, consumer)))
    trigger.task_instance = TASK
    asyncio.run(trigger.on_kill())
    assert not consumer.receive(10)


def test_a_function_cannot_be_deferred() -> None:
    for arguments in ({"python_callable": print}, {"application": "job.py", "drain": True}):
        with pytest.raises(InvalidArgument, match="deferrable is for one batch that an application works on"):
            SparkConsumeMessagesOperator(
                task_id="cancel", topic=TOPIC, group="g", deferrable=True, **arguments
            )
