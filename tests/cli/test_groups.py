"""Groups and leases on the command line: what they choose, how they share, how far they are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.acting import HOUR, send
from tests.cli.conftest import Run, RunJson, refusal

from duewheel.store import Broker, LeaseLost, RetryPolicy

REGIONS = ["north", "south", "west"]


@pytest.fixture
def released(broker: Broker) -> Broker:
    """A broker with three messages on the topic `t`, just due."""
    broker.create_topic("t")
    for region in REGIONS:
        send(broker, region, tag=region, properties={"region": region})
    broker.tick("t")
    return broker


def bodies(received: list[dict[str, Any]]) -> list[str]:
    return sorted(message["body"] for message in received)


@pytest.mark.usefixtures("released")
def test_a_group_reads_what_its_options_choose(run: Run, run_json: RunJson) -> None:
    receive = "message receive --wait 5s --topic t --group"
    chosen = "--filter '$.region != \"south\"'"
    assert bodies(run_json(f"{receive} g1 {chosen}")) == ["north", "west"]
    assert bodies(run_json(f"{receive} g2 {chosen} --tags 'south || west'")) == ["west"]
    assert "written as in SQL" in refusal(run(f"{receive} g3 --filter \"region LIKE 'n%'\""))
    for name in ("one", "two"):
        instance = f"--mode broadcasting --consumer {name} --ack"
        assert bodies(run_json(f"{receive} everywhere {instance}")) == REGIONS
    group = run_json("group list")[0]
    assert (group["mode"], group["instances"], group["retries"]) == ("broadcasting", ["one", "two"], None)
    assert "one two" in run("group list").stdout

    assert run("message receive --topic t --group late --start latest").exit_code == 3
    ago = (datetime.now(UTC) - HOUR).isoformat()
    assert len(run_json(f"{receive} back --max-messages 2 --start", ago)) == 2


def test_groups_are_listed_with_who_set_their_retries(run: Run, run_json: RunJson, released: Broker) -> None:
    assert run("group list").stdout == "There are no consumer groups.\n"
    released.create_topic("u", message_type="FIFO")
    released.consumer("t", "g", name="host-1", retry=RetryPolicy.unordered(3)).receive()
    released.consumer("u", "g")
    on_t, on_u = run_json("group list")
    assert (on_t["group"], on_t["topic"], on_t["retries"], on_t["retry_set_by"]) == ("g", "t", 3, "host-1")
    assert (on_t["retry"]["max_retries"], on_t["retry"]["waits"][:2]) == (3, [10, 30])
    assert (on_u["topic"], on_u["retries"], on_u["retry"]["is_ordered"]) == ("u", "no limit", True)
    assert run_json("group list --topic u") == [on_u]
    assert run("group list --topic v").stdout == "No consumer group reads v.\n"
    assert "host-1" in run("group list").stdout


def test_d10_fifo_topic_takes_messages_of_message_groups(run: Run, run_json: RunJson) -> None:
    assert run_json("topic create steps --type fifo")["message_type"] == "FIFO"
    refusal(run("message send placed --topic steps"))
    run_json("message send placed --topic steps --message-group 4711")
    (received,) = run_json("message receive --topic steps --group g --wait 5s")
    assert (received["body"], received["message_group"]) == ("placed", "4711")


def test_d08_group_goes_back_in_time(run: Run, run_json: RunJson, released: Broker) -> None:
    receive, rewind = "message receive --topic t --group g", "group rewind g --topic t --to"
    assert bodies(run_json(f"{receive} --wait 5s --ack")) == REGIONS
    assert run(receive).exit_code == 3
    assert run(rewind, (datetime.now(UTC) - HOUR).isoformat()).exit_code == 0
    assert bodies(run_json(receive)) == REGIONS
    assert run_json(f"{rewind} earliest")["leases_ended"] > 0
    assert "leases ended" in run(f"{rewind} latest").stdout
    assert run(receive).exit_code == 3
    refusal(run("group rewind other --topic t --to latest"))


def test_x08_a_group_is_paused_and_resumed(run: Run, run_json: RunJson, released: Broker) -> None:
    released.consumer("t", "g")
    assert run_json("group pause g") == {"outcome": "paused", "group": "g", "topic": None}
    paused = run("group pause g --topic t").stdout
    assert paused == "Consumer group g was paused already: unchanged.\n"
    (listed,) = run_json("group list")
    (topic,) = run_json("stats")["topics"]
    assert listed["paused_at"] == topic["groups"][0]["paused_at"] is not None
    assert run("message receive --topic t --group g").exit_code == 3
    assert run_json("group resume g")["outcome"] == "resumed"
    assert run_json("group resume g")["outcome"] == "unchanged"
    assert run("message receive --topic t --group g").exit_code == 0
    refusal(run("group pause nope"))


def test_x20_group_is_deleted_after_a_question(run: Run, run_json: RunJson, released: Broker) -> None:
    released.create_topic("u")
    for topic in ("t", "u"):
        released.consumer(topic, "g")
    asked = run("group delete g --topic u", stdin="n\n")
    assert asked.exit_code == 1
    assert "Delete consumer group g on topic u, its retries and dead letters?" in asked.stderr
    assert len(run_json("group list")) == 2
    deleted = run_json("group delete g --topic u --yes")
    assert deleted == {"outcome": "deleted", "group": "g", "topic": "u"}
    (left,) = run_json("group list")
    assert (left["topic"], left["stalled_since"]) == ("t", None)
    assert "stalled since" in run("group list").stdout
    assert run("group delete g", stdin="y\n").exit_code == 0
    refusal(run("group delete g --yes"))


def test_a_lease_is_listed_and_released_and_its_retry_is_due_now(
    broker: Broker, run: Run, run_json: RunJson
) -> None:
    broker.create_topic("t", message_type="NORMAL", queues=1)
    consumer = broker.consumer("t", "g", name="hung", retry=RetryPolicy(3, (HOUR,)))
    sent = broker.send("t", b"").message_id
    batch = consumer.receive()
    (listed,) = run_json("lease list --group g --topic t")
    assert (listed["consumer"], listed["messages"]) == ("hung", 1)
    release = f"lease release {listed['lease_id']}"
    assert run_json(f"{release} --reason gone") == {"outcome": "released", "messages": 1}
    assert run_json(release) == {"outcome": "unchanged", "messages": 0}
    assert "gone" in run(f"message history {sent}").stdout
    with pytest.raises(LeaseLost):
        consumer.ack(batch)
    consumer.nack(consumer.receive(wait=timedelta(seconds=30)))
    assert run_json(f"group retry-now g {sent}") == {"retried": [sent]}
    assert [one.attempt for one in consumer.receive(wait=timedelta(seconds=30))] == [3]
    assert run(f"group retry-now g {sent}").exit_code == 3
    refusal(run("lease release 1"))


def test_x28_a_changed_subscription_reports_the_least_it_passed(run: Run, released: Broker) -> None:
    """A consumer that receives at the same time passes more."""
    released.consumer("t", "g")
    changed = run("group set-subscription g --topic t --tags late")
    assert "It has passed at least 0 messages that it would receive now" in changed.stdout
