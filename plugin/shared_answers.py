"""Answers that many users share: the more an answer costs to compute, the longer it is kept.

An open page asks for the same three answers again and again, and so does each other open page. All computing
takes a small share of a core, however many pages are open.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from duewheel.plugin import models
from duewheel.plugin.brokers import brokers
from duewheel.store import Broker

#: All requests within this time get the same answer. One that costs more is kept until computing it takes
#: 0.2 per cent of a core, as an open page asks for three of them again and again, but no longer than 90 s.
SHARED_SECONDS: Final = 2.0
_COST_FACTOR: Final = 500
_COSTS: Final = 3
_LONGEST_SHARED_SECONDS: Final = 90.0

_Answer = TypeVar("_Answer", bound=models.Shared)


@dataclass(frozen=True)
class _Kept:
    answer: models.Shared
    until: float
    costs: tuple[float, ...]


class SharedAnswers:
    """The newest answers to a question that many users ask, or one user asks repeatedly.

    The longer an answer takes to compute, the longer it is kept, so that all computing takes a small share of
    a core. The middle one of the last three costs counts, since a single slow one may be an accident, and a
    single quick one may have found what another answer had just read.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: dict[tuple[Any, ...], _Kept] = {}

    def get(self, key: tuple[Any, ...]) -> models.Shared | None:
        with self._lock:
            kept = self._answers.get(key)
        left_seconds = 0.0 if kept is None else kept.until - time.monotonic()
        if kept is None or left_seconds <= 0:
            return None
        return kept.answer.model_copy(update={"next_in_seconds": left_seconds})

    def put(
        self,
        key: tuple[Any, ...],
        answer: models.Shared,
        cost_seconds: float,
        longest_seconds: float = _LONGEST_SHARED_SECONDS,
    ) -> None:
        now = time.monotonic()
        with self._lock:
            before = self._answers.get(key)
            costs = (*(before.costs if before else ()), cost_seconds)[-_COSTS:]
            share = sorted(costs)[_COSTS // 2] * _COST_FACTOR if len(costs) == _COSTS else 0.0
            answer.shared_seconds = min(longest_seconds, max(SHARED_SECONDS, share))
            answer.next_in_seconds = answer.shared_seconds
            until = now + answer.shared_seconds
            self._answers = {
                known: one
                for known, one in self._answers.items()
                if now < one.until + _LONGEST_SHARED_SECONDS and known != key
            } | {key: _Kept(answer, until, costs)}

    def forget(self, connection_id: str) -> None:
        """Work out anew what is asked next about a broker; what it has cost is still known.

        No act changes how late releases were, and looking at a day again costs the most.
        """
        now = time.monotonic()
        with self._lock:
            self._answers = {
                key: replace(kept, until=min(kept.until, now))
                if key[1] == connection_id and key[0] is not models.DayLateness
                else kept
                for key, kept in self._answers.items()
            }

    def answer(
        self,
        connection_id: str,
        key: tuple[Any, ...],
        kind: type[_Answer],
        compute: Callable[[Broker], _Answer],
        longest_seconds: float = _LONGEST_SHARED_SECONDS,
    ) -> _Answer:
        """The newest answer to a question about a broker, or a new one."""
        key = (kind, connection_id, *key)
        known = self.get(key)
        if isinstance(known, kind):
            return known
        with brokers.lend(connection_id) as broker:
            # Another request may have computed the answer while this one waited for its turn.
            known = self.get(key)
            if isinstance(known, kind):
                return known
            began = time.monotonic()
            answer = compute(broker)
            self.put(key, answer, time.monotonic() - began, longest_seconds)
        return answer
