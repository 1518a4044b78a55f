"""The lineage that OpenLineage's own extractor finds at the operators.

That nothing needs it is shown by tests/plugin/test_provider_info.py: a DAG file imports nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.openlineage.extractors.base import DefaultExtractor, OperatorLineage
from airflow.sdk import Asset
from tests.operators.tasks import a_try

from duewheel.operators.consume import ConsumeMessagesOperator
from duewheel.operators.send import SendDelayMessageOperator
from duewheel.operators.send_many import SendDelayMessagesOperator
from duewheel.operators.spark import SparkConsumeMessagesOperator
from duewheel.plugin.asset_uri import convert_asset_to_openlineage

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk import BaseOperator

    from duewheel.store import Broker

CONTEXT = a_try(task_id="send")
pytestmark = pytest.mark.usefixtures("orders")


def told(operator: BaseOperator) -> tuple[OperatorLineage, OperatorLineage]:
    """The lineage that OpenLineage gets before and after the task has run."""
    extractor = DefaultExtractor(operator)
    before = extractor.extract()
    operator.execute(CONTEXT)
    after = extractor.extract_on_complete(None)
    assert before is not None
    assert after is not None
    return before, after


def of_dataset(dataset: Any) -> tuple[str, str]:
    """Its address."""
    return dataset.namespace, dataset.name


def send(**arguments: Any) -> BaseOperator:
    """A task that sends one message."""
    return SendDelayMessageOperator(task_id="send", topic="orders", body=b"x", delay_level=0, **arguments)


def send_many(**arguments: Any) -> BaseOperator:
    """A task that sends two messages."""
    messages = [{"body": 1}, {"body": 2}]
    return SendDelayMessagesOperator(
        task_id="send", topic="orders", messages=messages, delay_level=0, **arguments
    )


@pytest.mark.parametrize(("sending", "messages"), [(send, 1), (send_many, 2)])
def test_a_send_writes_its_topic(sending: Callable[[], BaseOperator], messages: int) -> None:
    before, after = told(sending())
    asset = convert_asset_to_openlineage(Asset("duewheel://duewheel_default/orders"), None)
    for lineage in (before, after):
        assert [of_dataset(dataset) for dataset in lineage.outputs] == [of_dataset(asset)]
        assert not lineage.inputs
    assert not before.outputs[0].outputFacets
    assert after.outputs[0].outputFacets["outputStatistics"].rowCount == messages


def test_a_consuming_task_reads_its_topic(broker: Broker) -> None:
    for _ in range(3):
        broker.send("orders", b"x", delay_level=0)
    operator = ConsumeMessagesOperator(
        task_id="take", topic="orders", group="g", python_callable=len, max_messages=2
    )
    before, after = told(operator)
    assert [of_dataset(dataset) for dataset in before.inputs] == [("duewheel://duewheel_default", "orders")]
    assert after.inputs[0].inputFacets["inputStatistics"].rowCount == 3
    assert not after.outputs


def test_a_spark_task_reads_its_topic() -> None:
    spark = SparkConsumeMessagesOperator(task_id="take", topic="orders", group="g", python_callable=print)
    before, after = told(spark)
    assert [of_dataset(dataset) for dataset in before.inputs] == [("duewheel://duewheel_default", "orders")]
    assert after.inputs[0].inputFacets["inputStatistics"].rowCount == 0
