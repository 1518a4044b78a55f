"""The checker: what the workers have said, held against what ``docs/reliability.md`` promises.

It knows nothing of the fault. Where a promise does not hold by its own words, such as that of a commit that
only a lost primary had, the caller says so.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.chaos.records import Delivery, Records

#: So much later than its instant, in seconds, may a message come that was sent when all was well again. A
#: busy machine takes its time; a message that waits for somebody to look takes longer.
LATEST_SECONDS = 30.0
#: Upkeep is done again so many seconds after the fault, at the latest.
LATEST_UPKEEP_SECONDS = 60.0
#: What stays of a queue's log when all of it is past retention, for each group: where the group is.
MOST_ROWS_OF_A_LOG = 10
#: Of these tables nothing stays.
EMPTIED = ("message", "far_message", "straggler", "recall", "moved_id", "idempotency")
#: A violation names so many messages.
NAMED = 5


@dataclass(frozen=True)
class Violation:
    """A broken promise.

    Attributes:
        kind: which, as a column of the table.
        count: how many messages.
        sentence: what was seen.
    """

    kind: str
    count: int
    sentence: str


@dataclass(frozen=True)
class Terms:
    """What holds for a run.

    Attributes:
        groups: the consumer groups of the topic that all messages go to.
        commits_may_be_lost: the fault takes back commits that were answered, such as by a failover to a
            standby that lacks them.
        leases_may_be_lost: the server crashes. The commit of a receive does not wait for the disk.
        clock_moves: the database's clock steps, so that nothing can be told by two readings of it.
        calm_from: when the last fault was over, in seconds since 1970; None where nothing is said of
            lateness.
        effects_group: the group whose consumers write an effect in the transaction of their ack.
        ordered_group: the group of the messages that are sent in order, to a topic of their own.
    """

    groups: Sequence[str]
    commits_may_be_lost: bool = False
    leases_may_be_lost: bool = False
    clock_moves: bool = False
    calm_from: float | None = None
    effects_group: str | None = None
    ordered_group: str | None = None


def check(records: Records, terms: Terms) -> list[Violation]:
    """Every broken promise.

    Args:
        records: of a run whose groups were drained at its end.
        terms: what holds for it.
    """
    found = [
        _violation("lost", _lost(records, terms), "were accepted, and never came to a group"),
        _violation("invented", _invented(records), "came and were never sent"),
        _violation("rolled back", _rolled_back(records), "came though their transaction was rolled back"),
        _violation("recalled", _recalled(records, terms), "came though their recall was answered"),
        _violation("id", _ids(records), "came under two ids"),
        _violation("order", _out_of_order(records), "came before one that was sent earlier in their group"),
    ]
    if not terms.clock_moves:
        found.append(
            _violation("early", _early(records), "came before their instant, by the database's clock")
        )
    if not terms.commits_may_be_lost:
        found.append(
            _violation("final", _not_final(records), "came again, or were acked again, after their ack")
        )
    if not (terms.commits_may_be_lost or terms.leases_may_be_lost):
        found += [
            _violation("doubled", _doubled(records), "came twice as the same attempt"),
            _violation("attempts", _shrinking(records), "came with a lower attempt than before"),
        ]
        if not terms.clock_moves:
            found.append(
                _violation("held twice", _held_twice(records), "came while another lease of them was alive")
            )
    if terms.effects_group is not None:
        found.append(_violation("effects", _effects(records, terms), "have not exactly one effect"))
    found += [_violation("upkeep", _upkeep(records), "is not done"), _unbounded(records)]
    if terms.calm_from is not None:
        found.append(
            _violation("late", _late(records, terms.calm_from), f"came over {LATEST_SECONDS:g} s late")
        )
    return [violation for violation in found if violation is not None]


def longest_wait_seconds(records: Records) -> float:
    """The longest time from when a message could first come to when it first came."""
    return max((_waited(records, first) for first in _firsts(records)), default=0.0)


def recovery_seconds(records: Records, calm_from: float) -> float:
    """From the fault's end to when the last message had come that could have come by then."""
    return max(
        (
            first.before_at - calm_from
            for first in _firsts(records)
            if max(first.deliver_at, records.sent.get(first.body, first.before_at)) <= calm_from
        ),
        default=0.0,
    )


def _upkeep(records: Records) -> list[str]:
    return ["upkeep"] if not records.upkeep_seconds <= LATEST_UPKEEP_SECONDS else []


def _unbounded(records: Records) -> Violation | None:
    """What upkeep leaves when everything is past retention does not grow with what there was."""
    most = dict.fromkeys(EMPTIED, 0)
    grown = {
        name: rows
        for name, rows in records.left.items()
        if rows > most.get(name, MOST_ROWS_OF_A_LOG * records.queues)
    }
    if not grown:
        return None
    said = ", ".join(f"{rows} of {name}" for name, rows in sorted(grown.items()))
    return Violation("logs", sum(grown.values()), f"rows are left when all is past retention: {said}")


def _violation(kind: str, bodies: Iterable[str], what: str) -> Violation | None:
    named = sorted(set(bodies))
    if not named:
        return None
    more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
    return Violation(kind, len(named), f"{', '.join(named[:NAMED])}{more} {what}")


def _arrived(records: Records, group: str) -> set[str]:
    return {delivery.body for delivery in records.deliveries if delivery.group == group} | {
        body for name, body in records.drained if name == group
    }


def _anywhere(records: Records) -> set[str]:
    return {delivery.body for delivery in records.deliveries} | {body for _, body in records.drained}


def _early(records: Records) -> list[str]:
    return [delivery.body for delivery in records.deliveries if delivery.before_at < delivery.deliver_at]


def _lost(records: Records, terms: Terms) -> set[str]:
    if terms.commits_may_be_lost:
        return set()
    # A recall, or an ack, whose answer was lost may have counted.
    recalled = records.recalled | set(records.recalling - records.recalls_answered)
    ordered = {body for _, body in records.ordered}
    lost: set[str] = set()
    for group in (*terms.groups, terms.ordered_group):
        if group is None:
            continue
        if group == terms.effects_group:
            done = set(records.effects)
        else:
            done = {body for name, body in records.acking if name == group}
        expected = ordered if group == terms.ordered_group else set(records.sent) - ordered
        lost |= expected - recalled - done - _arrived(records, group)
    return lost


def _invented(records: Records) -> set[str]:
    return _anywhere(records) - set(records.tried)


def _rolled_back(records: Records) -> set[str]:
    return _anywhere(records) & records.rolled_back


def _recalled(records: Records, terms: Terms) -> set[str]:
    return set() if terms.commits_may_be_lost else _anywhere(records) & records.recalled


def _ids(records: Records) -> list[str]:
    ids: dict[str, set[str]] = defaultdict(set)
    for delivery in records.deliveries:
        ids[delivery.body].add(delivery.message_id)
    return [body for body, names in ids.items() if len(names) > 1]


def _doubled(records: Records) -> list[str]:
    times = Counter((delivery.group, delivery.body, delivery.attempt) for delivery in records.deliveries)
    return [body for (_, body, _), count in times.items() if count > 1]


def _shrinking(records: Records) -> list[str]:
    newest: dict[tuple[str, str], int] = {}
    wrong = []
    for delivery in records.deliveries:
        place = delivery.group, delivery.body
        if delivery.attempt < newest.get(place, 0):
            wrong.append(delivery.body)
        newest[place] = delivery.attempt
    return wrong


def _held_twice(records: Records) -> list[str]:
    """Within one group: a lease that nobody had answered was alive when the next one came."""
    held: dict[tuple[str, str], Delivery] = {}
    doubled = []
    for delivery in records.deliveries:
        place = delivery.group, delivery.body
        before = held.get(place)
        if before is not None and delivery.before_at < before.expires_at:
            answers = records.answering.get(place, ())
            if not any(before.after_at <= at <= delivery.before_at for at in answers):
                doubled.append(delivery.body)
        held[place] = delivery
    return doubled


def _not_final(records: Records) -> set[str]:
    acks = Counter(records.acked)
    twice = {body for (_, body), count in acks.items() if count > 1}
    return twice | {body for name, body in records.drained if (name, body) in acks}


def _effects(records: Records, terms: Terms) -> set[str]:
    assert terms.effects_group is not None
    rows = Counter(records.effects)
    acked = {body for name, body in records.acked if name == terms.effects_group}
    several = {body for body, count in rows.items() if count > 1}
    return several if terms.commits_may_be_lost else several | (acked - set(rows))


def _out_of_order(records: Records) -> list[str]:
    """Of a message group, whatever came first came in the order in which it was sent."""
    place = {body: number for number, (_, body) in enumerate(records.ordered)}
    newest: dict[tuple[str, str], int] = {}
    wrong = []
    for first in _firsts(records):
        if first.message_group is None or first.body not in place:
            continue
        of = first.group, first.message_group
        if place[first.body] < newest.get(of, -1):
            wrong.append(first.body)
        newest[of] = max(newest.get(of, -1), place[first.body])
    return wrong


def _late(records: Records, calm_from: float) -> list[str]:
    return [
        first.body
        for first in _firsts(records)
        if records.sent.get(first.body, 0.0) > calm_from and _waited(records, first) > LATEST_SECONDS
    ]


def _firsts(records: Records) -> list[Delivery]:
    """The first delivery of each message to each group."""
    firsts: dict[tuple[str, str], Delivery] = {}
    for delivery in records.deliveries:
        firsts.setdefault((delivery.group, delivery.body), delivery)
    return list(firsts.values())


def _waited(records: Records, first: Delivery) -> float:
    return first.before_at - max(first.deliver_at, records.sent.get(first.body, first.before_at))
