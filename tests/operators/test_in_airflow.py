"""Every operator and the sensor, run by Airflow itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.airflow_runs import AirflowHome, RunResult
from tests.leasing import received
from tests.operators.tasks import states

from duewheel.hooks.task_broker import SENT_BY_TASK
from duewheel.store import Broker

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(1200)]

DAGS = Path(__file__).parent / "dags"


@pytest.fixture(scope="module")
def home(
    tmp_path_factory: pytest.TempPathFactory, fresh_database: Callable[[], tuple[str, str]]
) -> tuple[AirflowHome, str]:
    """An Airflow whose DAGs reach a broker, and the broker's address."""
    _, dsn = fresh_database()
    directory = tmp_path_factory.mktemp("airflow")
    home = AirflowHome(directory, dsn, DUEWHEEL_TEST_DIRECTORY=str(directory))
    for file in DAGS.glob("*.py"):
        shutil.copy(file, home.dags)
    return home, dsn


@pytest.fixture(scope="module")
def story(home: tuple[AirflowHome, str]) -> RunResult:
    """The outcome of the DAG ``story``."""
    return home[0].run("story")


@pytest.fixture
def shop(home: tuple[AirflowHome, str], story: RunResult) -> Iterator[Broker]:
    """The broker after the story."""
    assert story.tasks
    with Broker(home[1]) as broker:
        yield broker


def test_d11_a_topic_is_made_once_and_other_settings_fail(story: RunResult, shop: Broker) -> None:
    assert story.tasks["make_topic"].state == "success"
    assert story.tasks["make_topic_again"].state == "success"
    (topic,) = shop.topics()
    assert topic.name == "orders"
    assert topic.delay_levels == (timedelta(seconds=1), timedelta(days=2))
    assert story.tasks["make_other_topic"].state == "failed"
    assert "TopicExists" in story.log


def sender(dag: str, properties: Mapping[str, Any], task: str) -> str:
    """The name of the task instance that sent a message, with the run that the message says."""
    run = str(properties[SENT_BY_TASK]).split("/")[1]
    assert run.startswith("manual__")
    return f"airflow:{dag}/{run}/{task}/-1"


def test_d12_d13_a_send_renders_templates_and_returns_a_receipt(story: RunResult, shop: Broker) -> None:
    found = shop.find(story.tasks["send"].xcom)
    assert found is not None
    assert (found.key, found.tag) == ("story-1", "late")
    assert found.properties == {
        "from": "send",
        "content-type": "application/json",
        SENT_BY_TASK: sender("story", found.properties, "send"),
    }
    body = json.loads(found.body)
    assert body["lines"] == ["send"]
    assert body["run"].startswith("manual__")
    assert story.tasks["read_receipt"].xcom == {
        "message_id": found.message_id,
        "deliver_at": found.deliver_at.isoformat(),
        "outcome": "sent",
    }


def test_x07_a_retried_task_sends_once_and_mapped_ones_each(story: RunResult, shop: Broker) -> None:
    retried = story.tasks["send_retried"]
    assert retried.state == "success"
    assert f"lost after sending {retried.xcom}" in story.log
    assert [found.message_id for found in shop.find_key("orders", "retried")] == [retried.xcom]
    mapped = [story.tasks[f"send_mapped[{index}]"].xcom for index in range(3)]
    assert len(set(mapped)) == 3
    together = shop.find(story.tasks["send_together"].xcom)
    assert together is not None
    assert json.loads(together.body)["sent"] == mapped


def test_x01_x02_a_recall_has_three_answers(story: RunResult) -> None:
    assert story.tasks["recall_by_key"].xcom == "recalled"
    assert story.tasks["recall_by_id"].xcom == "recalled"
    assert story.tasks["recall_too_late"].xcom == "already_released"
    assert story.tasks["recall_unknown"].xcom == "not_found"
    assert story.tasks["recall_must_not_be_late"].state == "failed"
    assert "was released before it could be recalled" in story.log


def test_d04_a_delay_out_of_range_fails_the_task(story: RunResult) -> None:
    assert story.tasks["send_too_late"].state == "failed"
    assert "DelayOutOfRange" in story.log


def test_x09_the_sensor_returns_and_leases_ready_messages(story: RunResult, shop: Broker) -> None:
    sent = shop.find(story.tasks["send"].xcom)
    assert sent is not None
    assert story.tasks["wait"].xcom == {
        "topic": "orders",
        "group": "handler",
        "ready": 1,
        "oldest_deliver_at": sent.deliver_at.isoformat(),
    }
    assert story.tasks["wait_in_vain"].state == "skipped"
    assert story.tasks["give_back"].xcom == ["story-1"]
    assert states(shop, sent.message_id, "borrower") == ["Inflight", "Acked"]


def test_x09_handled_messages_are_acked_and_failed_ones_retried(story: RunResult, shop: Broker) -> None:
    sent = story.tasks["send"].xcom
    assert story.tasks["consume"].xcom == ["story-1!"]
    assert states(shop, sent, "handler")[-1] == "Acked"
    assert story.tasks["consume_one_by_one"].xcom == ["hello story-1"]
    assert story.tasks["consume_nothing"].state == "skipped"
    assert story.events == {
        "send": {"topic": "orders", "messages": 1},
        "consume": {"topic": "orders", "group": "handler", "messages": 1},
    }
    assert story.tasks["consume_in_vain"].state == "failed"
    assert "cannot handle 1 messages" in story.log
    # The retry may have come due meanwhile, and a wheel of the other DAGs have released it.
    assert states(shop, sent, "careless")[:2] == ["Inflight", "WaitingRetry"]


def test_x09_a_task_tried_again_gets_the_failed_messages(story: RunResult) -> None:
    assert story.tasks["consume_retried"].state == "success"
    assert story.tasks["consume_retried"].xcom == ["story-1: attempt 1"]
    assert "Kept 1 message of topic orders for group retried for the task's next try" in story.log
    assert re.search(
        r"Took over 1 message of topic orders for group retried, leased to airflow:story/manual__.*/"
        r"consume_retried/-1 until 20.*: [0-9a-f]{44} \(key story-1\)",
        story.log,
    )


@pytest.fixture(scope="module")
def flow(home: tuple[AirflowHome, str]) -> RunResult:
    """The outcome of the DAG ``taskflow``."""
    return home[0].run("taskflow")


@pytest.mark.long
def test_x03_many_are_sent_in_one_task_and_moved_in_another(
    home: tuple[AirflowHome, str], flow: RunResult
) -> None:
    assert flow.tasks["send"].state == "success"
    with Broker(home[1]) as broker:
        found = [broker.find(message_id) for message_id in flow.tasks["send"].xcom]
    assert [message.key for message in found if message is not None] == ["k0", "k1", "k2", "later"]
    assert found[0] is not None
    assert found[0].properties == {
        "number": 0,
        "content-type": "application/json",
        SENT_BY_TASK: sender("taskflow", found[0].properties, "send"),
    }
    assert flow.tasks["sooner"].state == "success"
    assert len(flow.tasks["sooner"].xcom) == 1
    # It is not tried again, though it has retries.
    assert flow.tasks["too_late"].state == "failed"


def test_a_decorated_function_is_given_the_messages(flow: RunResult) -> None:
    assert sorted(flow.tasks["handle"].xcom) == ["k0!True", "k1!True", "k2!True", "later!True"]
    assert flow.tasks["of_group[0]"].xcom == "a: 3"
    assert flow.tasks["said"].xcom == "all: 4."
    # What each message came to is a list, whatever one call returns.
    assert sorted(each["of"] for each in flow.tasks["price"].xcom) == ["k0", "k1", "k2", "later"]
    # Tasks that are mapped over nothing have no run.
    assert (flow.tasks["arrived"].state, flow.tasks["arrived"].xcom) == ("success", [])
    assert flow.tasks["welcome"].state == "skipped"


def test_x15_r14_x12_only_the_poison_is_dead_and_is_redriven(
    home: tuple[AirflowHome, str], flow: RunResult
) -> None:
    assert flow.tasks["pick"].state == "failed"
    assert flow.tasks["again"].xcom == {"matched": 1, "redriven": 1}
    with Broker(home[1]) as broker:
        (letter,) = broker.dead_letters("picky")
    assert (letter.key, letter.reason) == ("k1", "ValueError: k1 is poison")


def test_a_task_links_to_its_messages(flow: RunResult, story: RunResult) -> None:
    page = "/plugin/duewheel?broker=duewheel_default&view="
    sent, recalled = story.tasks["send"].xcom, story.tasks["send_mapped[0]"].xcom
    assert flow.tasks["handle"].links == {"_link_TopicLink": f"{page}messages&topic=flow"}
    assert story.tasks["recall_by_id"].links == {"_link_MessageLink": f"{page}message&id={recalled}"}
    assert flow.tasks["again"].links == {"_link_DeadLettersLink": f"{page}dead&group=picky"}
    assert story.tasks["send"].links["_link_MessageLink"] == f"{page}message&id={sent}"


def test_x09_a_killed_task_gives_its_messages_back_at_once(home: tuple[AirflowHome, str]) -> None:
    airflow, dsn = home
    with Broker(dsn) as broker:
        broker.create_topic("killed")
        receipt = broker.send("killed", b"x", delay_level=1)
        pipes = Path(airflow.environment["DUEWHEEL_TEST_DIRECTORY"])
        os.mkfifo(pipes / "holds")
        os.mkfifo(pipes / "end")
        process = airflow.start("killed")
        assert (pipes / "holds").read_text() == receipt.message_id
        process.send_signal(signal.SIGTERM)
        (again,) = received(broker.consumer("killed", "handler"))
        assert again.message_id == receipt.message_id
        assert again.attempt == 1
        (pipes / "end").write_text("done")
        result = airflow.finish("killed", process)
    assert result.tasks["consume"].state == "failed"
    assert "Gave the lease on 1 message of topic killed for group handler back" in result.log
    assert "LeaseLost" in result.log


def test_d16_the_sensor_defers_and_wakes_when_a_message_is_due(home: tuple[AirflowHome, str]) -> None:
    airflow, dsn = home
    with Broker(dsn) as broker:
        broker.create_topic("waiting")
        process = airflow.start("waiting")
        assert process.stdout is not None
        for line in process.stdout:
            if "running trigger in line" in line:
                break
        broker.send("waiting", b"x", delay=timedelta(milliseconds=200))
        result = airflow.finish("waiting", process)
    assert result.tasks["wait"].state == "success"
    assert result.tasks["wait"].xcom["ready"] == 1
    assert "Woken: ready on topic waiting: 1 message" in result.log
