"""Answers that many users share: the more an answer costs to compute, the longer it is kept.

An open page asks for the same answers again and again, and so does each other open page. All computing takes
a small share of a core, however many pages are open. No answer is given that is from before an act.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from duewheel.plugin import models
from duewheel.plugin.brokers import Use, brokers
from duewheel.plugin.told_acts import heard_of_act
from duewheel.store import Broker

#: All requests within this time get the same answer. An answer that costs more is kept until computing it
#: takes 0.2 per cent of a core, but no longer than 90 s: an open page asks for three of them again and again.
SHARED_SECONDS: Final = 2.0
_COST_FACTOR: Final = 500
_COSTS: Final = 3
_LONGEST_SHARED_SECONDS: Final = 90.0
_LONGEST_UNREAD_SECONDS: Final = 10.0

_Answer = TypeVar("_Answer", bound=models.Shared)


@dataclass(frozen=True)
class _Kept:
    #: None after an act.
    answer: models.Shared | None
    since: float
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
        #: By connection, how often an act made its answers wrong.
        self._acts: defaultdict[str, int] = defaultdict(int)

    def get(self, key: tuple[Any, ...], *, even_old: bool = False) -> models.Shared | None:
        """The answer that is kept, with its age; with ``even_old`` also one that is out of date."""
        with self._lock:
            kept = self._answers.get(key)
        now = time.monotonic()
        if kept is None or kept.answer is None or (kept.until <= now and not even_old):
            return None
        return kept.answer.model_copy(
            update={"next_in_seconds": max(0.0, kept.until - now), "age_seconds": now - kept.since}
        )

    def put(
        self,
        key: tuple[Any, ...],
        answer: models.Shared,
        cost_seconds: float,
        longest_seconds: float = _LONGEST_SHARED_SECONDS,
        acts: int | None = None,
    ) -> None:
        """Keep an answer.

        Args:
            key, answer: the question, and the answer.
            cost_seconds: how long it took to compute.
            longest_seconds: it is kept so long at most.
            acts: the number of acts on the broker when computing it began. After another act only the cost is
                kept. None keeps the answer.
        """
        now = time.monotonic()
        with self._lock:
            before = self._answers.get(key)
            costs = (*(before.costs if before else ()), cost_seconds)[-_COSTS:]
            share = sorted(costs)[_COSTS // 2] * _COST_FACTOR if len(costs) == _COSTS else 0.0
            answer.shared_seconds = min(longest_seconds, max(SHARED_SECONDS, share))
            answer.next_in_seconds = answer.shared_seconds
            until = now + answer.shared_seconds
            kept = answer if acts in (None, self._acts[key[1]]) else None
            self._answers = {
                known: one
                for known, one in self._answers.items()
                if now < one.until + _LONGEST_SHARED_SECONDS and known != key
            } | {key: _Kept(kept, now - cost_seconds, until, costs)}

    def forget(self, connection_id: str) -> None:
        """Let the next question about a broker compute its answer again; the costs are still known.

        No act changes how late releases were, and looking at a day again costs the most.
        """
        with self._lock:
            self._acts[connection_id] += 1
            self._answers = {
                key: replace(kept, answer=None)
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
        use: Use = "numbers",
        turn_seconds: float | None = None,
        is_read: Callable[[_Answer], bool] = lambda _: True,
    ) -> _Answer:
        """The newest answer to a question about a broker, or a new one.

        Args:
            connection_id, use, turn_seconds: see :meth:`duewheel.plugin.brokers.Brokers.lend`.
            key, kind: the question, and the type of its answer.
            compute: asks the broker.
            longest_seconds: it is kept so long at most.
            is_read: whether an answer is complete. An incomplete answer is kept for ten seconds at most: a
                second read often finds its pages in memory.
        """
        key = (kind, connection_id, *key)
        with brokers.lend(connection_id) as broker:
            if heard_of_act(broker):
                self.forget(connection_id)
        known = self.get(key)
        if isinstance(known, kind):
            return known
        with brokers.lend(connection_id, use, turn_seconds) as broker:
            # Another request may have computed the answer while this one waited for its turn.
            known = self.get(key)
            if isinstance(known, kind):
                return known
            with self._lock:
                acts = self._acts[connection_id]
            began = time.monotonic()
            answer = compute(broker)
            cost_seconds = time.monotonic() - began
            if not is_read(answer):
                longest_seconds = min(longest_seconds, _LONGEST_UNREAD_SECONDS)
            self.put(key, answer, cost_seconds, longest_seconds, acts)
        return answer

    def newest(self, connection_id: str, key: tuple[Any, ...], kind: type[_Answer]) -> _Answer | None:
        """The newest answer there is, however old, but never one from before an act."""
        known = self.get((kind, connection_id, *key), even_old=True)
        return known if isinstance(known, kind) else None
