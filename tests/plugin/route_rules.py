"""The right that each route of the page's API takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BROKER = "/api/brokers/{connection_id}"
UNKNOWN_ID = f"{1:08x}{0:04x}{0:016x}{1:016x}"
#: The three rights.
SEE, READ, ACT = "see", "read", "act"


@dataclass(frozen=True)
class Rule:
    """What right a route takes, with a body it takes."""

    right: str
    body: Any = None
    query: str = ""
    #: Where what it names does not exist.
    status: int = 200


#: Every route of the application. One that is added without a rule fails a test.
RULES = {
    ("GET", "/api/brokers"): Rule(SEE),
    ("GET", "/api/watchers"): Rule(SEE),
    ("GET", BROKER): Rule(SEE),
    ("GET", f"{BROKER}/overview"): Rule(SEE),
    ("GET", f"{BROKER}/lateness"): Rule(SEE),
    ("GET", f"{BROKER}/pulse"): Rule(SEE),
    ("GET", f"{BROKER}/names"): Rule(SEE),
    ("GET", f"{BROKER}/recent-actions"): Rule(SEE, query="?within_seconds=60"),
    ("GET", f"{BROKER}/waiting-consumers"): Rule(SEE),
    ("GET", f"{BROKER}/topics"): Rule(SEE),
    ("GET", f"{BROKER}/topics/one"): Rule(SEE, query="?topic=rights"),
    ("GET", f"{BROKER}/groups"): Rule(SEE),
    ("GET", f"{BROKER}/leases"): Rule(SEE),
    ("GET", f"{BROKER}/retries"): Rule(SEE),
    ("GET", f"{BROKER}/dead-letters"): Rule(SEE, query="?group=g"),
    ("GET", f"{BROKER}/dead-letters/count"): Rule(SEE, query="?group=g"),
    ("GET", f"{BROKER}/dead-letter-reasons"): Rule(SEE, query="?group=g"),
    ("GET", f"{BROKER}/dead-letters/export"): Rule(READ, query="?group=g"),
    ("GET", f"{BROKER}/groups/rewind/count"): Rule(SEE, query="?group=g&topic=rights&to=earliest"),
    ("GET", f"{BROKER}/schedules"): Rule(SEE),
    ("GET", f"{BROKER}/waiting-runs"): Rule(SEE),
    ("GET", f"{BROKER}/early-answers"): Rule(SEE),
    ("POST", f"{BROKER}/early-answers/withdraw"): Rule(ACT, {"topic": "rights", "key": "none"}),
    ("GET", f"{BROKER}/messages"): Rule(SEE),
    ("GET", f"{BROKER}/messages/count"): Rule(SEE, query="?topic=rights"),
    ("GET", f"{BROKER}/messages/{{message_id}}"): Rule(SEE),
    ("GET", f"{BROKER}/messages/{{message_id}}/actions"): Rule(SEE),
    ("GET", f"{BROKER}/messages/{{message_id}}/body"): Rule(READ),
    ("GET", f"{BROKER}/task-messages"): Rule(
        SEE, query="?dag_id=d&run_id=r&task_id=t&topic=rights&group=rights"
    ),
    ("POST", f"{BROKER}/messages/recall"): Rule(ACT, {"message_ids": [UNKNOWN_ID]}),
    ("POST", f"{BROKER}/messages/reschedule"): Rule(ACT, {"message_ids": [UNKNOWN_ID], "delay_seconds": 1}),
    ("POST", f"{BROKER}/messages/answer"): Rule(ACT, {"message_id": UNKNOWN_ID, "body": "null"}, status=404),
    ("POST", f"{BROKER}/messages/recall-matching"): Rule(ACT, {"topic": "rights", "key_prefix": "none"}),
    ("POST", f"{BROKER}/messages/reschedule-matching"): Rule(ACT, {"topic": "rights", "delay_seconds": 1}),
    ("POST", f"{BROKER}/dead-letters/redrive"): Rule(ACT, {"group": "rights"}),
    ("POST", f"{BROKER}/dead-letters/discard"): Rule(ACT, {"group": "rights"}),
    ("POST", f"{BROKER}/dead-letters/resend"): Rule(
        ACT, {"group": "rights", "message_id": UNKNOWN_ID, "body": "", "properties": {}}, status=404
    ),
    ("POST", f"{BROKER}/retries/now"): Rule(ACT, {"group": "rights", "message_ids": [UNKNOWN_ID]}),
    ("POST", f"{BROKER}/leases/release"): Rule(
        ACT, {"group": "rights", "topic": "rights", "lease_id": "1.1.0.999.1"}
    ),
    ("POST", f"{BROKER}/groups/rewind"): Rule(ACT, {"group": "rights", "topic": "rights", "to": "latest"}),
    ("POST", f"{BROKER}/groups/pause"): Rule(ACT, {"group": "rights", "topic": "rights"}),
    ("POST", f"{BROKER}/groups/resume"): Rule(ACT, {"group": "rights", "topic": "rights"}),
    ("POST", f"{BROKER}/groups/delete"): Rule(ACT, {"group": "to-delete", "topic": "rights"}),
    ("POST", f"{BROKER}/schedules/pause"): Rule(ACT, {"name": "rights"}),
    ("POST", f"{BROKER}/schedules/resume"): Rule(ACT, {"name": "rights"}),
}
#: The lists that are exported as files.
LISTS = (
    "early-answers",
    "groups",
    "leases",
    "messages",
    "retries",
    "schedules",
    "topics",
    "waiting-consumers",
    "waiting-runs",
)
RULES |= {("GET", f"{BROKER}/{name}/export"): Rule(SEE, query="?format=csv") for name in LISTS}
RULES["GET", "/api/watchers/export"] = Rule(SEE, query="?format=csv")
#: Code and pictures, as Airflow's own are.
PUBLIC = {("GET", "/static/main.js"), ("GET", "/static/{name}.svg")}


def address(method: str, path: str, message_id: str) -> str:
    """Where the API server has a route, for the broker ``duewheel_default`` and a message."""
    place = path.format(connection_id="duewheel_default", message_id=message_id)
    return f"/duewheel{place}{RULES[method, path].query}"
