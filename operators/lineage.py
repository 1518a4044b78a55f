"""The lineage of a task for OpenLineage: the topic that it read or wrote, as a dataset, and how many
messages.

The dataset of a topic has the same address as an asset ``duewheel://CONNECTION/TOPIC``. OpenLineage's
provider is not required: without it these methods are never called and nothing is imported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    Lineage = OperatorLineage[Any, Any]


class TopicLineage(ABC):
    """Base of the operators that read or write a topic: their methods for OpenLineage."""

    duewheel_conn_id: str
    topic: str
    #: How many messages the task has acked or sent; None until it has.
    _done: int | None = None

    def get_openlineage_facets_on_start(self) -> Lineage:
        """The lineage that OpenLineage gets when the task begins."""
        return self._lineage(f"duewheel://{self.duewheel_conn_id}", None)

    def get_openlineage_facets_on_complete(
        self,
        task_instance: object,  # noqa: ARG002 - OpenLineage's signature
    ) -> Lineage:
        """The lineage that OpenLineage gets when the task has ended."""
        return self._lineage(f"duewheel://{self.duewheel_conn_id}", self._done)

    @abstractmethod
    def _lineage(self, namespace: str, messages: int | None) -> Lineage:
        """The topic as a dataset, and how many messages; None if that is not known yet."""


class ReadLineage(TopicLineage):
    """Base of the consuming operators."""

    def _lineage(self, namespace: str, messages: int | None) -> Lineage:
        from airflow.providers.openlineage.extractors import OperatorLineage
        from openlineage.client.event_v2 import InputDataset
        from openlineage.client.generated.base import InputDatasetFacet
        from openlineage.client.generated.input_statistics_input_dataset import (
            InputStatisticsInputDatasetFacet,
        )

        facets: dict[str, InputDatasetFacet] = {}
        if messages is not None:
            facets["inputStatistics"] = InputStatisticsInputDatasetFacet(rowCount=messages)
        return OperatorLineage(inputs=[InputDataset(namespace, self.topic, inputFacets=facets)])


class WrittenLineage(TopicLineage):
    """Base of the sending operators."""

    def _lineage(self, namespace: str, messages: int | None) -> Lineage:
        from airflow.providers.openlineage.extractors import OperatorLineage
        from openlineage.client.event_v2 import OutputDataset
        from openlineage.client.generated import output_statistics_output_dataset as statistics
        from openlineage.client.generated.base import OutputDatasetFacet

        facets: dict[str, OutputDatasetFacet] = {}
        if messages is not None:
            facets["outputStatistics"] = statistics.OutputStatisticsOutputDatasetFacet(rowCount=messages)
        return OperatorLineage(outputs=[OutputDataset(namespace, self.topic, outputFacets=facets)])
