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


def test_d11_making_a_topic_twice_is_making_it_once(story: RunResult, shop: Broker) -> None:
    assert story.tasks["make_topic"].state == "success"
    assert story.tasks["make_topic_again"].state == "success"
    (topic,) = shop.topics()
    assert topic.name == "orders"
    assert topic.delay_levels == (timedelta(seconds=1), timedelta(days=2))


def test_d11_making_a_topic_with_other_settings_fails(story: RunResult) -> None:
    assert story.tasks["make_other_topic"].state == "failed"
    assert "TopicExists" in story.log


def sender(dag: str, properties: Mapping[str, Any], task: str) -> str:
    """The name of the task instance that sent a message, with the run that the message says."""
    run = str(properties[SENT_BY_TASK]).split("/")[1]
    assert run.startswith("manual__")
    return f"airflow:{dag}/{run}/{task}/-1"


def test_d12_d13_a_sent_message_is_found_by_the_id_in_the_xcom(story: RunResult, shop: Broker) -> None:
    found = shop.find(story.tasks["send"].xcom)
    assert found is not None
    assert found.key == "story-1"
    assert found.tag == "late"
    assert found.properties == {
        "from": "send",
        "content-type": "application/json",
        SENT_BY_TASK: sender("story", found.properties, "send"),
    }
    body = json.loads(found.body)
    assert body["lines"] == ["send"]
    assert body["run"].startswith("manual__")


def test_d13_the_whole_receipt_of_a_send_is_an_xcom(story: RunResult, shop: Broker) -> None:
    found = shop.find(story.tasks["send"].xcom)
    assert found is not None
    assert story.tasks["read_receipt"].xcom == {
        "message_id": found.message_id,
        "deliver_at": found.deliver_at.isoformat(),
        "outcome": "sent",
    }


def test_x07_a_task_that_is_retried_after_its_send_sends_once(story: RunResult, shop: Broker) -> None:
    assert story.tasks["send_retried"].state == "success"
    assert f"lost after sending {story.tasks['send_retried'].xcom}" in story.log
    assert [found.message_id for found in shop.find_key("orders", "retried")] == [
        story.tasks["send_retried"].xcom
    ]


def test_x07_mapped_tasks_send_a_message_each(story: RunResult) -> None:
    assert len({story.tasks[f"send_mapped[{index}]"].xcom for index in range(3)}) == 3


def test_what_mapped_tasks_returned_is_one_body(story: RunResult, shop: Broker) -> None:
    found = shop.find(story.tasks["send_together"].xcom)
    assert found is not None
    assert json.loads(found.body)["sent"] == [story.tasks[f"send_mapped[{index}]"].xcom for index in range(3)]


def test_d04_a_delay_out_of_range_fails_the_task(story: RunResult) -> None:
    assert story.tasks["send_too_late"].state == "failed"
    assert "DelayOutOfRange" in story.log


def test_x01_x02_a_recall_has_three_answers(story: RunResult) -> None:
    assert story.tasks["recall_by_key"].xcom == "recalled"
    assert story.tasks["recall_by_id"].xcom == "recalled"
    assert story.tasks["recall_too_late"].xcom == "already_released"
    assert story.tasks["recall_unknown"].xcom == "not_found"


def test_x01_a_late_recall_fails_where_the_author_wants_it(story: RunResult) -> None:
    assert story.tasks["recall_must_not_be_late"].state == "failed"
    assert "was released before it could be recalled" in story.log


def test_the_sensor_says_what_is_ready(story: RunResult, shop: Broker) -> None:
    sent = shop.find(story.tasks["send"].xcom)
    assert sent is not None
    assert story.tasks["wait"].xcom == {
        "topic": "orders",
        "group": "handler",
        "ready": 1,
        "oldest_deliver_at": sent.deliver_at.isoformat(),
    }


def test_x09_the_sensor_hands_on_what_it_has_leased(story: RunResult, shop: Broker) -> None:
    assert story.tasks["give_back"].xcom == ["story-1"]
    history = shop.history(story.tasks["send"].xcom)
    assert [step.state for step in history if step.consumer_group == "borrower"] == ["Inflight", "Acked"]


def test_an_asset_event_says_what_its_task_did(story: RunResult) -> None:
    assert story.events == {
        "send": {"topic": "orders", "messages": 1},
        "consume": {"topic": "orders", "group": "handler", "messages": 1},
    }


def test_the_sensor_pokes_and_times_out(story: RunResult) -> None:
    assert story.tasks["wait_in_vain"].state == "skipped"


def test_x09_what_was_handled_is_acked(story: RunResult, shop: Broker) -> None:
    assert story.tasks["consume"].xcom == ["story-1!"]
    states = [
        step.state for step in shop.history(story.tasks["send"].xcom) if step.consumer_group == "handler"
    ]
    assert states[-1] == "Acked"


def test_nothing_to_consume_skips_the_task_where_the_author_wants_it(story: RunResult) -> None:
    assert story.tasks["consume_nothing"].state == "skipped"


def test_r03_what_could_not_be_handled_waits_for_its_retry(story: RunResult, shop: Broker) -> None:
    assert story.tasks["consume_in_vain"].state == "failed"
    assert "cannot handle 1 messages" in story.log
    states = [
        step.state for step in shop.history(story.tasks["send"].xcom) if step.consumer_group == "careless"
    ]
    # The retry may have come due meanwhile, and a wheel of the other DAGs have released it.
    assert states[:2] == ["Inflight", "WaitingRetry"]


def test_x09_a_task_that_is_tried_again_gets_the_messages_that_failed(story: RunResult) -> None:
    assert story.tasks["consume_retried"].state == "success"
    assert story.tasks["consume_retried"].xcom == ["story-1: attempt 1"]
    assert "Kept 1 message of topic orders for group retried for the task's next try" in story.log
    assert re.search(
        r"Took over 1 message of topic orders for group retried, leased to airflow:story/manual__.*/"
        r"consume_retried/-1 until 20.*: [0-9a-f]{44} \(key story-1\)",
        story.log,
    )


def test_each_message_is_handled_by_itself(story: RunResult) -> None:
    assert story.tasks["consume_one_by_one"].xcom == ["hello story-1"]


@pytest.fixture(scope="module")
def flow(home: tuple[AirflowHome, str]) -> RunResult:
    """The outcome of the DAG ``taskflow``."""
    return home[0].run("taskflow")


def test_many_messages_are_sent_in_one_task(home: tuple[AirflowHome, str], flow: RunResult) -> None:
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


def test_x03_a_task_moves_what_waits_and_does_not_try_again_what_came_too_late(flow: RunResult) -> None:
    assert flow.tasks["sooner"].state == "success"
    assert len(flow.tasks["sooner"].xcom) == 1
    assert flow.tasks["too_late"].state == "failed"


def test_a_decorated_function_is_given_the_messages(flow: RunResult) -> None:
    assert sorted(name for names in flow.tasks["handle"].xcom for name in names) == [
        "k0!True",
        "k1!True",
        "k2!True",
        "later!True",
    ]
    assert flow.tasks["of_group[0]"].xcom == "a: 3"


def test_what_each_message_came_to_is_a_list_whatever_one_call_returns(flow: RunResult) -> None:
    assert sorted(each["of"] for each in flow.tasks["price"].xcom) == ["k0", "k1", "k2", "later"]


def test_tasks_that_are_mapped_over_messages_have_no_run_where_nothing_is_ready(flow: RunResult) -> None:
    assert (flow.tasks["arrived"].state, flow.tasks["arrived"].xcom) == ("success", [])
    assert flow.tasks["welcome"].state == "skipped"


def test_other_tasks_may_give_all_arguments_of_a_function(flow: RunResult) -> None:
    assert flow.tasks["said"].xcom == "all: 4."


def test_x15_r14_x12_the_poison_alone_is_a_dead_letter_and_is_redriven(
    home: tuple[AirflowHome, str], flow: RunResult
) -> None:
    assert flow.tasks["pick"].state == "failed"
    assert flow.tasks["again"].xcom == {"matched": 1, "redriven": 1}
    with Broker(home[1]) as broker:
        (letter,) = broker.dead_letters("picky")
    assert (letter.key, letter.reason) == ("k1", "ValueError: k1 is poison")


def test_a_task_links_to_its_messages(flow: RunResult, story: RunResult) -> None:
    assert flow.tasks["handle"].links == {
        "_link_TopicLink": "/plugin/duewheel?broker=duewheel_default&view=messages&topic=flow"
    }
    recalled = story.tasks["send_mapped[0]"].xcom
    assert story.tasks["recall_by_id"].links == {
        "_link_MessageLink": f"/plugin/duewheel?broker=duewheel_default&view=message&id={recalled}"
    }
    assert flow.tasks["again"].links == {
        "_link_DeadLettersLink": "/plugin/duewheel?broker=duewheel_default&view=dead&group=picky"
    }
    assert story.tasks["send"].links["_link_MessageLink"] == (
        f"/plugin/duewheel?broker=duewheel_default&view=message&id={story.tasks['send'].xcom}"
    )


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
