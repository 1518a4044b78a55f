"""Dead letters as a file, from a real API server (R14)."""

from __future__ import annotations

import csv
import io
import json
from base64 import b64decode
from datetime import timedelta

import pytest
from tests.plugin.airflow_server import AirflowServer
from tests.plugin.route_rules import LISTS

from duewheel.store import RetryPolicy
from duewheel.store.broker import Broker

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

EXPORT = "/duewheel/api/brokers/duewheel_default/dead-letters/export?group=export"
BODIES = {"formula": b"=1+1", "binary": b"\x00\xff", "lines": 'a "b",\nc é'.encode(), "gone": b"{}"}


@pytest.fixture(scope="module")
def dead(shop: Broker) -> None:
    """Dead letters whose bodies are hard to write into a file, one of them sent again."""
    shop.create_topic("export", message_type="NORMAL", queues=1)
    shop.send_many(
        "export",
        [{"body": body, "key": key, "properties": {"n": 1}, "tag": "-x"} for key, body in BODIES.items()],
    )
    consumer = shop.consumer("export", "export", retry=RetryPolicy(0, (timedelta(minutes=1),)))
    consumer.nack(consumer.receive(max_messages=10), reason="@broken")
    shop.redrive("export", key_prefix="gone")


def test_r14_dead_letters_are_exported_as_json_lines(airflow: AirflowServer, dead: None) -> None:
    status, text = airflow.call("GET", f"{EXPORT}&format=jsonl&redriven=false", role="op")
    assert status == 200
    rows = [json.loads(line) for line in text.split("\n")[:-1]]
    assert {one["key"]: one["body_encoding"] for one in rows} == {
        "formula": "text",
        "binary": "base64",
        "lines": "text",
    }
    bodies = {
        one["key"]: b64decode(one["body"]) if one["body_encoding"] == "base64" else one["body"].encode()
        for one in rows
    }
    assert bodies == {key: body for key, body in BODIES.items() if key != "gone"}
    assert [(one["tag"], one["properties"], one["attempt"], one["reason"]) for one in rows] == [
        ("-x", {"n": 1}, 1, "@broken")
    ] * 3


def test_r14_no_cell_of_the_csv_file_is_a_formula(airflow: AirflowServer, dead: None) -> None:
    status, text = airflow.call("GET", f"{EXPORT}&format=csv", role="op")
    assert status == 200
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert {one["key"]: one["body"] for one in rows} == {
        "formula": "'=1+1",
        "binary": "AP8=",
        "lines": 'a "b",\nc é',
        "gone": "{}",
    }
    assert {(one["tag"], one["properties"], one["reason"]) for one in rows} == {
        ("'-x", '{"n": 1}', "'@broken")
    }
    assert [one["key"] for one in rows if one["redriven_at"]] == ["gone"]


def test_r14_the_list_and_the_file_are_filtered_by_reason(airflow: AirflowServer, dead: None) -> None:
    listed = EXPORT.replace("/export", "", 1)
    for reason, expected in (("@bro", {"formula", "binary", "lines", "gone"}), ("100%25", set())):
        _, answer = airflow.call("GET", f"{listed}&reason_contains={reason}", role="viewer")
        assert {one["key"] for one in answer["dead_letters"]} == expected
        assert answer["next"] is None
        _, text = airflow.call("GET", f"{EXPORT}&format=csv&reason_contains={reason}", role="op")
        assert {one["key"] for one in csv.DictReader(io.StringIO(text, newline=""))} == expected


def test_x19_what_cannot_be_exported_is_an_error_and_no_file(airflow: AirflowServer, dead: None) -> None:
    status, answer = airflow.call("GET", EXPORT.replace("group=export", "group=nope"), role="op")
    assert (status, answer["error"]) == (404, "UnknownGroup")


def test_x19_an_export_stands_in_the_audit_log(airflow: AirflowServer, dead: None) -> None:
    airflow.call("GET", f"{EXPORT}&topic=export&format=csv", role="op")
    _, logs = airflow.call("GET", "/api/v2/eventLogs?event=duewheel.export_dead_letters&order_by=-when")
    newest = logs["event_logs"][0]
    assert newest["owner"] == "op"
    assert json.loads(newest["extra"])["topic"] == "export"


@pytest.mark.parametrize("name", LISTS)
def test_x08_a_list_is_exported_in_both_formats(airflow: AirflowServer, shop: Broker, name: str) -> None:
    path = f"/duewheel/api/brokers/duewheel_default/{name}/export"
    _, lines = airflow.call("GET", f"{path}?format=jsonl", role="viewer")
    rows = [json.loads(line) for line in lines.splitlines()] if isinstance(lines, str) else [lines]
    status, text = airflow.call("GET", f"{path}?format=csv", role="viewer")
    assert status == 200
    cells = list(csv.DictReader(io.StringIO(text, newline="")))
    assert len(cells) == len(rows)
    assert all(list(one) == list(cells[0]) for one in rows)


def test_x08_an_export_has_all_pages_up_to_its_limit(airflow: AirflowServer, shop: Broker) -> None:
    shop.create_topic("exported")
    shop.send_many(
        "exported", [{"body": b"", "key": f"=k-{n}", "delay": timedelta(hours=1)} for n in range(10_001)]
    )
    path = "/duewheel/api/brokers/duewheel_default/messages/export?topic=exported"
    _, text = airflow.call("GET", f"{path}&format=csv", role="viewer")
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert len({one["message_id"] for one in rows}) == len(rows) == 10_000
    assert {one["key"][:2] for one in rows} == {"'="}, "no cell is a formula"
    _, text = airflow.call("GET", f"{path}&key_prefix=%3Dk-77&format=jsonl", role="viewer")
    assert {json.loads(one)["key"] for one in text.splitlines()} == {
        f"=k-{n}" for n in range(10_001) if str(n).startswith("77")
    }
