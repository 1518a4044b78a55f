"""Each example DAG beside those of `test_run.py` runs by Airflow itself and does what it says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from airflow.sdk import Context
from psycopg2.extensions import make_dsn
from tests.acting import rows, state
from tests.logins import PASSWORD

from duewheel.dags import (
    cancel_unpaid_orders_taskflow,
    clean_up_orders,
    inspect_returns,
    orders_with_airflows_sql,
    place_orders,
    plan_reminders,
    remind_customers,
    report_timeouts,
    send_invoices,
    shop,
)
from duewheel.testing import BrokerInTest, message
from duewheel.testing.connections import connection_json

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]


def test_x01_x02_a_customer_who_acts_gets_no_further_reminder(duewheel: BrokerInTest) -> None:
    duewheel.run_dag(remind_customers.begin_reminders)
    for hours in remind_customers.LADDER_HOURS:
        duewheel.assert_sent(remind_customers.TOPIC, key="4711", due_in=timedelta(hours=hours))

    duewheel.advance(hours=1)
    run = duewheel.run_dag(remind_customers.remind_customers)
    assert run.tasks["remind"].xcom == ["4711 after 1 h"]

    # The first reminder was delivered; the recall takes the two others back.
    assert duewheel.run_dag(remind_customers.end_reminders).tasks["recall"].xcom == "already_released"
    duewheel.advance(days=4)
    assert duewheel.run_dag(remind_customers.remind_customers).tasks["remind"].xcom is None


def test_a_reminder_says_whom_it_reminds_of_what() -> None:
    remind = remind_customers.remind_customers().get_task("remind")
    reminder = message({"customer": "4711", "after_hours": 24}, key="4711")
    assert remind.python_callable(reminder) == "4711 after 24 h"


@pytest.mark.spark
def test_x07_a_day_of_reminders_is_planned_once(duewheel: BrokerInTest) -> None:
    plans = [
        duewheel.run_dag(plan_reminders.plan_reminders, conf={"customers": 500}).tasks["plan"].xcom
        for _ in range(2)
    ]
    assert plans[0] == plans[1]
    assert sum(plans[0].values()) == rows(duewheel, "select count(*) from duewheel.any_message")[0][0] == 500
    assert set(plans[0]) <= {f"{hour:02}:00" for hour in range(24)}


def test_the_taskflow_cancels_the_unpaid_orders(duewheel: BrokerInTest) -> None:
    duewheel.run_dag(place_orders.place_orders, conf={"orders": 3, "timeout_seconds": 60})
    rows(duewheel, "update orders set paid_at = now() where number = 2 returning 1")
    until_every_order_is_due(duewheel)
    run = duewheel.run_dag(cancel_unpaid_orders_taskflow.cancel_unpaid_orders_taskflow)
    assert run.tasks["cancel_unpaid"].xcom == [3]
    unpaid = "select number from orders where cancelled_at is not null order by number"
    assert rows(duewheel, unpaid) == [(1,), (3,)]


@pytest.fixture
def orders_db(duewheel: BrokerInTest, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerInTest]:
    """The connection's login has the rights that the DAG's documentation names, and no others."""
    user = "orders_program"
    duewheel.create_topic(shop.TOPIC)
    rows(duewheel, shop.statement("create_orders") + "select 1")
    rows(duewheel, f"create role {user} login password '{PASSWORD}'; select 1")
    rows(duewheel, f"grant duewheel_producer, duewheel_consumer to {user}; select 1")
    rows(duewheel, f"grant select, insert, update on orders to {user}; select 1")
    dsn = make_dsn(duewheel.dsn, user=user, password=PASSWORD)
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS_DB", connection_json(dsn, conn_type="postgres"))
    yield duewheel
    rows(duewheel, f"drop owned by {user}; drop role {user}; select 1")


def test_x06_the_main_job_with_airflows_sql(orders_db: BrokerInTest) -> None:
    placed = orders_db.run_dag(orders_with_airflows_sql.place_order_with_airflows_sql)
    timeout = orders_db.assert_sent(shop.TOPIC, key="1")
    assert json.loads(timeout.body) == {"order": 1}
    assert placed.tasks["place"].xcom == [[1, timeout.message_id]]
    rows(orders_db, shop.statement("place_order").replace("%(amount)s", "7"))

    paid = orders_db.run_dag(orders_with_airflows_sql.pay_order_with_airflows_sql, conf={"number": 1})
    assert paid.tasks["pay"].xcom == [None, [["recalled"]]]
    orders_db.assert_recalled(shop.TOPIC, "1")

    until_every_order_is_due(orders_db)
    cancelled = orders_db.run_dag(orders_with_airflows_sql.cancel_orders_with_airflows_sql)
    assert cancelled.tasks["cancel"].xcom == [1]
    states = "select number, paid_at is not null, cancelled_at is not null from orders order by number"
    assert rows(orders_db, states) == [(1, True, False), (2, False, True)]
    assert not orders_db.consumer(shop.TOPIC, shop.GROUP).receive()


def test_the_clean_up_comes_at_five_in_berlin(duewheel: BrokerInTest) -> None:
    duewheel.run_dag(clean_up_orders.plan_clean_up)
    at_five = next_five_in_berlin(duewheel.time)
    duewheel.advance_to(at_five - timedelta(minutes=1))
    assert duewheel.run_dag(clean_up_orders.clean_up_orders).tasks["clean_up"].xcom is None

    rows(duewheel, shop.statement("create_orders") + "select 1")
    rows(
        duewheel,
        """insert into orders (amount, placed_at, pay_by, cancelled_at)
        select 1, now(), now(), now() - make_interval(days => days) from unnest('{29, 31}'::int[]) as days
        returning 1""",
    )
    duewheel.advance_to(at_five)
    assert duewheel.run_dag(clean_up_orders.clean_up_orders).tasks["clean_up"].xcom == [1]


def next_five_in_berlin(now: datetime) -> datetime:
    """The first 5 o'clock after an instant, in UTC."""
    from zoneinfo import ZoneInfo

    local = now.astimezone(ZoneInfo("Europe/Berlin"))
    today = local.replace(hour=5, minute=0, second=0, microsecond=0)
    return (today if today > local else today + timedelta(days=1)).astimezone(UTC)


def test_the_report_counts_the_timeouts(duewheel: BrokerInTest) -> None:
    duewheel.run_dag(place_orders.place_orders, conf={"orders": 3, "timeout_seconds": 60})
    early = duewheel.run_dag(report_timeouts.report_timeouts)
    assert {task.state for task in early.tasks.values()} == {"skipped"}
    until_every_order_is_due(duewheel)
    run = duewheel.run_dag(report_timeouts.report_timeouts)
    assert run.tasks["wait"].state == "success"
    assert run.tasks["report"].xcom == 3


def until_every_order_is_due(broker: BrokerInTest) -> None:
    """Advance to the last timeout: the orders go by the database's own clock, which runs on in a test."""
    broker.advance_to(max(waiting.deliver_at for waiting in broker.list_messages(shop.TOPIC).messages))


def test_an_invoice_is_redriven_when_its_address_is_known(duewheel: BrokerInTest) -> None:
    duewheel.run_dag(send_invoices.bill_customer)
    invoice = duewheel.assert_sent(send_invoices.TOPIC, key="4711", due_in=timedelta(hours=1))

    duewheel.advance(hours=1)
    failed = duewheel.run_dag(send_invoices.send_invoices)
    assert {name: task.state for name, task in failed.tasks.items()} == {"send": "failed", "alert": "success"}
    assert state(duewheel, invoice.message_id, send_invoices.GROUP) == "WaitingRetry"

    send = send_invoices.send_invoices().get_task("send")
    for _ in range(5):
        duewheel.advance(minutes=16)
        with pytest.raises(Exception, match="no address of customer 4711"):
            send.execute(Context())
    (dead,) = duewheel.dead_letters(send_invoices.GROUP, topic=send_invoices.TOPIC)
    assert "no address of customer 4711" in dead.reason
    duewheel.run_dag(send_invoices.send_invoices, ends="failed")

    rows(duewheel, "insert into customers values ('4711', 'anna@shop.example') returning 1")
    assert duewheel.run_dag(send_invoices.redrive_invoices).state == "success"
    redriven = duewheel.run_dag(send_invoices.send_invoices)
    assert redriven.tasks["send"].xcom == ["4711 to anna@shop.example"]


def test_each_return_gets_a_run_of_its_own(duewheel: BrokerInTest) -> None:
    duewheel.create_topic(inspect_returns.TOPIC)
    for parcel in ("7", "8"):
        duewheel.send(inspect_returns.TOPIC, b"", key=parcel, delay=timedelta(hours=1))
    duewheel.advance(hours=1)
    run = duewheel.run_dag(inspect_returns.hand_out_returns)
    assert sorted(each["conf"]["parcel"] for each in run.tasks["each"].xcom) == ["7", "8"]
    assert {run.tasks[f"begin[{number}]"].state for number in (0, 1)} == {"success"}

    inspected = duewheel.run_dag(inspect_returns.inspect_return, conf={"parcel": "7"})
    assert inspected.tasks["inspect"].xcom == "7"
