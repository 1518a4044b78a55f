"""Airflow with all its parts: what only a scheduler, a triggerer and workers of their own can show."""

from __future__ import annotations

import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from tests.proof.waiting import PATIENCE_SECONDS, ask

import duewheel.dags
from duewheel.cli.demo.airflow_api import AirflowApi
from duewheel.cli.demo.airflow_standalone import USER, AirflowStandalone, Settings, free_port
from duewheel.dags import (
    cancel_unpaid_orders_taskflow,
    clean_up_orders,
    inspect_returns,
    report_timeouts,
    send_invoices,
)
from duewheel.dags.shop import statement
from duewheel.store import Broker, EmbeddedPostgres

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(600)]

DAGS = Path(__file__).parent / "live_dags.py"
DAG_IDS = ("killed_live", "side_by_side", "refused", "tagged")
#: Files of `dags/` and what differs here: nobody unpauses them, and a dead letter is one at once.
EXAMPLES = {
    "cancel_unpaid_orders_taskflow": ("is_paused_upon_creation=True", "is_paused_upon_creation=False"),
    "clean_up_orders": ("", ""),
    "inspect_returns": ("", ""),
    "report_timeouts": ("is_paused_upon_creation=True", "is_paused_upon_creation=False"),
    "send_invoices": ("max_retries=5", "max_retries=0"),
}
#: Whose last DAG is known when all of them are.
EXAMPLE_DAG_IDS = (
    "cancel_unpaid_orders_taskflow",
    "clean_up_orders",
    "inspect_return",
    "report_timeouts",
    "redrive_invoices",
)


def until(happened: Callable[[], object], airflow: AirflowStandalone) -> None:
    """Return when ``happened()`` is true: the parts of Airflow give no sign of their own."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        airflow.check()
        assert time.monotonic() < end, f"{happened.__name__} did not come true"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def pipes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tasks find the pipes over which they are told to go on."""
    return tmp_path_factory.mktemp("pipes")


@pytest.fixture(scope="module")
def broker(fresh_database: Callable[[], tuple[str, str]]) -> Iterator[Broker]:
    """The broker of the DAGs."""
    with Broker(fresh_database()[1]) as broker:
        for topic in ("killed", "wide", "tagged", "order-timeout", "chores", "returns", "invoices"):
            broker.create_topic(topic)
        broker.consumer("wide", "everyone", mode="broadcasting", name="one")
        yield broker


@pytest.fixture(scope="module")
def airflow(
    broker: Broker, pipes: Path, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AirflowStandalone]:
    """All parts of Airflow, which know the DAGs."""
    home = tmp_path_factory.mktemp("airflow")
    (home / "dags").mkdir()
    shutil.copy(DAGS, home / "dags")
    for name, (stands, here) in EXAMPLES.items():
        text = (Path(duewheel.dags.__path__[0]) / f"{name}.py").read_text()
        assert stands in text
        (home / "dags" / f"{name}.py").write_text(text.replace(stands, here) if stands else text)
    address = postgres.ensure_database("airflow_live")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DUEWHEEL_TEST_DIRECTORY", str(pipes))
        standalone = AirflowStandalone(
            Settings(
                home=home,
                database_dsn=address,
                port=free_port(),
                dags_folder=home / "dags",
                broker_dsn=broker.dsn,
                password=secrets.token_hex(8),
            )
        )
    api = AirflowApi(standalone.settings.url, USER, standalone.settings.password)
    try:
        standalone.migrate(threading.Event())
        standalone.start()
        until(lambda: not standalone.unhealthy(), standalone)
        until(lambda: all(api.knows_dag(dag_id) for dag_id in (*DAG_IDS, *EXAMPLE_DAG_IDS)), standalone)
        yield standalone
    finally:
        standalone.stop()


def runs(airflow: AirflowStandalone, dag_id: str) -> dict[str, int]:
    """How many runs of the DAG are in each state."""
    api = AirflowApi(airflow.settings.url, USER, airflow.settings.password)
    return api.run_states(dag_id, since="2000-01-01T00:00:00Z")


def states(broker: Broker, message_id: str, group: str = "g") -> list[str]:
    """What became of a message for a group."""
    return [entry.state for entry in broker.history(message_id) if entry.consumer_group == group]


def begin(airflow: AirflowStandalone, dag_id: str) -> None:
    """Start a run as a user does."""
    AirflowApi(airflow.settings.url, USER, airflow.settings.password).start_run(dag_id, {})


def test_x09_a_worker_that_is_lost_hands_its_messages_to_the_next_try(
    airflow: AirflowStandalone, broker: Broker
) -> None:
    sent = broker.send("killed", b"x", delay=timedelta(milliseconds=200), key="4711")
    until(lambda: runs(airflow, "killed_live").get("success"), airflow)
    # One lease, one attempt: the second try took it over and did not wait for its end.
    assert states(broker, sent.message_id) == ["Inflight", "Acked"]
    assert runs(airflow, "killed_live") == {"success": 1}


def test_a_group_has_as_many_runs_as_its_dag_allows(
    airflow: AirflowStandalone, broker: Broker, pipes: Path
) -> None:
    keys = [str(number) for number in range(3)]
    for key in keys:
        os.mkfifo(pipes / f"go_{key}")
        broker.send("wide", b"x", delay=timedelta(milliseconds=200), key=key)

    def all_are_held() -> bool:
        (bell,) = broker.doorbells(["wide"], ["g"])
        return len(bell.holders) == len(keys)

    until(all_are_held, airflow)
    for key in keys:
        (pipes / f"go_{key}").write_text("go")
    until(lambda: runs(airflow, "side_by_side").get("success", 0) >= len(keys), airflow)
    # A group that the broker refuses has silenced nobody, and started nothing.
    assert runs(airflow, "refused") == {}


def test_d12_messages_of_other_tags_start_no_run(airflow: AirflowStandalone, broker: Broker) -> None:
    for tag in ("open", "open", "open"):
        broker.send("tagged", b"x", delay=timedelta(milliseconds=200), tag=tag)
    paid = broker.send("tagged", b"x", delay=timedelta(seconds=3), tag="paid")
    until(lambda: runs(airflow, "tagged").get("success"), airflow)
    assert states(broker, paid.message_id)[-1] == "Acked"
    assert runs(airflow, "tagged") == {"success": 1}


@pytest.fixture(scope="module")
def shop(airflow: AirflowStandalone, broker: Broker) -> dict[str, str]:
    """Everything that starts the examples, at once; message ids by what they are about."""
    with broker.connection() as connection:
        ask(connection, statement("create_orders"))
        ask(
            connection,
            "insert into orders (amount, placed_at, pay_by, paid_at, cancelled_at) values"
            " (1, now(), now(), null, null), (2, now(), now(), now(), null),"
            " (3, now(), now(), null, now() - interval '31 days'),"
            " (4, now(), now(), null, now() - interval '29 days')",
        )
        ask(connection, statement("create_customers"))
        ask(connection, "insert into customers values ('4712', 'known@shop.example')")
    begin(airflow, "plan_clean_up")
    begin(airflow, "report_timeouts")
    sent = {
        name: broker.send(topic, {}, delay=timedelta(milliseconds=200), key=key).message_id
        for name, topic, key in (
            ("unpaid", "order-timeout", "1"),
            ("paid", "order-timeout", "2"),
            ("unknown customer", "invoices", "4711"),
            ("customer", "invoices", "4712"),
            ("parcel", "returns", "0815"),
            ("other parcel", "returns", "0816"),
        )
    }
    until(broker.schedules, airflow)
    # As the wheel does on the evening before, and then as if it were morning.
    (schedule,) = broker.schedules()
    assert schedule.next_at is not None
    eve = schedule.next_at - timedelta(seconds=30)
    with Broker(broker.dsn, clock=lambda: eve) as before:
        before.advance_schedules()
    (occurrence,) = broker.list_messages("chores", state="waiting").messages
    assert occurrence.deliver_at == schedule.next_at
    broker.reschedule(occurrence.message_id, delay=timedelta(0))
    return sent


def test_d18_the_example_cleans_up_at_5_in_berlin(
    airflow: AirflowStandalone, broker: Broker, shop: dict[str, str]
) -> None:
    assert shop
    (schedule,) = broker.schedules()
    assert (schedule.topic, schedule.timezone) == (clean_up_orders.TOPIC, "Europe/Berlin")
    assert schedule.next_at is not None
    local = schedule.next_at.astimezone(ZoneInfo("Europe/Berlin"))
    assert (local.hour, local.minute) == (5, 0)
    assert schedule.next_at > datetime.now(tz=local.tzinfo)
    until(lambda: runs(airflow, "clean_up_orders").get("success"), airflow)
    with broker.connection() as connection:
        kept = ask(connection, "select number from orders where number in (3, 4)")
    assert kept == [(4,)]


def test_d19_the_example_in_taskflow_cancels_what_is_unpaid(
    airflow: AirflowStandalone, broker: Broker, shop: dict[str, str]
) -> None:
    group = cancel_unpaid_orders_taskflow.GROUP
    for name in ("unpaid", "paid"):
        until(lambda name=name: states(broker, shop[name], group)[-1:] == ["Acked"], airflow)
    with broker.connection() as connection:
        cancelled = ask(connection, "select number from orders where cancelled_at > now() - interval '1 day'")
    assert cancelled == [(1,)]


def test_d15_the_example_with_a_sensor_reports_what_others_have_handled(
    airflow: AirflowStandalone, broker: Broker, shop: dict[str, str]
) -> None:
    until(lambda: runs(airflow, "report_timeouts") == {"success": 1}, airflow)
    assert "Acked" in states(broker, shop["unpaid"], report_timeouts.GROUP)


def test_r14_x12_the_example_of_retries_alerts_and_redrives(
    airflow: AirflowStandalone, broker: Broker, shop: dict[str, str]
) -> None:
    group = send_invoices.GROUP
    until(lambda: runs(airflow, "send_invoices").get("failed"), airflow)
    assert states(broker, shop["customer"], group)[-1] == "Acked"
    (letter,) = broker.dead_letters(group)
    assert (letter.message_id, letter.redriven_at) == (shop["unknown customer"], None)
    assert letter.reason is not None
    assert "no address of customer 4711" in letter.reason
    with broker.connection() as connection:
        ask(connection, "insert into customers values ('4711', 'new@shop.example')")
    begin(airflow, "redrive_invoices")
    until(lambda: states(broker, shop["unknown customer"], group)[-1] == "Acked", airflow)
    # The alert is over.
    until(lambda: runs(airflow, "send_invoices").get("success"), airflow)


def test_the_example_of_a_run_for_each_message_starts_one_for_each(
    airflow: AirflowStandalone, broker: Broker, shop: dict[str, str]
) -> None:
    until(lambda: runs(airflow, "inspect_return").get("success", 0) >= 2, airflow)
    for name in ("parcel", "other parcel"):
        assert states(broker, shop[name], inspect_returns.GROUP)[-1] == "Acked"
    assert runs(airflow, "inspect_return") == {"success": 2}
