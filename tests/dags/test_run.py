"""The three DAGs of the shop run by Airflow itself, one after the other, on one shop."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Iterator
from datetime import timedelta

import pytest
from tests.acting import rows

from duewheel.dags.pay_orders import pay_orders
from duewheel.dags.place_orders import place_orders
from duewheel.dags.shop import GROUP, TOPIC
from duewheel.testing import BrokerInTest, DagRunResult
from duewheel.testing.dag_runs import Airflow
from duewheel.testing.databases import Databases

pytestmark = [
    *(pytest.mark.airflow, pytest.mark.spark, pytest.mark.slow, pytest.mark.long),
    pytest.mark.timeout(1200),
]

# As many as the DAG places unless told otherwise. Every second is paid, every fifth of those not recalled.
PLACED, PAID, RECALLED = 2_000, 1_000, 800

SPARK = {
    "conn_type": "spark",
    "host": "local[2]",
    "extra": json.dumps({"spark.ui.enabled": "true", "spark.ui.port": "0"}),
}
ON_THAT_SPARK = """
from airflow.sdk import dag as make_dag
from duewheel.dags.cancel_unpaid_orders import cancel_unpaid_orders

# Airflow takes the imported DAG for one of this file, too: another id tells them apart.
dag = make_dag(dag_id="on_that_spark")(cancel_unpaid_orders.__wrapped__)()
dag.get_task("cancel_unpaid").spark_conn_id = "spark_default"
"""


@pytest.fixture(scope="module")
def shop(duewheel_databases: Databases, duewheel_airflow: Airflow) -> Iterator[BrokerInTest]:
    """One broker for all tests of this module."""
    with (
        pytest.MonkeyPatch.context() as environment,
        duewheel_databases.fresh() as dsn,
        BrokerInTest(dsn, airflow=duewheel_airflow, environment=environment) as broker,
    ):
        environment.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(SPARK))
        yield broker


@pytest.fixture(scope="module")
def placed(shop: BrokerInTest) -> DagRunResult:
    """The orders are placed, and the first one's timeout is looked at."""
    run = shop.run_dag(place_orders)
    shop.assert_sent(TOPIC, key="1", body={"order": 1})
    return run


@pytest.fixture(scope="module")
def paid(shop: BrokerInTest, placed: DagRunResult) -> DagRunResult:
    assert placed.tasks["place"].xcom == PLACED
    return shop.run_dag(pay_orders)


@pytest.fixture(scope="module")
def cancelled(
    shop: BrokerInTest, paid: DagRunResult, tmp_path_factory: pytest.TempPathFactory
) -> DagRunResult:
    """The time to pay is over: the database's own clock, which the orders go by, ran on since."""
    assert paid.tasks["pay"].state == "success"
    ((last,),) = rows(shop, "select max(pay_by) from orders")
    shop.advance_to(last + timedelta(seconds=1))
    file = tmp_path_factory.mktemp("dags") / "on_that_spark.py"
    file.write_text(ON_THAT_SPARK)
    return shop.run_dag(runpy.run_path(str(file))["dag"])


def test_x06_every_order_is_placed_with_its_timeout(shop: BrokerInTest, placed: DagRunResult) -> None:
    assert placed.tasks["place"].xcom == PLACED
    ((orders, with_timeout),) = rows(
        shop,
        f"""select count(*), count(found.message_id)
        from orders left join lateral duewheel.find_key('{TOPIC}', number::text) as found
            on found.deliver_at >= orders.pay_by and found.deliver_at < orders.pay_by + interval '1 ms'
        where orders.number <= 100""",
    )
    assert (orders, with_timeout) == (100, 100)


def test_x02_payers_recall_their_timeout_by_order_number(shop: BrokerInTest, paid: DagRunResult) -> None:
    assert paid.tasks["pay"].xcom == {"paid": PAID, "recalled": RECALLED}
    assert rows(shop, "select count(paid_at) from orders") == [(PAID,)]
    shop.assert_recalled(TOPIC, "2")


def test_d19_unpaid_orders_are_cancelled_and_paid_ones_are_not(
    shop: BrokerInTest, cancelled: DagRunResult
) -> None:
    assert cancelled.tasks["cancel_unpaid"].xcom == PLACED - RECALLED
    paid_and_cancelled = (
        "select paid_at is not null, cancelled_at is not null, count(*) from orders group by 1, 2"
    )
    assert sorted(rows(shop, paid_and_cancelled)) == [(False, True, PLACED - PAID), (True, False, PAID)]


def test_the_task_links_to_the_page_of_its_spark(cancelled: DagRunResult) -> None:
    """It ran where the Spark connection says."""
    links = cancelled.tasks["cancel_unpaid"].links
    assert links.keys() == {"_link_TopicLink", "_link_SparkUiLink"}
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", links["_link_SparkUiLink"])


def test_x09_what_was_handled_is_acked(shop: BrokerInTest, cancelled: DagRunResult) -> None:
    assert cancelled.tasks["cancel_unpaid"].state == "success"
    (topic,) = shop.stats().topics
    (group,) = topic.groups
    assert (group.group, group.ready, group.inflight, group.waiting_retry) == (GROUP, 0, 0, 0)
    shop.advance(timedelta(days=1))
    assert not shop.consumer(TOPIC, GROUP).receive()
