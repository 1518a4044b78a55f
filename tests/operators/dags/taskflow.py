"""A DAG in TaskFlow: many messages sent, moved, handled one by one, set aside and given back."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, TriggerRule, task

from duewheel.operators.consume import ConsumeMessagesOperator
from duewheel.operators.redrive import RedriveDeadLettersOperator
from duewheel.operators.reschedule import RescheduleMessageOperator
from duewheel.operators.send_many import SendDelayMessagesOperator
from duewheel.operators.topic import CreateTopicOperator
from duewheel.store import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duewheel.store.values.messages import Message


def say(messages: Sequence[Message], of: str, *, end: str) -> str:
    """A handler whose arguments other tasks return."""
    return f"{of}: {len(messages)}{end}"


with DAG("taskflow", schedule=None) as dag:
    make_topic = CreateTopicOperator(task_id="make_topic", topic="flow")

    @task
    def listed() -> list[dict[str, Any]]:
        """What is to be sent: one of them later than the others."""
        return [
            {"body": number, "key": f"k{number}", "properties": {"number": number}} for number in range(3)
        ] + [{"body": "later", "key": "later", "delay": "PT1H"}]

    send = SendDelayMessagesOperator(
        task_id="send",
        topic="flow",
        messages=listed(),
        delay=timedelta(0),
        retries=1,
        retry_delay=timedelta(0),
    )
    sooner = RescheduleMessageOperator(task_id="sooner", topic="flow", key="later", delay="PT0S")
    too_late = RescheduleMessageOperator(
        task_id="too_late", topic="flow", key="k1", delay="PT1H", retries=3, retry_delay=timedelta(0)
    )

    @task.due_messages(topic="flow", group="flow", wait="PT10S", linger="PT1S")
    async def handle(messages: Sequence[Message], suffix: str, run_id: str) -> list[str]:
        """Name what came."""
        return sorted(f"{message.key}{suffix}{run_id.startswith('manual')}" for message in messages)

    @task.due_messages(
        topic="flow", group="picky", one_by_one=True, retry=RetryPolicy.unordered(max_retries=0)
    )
    def pick(message: Message) -> str | None:
        """Refuse one of them."""
        if message.key == "k1":
            raise ValueError("k1 is poison")
        return message.key

    @task.due_messages(topic="flow", group="any", drain=False, filter="$.number >= 0")
    def of_group(messages: Sequence[Message], of: str) -> str:
        """What each of several groups gets."""
        return f"{of}: {len(messages)}"

    @task.due_messages(topic="flow", group="priced", one_by_one=True)
    def price(message: Message) -> dict[str, str | None]:
        """Return what would be several outputs if it were the whole result."""
        return {"of": message.key}

    @task.due_messages(topic="flow", group="latecomer", drain=False, start="latest")
    def arrived(messages: Sequence[Message]) -> list[str]:
        """Find nothing, for tasks that are mapped over it."""
        return [str(message.key) for message in messages]

    @task
    def welcome(key: str) -> str:
        """Have no run."""
        return key

    @task
    def names() -> list[str]:
        """The first arguments of a function."""
        return ["all"]

    @task
    def ends() -> dict[str, str]:
        """The others, by name."""
        return {"end": "."}

    said = ConsumeMessagesOperator(
        task_id="said",
        topic="flow",
        group="said",
        python_callable=say,
        op_args=names(),
        op_kwargs=ends(),
        drain=False,
    )
    arrivals = arrived()
    welcome.expand(key=arrivals)

    handled = handle("!")
    picked = pick()
    again = RedriveDeadLettersOperator(
        task_id="again", group="picky", reason_contains="poison", trigger_rule=TriggerRule.ALL_DONE
    )
    each = of_group.override(group="each").partial().expand(of=["a"])

    make_topic >> send >> sooner >> handled >> [picked, each, too_late, price(), arrivals, said]
    picked >> again
