"""The broker that operators reach by their default connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.airflow_runs import connection_json

if TYPE_CHECKING:
    from duewheel.store import Broker


@pytest.fixture
def orders(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """A broker with the topic ``orders``, of one queue, to which ``duewheel_default`` leads."""
    monkeypatch.setenv("AIRFLOW_CONN_DUEWHEEL_DEFAULT", connection_json(broker.dsn))
    broker.create_topic("orders", queues=1)
    return broker
