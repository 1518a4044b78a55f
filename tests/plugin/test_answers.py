"""What the page's API answers of one of everything, and what its actions do, on a real API server (X08)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.plugin.airflow_server import AirflowServer

from duewheel.store import RetryPolicy
from duewheel.store.broker import Broker
from duewheel.store.values.limits import LONGEST_WAIT

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

HOUR = timedelta(hours=1)
DUE = datetime(2030, 1, 5, 10, tzinfo=UTC)


def asked(airflow: AirflowServer, path: str, body: object = None) -> Any:
    """The answer to a call on the broker ``night``, as an operator."""
    method = "GET" if body is None else "POST"
    status, answer = airflow.call(method, f"/duewheel/api/brokers/night/{path}", body, role="op")
    assert status == 200, answer
    return answer


def some(answer: Any, *names: str) -> list[list[Any]]:
    """These values of each thing in an answer."""
    return [[one[name] for name in names] for one in answer]


@pytest.fixture(scope="module")
def night(night_dsn: str) -> Any:
    """A broker with one of everything: 2 overdue messages, a lease, a retry, a dead letter, a schedule."""
    with Broker(night_dsn) as broker:
        broker.create_topic("ahead", max_delay=timedelta(days=3_650))
        for minute, number in ((0, 3), (30, 2)):
            due = DUE + timedelta(minutes=minute, seconds=30)
            broker.send_many("ahead", [{"body": b"", "deliver_at": due, "key": f"a-{minute}"}] * number)
        broker.create_schedule("daily", "ahead", b"", every=timedelta(days=1), start_at=DUE)
        broker.create_topic("due")
        broker.send_many("due", [{"body": b"", "delay": timedelta(0)}] * 2)
        broker.create_topic("now", message_type="NORMAL", queues=1)
        broker.send_many("now", [{"body": b"", "key": key, "tag": "x"} for key in "abc"])
        for group, retry in (("buried", RetryPolicy(0, (HOUR,))), ("patient", RetryPolicy(3, (HOUR,)))):
            consumer = broker.consumer(
                "now", group, "x", name="worker", retry=retry, filter="!exists($.test)"
            )
            consumer.nack(consumer.receive(1, wait=LONGEST_WAIT), reason="HTTP 503")
            consumer.receive(1, invisible=HOUR, wait=LONGEST_WAIT)
        yield broker


def test_x08_the_lists_have_one_of_everything(airflow: AirflowServer, night: Broker) -> None:
    topics = asked(airflow, "topics")["topics"]
    assert some(topics, "topic", "message_type", "waiting")[0] == ["ahead", "DELAY", 5]
    groups = asked(airflow, "groups?sort=dead")
    assert some(groups["groups"], "group", "topic", "ready", "inflight", "waiting_retry", "dead")[:2] == [
        ["buried", "now", 1, 1, 0, 1],
        ["patient", "now", 1, 1, 1, 0],
    ]
    assert ["patient", "x", '!(exists ($."test"))'] in some(groups["progress"], "group", "tags", "filter")
    (lease,) = asked(airflow, "leases?group=patient")["leases"]
    assert [lease[name] for name in ("topic", "consumer", "messages", "answered")] == ["now", "worker", 1, 0]
    retries = asked(airflow, "retries?group=patient")["retries"]
    assert some(retries, "key", "attempt", "reason") == [["a", 2, "HTTP 503"]]
    letters = asked(airflow, "dead-letters?group=buried")["dead_letters"]
    assert some(letters, "key", "tag", "attempt", "reason") == [["a", "x", 1, "HTTP 503"]]
    assert asked(airflow, "dead-letters/count?group=buried&reason_lacks=404")["messages"] == 1
    reasons = asked(airflow, "dead-letter-reasons?group=buried")
    assert (some(reasons["reasons"], "reason", "messages"), reasons["complete"]) == ([["HTTP 503", 1]], True)
    (schedule,) = asked(airflow, "schedules")["schedules"]
    assert [schedule[name] for name in ("name", "every_seconds", "cron")] == ["daily", 86_400, None]
    messages = asked(airflow, "messages?topic=ahead&key_prefix=a-3&limit=1")
    assert some(messages["messages"], "key", "released") == [["a-30", False]]
    assert messages["next"] is not None
    counts = [
        asked(airflow, f"messages/count?topic=ahead{more}")
        for more in (
            "",
            "&key_prefix=a-3",
            "&due_until=2030-01-05T10:01:00Z",
            "&due_until=2020-01-01T00:00:00Z",
        )
    ]
    assert counts == [{"messages": number, "exact": True} for number in (5, 2, 3, 0)]
    names = asked(airflow, "names")
    assert {"ahead", "due", "now"} <= set(names["topics"])
    assert {"buried", "patient"} <= set(names["groups"])


@pytest.mark.parametrize("path", ["leases?group=typo", "retries?group=typo", "dead-letters?group=typo"])
def test_x08_a_mistyped_group_is_no_empty_list(airflow: AirflowServer, night: Broker, path: str) -> None:
    status, answer = airflow.call("GET", f"/duewheel/api/brokers/night/{path}", role="viewer")
    assert status == 404
    assert "typo" in answer["detail"]


def test_x08_the_overview_and_the_strip_show_due_and_overdue(airflow: AirflowServer, night: Broker) -> None:
    axis = asked(airflow, "overview?topic=ahead&from_at=2030-01-05T10:00:00Z")["axis"]
    assert [axis[name] for name in ("step_seconds", "steps", "past_steps", "complete")] == [60, 60, 0, True]
    assert some(axis["due"], "step", "messages") == [[0, 3], [30, 2]]
    days = asked(airflow, "overview?topic=ahead&span=3d&from_at=2030-01-05T00:00:00Z")["axis"]
    assert [days["step_seconds"], days["steps"], some(days["due"], "step", "messages")] == [
        3_600,
        72,
        [[10, 5]],
    ]
    past = asked(airflow, "overview?topic=now")
    assert sum(one["received"] for one in past["flow"]) == 4
    assert sum(one["failed"] for one in past["flow"]) == 2
    assert sum(one["messages"] for one in past["axis"]["due"]) == 3
    pulse = asked(airflow, "pulse")
    assert pulse["dead"] >= 1
    assert pulse["wheels"] == []
    assert pulse["lag"]["oldest_deliver_at"] is not None


def test_x08_a_message_has_its_history_and_its_body_as_sent(airflow: AirflowServer, night: Broker) -> None:
    body = b'{"price": 1.10, "price": 1.2, "big": 12345678901234567890123, "none": [], "text": "a, {b"}'
    bodies = {
        body: '{\n  "price": 1.10,\n  "price": 1.2,\n  "big": 12345678901234567890123,\n  "none": [],\n'
        '  "text": "a, {b"\n}',
        b"\x00\xff<b>": "00 ff 3c 62 3e",
        b"<b>": "<b>",
        b"x" * 65_537: "x" * 65_536,
    }
    sent = [night.send("ahead", one, delay=HOUR, properties={"n": 1}).message_id for one in bodies]
    told = [asked(airflow, f"messages/{one}") for one in sent]
    assert [one["body"]["text"] for one in told] == list(bodies.values())
    assert some([one["body"] for one in told], "kind", "size_bytes", "shown_bytes") == [
        ["json", len(body), len(body)],
        ["hex", 5, 5],
        ["text", 3, 3],
        ["text", 65_537, 65_536],
    ]
    assert told[0]["properties"] == {"n": 1}
    assert [one["state"] for one in told[0]["history"]] == ["Initialized", "Timing"]


def test_x08_groups_and_schedules_are_paused_rewound_and_deleted(
    airflow: AirflowServer, night: Broker
) -> None:
    night.create_topic("acted", message_type="NORMAL", queues=1)
    night.send_many("acted", [{"body": b""}] * 2)
    consumer = night.consumer("acted", "acting")
    consumer.ack(consumer.receive(1, wait=LONGEST_WAIT))
    name = {"group": "acting", "topic": "acted"}
    asked(airflow, "groups/pause", name)
    assert len(consumer.receive()) == 0
    asked(airflow, "groups/resume", name)
    assert len(consumer.receive(1, wait=LONGEST_WAIT)) == 1
    again = asked(airflow, "groups/rewind/count?group=acting&topic=acted&to=earliest")
    assert again == {"messages": 2, "exact": True}
    rewound = asked(airflow, "groups/rewind", {**name, "to": "earliest"})
    assert rewound["leases_ended"] == 1
    assert len(consumer.receive(2, wait=LONGEST_WAIT)) == 2
    asked(airflow, "groups/delete", name)
    assert [one for one in night.groups() if one.group == "acting"] == []
    paused = []
    for action in ("pause", "resume"):
        asked(airflow, f"schedules/{action}", {"name": "daily"})
        paused += [one.paused_at is not None for one in night.schedules()]
    assert paused == [True, False]


def test_x08_each_message_has_its_own_outcome(airflow: AirflowServer, night: Broker) -> None:
    first, second = (night.send("ahead", b"", delay=HOUR).message_id for _ in range(2))
    moved = asked(
        airflow, "messages/reschedule", {"message_ids": [first], "deliver_at": "2030-02-01T00:00:00Z"}
    )
    (outcome,) = moved["outcomes"]
    assert outcome["outcome"] == "rescheduled"
    assert datetime.fromisoformat(outcome["deliver_at"]) == datetime(2030, 2, 1, tzinfo=UTC)
    now_id = outcome["new_message_id"]
    gone = f"{1:08x}{0:04x}{0:016x}{1:016x}"
    said = asked(airflow, "messages/recall", {"message_ids": [first, second, gone, second]})["outcomes"]
    assert some(said, "outcome", "new_message_id") == [
        ["recalled", now_id],
        ["recalled", None],
        ["not_found", None],
        # Said again, the answer is the same.
        ["recalled", None],
    ]
    moved_again = asked(airflow, "messages/reschedule", {"message_ids": [second], "delay_seconds": 1})
    assert some(moved_again["outcomes"], "outcome") == [["not_found"]]
