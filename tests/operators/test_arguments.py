"""The arguments that operators refuse when a DAG is read, before anything runs."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG
from airflow.utils.types import DagRunType
from jinja2.sandbox import SandboxedEnvironment

from duewheel.operators.recall import RecallMessageOperator
from duewheel.operators.redrive import RedriveDeadLettersOperator
from duewheel.operators.send import SendDelayMessageOperator
from duewheel.operators.topic import CreateTopicOperator
from duewheel.store.values.errors import DueWheelError, InvalidArgument, InvalidTag
from duewheel.store.values.names import check_group_name, check_topic_name
from duewheel.triggers.timing_wheel import TimingWheelTrigger

if TYPE_CHECKING:
    from duewheel.store import Broker


@pytest.mark.parametrize(
    "when",
    [
        {"delay": timedelta(1), "delay_level": 3},
        {"delay": "PT1S", "deliver_at": "{{ ts }}"},
        {"deliver_at": 0, "delay_level": 0},
    ],
)
def test_two_times_of_delivery_are_refused(when: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="Give one of delay, deliver_at and delay_level"):
        SendDelayMessageOperator(task_id="send", topic="t", body="x", **when)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"delay": 30}, "delay is an int, not a span of time"),
        ({"delay": "soon"}, "delay 'soon' is not a span of time"),
        ({"delay": timedelta(seconds=-1)}, "delay must be 0 s or more; got -1 s"),
        ({"deliver_at": datetime(2030, 1, 1)}, "has no time zone"),  # noqa: DTZ001 -- that is the mistake
        ({"deliver_at": "tomorrow"}, "deliver_at 'tomorrow' is not an instant"),
        ({"delay_level": -1}, "the delay level must be 0 (not delayed) or more; got -1"),
        ({"on_conflict": "replce"}, "on_conflict 'replce' is not known: give one of"),
        ({"topic": "my topic"}, "digits, dots, hyphens or underscores. Choose another name."),
        ({"key": ""}, "the key must have 1 to 255 characters; got 0"),
        ({"body": {1, 2}}, "the body cannot be written as JSON"),
        ({"properties": [1]}, "properties is a list: give a mapping"),
        ({"deliver_at": "1654773600"}, "deliver_at 1654773600 is 1970-01-20 as Unix milliseconds"),
        ({"message_group": ""}, "the message group must have 1 to 255 characters; got 0"),
        ({"message_group": 5}, "message_group is an int: give a str"),
        ({"idempotency_key": "x" * 513}, "the idempotency key must have 1 to 512 characters; got 513"),
    ],
)
def test_a_mistake_in_a_send_is_refused_when_the_dag_is_read(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(DueWheelError, match=re.escape(said)):
        SendDelayMessageOperator(**{"task_id": "send", "topic": "t", "body": "x", **arguments})


@pytest.mark.parametrize("kind", DagRunType)
def test_the_id_of_any_run_makes_a_group_name_as_the_how_to_says(kind: DagRunType) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "groups.md").read_text()
    (template,) = re.findall(r"`({{ run_id[^`]+}})`", page)
    run_id = kind.generate_run_id(suffix="2026-11-28T01:02:03.000004+00:00")
    group = SandboxedEnvironment().from_string(template).render(run_id=run_id)
    check_group_name(group)


def test_templated_values_are_checked_when_they_are_known() -> None:
    with DAG("later"):
        first = SendDelayMessageOperator(
            task_id="first", topic="{{ params.topic }}", body={"a": ["{{ ts }}"]}
        )
        SendDelayMessageOperator(
            task_id="second",
            topic="t",
            body=first.output,
            properties={"first": first.output},
            delay="{{ params.delay }}",
            on_conflict="{{ params.conflict }}",
        )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"message_type": "DELY"}, "message_type 'DELY' is not known: give one of 'NORMAL', 'DELAY', 'FIFO'"),
        ({"queues": 0}, "queues must be 1 to 64; got 0"),
        ({"queues": 65}, "queues must be 1 to 64; got 65"),
        ({"out_of_range": "rejct"}, "out_of_range 'rejct' is not known: give one of 'reject', 'deliver'"),
        ({"max_delay": timedelta(0)}, "max_delay must be more than 0 s; got 0 s"),
        ({"retention": 3}, "retention is an int, not a span of time"),
        ({"granularity": "P1D"}, "granularity must be 1 h or less; got 1 day"),
        ({"delay_levels": ["PT1S", 5]}, "delay_levels[1] is an int, not a span of time"),
        ({"delay_levels": "PT1S"}, "delay_levels is a str: give a list of 1 to 64 spans of time"),
        ({"delay_levels": []}, "delay_levels must have 1 to 64 levels; got 0"),
        ({"delay_levels": [None]}, "a level of delay_levels is null"),
        (
            {"queues": "{{ params.queues }}"},
            "queues of CreateTopicOperator is not templated: give the value itself",
        ),
    ],
)
def test_d11_a_mistake_in_a_topic_fails_when_the_dag_is_parsed(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(said)):
        CreateTopicOperator(task_id="make", topic="t", **arguments)


@pytest.mark.parametrize("name", ["my group", "", "a/b", "x" * 128, "ü"])
def test_names_are_refused_in_the_words_of_the_database(broker: Broker, name: str) -> None:
    broker.create_topic("t")
    with pytest.raises(InvalidArgument) as by_database:
        broker.consumer("t", name)
    with pytest.raises(InvalidArgument) as when_read:
        check_group_name(name)
    assert str(when_read.value) == str(by_database.value)
    with pytest.raises(InvalidArgument) as by_database:
        broker.create_topic(name)
    with pytest.raises(InvalidArgument) as when_read:
        check_topic_name(name)
    assert str(when_read.value) == str(by_database.value)


@pytest.mark.parametrize("tag", ["", "a b", "a|b", "*all", "x" * 128, "a\tb", "a\x7f"])
def test_d12_tags_are_refused_in_the_words_of_the_database(broker: Broker, tag: str) -> None:
    broker.create_topic("t")
    with pytest.raises(InvalidTag) as by_database:
        broker.send("t", b"", delay_level=0, tag=tag)
    with pytest.raises(InvalidTag) as when_read:
        SendDelayMessageOperator(task_id="send", topic="t", body="x", tag=tag)
    assert str(when_read.value) == str(by_database.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"per_second": 0}, "per_second must be 0.001 to 1000000 messages in a second; got 0"),
        ({"per_second": "{{ params.rate }}"}, "per_second of RedriveDeadLettersOperator is not templated"),
        ({"per_second": "50"}, "per_second must be 0.001 to 1000000"),
        ({"max_messages": 0}, "max_messages must be 1 or more; got 0"),
        ({"dead_from": 1_654_773_600}, "dead_from 1654773600 is 1970-01-20 as Unix milliseconds"),
        ({"reason_contains": 5}, "reason_contains is an int: give a str"),
        ({"group": None}, "group is missing: give a str"),
        ({"dry_run": "no"}, "dry_run is 'no', a str: give True or False"),
    ],
)
def test_x12_a_mistake_in_a_redrive_fails_when_the_dag_is_parsed(
    arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(DueWheelError, match=re.escape(said)):
        RedriveDeadLettersOperator(**{"task_id": "again", "group": "g", **arguments})


def test_an_author_who_templates_more_fields_may_give_them_later() -> None:
    class Templated(CreateTopicOperator):
        template_fields = (*CreateTopicOperator.template_fields, "queues")

    Templated(task_id="make", topic="t", queues="{{ params.queues }}")


@pytest.mark.parametrize(
    "arguments",
    [{"topic": "{{ params.topic }}"}, {"group": "{{ params.group }}"}, {"ring_again": "{{ params.pause }}"}],
)
def test_a_watcher_renders_no_templates(arguments: dict[str, Any]) -> None:
    with pytest.raises(
        InvalidArgument, match=r"of TimingWheelTrigger is not templated.*none of its arguments"
    ):
        TimingWheelTrigger(**{"topic": "t", "group": "g", **arguments})


@pytest.mark.parametrize(
    "names",
    [
        {},
        {"topic": "t"},
        {"key": "k"},
        {"message_id": "m", "topic": "t", "key": "k"},
        {"message_id": "m", "key": "k"},
    ],
)
def test_x02_a_recall_names_one_message(names: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match="Give either message_id, or both topic and key"):
        RecallMessageOperator(task_id="recall", **names)
