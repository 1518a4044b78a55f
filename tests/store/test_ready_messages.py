"""Names of what is ready, from a connection that may break."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting import ask, connected

from duewheel.store import Broker
from duewheel.store.consuming.ready_messages import ready_messages
from duewheel.store.values.errors import BrokerUnreachable

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_x14_a_connection_broken_before_it_begins_is_an_outage(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("t")
    broker.consumer("t", "g")
    lend = Broker.connection

    @contextmanager
    def ended(self: Broker) -> Iterator[Any]:
        with lend(self) as connection, connected(broker.dsn) as other:
            ask(other, "select pg_terminate_backend(%s, 10000)", connection.info.backend_pid)
            yield connection

    monkeypatch.setattr(Broker, "connection", ended)
    with pytest.raises(BrokerUnreachable):
        ready_messages(broker, "t", "g", 10)
