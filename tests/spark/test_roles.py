"""What the data source reads as a login that has only the role duewheel_consumer."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.logins import login

from duewheel.spark.data_source import LeaseDataReader
from duewheel.spark.leased_batch import LeasedBatch
from duewheel.store import Broker, NotAllowed

NOW = timedelta(0)


@pytest.mark.parametrize("role", ["duewheel_consumer", "duewheel_admin"])
def test_a_lease_is_read_without_a_right_to_the_table(broker: Broker, role: str) -> None:
    broker.create_topic("orders", queues=2)
    for number in range(100):
        broker.send("orders", f"{number}", delay=NOW, key=f"k{number}", tag="x", properties={"n": number})
    with Broker(login(broker.dsn, role)) as consumer:
        batch = LeasedBatch.take(consumer, "orders", "g", max_messages=1000)
        reader = LeaseDataReader(dsn=consumer.dsn, leases=batch.leases, partitions=2, batch_bytes=4096)
        rows = [
            row
            for partition in reader.partitions()
            for frame in reader.read(partition)
            for row in frame.to_pylist()
        ]
        assert sorted(row["key"] for row in rows) == sorted(f"k{number}" for number in range(100))
        assert {row["topic"] for row in rows} == {"orders"}
        assert {bytes(row["body"]) for row in rows} == {f"{number}".encode() for number in range(100)}
        batch.nack(NOW)
        retried = LeasedBatch.take(consumer, "orders", "g", max_messages=1000)
        reader = LeaseDataReader(dsn=consumer.dsn, leases=retried.leases, partitions=1, batch_bytes=4096)
        rows = [row for frame in reader.read(reader.partitions()[0]) for row in frame.to_pylist()]
        assert {(row["topic"], row["attempt"]) for row in rows} == {("orders", 2)}
        retried.ack()


def test_a_producer_reads_no_lease(broker: Broker) -> None:
    broker.create_topic("orders")
    broker.send("orders", b"1", delay=NOW)
    batch = LeasedBatch.take(broker, "orders", "g")
    dsn = login(broker.dsn, "duewheel_producer")
    reader = LeaseDataReader(dsn=dsn, leases=batch.leases, partitions=1, batch_bytes=4096)
    with pytest.raises(NotAllowed, match="duewheel_consumer"):
        reader.partitions()
