"""Groups on the command line: what they choose, how they share, how far they are."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import Result

from duewheel.store import Broker, LeaseLost, RetryPolicy

Run = Callable[..., Result]
RunJson = Callable[..., Any]


@pytest.fixture
def released(broker: Broker) -> Broker:
    """A broker with three messages on the topic `t`, just due."""
    broker.create_topic("t")
    for region in ("north", "south", "west"):
        broker.send("t", region, delay=timedelta(0), tag=region, properties={"region": region})
    broker.tick("t")
    return broker


def bodies(received: list[dict[str, Any]]) -> list[str]:
    return sorted(message["body"] for message in received)


@pytest.mark.usefixtures("released")
def test_messages_are_chosen_by_tag_and_properties(run: Run, run_json: RunJson) -> None:
    assert bodies(
        run_json(
            "message",
            "receive",
            "--topic",
            "t",
            "--group",
            "g1",
            "--filter",
            "region <> 'south'",
            "--wait",
            "5s",
        )
    ) == [
        "north",
        "west",
    ]
    both = ("--filter", "region <> 'south'", "--tags", "south || west")
    assert bodies(run_json("message", "receive", "--topic", "t", "--group", "g2", *both, "--wait", "5s")) == [
        "west"
    ]
    refused = run("message", "receive", "--topic", "t", "--group", "g3", "--filter", "region LIKE 'n%'")
    assert refused.exit_code == 1
    assert "position 7" in refused.stderr


@pytest.mark.usefixtures("released")
def test_r02_every_instance_of_a_broadcasting_group_gets_every_message(run: Run, run_json: RunJson) -> None:
    for name in ("one", "two"):
        instance = ("--mode", "broadcasting", "--name", name, "--wait", "5s", "--ack")
        assert bodies(run_json("message", "receive", "--topic", "t", "--group", "g", *instance)) == [
            "north",
            "south",
            "west",
        ]
    (group,) = run_json("group", "list")
    assert (group["mode"], group["instances"], group["retries"]) == ("broadcasting", ["one", "two"], None)
    assert "one two" in run("group", "list").stdout


@pytest.mark.usefixtures("released")
def test_new_group_starts_where_it_is_told(run: Run, run_json: RunJson) -> None:
    assert run("message", "receive", "--topic", "t", "--group", "late", "--start", "latest").exit_code == 3
    ago = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    assert (
        len(run_json("message", "receive", "--topic", "t", "--group", "back", "--start", ago, "--wait", "5s"))
        == 3
    )
    assert run("message", "receive", "--topic", "t", "--group", "g", "--start", "yesterday").exit_code == 2


def test_groups_are_listed_with_who_set_their_retries(run: Run, run_json: RunJson, released: Broker) -> None:
    released.create_topic("u", message_type="FIFO")
    assert run("group", "list").stdout == "There are no consumer groups.\n"
    released.consumer("t", "g", name="host-1", retry=RetryPolicy.unordered(3)).receive()
    released.consumer("u", "g")
    on_t, on_u = run_json("group", "list")
    assert (on_t["group"], on_t["topic"], on_t["retries"], on_t["retry_set_by"]) == ("g", "t", 3, "host-1")
    assert (on_t["retry"]["max_retries"], on_t["retry"]["waits"][:2]) == (3, [10, 30])
    assert (on_u["topic"], on_u["retries"], on_u["retry"]["is_ordered"]) == ("u", "no limit", True)
    assert run_json("group", "list", "--topic", "u") == [on_u]
    assert run("group", "list", "--topic", "v").stdout == "No consumer group reads v.\n"
    assert "host-1" in run("group", "list").stdout


def test_d10_fifo_topic_takes_messages_of_message_groups(run: Run, run_json: RunJson) -> None:
    assert run_json("topic", "create", "steps", "--type", "fifo")["message_type"] == "FIFO"
    assert run("message", "send", "placed", "--topic", "steps").exit_code == 1
    for step in ("placed", "paid"):
        assert (
            run_json("message", "send", step, "--topic", "steps", "--message-group", "4711")["outcome"]
            == "sent"
        )
    received = run_json("message", "receive", "--topic", "steps", "--group", "g", "--wait", "5s", "--ack")
    assert [(message["body"], message["message_group"]) for message in received] == [
        ("placed", "4711"),
        ("paid", "4711"),
    ]


def test_d08_group_goes_back_in_time(run: Run, run_json: RunJson, released: Broker) -> None:
    assert len(run_json("message", "receive", "--topic", "t", "--group", "g", "--wait", "5s", "--ack")) == 3
    assert run("message", "receive", "--topic", "t", "--group", "g").exit_code == 3
    ago = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    assert set(run_json("group", "rewind", "g", "--topic", "t", "--to", ago)) == {
        "leases_ended",
        "messages_returned",
        "retries_taken_back",
    }
    assert bodies(run_json("message", "receive", "--topic", "t", "--group", "g")) == [
        "north",
        "south",
        "west",
    ]
    assert run_json("group", "rewind", "g", "--topic", "t", "--to", "earliest")["leases_ended"] > 0
    assert "leases ended" in run("group", "rewind", "g", "--topic", "t", "--to", "latest").stdout
    assert run("message", "receive", "--topic", "t", "--group", "g").exit_code == 3
    assert run("group", "rewind", "g", "--topic", "t").exit_code == 2
    assert run("group", "rewind", "g", "--topic", "t", "--to", "once").exit_code == 2
    assert run("group", "rewind", "other", "--topic", "t", "--to", "latest").exit_code == 1


def test_x08_a_group_is_paused_and_resumed(run: Run, run_json: RunJson, released: Broker) -> None:
    released.consumer("t", "g")
    assert run_json("group", "pause", "g") == {"outcome": "paused", "group": "g", "topic": None}
    assert run("group", "pause", "g", "--topic", "t").stdout == (
        "Consumer group g was paused already: unchanged.\n"
    )
    (listed,) = run_json("group", "list")
    (topic,) = run_json("stats")["topics"]
    assert listed["paused_at"] == topic["groups"][0]["paused_at"] is not None
    assert run("message", "receive", "--topic", "t", "--group", "g").exit_code == 3
    assert run_json("group", "resume", "g")["outcome"] == "resumed"
    assert run_json("group", "resume", "g")["outcome"] == "unchanged"
    assert run("message", "receive", "--topic", "t", "--group", "g").exit_code == 0
    assert run("group", "pause", "nope").exit_code == 1


def test_x20_group_is_deleted_after_a_question(run: Run, run_json: RunJson, released: Broker) -> None:
    released.create_topic("u")
    for topic in ("t", "u"):
        released.consumer(topic, "g")
    asked = run("group", "delete", "g", "--topic", "u", stdin="n\n")
    assert asked.exit_code == 1
    assert "Delete consumer group g on topic u, its retries and dead letters?" in asked.stderr
    assert len(run_json("group", "list")) == 2
    assert run_json("group", "delete", "g", "--topic", "u", "--yes") == {
        "outcome": "deleted",
        "group": "g",
        "topic": "u",
    }
    (left,) = run_json("group", "list")
    assert (left["topic"], left["stalled_since"]) == ("t", None)
    assert "stalled since" in run("group", "list").stdout
    assert run("group", "delete", "g", stdin="y\n").exit_code == 0
    assert run("group", "delete", "g", "--yes").exit_code == 1


def test_a_lease_is_listed_and_released_and_its_retry_is_due_now(
    broker: Broker, run: Run, run_json: RunJson
) -> None:
    broker.create_topic("t", message_type="NORMAL", queues=1)
    consumer = broker.consumer("t", "g", name="hung", retry=RetryPolicy(3, (timedelta(hours=1),)))
    sent = broker.send("t", b"").message_id
    batch = consumer.receive()
    (listed,) = run_json("lease", "list", "--group", "g", "--topic", "t")
    assert (listed["consumer"], listed["messages"]) == ("hung", 1)
    release = ("lease", "release", listed["lease_id"])
    assert run_json(*release, "--reason", "gone") == {"outcome": "released", "messages": 1}
    assert run_json(*release) == {"outcome": "unchanged", "messages": 0}
    with pytest.raises(LeaseLost):
        consumer.ack(batch)
    consumer.nack(consumer.receive(wait=timedelta(seconds=30)))
    assert run_json("group", "retry-now", "g", sent) == {"retried": [sent]}
    assert [one.attempt for one in consumer.receive(wait=timedelta(seconds=30))] == [3]
    assert run("group", "retry-now", "g", sent).exit_code == 3
    assert run("lease", "release", "1").exit_code == 1
