"""The sinks of docs/how-to/spark-cluster.md: each is written twice, and has each message once."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.waiting import ask, connected

from duewheel.spark.batch import Batch
from duewheel.store.broker import Broker

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "spark-cluster.md"
TOPIC = "order-timeout"
COUNT = 30


def parts_of_the_page() -> list[str]:
    """The programs of its section, in their order."""
    _, _, rest = PAGE.read_text().partition("\n## Write files or another database once\n")
    section, _, _ = rest.partition("\n## ")
    return re.findall(r"^```\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


@pytest.mark.long
def test_sinks_of_the_how_to_have_each_message_once(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    broker.create_topic(TOPIC)
    broker.send_many(TOPIC, [{"body": b"", "key": str(n), "delay": timedelta(0)} for n in range(COUNT)])
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute("create table due_order (message_id text primary key, number text)")
    define, stream, _, _, define_batch, lease, due, define_insert, insert = parts_of_the_page()
    names: dict[str, Any] = {
        "spark": spark,
        "dsn": broker.dsn,
        "path": str(tmp_path),
        "other_dsn": broker.dsn,
    }
    died: list[str] = []

    def dies_at_first(name: str) -> None:
        """Lets a function of the page do its work and then raise, before anybody knows of it."""
        work = names[name]

        def work_and_die(*given: Any) -> None:
            work(*given)
            if name not in died:
                died.append(name)
                raise RuntimeError("the job dies here")

        names[name] = work_and_die

    def counts(frame: DataFrame) -> tuple[int, int]:
        keys = [row.key for row in frame.select("key").collect()]
        return len(keys), len(set(keys))

    exec(define, names)
    dies_at_first("write")
    with pytest.raises(StreamingQueryException, match="the job dies here"):
        exec(stream, names)
    exec(stream, names)
    assert counts(spark.read.parquet(f"{tmp_path}/orders")) == (COUNT, COUNT)

    exec(define_batch, names)
    batch = Batch.take(broker, TOPIC, "table").on(spark, ["message_id", "key", "deliver_at"])
    # The task's next try has the same leases.
    for _ in range(2):
        names["write_batch"](batch)
    assert counts(spark.read.parquet(f"{tmp_path}/due")) == (COUNT, COUNT)
    # Nobody tried again, and the messages come in another batch.
    batch.nack(timedelta(0))
    exec(lease, names)
    assert counts(spark.read.parquet(f"{tmp_path}/due")) == (2 * COUNT, COUNT)
    exec(due, names)
    assert counts(names["due"]) == (COUNT, COUNT)

    exec(define_insert, names)
    for _ in range(2):
        exec(f"{insert}\n    batch.nack(__import__('datetime').timedelta(0))", names)
    exec(insert, names)
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute("select count(*) from due_order")
        assert cursor.fetchall() == [(COUNT,)]
    assert not Batch.take(broker, TOPIC, "elsewhere")


@pytest.mark.long
def test_a_stream_into_this_postgres_cancels_each_unpaid_order_though_it_dies(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    broker.create_topic(TOPIC)
    broker.send_many(TOPIC, [{"body": b"", "key": str(n), "delay": timedelta(0)} for n in range(COUNT)])
    with connected(broker.dsn) as connection:
        ask(
            connection,
            "create table orders (number bigint primary key, paid_at timestamptz, cancelled_at timestamptz)",
        )
        ask(
            connection,
            "insert into orders (number, paid_at) select n, case when n < 10 then now() end"
            " from generate_series(0, %s) n",
            COUNT - 1,
        )
        _, _, define, stream, *_ = parts_of_the_page()
        names: dict[str, Any] = {"spark": spark, "dsn": broker.dsn, "path": str(tmp_path)}
        exec(define, names)
        cancel, has_died = names["cancel"], tmp_path / "has died"

        def cancel_and_die(rows: Any) -> None:
            cancel(list(rows))
            if not has_died.exists():
                has_died.touch()
                raise RuntimeError("the job dies here")

        names["cancel"] = cancel_and_die
        # Spark tries the part again.
        exec(stream, names)
        assert has_died.exists()
        look = "select number, cancelled_at from orders where cancelled_at is not null order by number"
        cancelled = ask(connection, look)
        assert [number for number, _ in cancelled] == list(range(10, COUNT))
        # Another query does all of it again.
        exec(stream.replace("in-place", "once-more"), names)
        assert ask(connection, look) == cancelled
