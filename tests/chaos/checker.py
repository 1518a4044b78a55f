"""The checker: what the workers have said, held against what ``docs/reliability.md`` promises.

It knows nothing of the fault. Where a promise does not hold by its own words, such as that of a commit that
only a lost primary had, the caller says so.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby

from tests.chaos.records import Delivery, Records
from tests.chaos.traffic import LARGEST_RECEIVE

#: So much later than its instant, in seconds, may a message come that was sent when all was well again. A
#: busy machine takes its time; a message that waits for somebody to look takes longer.
LATEST_SECONDS = 30.0
#: All that could have come by the fault's end has come so many seconds later, the rest of a burst included.
LATEST_RECOVERY_SECONDS = 240.0
#: Upkeep is done again so many seconds after the fault, at the latest.
LATEST_UPKEEP_SECONDS = 60.0
#: What stays of a queue's log when all of it is past retention, for each group: where the group is.
MOST_ROWS_OF_A_LOG = 10
#: Of this table the newest lease of a queue stays whole: what one receive brought.
MOST_LISTED = {"lease_message": LARGEST_RECEIVE}
#: Of these tables nothing stays.
EMPTIED = ("message", "far_message", "straggler", "recall", "moved_id", "idempotency")
#: Of this, two readings of the database's clock may differ by how they are written.
CLOCK_SECONDS = 0.001
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
        _violation("id", _ids(records), "came under two ids, or another than their sender's, or share one"),
        _violation("order", _out_of_order(records), "came before one that was sent earlier in their group"),
    ]
    if not terms.clock_moves:
        found.append(
            _violation("early", _early(records), "came before their instant, by the database's clock")
        )
        found.append(_violation("lease", _wrong_length(records), "have a lease that is not as long as asked"))
    if not terms.commits_may_be_lost:
        found.append(
            _violation("final", _not_final(records), "came again, or were acked again, after their ack")
        )
        found.append(
            _violation("order", _overtaking(records, terms), "came before one of their group was acked")
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
        took = recovery_seconds(records, terms.calm_from)
        if took > LATEST_RECOVERY_SECONDS:
            found.append(
                Violation("late", 1, f"the last of the fault's time came {took:.0f} s after its end")
            )
    return [violation for violation in found if violation is not None]


def longest_wait_seconds(records: Records) -> float:
    """The longest time from when a message could first come to when it first came."""
    return max((0.0, *(_waited(records, first) for first in _firsts(records.deliveries))))


def recovery_seconds(records: Records, calm_from: float) -> float:
    """From the fault's end to when the last message had come that could have come by then."""
    came_after = (
        first.before_at - calm_from
        for first in _firsts(records.deliveries)
        if max(first.deliver_at, records.sent.get(first.body, first.before_at)) <= calm_from
    )
    return max((0.0, *came_after))


def _upkeep(records: Records) -> list[str]:
    return ["upkeep"] if not records.upkeep_seconds <= LATEST_UPKEEP_SECONDS else []


def _unbounded(records: Records) -> Violation | None:
    """What upkeep leaves when everything is past retention does not grow with what there was."""
    most = dict.fromkeys(EMPTIED, 0) | MOST_LISTED
    grown = {
        name: rows
        for name, rows in records.left.items()
        if rows > most.get(name, MOST_ROWS_OF_A_LOG) * records.queues
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


def _all(records: Records) -> Iterator[Delivery]:
    return chain(records.deliveries, records.drained)


def _drained(records: Records, group: str) -> set[str]:
    return {delivery.body for delivery in records.drained if delivery.group == group}


def _anywhere(records: Records) -> set[str]:
    return {delivery.body for delivery in _all(records)} | set(records.effects)


def _early(records: Records) -> list[str]:
    return [delivery.body for delivery in _all(records) if delivery.leased_at < delivery.deliver_at]


def _wrong_length(records: Records) -> list[str]:
    """The lease would have begun before the receive, or after it."""
    return [
        delivery.body
        for delivery in _all(records)
        if not delivery.after_at - CLOCK_SECONDS <= delivery.leased_at <= delivery.before_at + CLOCK_SECONDS
    ]


def _lost(records: Records, terms: Terms) -> set[str]:
    """What nobody may have acked came at the run's end, however often it had come before."""
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
        lost |= expected - recalled - done - _drained(records, group)
    return lost


def _invented(records: Records) -> set[str]:
    return _anywhere(records) - set(records.tried)


def _rolled_back(records: Records) -> set[str]:
    return _anywhere(records) & records.rolled_back


def _recalled(records: Records, terms: Terms) -> set[str]:
    return set() if terms.commits_may_be_lost else _anywhere(records) & records.recalled


def _ids(records: Records) -> list[str]:
    ids: dict[str, set[str]] = defaultdict(set)
    bodies: dict[str, set[str]] = defaultdict(set)
    for body, name in chain(records.ids.items(), ((one.body, one.message_id) for one in _all(records))):
        ids[body].add(name)
        bodies[name].add(body)
    shared = [body for sharers in bodies.values() if len(sharers) > 1 for body in sharers]
    return [body for body, names in ids.items() if len(names) > 1] + shared


def _doubled(records: Records) -> list[str]:
    times = Counter((delivery.group, delivery.body, delivery.attempt) for delivery in _all(records))
    return [body for (_, body, _), count in times.items() if count > 1]


def _shrinking(records: Records) -> list[str]:
    newest: dict[tuple[str, str], int] = {}
    wrong = []
    for delivery in _all(records):
        place = delivery.group, delivery.body
        if delivery.attempt < newest.get(place, 1):
            wrong.append(delivery.body)
        newest[place] = delivery.attempt
    return wrong


def _held_twice(records: Records) -> list[str]:
    """Within one group: a lease that nobody had answered was alive when the next one came."""
    held: dict[tuple[str, str], Delivery] = {}
    doubled = []
    for delivery in sorted(_all(records), key=lambda one: one.leased_at):
        place = delivery.group, delivery.body
        before = held.get(place)
        if before is not None and delivery.leased_at < before.expires_at:
            # Of that lease: an older one may be answered late, which ends nothing.
            answered_at = records.answering.get((*place, before.attempt))
            if answered_at is None or answered_at > delivery.before_at:
                doubled.append(delivery.body)
        held[place] = delivery
    return doubled


def _not_final(records: Records) -> set[str]:
    acks = Counter(records.acked)
    twice = {body for (_, body), count in acks.items() if count > 1}
    return twice | {one.body for one in records.drained if (one.group, one.body) in acks}


def _effects(records: Records, terms: Terms) -> set[str]:
    assert terms.effects_group is not None
    rows = Counter(records.effects)
    acked = {body for name, body in records.acked if name == terms.effects_group}
    # The effect and the ack are one transaction, so what has an effect comes no more.
    several = {body for body, count in rows.items() if count > 1} | (
        _drained(records, terms.effects_group) & set(rows)
    )
    return several if terms.commits_may_be_lost else several | (acked - set(rows))


def _out_of_order(records: Records) -> list[str]:
    """Of a message group, whatever came first came in the order in which it was sent."""
    place = {body: number for number, (_, body) in enumerate(records.ordered)}
    newest: dict[tuple[str, str], int] = {}
    wrong = []
    for first in _firsts(_all(records)):
        if first.message_group is None or first.body not in place:
            continue
        of = first.group, first.message_group
        if place[first.body] < newest.get(of, -1):
            wrong.append(first.body)
        newest[of] = max(newest.get(of, -1), place[first.body])
    return wrong


def _overtaking(records: Records, terms: Terms) -> list[str]:
    """What comes on a message group comes behind what is acked, or beside what is in the same batch."""
    if terms.ordered_group is None:
        return []
    groups: dict[str, list[str]] = defaultdict(list)
    for message_group, body in records.ordered:
        groups[message_group].append(body)
    place = {body: number for bodies in groups.values() for number, body in enumerate(bodies)}
    acked_up_to: Counter[str] = Counter()
    wrong = []
    for batch in _batches(records, terms.ordered_group):
        beside = {one.body for one in batch}
        for one in batch:
            if one.message_group is None or one.body not in place:
                continue
            of = groups[one.message_group]

            def is_acked(number: int, of: list[str] = of, one: Delivery = one) -> bool:
                at = records.acking.get((one.group, of[number]))
                return at is not None and at <= one.logged_at

            first = acked_up_to[one.message_group]
            while first < place[one.body] and is_acked(first):
                first += 1
            acked_up_to[one.message_group] = first
            ahead = range(first, place[one.body])
            if any(not is_acked(number) and of[number] not in beside for number in ahead):
                wrong.append(one.body)
    return wrong


def _batches(records: Records, group: str) -> Iterator[list[Delivery]]:
    """What each receive of a group brought, up to the run's end: there, one is acked before the next."""
    of_group = (one for one in records.deliveries if one.group == group)
    for _, batch in groupby(of_group, key=lambda one: (one.logged_at, one.after_at)):
        yield list(batch)


def _late(records: Records, calm_from: float) -> list[str]:
    return [
        first.body
        for first in _firsts(records.deliveries)
        if records.sent.get(first.body, 0.0) > calm_from and _waited(records, first) > LATEST_SECONDS
    ]


def _firsts(deliveries: Iterable[Delivery]) -> list[Delivery]:
    """The first delivery of each message to each group."""
    firsts: dict[tuple[str, str], Delivery] = {}
    for delivery in deliveries:
        firsts.setdefault((delivery.group, delivery.body), delivery)
    return list(firsts.values())


def _waited(records: Records, first: Delivery) -> float:
    return first.before_at - max(first.deliver_at, records.sent.get(first.body, first.before_at))
