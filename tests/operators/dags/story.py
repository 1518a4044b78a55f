"""A DAG that uses every operator once: what each came to is looked at by test_in_airflow.py."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Asset, Context, task

from duewheel.hooks.broker import DueWheelHook
from duewheel.operators.consume import ConsumeMessagesOperator
from duewheel.operators.recall import RecallMessageOperator
from duewheel.operators.send import SendDelayMessageOperator
from duewheel.operators.topic import CreateTopicOperator
from duewheel.sensors.due_messages import DueMessagesSensor
from duewheel.store.leases import from_json

if TYPE_CHECKING:
    from duewheel.store.values.messages import Message


def keys(messages: Sequence[Message], suffix: str) -> list[str]:
    """What a handler may return: it becomes an XCom."""
    return sorted(f"{message.key}{suffix}" for message in messages)


def fail(messages: Sequence[Message]) -> None:
    """A handler that cannot do its work."""
    raise RuntimeError(f"cannot handle {len(messages)} messages")


def fail_at_first(messages: Sequence[Message], ti: Any) -> list[str]:
    """A handler whose first try fails."""
    if ti.try_number == 1:
        raise RuntimeError("the first try fails")
    return [f"{message.key}: attempt {message.attempt}" for message in messages]


async def greet(message: Message) -> str:
    """A handler of single messages."""
    return f"hello {message.key}"


def die_after_the_first_try(context: Context, result: Any = None) -> None:
    """A worker that is lost after the message was committed and before Airflow learnt so."""
    if context["ti"].try_number == 1:
        raise RuntimeError(f"lost after sending {result}")


ORDERS = Asset("duewheel://duewheel_default/orders")

with DAG("story", schedule=None) as dag:
    make_topic = CreateTopicOperator(
        task_id="make_topic", topic="orders", max_delay="P7D", delay_levels=["PT1S", timedelta(days=2)]
    )
    make_topic_again = CreateTopicOperator(
        task_id="make_topic_again",
        topic="orders",
        max_delay=timedelta(days=7),
        delay_levels=[timedelta(seconds=1), "P2D"],
    )
    make_other_topic = CreateTopicOperator(task_id="make_other_topic", topic="orders", max_delay="P1D")

    send = SendDelayMessageOperator(
        task_id="send",
        topic="orders",
        body={"run": "{{ run_id }}", "lines": ["{{ ti.task_id }}"]},
        delay="PT0.2S",
        key="{{ dag.dag_id }}-1",
        tag="late",
        properties={"from": "{{ ti.task_id }}"},
        outlets=[ORDERS],
    )
    send_retried = SendDelayMessageOperator(
        task_id="send_retried",
        topic="orders",
        body="retried",
        deliver_at="{{ (data_interval_end or dag_run.run_after).add(hours=1) }}",
        key="retried",
        retries=1,
        retry_delay=timedelta(0),
        post_execute=die_after_the_first_try,
    )
    send_mapped = SendDelayMessageOperator.partial(
        task_id="send_mapped", topic="orders", delay=timedelta(hours=1)
    ).expand(body=["a", "b", "c"])
    send_together = SendDelayMessageOperator(
        task_id="send_together", topic="orders", body={"sent": send_mapped.output}, delay=timedelta(hours=1)
    )
    send_too_late = SendDelayMessageOperator(task_id="send_too_late", topic="orders", body="x", delay="P8D")

    recall_by_key = RecallMessageOperator(task_id="recall_by_key", topic="orders", key="retried")
    recall_by_id = RecallMessageOperator(
        task_id="recall_by_id", message_id="{{ ti.xcom_pull(task_ids='send_mapped', map_indexes=0) }}"
    )

    @task
    def read_receipt(ti: Any) -> Any:
        """Look at the XCom that a send leaves beside the id."""
        return ti.xcom_pull(task_ids="send", key="receipt")

    recall_unknown = RecallMessageOperator(task_id="recall_unknown", topic="orders", key="never sent")

    wait = DueMessagesSensor(
        task_id="wait", topic="orders", group="handler", tags="late || later", timeout=1000, deferrable=True
    )
    wait_in_vain = DueMessagesSensor(
        task_id="wait_in_vain",
        topic="orders",
        group="nobody",
        min_messages=100,
        deferrable=False,
        timeout=0,
        soft_fail=True,
    )
    lend = DueMessagesSensor(
        task_id="lend", topic="orders", group="borrower", hand_on=5, invisible="PT10M", timeout=1000
    )

    @task
    def give_back(found: dict[str, Any]) -> list[str]:
        """Answer what the sensor has leased."""
        with DueWheelHook().get_conn() as broker:
            broker.consumer("orders", "borrower").ack(from_json(found["leases"]))
        return [message["key"] for message in found["messages"]]

    recall_too_late = RecallMessageOperator(task_id="recall_too_late", topic="orders", key="story-1")
    recall_must_not_be_late = RecallMessageOperator(
        task_id="recall_must_not_be_late", topic="orders", key="story-1", fail_on_already_released=True
    )

    consume = ConsumeMessagesOperator(
        task_id="consume",
        topic="orders",
        group="handler",
        tags="late || later",
        python_callable=keys,
        op_kwargs={"suffix": "!"},
        drain=False,
        outlets=[ORDERS],
    )
    consume_nothing = ConsumeMessagesOperator(
        task_id="consume_nothing", topic="orders", group="handler", python_callable=fail, skip_if_empty=True
    )
    consume_in_vain = ConsumeMessagesOperator(
        task_id="consume_in_vain", topic="orders", group="careless", python_callable=fail
    )

    consume_retried = ConsumeMessagesOperator(
        task_id="consume_retried",
        topic="orders",
        group="retried",
        python_callable=fail_at_first,
        drain=False,
        retries=1,
        retry_delay=timedelta(0),
    )
    consume_one_by_one = ConsumeMessagesOperator(
        task_id="consume_one_by_one",
        topic="orders",
        group="greeter",
        python_callable=greet,
        one_by_one=True,
        max_messages="{{ 5 + 5 }}",
    )

    make_topic >> [make_topic_again, make_other_topic, send, send_retried, send_mapped, send_too_late]
    send_retried >> recall_by_key
    send_mapped >> recall_by_id
    make_topic >> recall_unknown
    (
        send
        >> wait
        >> [
            recall_too_late,
            recall_must_not_be_late,
            consume,
            consume_in_vain,
            consume_retried,
            consume_one_by_one,
        ]
    )
    make_topic >> wait_in_vain
    wait >> lend
    give_back(lend.output)
    send >> read_receipt()
    consume >> consume_nothing
