"""The log of the workers, and what the checker needs of it.

A worker hands each line to the system in one write, before it goes on: first what it is about to do, then
what came of it. So a worker that is killed has said what it may have done, and an answer that was lost is
unknown, not wrong.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.traffic import INVISIBLE


@dataclass(frozen=True)
class Delivery:
    """A message that one receive gave to a consumer.

    Attributes:
        group: the consumer group.
        body: what tells the message from all others.
        message_id: its id.
        attempt: which delivery to the group it is, as the broker says.
        after_at: the database's clock before the receive, in seconds since 1970.
        before_at: the database's clock after the receive.
        leased_at: when its lease began: its end, less how long it was to be.
        expires_at: the end of its lease.
        deliver_at: its instant.
        logged_at: when the consumer said so, in seconds since 1970.
        message_group: on a FIFO topic, its message group.
    """

    group: str
    body: str
    message_id: str
    attempt: int
    after_at: float
    before_at: float
    leased_at: float
    expires_at: float
    deliver_at: float
    logged_at: float
    message_group: str | None = None


@dataclass
class Records:
    """What all workers of a run have said.

    Attributes:
        tried: bodies that some worker was about to send, and when.
        sent: bodies whose commit was answered, and when.
        ids: their ids, as far as their sender says so.
        rolled_back: bodies whose transaction was rolled back.
        recalling: how often somebody tried to take a body back.
        recalls_answered: how often the outcome of that is known.
        recalled: bodies whose recall was answered with ``recalled``.
        deliveries: in the order in which they were logged.
        answering: (group, body, attempt) that a consumer was about to answer in some way, and when first.
        acking: (group, body) that a consumer was about to ack, and when first.
        acked: (group, body), once for each ack that was answered.
        drained: deliveries after the run's end.
        effects: bodies, once for each row that a consumer wrote in the transaction of its ack.
        ordered: (message group, body) in the order in which they were sent, one at a time.
        upkeep_seconds: how long after the fault a whole round of upkeep was done.
        left: rows of each table of messages and logs, when everything was past retention.
        queues: how many queues there were, once for each group that reads them.
    """

    tried: dict[str, float] = field(default_factory=dict)
    sent: dict[str, float] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    rolled_back: set[str] = field(default_factory=set)
    recalling: Counter[str] = field(default_factory=Counter)
    recalls_answered: Counter[str] = field(default_factory=Counter)
    recalled: set[str] = field(default_factory=set)
    deliveries: list[Delivery] = field(default_factory=list)
    answering: dict[tuple[str, str, int], float] = field(default_factory=dict)
    acking: dict[tuple[str, str], float] = field(default_factory=dict)
    acked: list[tuple[str, str]] = field(default_factory=list)
    drained: list[Delivery] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)
    ordered: list[tuple[str, str]] = field(default_factory=list)
    upkeep_seconds: float = 0.0
    left: dict[str, int] = field(default_factory=dict)
    queues: int = 0


def lines(directory: Path) -> Iterator[dict[str, Any]]:
    """Every line that was written to its end, file by file."""
    for path in sorted(directory.glob("*.log")):
        for text in path.read_text().splitlines(keepends=True):
            if not text.endswith("\n"):
                # It is being written, or its writer was killed.
                break
            yield json.loads(text)


def read(directory: Path) -> Records:
    """The records of the workers that log to a folder."""
    found = Records()
    for line in lines(directory):
        _note(found, line["what"], line)
    found.deliveries.sort(key=lambda delivery: delivery.logged_at)
    return found


def _note(found: Records, what: str, line: dict[str, Any]) -> None:
    bodies, at = line.get("bodies", ()), line["at"]
    if what == "sending":
        found.tried |= dict.fromkeys(bodies, at)
    elif what == "sent":
        found.sent |= dict.fromkeys(bodies, at)
        # One that is moved gets another id: its sender names none.
        found.ids |= dict(zip(bodies, line.get("ids", ()), strict=False))
        if (name := line.get("message_group")) is not None:
            found.ordered += [(name, body) for body in bodies]
    elif what == "rolled back":
        found.rolled_back |= set(bodies)
    elif what == "recalling":
        found.recalling[line["body"]] += 1
    elif what == "recall":
        found.recalls_answered[line["body"]] += 1
        if line["outcome"] == "recalled":
            found.recalled.add(line["body"])
    elif what == "received":
        found.deliveries += [
            Delivery(
                *(line["group"], *message[:3], line["after_at"], line["before_at"]),
                *(message[3] - INVISIBLE.total_seconds(), *message[3:5], at, *message[5:]),
            )
            for message in line["messages"]
        ]
    elif what in ("nacking", "acking"):
        for body, attempt in zip(bodies, line["attempts"], strict=True):
            found.answering.setdefault((line["group"], body, attempt), at)
            if what == "acking":
                found.acking.setdefault((line["group"], body), at)
    elif what == "acked":
        found.acked += [(line["group"], body) for body in bodies]
