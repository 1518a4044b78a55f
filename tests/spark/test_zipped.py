"""The package works in a zip: it reads no file of its own by a path."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from tests.spark.cluster import zip_of_the_package

from duewheel.store.broker import Broker

PROGRAM = """
import sys
import duewheel
from duewheel.spark.data_source import DueWheelDataSource
from duewheel.spark.batch import Batch
from duewheel.spark import message_writer, partition_work, look_reader, rejecting, stream_reader
from duewheel.store import Broker
from duewheel.store.leases import to_json
from duewheel.store.values.errors import role_needed

assert ".zip" in duewheel.__file__, duewheel.__file__
with Broker(sys.argv[1]) as broker:
    batch = Batch.take(broker, "orders", "counter")
    source = DueWheelDataSource({"dsn": broker.dsn, "lease": to_json(batch.leases)})
    reader = source.reader(source.schema())
    count = sum(rows.num_rows for part in reader.partitions() for rows in reader.read(part))
    batch.ack()
print(count, role_needed("permission denied for function receive"))
"""


@pytest.mark.long
def test_package_reads_and_acks_from_a_zip(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("orders")
    broker.send_many("orders", [{"body": b"", "delay": timedelta(0)}] * 7)
    environment = os.environ | {"PYTHONPATH": str(zip_of_the_package(tmp_path))}

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, broker.dsn],
        env=environment,
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )

    assert (done.stdout, done.stderr) == ("7 duewheel_consumer\n", "")
