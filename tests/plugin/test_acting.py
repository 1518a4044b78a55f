"""The actions of a bad day, and the requests of a malicious user, on a real API server (X08, X19)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.airflow_runs import connection_json
from tests.conftest import execute
from tests.plugin.airflow_server import AirflowServer

from duewheel.plugin.told_acts import tell_of_act
from duewheel.store import LeaseLost, RetryPolicy
from duewheel.store.broker import Broker
from duewheel.store.consuming.consumer import Consumer

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

BROKER = "/duewheel/api/brokers/duewheel_default"
HOUR = timedelta(hours=1)


def die(shop: Broker, consumer: Consumer, keys: Iterable[str]) -> None:
    """New messages with these keys, and whatever else is ready, become dead letters."""
    shop.send_many(consumer.topic, [{"body": b"", "key": key} for key in keys])
    while batch := consumer.receive(max_messages=10_000):
        consumer.nack(batch, reason="HTTP 503")


@contextmanager
def dying_at(dsn: str, message_id: str) -> Iterator[None]:
    """The server ends the session that recalls this message, in the midst of the statement."""
    execute(
        dsn,
        "create function public.die() returns trigger language plpgsql as "
        "$$begin perform pg_terminate_backend(pg_backend_pid()); return new; end$$",
    )
    execute(
        dsn,
        "create trigger die before insert on duewheel.recall for each row "
        f"when (duewheel.message_id(new.topic_id, new.queue, new.deliver_at, new.seq) = '{message_id}') "
        "execute function public.die()",
    )
    try:
        yield
    finally:
        execute(dsn, "drop function public.die() cascade")


def test_x08_after_a_broker_dies_during_an_act_its_part_is_told(
    airflow: AirflowServer, shop: Broker, shop_dsn: str
) -> None:
    shop.create_topic("dying")
    ids = [shop.send("dying", b"", delay=HOUR).message_id for _ in range(4)]
    with dying_at(shop_dsn, ids[1]):
        status, answer = airflow.call("POST", f"{BROKER}/messages/recall", {"message_ids": ids}, role="op")
    assert status == 200
    assert [one["outcome"] for one in answer["outcomes"]] == ["recalled", "unknown", "not_tried", "not_tried"]
    assert answer["outcomes"][1]["detail"].startswith("The broker's database does not answer.")
    assert "terminat" not in json.dumps(answer), "what the driver says may hold the address"
    # The next request has a new session.
    status, answer = airflow.call("POST", f"{BROKER}/messages/recall", {"message_ids": ids}, role="op")
    assert [one["outcome"] for one in answer["outcomes"]] == ["recalled"] * 4


def test_x08_a_refusal_of_the_first_message_spares_the_others(airflow: AirflowServer, shop: Broker) -> None:
    shop.create_topic("short", max_delay=2 * HOUR)
    shop.create_topic("long", max_delay=48 * HOUR)
    ids = [shop.send(topic, b"", delay=HOUR).message_id for topic in ("short", "long")]
    asked = {"message_ids": ids, "delay_seconds": 86_400}
    status, answer = airflow.call("POST", f"{BROKER}/messages/reschedule", asked, role="op")
    assert status == 200
    assert [one["outcome"] for one in answer["outcomes"]] == ["refused", "rescheduled"]
    assert "limit" in answer["outcomes"][0]["detail"]


def test_x08_whoever_has_acted_is_shown_what_came_of_it(airflow: AirflowServer, shop: Broker) -> None:
    shop.create_topic("shown")
    two = shop.send_many("shown", [{"body": b"", "delay": HOUR}] * 2)

    def waiting_after_recall(message_id: str) -> int:
        asked = {"message_ids": [message_id]}
        _, acted = airflow.call("POST", f"{BROKER}/messages/recall", asked, role="op")
        _, seen = airflow.call("GET", f"{BROKER}/pulse", role="op")
        assert acted["pulse"]["waiting"] == seen["waiting"]
        number: int = seen["waiting"]
        return number

    before = waiting_after_recall(two[0].message_id)
    # Recalled messages are counted until their instant, so a number that grows is asked for, too.
    shop.send_many("shown", [{"body": b"", "delay": HOUR}] * 3)
    assert waiting_after_recall(two[1].message_id) == before + 3


def test_x08_numbers_after_another_process_acted_are_newer(
    airflow: AirflowServer, shop: Broker, shop_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process acts as a second one of the API server does. Each act is seen, and not only the first."""
    monkeypatch.setenv("AIRFLOW_CONN_DUEWHEEL_DEFAULT", connection_json(shop_dsn))
    shop.create_topic("two", message_type="NORMAL", queues=1)
    consumer = shop.consumer("two", "two", retry=RetryPolicy(0, (HOUR,)))
    die(shop, consumer, "abc")

    def dead() -> int:
        status, answer = airflow.call("GET", f"{BROKER}/pulse", role="op")
        assert status == 200
        number: int = answer["dead"]
        return number

    tell_of_act("duewheel_default")
    before = dead()
    for done in (1, 2):
        shop.discard_dead_letters("two", max_messages=1)
        tell_of_act("duewheel_default")
        assert dead() == before - done
    airflow.call("POST", f"{BROKER}/dead-letters/discard", {"group": "two", "dry_run": False}, role="op")
    assert dead() == before - 3


def test_x08_a_bulk_recall_goes_in_portions_of_waiting_messages(airflow: AirflowServer, shop: Broker) -> None:
    shop.create_topic("portions", queues=2)
    shop.consumer("portions", "g")
    shop.send_many("portions", [{"body": b"", "key": "early", "delay": timedelta(0)}] * 3)
    assert shop.consumer("portions", "g").receive(max_messages=3)
    shop.send_many("portions", [{"body": b"", "delay": HOUR, "key": f"k{n}"} for n in range(10_005)])
    asked: dict[str, Any] = {"topic": "portions", "key_prefix": "k"}
    found = {}
    for dry_run in (True, False):
        parts, place = [], {}
        while True:
            status, part = airflow.call(
                "POST",
                f"{BROKER}/messages/recall-matching",
                {**asked, **place, "dry_run": dry_run},
                role="op",
            )
            assert status == 200, part
            parts.append(part)
            if part["next"] is None:
                break
            place = {"after": part["next"], "due_from": part["due_from"]}
        found[dry_run] = [(one["matched"], one["recalled"], one["already_released"]) for one in parts]
    assert found == {True: [(10_000, 0, 0), (5, 0, 0)], False: [(10_000, 10_000, 0), (5, 5, 0)]}
    # Nothing waits any more, nor does anything before the instant that is asked for.
    for more in ({}, {"due_until": "2020-01-01T00:00:00Z"}):
        asked, parts = {"topic": "portions", **more}, []
        while not parts or parts[-1]["next"] is not None:
            place = {"after": parts[-1]["next"], "due_from": parts[-1]["due_from"]} if parts else {}
            parts.append(
                airflow.call("POST", f"{BROKER}/messages/recall-matching", {**asked, **place}, role="op")[1]
            )
        assert [part["matched"] for part in parts] == [0] * len(parts)
        assert len(parts) <= 2


@pytest.mark.parametrize(("action", "dies_meanwhile"), [("redrive", {"a", "b", "d"}), ("discard", {"d"})])
def test_x12_each_portion_of_dead_letters_follows_the_last_one(
    airflow: AirflowServer, shop: Broker, action: str, dies_meanwhile: set[str]
) -> None:
    name = f"dead-portions-{action}"
    shop.create_topic(name, message_type="NORMAL")
    consumer = shop.consumer(name, name, retry=RetryPolicy(0, (HOUR,)))

    def act(**more: object) -> dict[str, Any]:
        asked = {"group": name, "reason": "HTTP 503", "dry_run": False, **more}
        status, part = airflow.call("POST", f"{BROKER}/dead-letters/{action}", asked, role="op")
        assert status == 200, part
        answer: dict[str, Any] = part
        del answer["pulse"]
        return answer

    die(shop, consumer, "abc")
    assert act(dry_run=True) == {"matched": 3, "done": 0, "next": None}
    first = act(max_messages=2)
    assert (first["matched"], first["done"]) == (2, 2)
    # What dies meanwhile, redriven ones among them, is left for another time.
    die(shop, consumer, "d")
    assert act(max_messages=2, after=first["next"]) == {"matched": 1, "done": 1, "next": None}
    assert {one.key for one in shop.dead_letters(name, redriven=False)} == dies_meanwhile
    status, _ = airflow.call(
        "POST", f"{BROKER}/dead-letters/{action}", {"group": name, "after": "{}"}, role="op"
    )
    assert status == 422


def test_x12_a_page_of_dead_letters_begins_with_an_open_one(airflow: AirflowServer, shop: Broker) -> None:
    shop.create_topic("done-before", message_type="NORMAL")
    consumer = shop.consumer("done-before", "done-before", retry=RetryPolicy(0, (HOUR,)))

    die(shop, consumer, ["done"] * 12_000)
    assert shop.discard_dead_letters("done-before").discarded == 12_000
    die(shop, consumer, ["open"])
    path = f"{BROKER}/dead-letters?group=done-before&redriven=false"
    status, page = airflow.call("GET", path, role="op")
    assert status == 200
    assert ([one["key"] for one in page["dead_letters"]], page["next"]) == (["open"], None)


def test_x12_a_dead_letter_is_sent_edited_once(airflow: AirflowServer, shop: Broker) -> None:
    shop.create_topic("edited-once", message_type="NORMAL")
    sent = shop.send("edited-once", b"old", key="k")
    consumer = shop.consumer("edited-once", "once", retry=RetryPolicy(0, (HOUR,)))
    consumer.nack(consumer.receive(), reason="boom")
    asked = {"group": "once", "message_id": sent.message_id, "body": "new", "properties": {}}
    status, answer = airflow.call("POST", f"{BROKER}/dead-letters/resend", asked, role="op")
    assert (status, answer["is_new"]) == (200, True)
    _, old = airflow.call("GET", f"{BROKER}/messages/{sent.message_id}", role="op")
    assert old["edited_to"] == {"once": answer["message_id"]}
    status, answer = airflow.call("POST", f"{BROKER}/dead-letters/resend", asked, role="op")
    assert (status, answer["error"]) == (404, "UnknownMessage")
    assert "Nothing was sent" in answer["detail"]
    assert [one.body for one in consumer.receive(max_messages=9)] == [b"new"]


def test_x26_a_run_that_waits_is_answered_from_its_message(airflow: AirflowServer, shop: Broker) -> None:
    shop.create_topic("approvals")
    waits = shop.begin_wait("approvals", "order-1", HOUR).message_id
    other = shop.send("approvals", b"", delay=HOUR, key="no wait").message_id

    def answer(message_id: str, body: str) -> Any:
        asked = {"message_id": message_id, "body": body}
        return airflow.call("POST", f"{BROKER}/messages/answer", asked, role="op")

    for message_id, awaits in ((waits, True), (other, False)):
        _, shown = airflow.call("GET", f"{BROKER}/messages/{message_id}", role="viewer")
        assert shown["awaits_answer"] is awaits
    status, refused = answer(waits, "yes")
    assert (status, refused["error"]) == (422, "InvalidArgument")
    assert "is not JSON" in refused["detail"]
    assert shop.find_wait(waits).outcome == "waiting"
    big = 12345678901234567890
    told = [answer(waits, body)[1]["outcome"] for body in (f'{{"order": {big}}}', "2")]
    assert told == ["answered", "already_answered"]
    wait = shop.find_wait(waits)
    assert (wait.body, wait.properties) == ({"order": big}, {"by": "op"})
    # A cleared task waits with another message.
    first, second = (shop.begin_wait("approvals", "order-2", HOUR).message_id for _ in range(2))
    status, told = answer(first, "3")
    assert (told["outcome"], told["new_message_id"]) == ("answered", second)
    _, acted = airflow.call("GET", f"{BROKER}/messages/{waits}/actions", role="op")
    assert [(line["user"], line["action"]) for line in acted["actions"]] == [("op", "answer")] * 3
    _, logged = airflow.call("GET", "/api/v2/eventLogs?event=duewheel.answer")
    assert waits in str(logged)
    assert str(big) not in str(logged)


def test_x08_the_history_names_users_who_acted_by_id_or_filter(airflow: AirflowServer, shop: Broker) -> None:
    shop.create_topic("who")
    ids = [shop.send("who", b"", delay=HOUR, key=f"w-{n}").message_id for n in range(3)]
    moved = {"message_ids": ids[:1], "delay_seconds": 7_200}
    _, answer = airflow.call("POST", f"{BROKER}/messages/reschedule", moved, role="op")
    now_id = answer["outcomes"][0]["new_message_id"]
    by_key = {"topic": "who", "key_prefix": "w-0", "dry_run": False}
    airflow.call("POST", f"{BROKER}/messages/recall-matching", by_key, role="admin")
    told = {
        one: [
            (line["user"], line["action"])
            for line in airflow.call("GET", f"{BROKER}/messages/{one}/actions", role="viewer")[1]["actions"]
        ]
        for one in (*ids, now_id)
    }
    both = [("op", "reschedule"), ("admin", "recall")]
    assert told == {ids[0]: both, now_id: both, ids[1]: [], ids[2]: []}


def test_x08_a_released_lease_has_a_due_retry_and_names_the_user(
    airflow: AirflowServer, shop: Broker
) -> None:
    shop.create_topic("hanging", message_type="NORMAL", queues=1)
    consumer = shop.consumer("hanging", "hangs", retry=RetryPolicy(3, (HOUR,)))
    sent = shop.send("hanging", b"").message_id
    batch = consumer.receive(invisible=HOUR)
    _, listed = airflow.call("GET", f"{BROKER}/leases?group=hangs", role="viewer")
    (lease,) = listed["leases"]
    asked = {"group": "hangs", "topic": "hanging", "lease_id": lease["lease_id"]}
    for messages in (1, None):
        status, answer = airflow.call("POST", f"{BROKER}/leases/release", asked, role="op")
        assert (status, answer["messages"]) == (200, messages)
    with pytest.raises(LeaseLost):
        consumer.ack(batch)
    consumer.nack(consumer.receive(wait=timedelta(seconds=30)), reason="boom")
    due = {"group": "hangs", "message_ids": [sent]}
    for outcome in ("due_now", "not_waiting"):
        _, answer = airflow.call("POST", f"{BROKER}/retries/now", due, role="admin")
        assert [one["outcome"] for one in answer["outcomes"]] == [outcome]
    (again,) = consumer.receive(wait=timedelta(seconds=30))
    assert again.attempt == 3
    consumer.ack(again)
    _, told = airflow.call("GET", f"{BROKER}/messages/{sent}/actions", role="viewer")
    acted = [(line["user"], line["action"]) for line in told["actions"]]
    assert acted[0] == ("op", "release the lease")
    assert acted[-1] == ("admin", "retry now")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("leases/release", '{"group": "g", "topic": "t", "lease_id": "1"}'),
        ("messages/recall", '{"message_ids": ["\\ud800"]}'),
        ("messages/recall", '{"message_ids": ["0"], "\\udfff": 1}'),
        ("messages/reschedule", '{"message_ids": ["0"], "delay_seconds": NaN}'),
        ("messages/reschedule", '{"message_ids": ["0"], "delay_seconds": Infinity}'),
        ("messages/recall-matching", '{"topic": "t\\u0000"}'),
        ("messages/recall-matching", '{"topic": "t", "after": "{}"}'),
        ("messages/reschedule-matching", '{"topic": "t"}'),
        ("messages/reschedule-matching", '{"topic": "t", "delay_seconds": 1, "after": "{}"}'),
        ("groups/rewind", '{"group": "g", "topic": "t", "to": 1e400}'),
    ],
)
def test_x19_an_invalid_request_is_refused_in_a_sentence(
    airflow: AirflowServer, path: str, body: str
) -> None:
    status, answer = airflow.call("POST", f"{BROKER}/{path}", body.encode(), role="op")
    assert (status, sorted(answer)) == (422, ["detail", "error"])
    assert isinstance(answer["detail"], str)


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("dead-letters", {"after": '{"at": "9999999999999999999", "seq": 1, "topic": 1}'}),
        (
            "dead-letters",
            {"after": f'{{"at": "2026-01-01T00:00:00+00:00", "seq": {10**19 - 1}, "topic": 1}}'},
        ),
        ("messages", {"after": "f" * 44}),
        ("messages", {"topic": "hostile", "due_from": "0001-01-01T00:00:00+14:00"}),
        ("messages", {"limit": "9" * 20}),
        ("leases", {"group": "\x00"}),
    ],
)
def test_x19_an_impossible_value_is_not_an_error_of_the_server(
    airflow: AirflowServer, shop: Broker, path: str, values: dict[str, str]
) -> None:
    shop.create_topic("hostile")
    shop.consumer("hostile", "hostile")
    query = urlencode({**({"group": "hostile"} if path == "dead-letters" else {}), **values})
    status, answer = airflow.call("GET", f"{BROKER}/{path}?{query}", role="viewer")
    assert status in (200, 404, 422), answer
