"""The checker finds each kind of broken promise, planted in records that keep all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.chaos.checker import (
    LATEST_RECOVERY_SECONDS,
    LATEST_SECONDS,
    LATEST_UPKEEP_SECONDS,
    MOST_ROWS_OF_A_LOG,
    Terms,
    check,
    longest_wait_seconds,
    recovery_seconds,
)
from tests.chaos.records import Delivery, Records
from tests.chaos.traffic import LARGEST_RECEIVE

TERMS = Terms(groups=("one", "worked"), calm_from=0.0, effects_group="worked", ordered_group="ordered")


def delivery(body: str, group: str = "one", at: float = 10.0, **other: object) -> Delivery:
    """A first delivery, one second long."""
    values = {
        "message_id": f"id-{body}",
        "attempt": 1,
        "after_at": at,
        "before_at": at + 0.1,
        "leased_at": at + 0.05,
        "expires_at": at + 2.05,
        "deliver_at": at - 0.5,
        "logged_at": at + 0.1,
        **other,
    }
    return Delivery(group=group, body=body, **values)  # type: ignore[arg-type]


def kept() -> Records:
    """A run in which every promise was kept: some came twice, as their first leases ended unanswered."""
    records = Records()
    for body in ("m", "n", "back", "taken", "o1", "o2"):
        records.tried[body] = 9.0
    for body in ("m", "n", "taken", "o1", "o2"):
        records.sent[body] = 9.5
    records.rolled_back.add("back")
    records.recalling["taken"] = records.recalls_answered["taken"] = 1
    records.recalled.add("taken")
    records.deliveries = [
        delivery("m"),
        delivery("n", at=11),
        delivery("m", at=13, attempt=2, deliver_at=9.5),
        *(delivery(body, "worked", at=14) for body in ("m", "n")),
        delivery("o1", "ordered", at=15, message_group="a"),
        delivery("o2", "ordered", at=16, message_group="a"),
    ]
    records.acked = [("one", "m"), ("one", "n"), ("worked", "m"), ("ordered", "o1")]
    records.acking = {("one", "m"): 14.0, ("one", "n"): 11.5, ("worked", "m"): 14.5, ("ordered", "o1"): 15.5}
    records.answering = {(*place, 1): at for place, at in records.acking.items()}
    records.answering["one", "m", 2] = records.answering.pop(("one", "m", 1))
    records.ids = {body: f"id-{body}" for body in records.sent}
    records.drained = [
        delivery("n", "worked", at=22, attempt=2),
        delivery("o2", "ordered", at=23, attempt=2, message_group="a"),
    ]
    records.effects = ["m"]
    records.ordered = [("a", "o1"), ("a", "o2")]
    records.upkeep_seconds = 1.0
    records.left = {"lease": 20, "message": 0}
    records.queues = 2
    return records


def change(records: Records, place: int, **values: object) -> None:
    """Another delivery in place of one."""
    records.deliveries[place] = replace(records.deliveries[place], **values)  # type: ignore[arg-type]


def last(records: Records, **values: object) -> None:
    """Another delivery in place of the last one at the end."""
    records.drained[-1] = replace(records.drained[-1], **values)  # type: ignore[arg-type]


PLANTED: dict[str, tuple[str, Callable[[Records], object]]] = {
    "came before its instant": ("early", lambda r: change(r, 1, deliver_at=11.2)),
    "was leased before its instant by a receive that took long": (
        "early",
        lambda r: change(r, 1, leased_at=11.01, deliver_at=11.05),
    ),
    "came before its instant at the end": ("early", lambda r: last(r, deliver_at=23.5)),
    "had a shorter lease than asked for": ("lease", lambda r: change(r, 1, leased_at=10.5)),
    "had a longer lease than asked for": ("lease", lambda r: change(r, 1, leased_at=12.5)),
    "came once, was not answered, and never came again": ("lost", lambda r: r.drained.pop(0)),
    "was held up in order and never came again": ("lost", lambda r: r.drained.pop(1)),
    "had an ack that was answered, and no effect": ("lost", lambda r: r.effects.clear()),
    "was accepted and did not come": ("lost", lambda r: r.sent.update(x=9.5) or r.tried.update(x=9.5)),
    "came to one group of two": ("lost", lambda r: r.drained.pop(0) and r.deliveries.pop(4)),
    "was sent in order and did not come": ("lost", lambda r: r.drained.pop(1) and r.deliveries.pop(6)),
    "was never sent": ("invented", lambda r: r.deliveries.append(delivery("ghost", at=20))),
    "was rolled back": ("rolled back", lambda r: r.deliveries.append(delivery("back", at=20))),
    "was recalled": ("recalled", lambda r: r.drained.append(delivery("taken"))),
    "has two ids": ("id", lambda r: change(r, 2, message_id="another")),
    "has another id than its sender got": ("id", lambda r: r.ids.update(m="another")),
    "has the id of another one": ("id", lambda r: r.ids.update(x="id-m")),
    "came twice as the same attempt": ("doubled", lambda r: change(r, 2, attempt=1)),
    "came while its lease was alive": ("held twice", lambda r: change(r, 0, expires_at=15.0)),
    "came while another lease was answered": (
        "held twice",
        lambda r: change(r, 0, expires_at=15.0) or r.answering.update({("one", "m", 7): 12.0}),
    ),
    "came at the end while its lease was alive": ("held twice", lambda r: change(r, 4, expires_at=30.0)),
    "came with a lower attempt": ("attempts", lambda r: change(r, 0, attempt=3)),
    "was acked twice": ("final", lambda r: r.acked.append(("one", "n"))),
    "came after its ack": ("final", lambda r: r.drained.append(delivery("n", at=20, attempt=2))),
    "has two effects": ("effects", lambda r: r.effects.append("m")),
    "has no effect": ("effects", lambda r: r.effects.clear()),
    "came again after its effect": ("effects", lambda r: r.effects.append("n")),
    "has an effect and was never sent": ("invented", lambda r: r.effects.append("ghost")),
    "overtook one of its group": ("order", lambda r: r.deliveries.insert(0, r.deliveries.pop(6))),
    "overtook one that came and failed": ("order", lambda r: r.acking.pop(("ordered", "o1"))),
    "overtook one that was acked later": ("order", lambda r: r.acking.update({("ordered", "o1"): 17.0})),
    "overtook one of its group at the end": (
        "order",
        lambda r: r.drained.append(replace(r.deliveries.pop(5), logged_at=24)),
    ),
    "left a log that grows": ("logs", lambda r: r.left.update(lease=2 * MOST_ROWS_OF_A_LOG + 1)),
    "left more than the newest lease of each queue": (
        "logs",
        lambda r: r.left.update(lease_message=2 * LARGEST_RECEIVE + 1),
    ),
    "left a message for ever": ("logs", lambda r: r.left.update(message=1)),
    "stopped upkeep": ("upkeep", lambda r: setattr(r, "upkeep_seconds", LATEST_UPKEEP_SECONDS + 1)),
    "came long after the fault": (
        "late",
        lambda r: (
            change(
                r,
                1,
                deliver_at=-1.0,
                before_at=LATEST_RECOVERY_SECONDS + 1,
                leased_at=LATEST_RECOVERY_SECONDS,
            )
            or r.sent.update(n=-1.0)
        ),
    ),
    "came late when all was well": (
        "late",
        lambda r: change(r, 1, before_at=9.5 + LATEST_SECONDS + 1.1, deliver_at=9.0),
    ),
}


def test_kept_promises_are_no_violation() -> None:
    assert check(kept(), TERMS) == []


@pytest.mark.parametrize("what", PLANTED)
def test_a_broken_promise_is_found(what: str) -> None:
    kind, plant = PLANTED[what]
    records = kept()
    plant(records)
    assert kind in {violation.kind for violation in check(records, TERMS)}


def test_a_recall_whose_answer_was_lost_may_have_counted() -> None:
    records = kept()
    records.sent["x"] = records.tried["x"] = 9.5
    records.recalling["x"] = 1
    assert check(records, TERMS) == []
    records.recalls_answered["x"] = 1
    (violation,) = check(records, TERMS)
    assert violation.sentence == "x were accepted, and never came to a group"


def test_a_lease_that_was_answered_may_be_followed_at_once() -> None:
    records = kept()
    change(records, 0, expires_at=15.0)
    records.answering["one", "m", 1] = 12.0
    assert check(records, TERMS) == []


def test_a_crash_of_the_server_may_take_leases_back() -> None:
    records = kept()
    change(records, 2, attempt=1)
    change(records, 0, expires_at=15.0)
    assert check(records, replace(TERMS, leases_may_be_lost=True)) == []


def test_a_failover_may_take_commits_back() -> None:
    records = kept()
    records.sent["x"] = records.tried["x"] = 9.5
    records.drained += [delivery("taken"), delivery("n", at=24, attempt=2)]
    assert check(records, replace(TERMS, commits_may_be_lost=True)) == []


def test_the_longest_wait_counts_from_instant_or_later_commit() -> None:
    records = kept()
    change(records, 6, deliver_at=9.0)
    assert longest_wait_seconds(records) == pytest.approx(6.6)
    change(records, 6, deliver_at=10.5)
    assert longest_wait_seconds(records) == pytest.approx(5.6)


def test_recovery_counts_from_the_end_of_the_fault() -> None:
    records = kept()
    change(records, 3, deliver_at=9.0)
    assert recovery_seconds(records, 10.0) == pytest.approx(4.1)
    assert recovery_seconds(records, 9.2) == pytest.approx(0.0)
