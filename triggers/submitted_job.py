"""Waits in the triggerer until the detached job of a Spark operator has answered its leases.

The job keeps its leases alive and answers them itself, so the broker alone tells how it stands. The trigger
only looks: a triggerer that is killed changes nothing for the job, and the next one looks on. A job that is
killed leaves its leases to end, which the trigger sees.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from duewheel.hooks.broker import BrokerAddress, DueWheelHook
from duewheel.store.consuming.lease_states import HELD, OPEN, lease_states
from duewheel.store.leases import from_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from airflow.models.taskinstance import TaskInstance

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""How often a trigger looks at the leases of its job."""

DEFERRED = "deferred"
"""The state of a task that waits for its trigger."""


class SubmittedJobTrigger(BaseTrigger):
    """Fire once, when no lease of the job is held any more.

    The event is a dictionary with the list ``states``: the state of each lease.

    Args:
        topic: the topic of the leases.
        group: their consumer group.
        leases: the leases, as :func:`duewheel.store.leases.to_json` writes them.
        duewheel_conn_id: the connection to the broker.
        look_seconds: how often to look.
    """

    def __init__(
        self,
        topic: str,
        group: str,
        leases: str,
        duewheel_conn_id: str = DueWheelHook.default_conn_name,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # Airflow's
        self.topic = topic
        self.group = group
        self.leases = leases
        self.duewheel_conn_id = duewheel_conn_id
        self.look_seconds = look_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of the class and its arguments, as Airflow stores them."""
        return (
            "duewheel.triggers.submitted_job.SubmittedJobTrigger",
            {
                "topic": self.topic,
                "group": self.group,
                "leases": self.leases,
                "duewheel_conn_id": self.duewheel_conn_id,
                "look_seconds": self.look_seconds,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look at the leases until the job has answered them, or has lost them.

        Raises:
            AirflowNotFoundException: the connection does not exist.
        """
        address: BrokerAddress | None = None
        while True:
            try:
                if address is None:
                    address = await DueWheelHook(self.duewheel_conn_id).aresolve()
                states = await asyncio.to_thread(self._states, address)
            except AirflowNotFoundException:
                raise
            except Exception as error:  # noqa: BLE001 - the job works on, whoever is away
                log.warning("The leases of group %s could not be seen; looking again: %s", self.group, error)
            else:
                if not any(state in (HELD, OPEN) for state in states):
                    yield TriggerEvent({"states": states})
                    return
            await asyncio.sleep(self.look_seconds)

    async def on_kill(self) -> None:
        """Give the leases back where a user has ended the task: the job sees it, and ends.

        Airflow also calls this in a triggerer that has missed its heartbeat, for the triggers that another
        one has taken over; their tasks are still deferred, and the job works on. So it does where the state
        of the task cannot be asked: a job that goes on answers its leases, while the work of one that is
        ended is lost.
        """
        if await self._may_be_deferred():
            return
        address = await DueWheelHook(self.duewheel_conn_id).aresolve()
        await asyncio.to_thread(self._give_back, address)

    async def _may_be_deferred(self) -> bool:
        """Whether the task still waits for its job, as far as Airflow can tell."""
        task = self.task_instance
        if task is None:
            log.warning("The job of group %s goes on: its trigger has no task", self.group)
            return True
        try:
            states = await asyncio.to_thread(_states_of, task)
        except Exception as error:  # noqa: BLE001 - whatever keeps the answer away, the job is not to be ended
            log.warning(
                "The job of group %s goes on, as the state of its task could not be asked: %s",
                self.group,
                error,
            )
            return True
        if DEFERRED not in states:
            return False
        log.info("The job of group %s goes on: another triggerer waits for it", self.group)
        return True

    def _states(self, address: BrokerAddress) -> list[str]:
        with address.open() as broker, broker.connection() as connection:
            return [found.state for found in lease_states(connection, from_json(self.leases), broker.now())]

    def _give_back(self, address: BrokerAddress) -> None:
        with address.open() as broker:
            broker.consumer(self.topic, self.group).answer_held(
                "give_back", from_json(self.leases), reason="the task was killed", wait=timedelta(seconds=10)
            )


def _states_of(task: TaskInstance) -> list[str | None]:
    """The state of a task instance; none where it is deleted."""
    # Imported here: a worker makes the trigger, too, and does not ask.
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    by_run: dict[str, dict[str, str | None]] = RuntimeTaskInstance.get_task_states(
        dag_id=task.dag_id, map_index=task.map_index, task_ids=[task.task_id], run_ids=[task.run_id]
    )
    return [state for states in by_run.values() for state in states.values()]
