"""Upkeep: rounds of maintenance, and the report and warnings of each."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from psycopg2.errors import QueryCanceled

from duewheel.store.database.connections import OWN_TRANSACTION
from duewheel.store.values.errors import BrokerUnreachable

# A sweep ticks, and a tick is a transaction of its own.
_SWEEP: Final = f"{OWN_TRANSACTION}select swept, next_topic_id from duewheel.sweep({{place}}, %s)"
_SETTLE: Final = "select settled, case when more then 'more' end from duewheel.settle_far({rows}, %s)"
_MOVE_OUT: Final = "select moved, next_from::text from duewheel.move_out({rows}, '{place}', %s)"
_FORGET_OUTLIVED: Final = (
    "select forgotten, next_from::text from duewheel.forget_outlived({rows}, '{place}', %s)"
)
_FORGET: Final = "select forgotten, next_topic_id from duewheel.forget({rows}, {place}, %s)"
# Of each queue that an abandoned group is passed over, so many messages in one transaction.
_PASSED_ROWS: Final = 4_000
# So many of the groups for which messages are kept past retention have a warning each.
_MOST_NAMED: Final = 20
_MAINTAIN: Final = "select duewheel.maintain(%s)"
# A round that takes longer maintains meanwhile: slots are made and dropped, and upkeep does not look overdue.
_LONGEST_UNMAINTAINED_SECONDS: Final = 1_200.0
# How many rows of each table a portion has.
_LEAST_ROWS: Final = 50
_FIRST_ROWS: Final = 1_000
_MOST_ROWS: Final = 4_000
# The time that the next portion is to take, going by this one. The longest is to take 0.25 s: rows of another
# table, or of another topic, may cost twice as much.
_AIM_SECONDS: Final = 0.1
# A wheel pauses after each step, for so many times as long.
_PAUSE_FOR_STEP: Final = 4.0
_SHORTEST_REST_SECONDS: Final = 10.0
_LEFT: Final = (
    "select (select coalesce(jsonb_agg(to_jsonb(h)), '[]') from duewheel.upkeep_holders(u.now) h),"
    " s.slots_to_seal + s.messages_to_settle"
    " from (select %s::timestamptz) u (now) cross join lateral duewheel.upkeep_state(u.now) s"
)
_HOLDS: Final = {
    "transaction": "it has written in a transaction that is still open",
    "tables": "its open transaction has a lock of the broker's tables",
    "topic": "it has the lock of a topic",
    "upkeep": "it has the lock of upkeep",
}
# Runs a statement, and returns its row.
_Call: TypeAlias = Callable[[str], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Maintenance:
    """The result of a round of maintenance; a slot has the name of its table, ``message_YYYYMMDDHH`` in UTC.

    Attributes:
        dropped: slots past retention.
        dropped_when_full: slots dropped before their retention ended, because there was no room for them.
        kept_unread: slots past retention that a group has not finished.
        kept_when_full: slots above the limit on the size that a group has not finished.
        kept_in_use: slots that could not be dropped just now, because their messages were being read.
        swept: messages that the sweep found, since no tick had covered them; anything but 0 is a bug.
        message_bytes: the size of all slots afterwards.
        warnings: losses, slots kept over the limit, groups for which messages past retention are kept, and
            sessions that have held upkeep up for over an hour: one sentence each.
    """

    dropped: tuple[str, ...]
    dropped_when_full: tuple[str, ...]
    kept_unread: tuple[str, ...]
    kept_when_full: tuple[str, ...]
    kept_in_use: tuple[str, ...]
    swept: int
    message_bytes: int
    warnings: tuple[str, ...]


class Round:
    """One round of maintenance, a step at a time; each step is a statement in a transaction of its own.

    There is a step for each portion of rows that go to their slots, outlive their slot or are forgotten, for
    each portion of a topic that is swept, and for each 4 slots that are dropped. A portion is what takes a
    tenth of a second. So whoever pauses between the steps decides how much of a server upkeep takes.

    The steps are those of several phases. A step that fails ends its phase, and the round goes on with the
    next: what fails again and again keeps no other work waiting.
    """

    def __init__(self) -> None:
        self._phases = deque(
            (
                self._in_portions(_SETTLE),
                self._sweep(),
                self._watch_groups(),
                # It says which topics have finished a slot.
                self._in_portions(_FORGET, 0),
                self._in_portions(_MOVE_OUT, "-infinity"),
                self._make_and_drop_slots(),
                # To slots that are new.
                self._in_portions(_SETTLE),
                self._in_portions(_FORGET_OUTLIVED, "-infinity"),
                # The logs of what was dropped.
                self._in_portions(_FORGET, 0),
                self._look_at_the_rest(),
            )
        )
        # Another process was at it, or a phase failed.
        self._gave_way = False
        # The first step comes long after the round was made.
        self._maintained_seconds: float | None = None
        self._dropped: dict[str, list[Any]] = {"dropped": [], "dropped_full": []}
        self._report: dict[str, Any] = {}
        self._busy: dict[str, Any] = {}
        self._swept = 0
        self._watched: list[dict[str, Any]] = []
        self._held_up: list[dict[str, Any]] = []
        self._left = 0

    def step(self, call: _Call) -> dict[str, Any] | None:
        """Does one step; returns the report of the round after the last one.

        Args:
            call: runs a statement, which takes an instant or None, in a transaction of its own; returns its
                row.

        Raises:
            Exception: what `call` raises; the next step is one of the next phase.
        """
        self._call = call
        now_seconds = time.monotonic()
        self._maintained_seconds = self._maintained_seconds or now_seconds
        if now_seconds - self._maintained_seconds > _LONGEST_UNMAINTAINED_SECONDS:
            # Tried once in that time, whether it fails or not.
            self._maintained_seconds = now_seconds
            self._maintain()
            return None
        while self._phases:
            try:
                next(self._phases[0])
            except StopIteration:
                self._phases.popleft()
            except Exception:
                self._gave_way = True
                self._phases.popleft()
                raise
            else:
                return None
        return {
            **self._report,
            **self._busy,
            **self._dropped,
            "swept": self._swept,
            "held_up": self._held_up,
            "watched": self._watched,
            "left": self._left + len(self._report.get("kept_in_use", [])),
            "gave_way": self._gave_way,
        }

    def _make_and_drop_slots(self) -> Generator[None, None, None]:
        while self._maintain():
            yield
        yield

    def _look_at_the_rest(self) -> Generator[None, None, None]:
        self._held_up, self._left = self._call(_LEFT)
        yield

    def _maintain(self) -> bool:
        """Makes slots ahead and drops some; returns whether there are more to drop."""
        (report,) = self._call(_MAINTAIN)
        self._maintained_seconds = time.monotonic()
        if "busy" in report:
            # Another process is at it, maybe at another step.
            self._gave_way = True
            self._busy = report
            return False
        if not report["more"] or not self._report:
            # What is kept for want of room is known when there is nothing more to drop.
            self._report = report
        self._busy = {}
        for name, slots in self._dropped.items():
            slots += report[name]
        return bool(report["more"])

    def _sweep(self) -> Generator[None, None, None]:
        """Looks through the slots that are over, and counts messages that no tick had covered."""
        next_topic_id: int | None = 0
        while next_topic_id is not None:
            found, next_topic_id = self._call(_SWEEP.format(place=next_topic_id))
            self._gave_way = self._gave_way or found is None
            self._swept += found or 0
            yield

    def _in_portions(self, step: str, place: object = "more") -> Generator[None, None, None]:
        """Repeats a step, from place to place, until it returns none. Portions become smaller when they take
        long, or are ended by a timeout, and larger after one that was quick though it was full: a quick look
        at topics where nothing is over says nothing of the next."""
        rows, next_place = _FIRST_ROWS, place
        while next_place is not None:
            began = time.monotonic()
            try:
                done, next_place = self._call(step.format(rows=rows, place=next_place))
            except QueryCanceled:
                if rows == _LEAST_ROWS:
                    raise
                rows = max(_LEAST_ROWS, rows // 4)
            else:
                seconds = time.monotonic() - began
                if done is None:
                    self._gave_way = True
                elif seconds > _AIM_SECONDS:
                    rows = max(_LEAST_ROWS, int(rows * _AIM_SECONDS / seconds))
                elif seconds < _AIM_SECONDS / 4 and done >= rows:
                    rows = min(_MOST_ROWS, rows * 2)
            yield

    def _watch_groups(self) -> Generator[None, None, None]:
        """Lets abandoned groups go on, where they are to. Notes each group for which messages past retention
        are kept, or were, the largest first."""
        watched: dict[tuple[str, str], dict[str, Any]] = {}
        group_id: int | None = 0
        topic_id = 0
        while group_id is not None:
            standing, group_id, topic_id = self._call(
                "select standing, next_group_id, next_topic_id"
                f" from duewheel.watch_groups({_PASSED_ROWS}, {group_id}, {topic_id}, %s)"
            )
            self._gave_way = self._gave_way or standing is None
            for one in standing or ():
                before = watched.get((one["consumer_group"], one["topic"]), {"lost": 0})
                watched[one["consumer_group"], one["topic"]] = {**one, "lost": before["lost"] + one["lost"]}
            self._watched = sorted(watched.values(), key=lambda one: one["bytes"] or 0, reverse=True)
            yield


class Pace:
    """Rounds one after the other, with pauses.

    After each step there is a pause, in proportion to the step. So upkeep takes no more than a share of the
    server, however much there is to do.

    Args:
        rest_seconds: the time between two rounds. A round that has left something, since it waited for
            others, is followed by one after 10 s, then after twice as long each time until less is left. So
            is one beside the upkeep of another process, however much that has left.
    """

    def __init__(self, rest_seconds: float) -> None:
        self._rest_seconds = rest_seconds
        self._short_rest_seconds = _SHORTEST_REST_SECONDS
        self._left = 0
        self._round = Round()

    def step(self, call: _Call) -> tuple[Maintenance | None, float]:
        """Does one step, as `Round.step` does; returns what a round has done that ended with it, and how
        long to pause, in seconds."""
        began = time.monotonic()
        report = self._round.step(call)
        if report is None:
            return None, _PAUSE_FOR_STEP * (time.monotonic() - began)
        self._round = Round()
        rest_seconds = self._rest_seconds
        if not report["gave_way"] and (report["left"] == 0 or report["left"] < self._left):
            self._short_rest_seconds = _SHORTEST_REST_SECONDS
        if report["left"] > 0 or report["gave_way"]:
            rest_seconds = min(rest_seconds, self._short_rest_seconds)
            self._short_rest_seconds = min(self._rest_seconds, 2 * self._short_rest_seconds)
        self._left = report["left"]
        return maintenance(report), rest_seconds


def in_rounds(call: _Call) -> dict[str, Any]:
    """A round of maintenance at full speed; returns its report.

    Args:
        call: runs a statement, which takes an instant or None, in a transaction of its own; returns its row.

    Raises:
        BrokerUnreachable: the database is away.
        Exception: the first that `call` has raised, after the rest of the round is done.
    """
    one_round = Round()
    report, failures = None, []
    while report is None:
        try:
            report = one_round.step(call)
        except BrokerUnreachable:
            raise
        except Exception as failure:  # noqa: BLE001 - raised below
            failures.append(failure)
    if failures:
        raise failures[0]
    return report


def maintenance(report: Mapping[str, Any]) -> Maintenance:
    """The result of :func:`in_rounds`; nothing was done where another process was doing it."""
    dropped, kept = report.get("dropped_full", []), report.get("kept_full", [])
    warnings = [
        f"dropped slot {slot['slot']} over the limit of {report['retention_bytes']} bytes: group "
        f"{unread['consumer_group']} has lost {counted(unread)} messages of topic {unread['topic']}"
        for slot in dropped
        for unread in slot["unread"]
    ]
    warnings += [
        f"kept slot {slot['slot']} over the limit of {report['retention_bytes']} bytes: group "
        f"{unread['consumer_group']} has not finished {counted(unread)} messages of topic "
        f"{unread['topic']}"
        for slot in kept
        for unread in slot["unread"]
    ]
    size, limit = report.get("message_bytes", 0), report.get("retention_bytes")
    if limit is not None and size > limit:
        warnings.append(
            f"the messages take {size} bytes, over the limit of {limit}, and nothing more can be dropped: "
            "waiting messages, and those of slots that are not over, are kept; raise retention_bytes"
        )
    if report.get("is_overdue"):
        warnings.append(
            f"another session has the lock of upkeep, which was last done at {report['maintained_at']}"
        )
    watched = report.get("watched", [])
    warnings += [lost_by(group) for group in watched if group["lost"]]
    warnings += [removed_with(group) for group in watched if group["is_removed"]]
    kept_groups = [group for group in watched if not group["lost"] and not group["is_removed"]]
    warnings += [kept_for(group) for group in kept_groups[:_MOST_NAMED]]
    if len(kept_groups) > _MOST_NAMED:
        warnings.append(
            f"{len(kept_groups) - _MOST_NAMED} other groups keep messages past retention, too, as stats says"
        )
    warnings += [held_up_by(holder) for holder in report.get("held_up", [])]
    return Maintenance(
        dropped=tuple(report.get("dropped", [])),
        dropped_when_full=tuple(slot["slot"] for slot in dropped),
        kept_unread=tuple(report.get("kept_unread", [])),
        kept_when_full=tuple(slot["slot"] for slot in kept),
        kept_in_use=tuple(report.get("kept_in_use", [])),
        swept=report.get("swept", 0),
        message_bytes=size,
        warnings=tuple(warnings),
    )


def counted(unread: Mapping[str, Any]) -> str:
    """How many messages of a slot a group has not finished, in words.

    Args:
        unread: an entry of ``unread`` of the report on a slot.
    """
    return f"at least {unread['messages']}" if unread.get("at_least") else str(unread["messages"])


def lost_by(group: Mapping[str, Any]) -> str:
    """A sentence that says what an abandoned group has lost.

    Args:
        group: an entry of ``standing`` of ``duewheel.watch_groups``.
    """
    return (
        f"group {group['consumer_group']} has taken nothing of topic {group['topic']} since "
        f"{group['since_at']}, which is longer than abandoned_after: it has lost {group['lost']} messages "
        "that are past retention"
    )


def removed_with(group: Mapping[str, Any]) -> str:
    """A sentence that says what a group had left to read that was removed.

    Args:
        group: an entry of ``standing`` of ``duewheel.watch_groups``.
    """
    return (
        f"group {group['consumer_group']}, which a stream had drawn for itself, has taken nothing of topic "
        f"{group['topic']} since {group['since_at']}: it is deleted, with about {group['messages']} messages "
        "past retention that it had not read"
    )


def kept_for(group: Mapping[str, Any]) -> str:
    """A sentence that says what is kept for a group past retention.

    Args:
        group: an entry of ``standing`` of ``duewheel.watch_groups``.
    """
    name, topic, since = group["consumer_group"], group["topic"], group["since_at"]
    kept = f"about {group['messages']} messages past retention, {group['bytes']} bytes, are kept for it"
    if group["is_paused"]:
        return f"group {name} has been paused on topic {topic} since {since}: {kept}"
    return (
        f"group {name} has taken nothing of topic {topic} since {since}: {kept}; delete the group if nobody "
        "needs it, or set abandoned_after"
    )


def held_up_by(holder: Mapping[str, Any]) -> str:
    """A sentence that says who holds upkeep up, and how to end that.

    Args:
        holder: the columns of ``duewheel.upkeep_holders``.
    """
    since = holder["since_at"] or "over an hour ago"
    if holder["gid"] is not None:
        return (
            f"the prepared transaction {holder['gid']!r} of login {holder['login']} has held upkeep up since "
            f"{since}: finish it with COMMIT PREPARED or ROLLBACK PREPARED"
        )
    return (
        f"the session with pid {holder['pid']} of login {holder['login']} (application "
        f"{holder['application']!r}, {holder['state'] or 'state hidden'}) has held upkeep up since {since}: "
        f"{_HOLDS[holder['holds']]}; pg_terminate_backend({holder['pid']}) ends it"
    )


def warn(done: Maintenance, log: logging.Logger) -> None:
    """Log at WARNING the losses, the slots and messages kept for a group, and who holds upkeep up."""
    for warning in done.warnings:
        log.warning("Maintenance: %s", warning)
