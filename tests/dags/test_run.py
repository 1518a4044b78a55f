"""The three DAGs of the shop run by Airflow itself, one after the other, on one shop."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from tests.airflow_runs import AirflowHome, RunResult
from tests.conftest import execute

from duewheel.dags.shop import GROUP, TOPIC
from duewheel.store import Broker

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)]

# As many as the DAG places unless told otherwise. Every second is paid, every fifth of those not recalled.
PLACED, PAID, RECALLED = 2_000, 1_000, 800


@pytest.fixture(scope="module")
def dsn(fresh_database: Callable[[], tuple[str, str]]) -> str:
    """One database for all tests of this module."""
    return fresh_database()[1]


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, dsn: str) -> AirflowHome:
    """An Airflow with the DAGs of `dags/`."""
    extras = {"spark.ui.enabled": "true", "spark.ui.port": "0"}
    spark = {"conn_type": "spark", "host": "local[2]", "extra": json.dumps(extras)}
    home = AirflowHome(tmp_path_factory.mktemp("airflow"), dsn, AIRFLOW_CONN_SPARK_DEFAULT=json.dumps(spark))
    for name in ("place_orders", "pay_orders", "cancel_unpaid_orders"):
        (home.dags / f"{name}.py").write_text(
            f"# Airflow\nfrom duewheel.dags.{name} import {name}\n\ndag = {name}()\n"
        )
    with (home.dags / "cancel_unpaid_orders.py").open("a") as file:
        file.write('dag.get_task("cancel_unpaid").spark_conn_id = "spark_default"\n')
    return home


@pytest.fixture(scope="module")
def placed(airflow: AirflowHome) -> RunResult:
    return airflow.run("place_orders")


@pytest.fixture(scope="module")
def paid(airflow: AirflowHome, placed: RunResult) -> RunResult:
    assert placed.state == "success", placed.log
    return airflow.run("pay_orders")


@pytest.fixture(scope="module")
def hurried(dsn: str, paid: RunResult) -> set[int]:
    """Twelve orders, two of them paid without a recall, whose timeouts are made due now."""
    assert paid.state == "success", paid.log
    orders = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 10, 20}
    with Broker(dsn) as broker:
        for number in orders:
            (timeout,) = broker.find_key(TOPIC, str(number))
            broker.reschedule(timeout.message_id, delay=timedelta(0))
        with broker.connection() as connection, connection.cursor() as cursor:
            cursor.execute("update orders set pay_by = now() where number = any(%s)", (list(orders),))
    return orders


@pytest.fixture(scope="module")
def cancelled(airflow: AirflowHome, hurried: set[int]) -> RunResult:
    assert hurried
    return airflow.run("cancel_unpaid_orders")


@pytest.fixture
def broker(dsn: str) -> Iterator[Broker]:
    with Broker(dsn) as broker:
        yield broker


def test_x06_every_order_is_placed_with_its_timeout(dsn: str, placed: RunResult) -> None:
    assert placed.tasks["place"].xcom == PLACED
    ((orders, with_timeout),) = execute(
        dsn,
        f"""select count(*), count(found.message_id)
        from orders left join lateral duewheel.find_key('{TOPIC}', number::text) as found
            on found.deliver_at >= orders.pay_by and found.deliver_at < orders.pay_by + interval '1 ms'
        where orders.number <= 100""",
    )
    assert (orders, with_timeout) == (100, 100)


def test_x02_payers_recall_their_timeout_by_order_number(dsn: str, paid: RunResult) -> None:
    assert paid.tasks["pay"].xcom == {"paid": PAID, "recalled": RECALLED}
    assert execute(dsn, "select count(paid_at) from orders") == [(PAID,)]


def test_d19_unpaid_orders_are_cancelled_and_paid_ones_are_not(
    dsn: str, hurried: set[int], cancelled: RunResult
) -> None:
    assert cancelled.state == "success", cancelled.log
    assert cancelled.tasks["cancel_unpaid"].xcom == 12
    assert {
        number for (number,) in execute(dsn, "select number from orders where cancelled_at is not null")
    } == (hurried - {10, 20})


def test_the_task_links_to_the_page_of_its_spark(cancelled: RunResult) -> None:
    """It ran where the Spark connection says."""
    assert cancelled.state == "success", cancelled.log
    links = cancelled.tasks["cancel_unpaid"].links
    assert links.keys() == {"_link_TopicLink", "_link_SparkUiLink"}
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", links["_link_SparkUiLink"])


def test_x09_what_was_handled_is_acked(broker: Broker, cancelled: RunResult) -> None:
    assert cancelled.state == "success", cancelled.log
    (topic,) = broker.stats().topics
    (group,) = topic.groups
    assert (group.group, group.ready, group.inflight, group.waiting_retry) == (GROUP, 0, 0, 0)
