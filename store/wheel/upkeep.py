"""Upkeep: rounds of maintenance, and the report and warnings of each."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from duewheel.store.database.connections import OWN_TRANSACTION

#: Takes the state as JSON, the rows of the portion, and an instant or None.
STEP: Final = f"{OWN_TRANSACTION}select duewheel.upkeep_step(%s, %s, %s)"
# So many of the groups for which messages are kept past retention have a warning.
_MOST_NAMED: Final = 20
# How many rows of each table a portion has.
_LEAST_ROWS: Final = 50
_FIRST_ROWS: Final = 1_000
_MOST_ROWS: Final = 4_000
# The aim for the time of the next portion, by the time of the last one. The longest should take 0.25 s: rows
# of another table, or of another topic, may cost twice as much.
_AIM_SECONDS: Final = 0.1
# A wheel pauses after each step, for so many times as long.
_PAUSE_FOR_STEP: Final = 4.0
_SHORTEST_REST_SECONDS: Final = 10.0
_HOLDS: Final = {
    "transaction": "it has written in a transaction that is still open",
    "tables": "its open transaction has a lock of the broker's tables",
    "topic": "it has the lock of a topic",
    "upkeep": "it has the lock of upkeep",
}
State: TypeAlias = dict[str, Any]
# Runs STEP with a state as JSON, or None, and the rows of a portion; returns the new state.
_Call: TypeAlias = Callable[[str | None, int], State]


@dataclass(frozen=True, slots=True)
class Maintenance:
    """The result of a round of maintenance; a slot is named by its table, ``message_YYYYMMDDHH`` in UTC.

    Attributes:
        dropped: slots past retention.
        dropped_when_full: slots dropped before their retention ended, because of the size limit.
        kept_unread: slots past retention that a group has not finished.
        kept_when_full: slots above the limit on the size that a group has not finished.
        kept_in_use: slots that could not be dropped just now, because their messages were being read.
        swept: messages that the sweep found, because no tick had covered them; anything but 0 is a bug.
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
    """One round of maintenance, a call of ``duewheel.upkeep_step`` at a time.

    Each call is a transaction that should take a tenth of a second. The next portion of a step is smaller if
    the last one took long or was cancelled, and larger if it was quick and full. A portion that was not full
    tells nothing about the next.
    """

    def __init__(self) -> None:
        self._state: State | None = None
        self._rows = _FIRST_ROWS
        self._report: dict[str, Any] = {}
        self._swept = 0

    def step(self, call: _Call) -> dict[str, Any] | None:
        """Do one step; returns the report of the round after the last one.

        Args:
            call: runs :data:`STEP`; returns the new state.

        Raises:
            Exception: what `call` raises; the next step is then the same step.
        """
        began = time.monotonic()
        state = call(None if self._state is None else json.dumps(self._state), self._rows)
        seconds = time.monotonic() - began
        if self._state is None or state["todo"][:1] == [] or state["todo"][0]["step"] != self._step_name():
            self._rows = _FIRST_ROWS
        elif state["todo"][0].get("canceled"):
            self._rows = max(_LEAST_ROWS, self._rows // 4)
        elif seconds > _AIM_SECONDS:
            self._rows = max(_LEAST_ROWS, int(self._rows * _AIM_SECONDS / seconds))
        elif seconds < _AIM_SECONDS / 4 and state["done"] >= self._rows:
            self._rows = min(_MOST_ROWS, self._rows * 2)
        for name, found in state["report"].items():
            if isinstance(found, list) and name != "kept_full":
                self._report.setdefault(name, []).extend(found)
            else:
                self._report[name] = found
        self._swept += state["report"].get("swept", 0)
        self._state = state
        return {**state, **self._report, "swept": self._swept} if state["finished"] else None

    def _step_name(self) -> str:
        return str(self._state["todo"][0]["step"]) if self._state else ""


class Pace:
    """Rounds one after the other, with pauses.

    After each step there is a pause, in proportion to the step. So upkeep takes no more than a share of the
    server, however much there is to do.

    Args:
        rest_seconds: the time between two rounds. The next round begins after 10 s, and then after twice as
            long each time, if a round has left work because it waited for other sessions, if a step failed,
            or if another session had the lock of upkeep. When less is left, it begins with 10 s again.
    """

    def __init__(self, rest_seconds: float) -> None:
        self._rest_seconds = rest_seconds
        self._short_rest_seconds = _SHORTEST_REST_SECONDS
        self._left = 0
        self._round = Round()

    def step(self, call: _Call) -> tuple[Maintenance | None, float]:
        """Do one step, like `Round.step`; returns the result of the round if that ended, and the pause in
        seconds."""
        began = time.monotonic()
        report = self._round.step(call)
        if report is None:
            return None, _PAUSE_FOR_STEP * (time.monotonic() - began)
        self._round = Round()
        gave_way = "busy" in report or bool(report["failed"])
        left = report.get("left", 0) + len(set(report.get("kept_in_use", [])))
        if not gave_way and (left == 0 or left < self._left):
            self._short_rest_seconds = _SHORTEST_REST_SECONDS
        rest_seconds = self._rest_seconds
        if left > 0 or gave_way:
            rest_seconds = min(rest_seconds, self._short_rest_seconds)
            self._short_rest_seconds = min(self._rest_seconds, 2 * self._short_rest_seconds)
        self._left = left
        return maintenance(report), rest_seconds


def in_rounds(call: _Call) -> dict[str, Any]:
    """A round of maintenance at full speed; returns its report.

    Args:
        call: runs :data:`STEP`; returns the new state.
    """
    one_round = Round()
    while (report := one_round.step(call)) is None:
        pass
    return report


def maintenance(report: Mapping[str, Any]) -> Maintenance:
    """The result of a round, from its report; nothing was done if another session had the lock of upkeep."""
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
            "waiting messages, and those of the present slots, are kept; raise retention_bytes"
        )
    if report.get("is_overdue"):
        warnings.append(
            f"another session has the lock of upkeep, which was last done at {report['maintained_at']}"
        )
    warnings += [
        f"the step {step['step']} of upkeep failed and was left out: {step['cause']}"
        for step in report["failed"]
    ]
    watched = by_group(report.get("watched", []))
    warnings += [lost_by(group) for group in watched if group["lost"]]
    warnings += [removed_with(group) for group in watched if group["is_removed"]]
    kept_groups = [group for group in watched if not group["lost"] and not group["is_removed"]]
    warnings += [kept_for(group) for group in kept_groups[:_MOST_NAMED]]
    if len(kept_groups) > _MOST_NAMED:
        warnings.append(
            f"{len(kept_groups) - _MOST_NAMED} other groups keep messages past retention, too: see stats"
        )
    warnings += [held_up_by(holder) for holder in report.get("held_up_by", [])]
    return Maintenance(
        dropped=tuple(report.get("dropped", [])),
        dropped_when_full=tuple(slot["slot"] for slot in dropped),
        # A long round reports a slot again.
        kept_unread=tuple(dict.fromkeys(report.get("kept_unread", []))),
        kept_when_full=tuple(slot["slot"] for slot in kept),
        kept_in_use=tuple(dict.fromkeys(report.get("kept_in_use", []))),
        swept=report.get("swept", 0),
        message_bytes=size,
        warnings=tuple(warnings),
    )


def by_group(portions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """One entry for each group and topic, with its losses in all portions, the largest first.

    Args:
        portions: the entries of ``watched`` of a round.
    """
    groups: dict[tuple[str, str], Mapping[str, Any]] = {}
    for one in portions:
        before = groups.get((one["consumer_group"], one["topic"]), {"lost": 0})
        groups[one["consumer_group"], one["topic"]] = {**one, "lost": before["lost"] + one["lost"]}
    return sorted(groups.values(), key=lambda one: one["bytes"] or 0, reverse=True)


def counted(unread: Mapping[str, Any]) -> str:
    """The number of a slot's messages that a group has not finished, in words.

    Args:
        unread: an entry of ``unread`` of the report on a slot.
    """
    return f"at least {unread['messages']}" if unread.get("at_least") else str(unread["messages"])


def lost_by(group: Mapping[str, Any]) -> str:
    """A sentence about the messages that an abandoned group has lost.

    Args:
        group: an entry of :func:`by_group`.
    """
    return (
        f"group {group['consumer_group']} has taken nothing of topic {group['topic']} since "
        f"{group['since_at']}, which is longer than abandoned_after: it has lost {group['lost']} messages "
        "that are past retention"
    )


def removed_with(group: Mapping[str, Any]) -> str:
    """A sentence about the unread messages of a group that was removed.

    Args:
        group: an entry of :func:`by_group`.
    """
    return (
        f"group {group['consumer_group']}, which a stream had drawn for itself, has taken nothing of topic "
        f"{group['topic']} since {group['since_at']}: it is deleted, with about {group['messages']} messages "
        "past retention that it had not read"
    )


def kept_for(group: Mapping[str, Any]) -> str:
    """A sentence about the messages past retention that are kept for a group.

    Args:
        group: an entry of :func:`by_group`.
    """
    name, topic, since = group["consumer_group"], group["topic"], group["since_at"]
    kept = f"about {group['messages']} messages past retention, {group['bytes']} bytes, are kept for it"
    if group["is_paused"]:
        return f"group {name} has been paused on topic {topic} since {since}: {kept}"
    return (
        f"group {name} has taken nothing of topic {topic} since {since}: {kept}; delete the group if it is "
        "not needed, or set abandoned_after"
    )


def held_up_by(holder: Mapping[str, Any]) -> str:
    """A sentence about a session that holds upkeep up, and how to end that.

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
    """Log at WARNING the losses, the slots and messages kept for a group, and the sessions that hold upkeep
    up."""
    for warning in done.warnings:
        log.warning("Maintenance: %s", warning)
