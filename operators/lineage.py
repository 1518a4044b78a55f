"""The lineage of a task for OpenLineage: the topic that it read or wrote, as a dataset, and how many
messages.

The dataset of a topic has the same address as an asset ``duewheel://CONNECTION/TOPIC``. OpenLineage's
provider is not required: without it these methods are never called and nothing is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    Lineage = OperatorLineage[Any, Any]


def read_lineage(conn_id: str, topic: str, messages: int | None = None) -> Lineage:
    """The lineage of a task that consumes messages.

    Args:
        conn_id: the connection to the broker.
        topic: the topic it reads.
        messages: how many messages it has acked; None if that is not known yet.
    """
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import InputDataset
    from openlineage.client.generated.base import InputDatasetFacet
    from openlineage.client.generated.input_statistics_input_dataset import InputStatisticsInputDatasetFacet

    facets: dict[str, InputDatasetFacet] = {}
    if messages is not None:
        facets["inputStatistics"] = InputStatisticsInputDatasetFacet(rowCount=messages)
    return OperatorLineage(inputs=[InputDataset(_namespace(conn_id), topic, inputFacets=facets)])


def written_lineage(conn_id: str, topic: str, messages: int | None = None) -> Lineage:
    """The lineage of a task that sends messages; parameters as for :func:`read_lineage`."""
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.generated import output_statistics_output_dataset as statistics
    from openlineage.client.generated.base import OutputDatasetFacet

    facets: dict[str, OutputDatasetFacet] = {}
    if messages is not None:
        facets["outputStatistics"] = statistics.OutputStatisticsOutputDatasetFacet(rowCount=messages)
    return OperatorLineage(outputs=[OutputDataset(_namespace(conn_id), topic, outputFacets=facets)])


class WrittenLineage:
    """Base of the sending operators: their methods for OpenLineage."""

    duewheel_conn_id: str
    topic: str
    #: How many messages were sent; None until they are.
    _sent: int | None = None

    def get_openlineage_facets_on_start(self) -> Lineage:
        """The lineage that OpenLineage gets when the task begins."""
        return written_lineage(self.duewheel_conn_id, self.topic)

    def get_openlineage_facets_on_complete(
        self,
        task_instance: object,  # noqa: ARG002 - OpenLineage's signature
    ) -> Lineage:
        """The lineage that OpenLineage gets when the task has ended."""
        return written_lineage(self.duewheel_conn_id, self.topic, self._sent)


def _namespace(conn_id: str) -> str:
    return f"duewheel://{conn_id}"
