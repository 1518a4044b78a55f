"""The wheel's numbers in Airflow's metrics, from the stream of a connection.

If Airflow sends metrics (StatsD, Datadog or OpenTelemetry), the stream asks the broker for them once a
minute, in a separate thread, so that neither the event loop nor a doorbell waits. Gauges give the present
state, and every triggerer sends them for each connection. Counters and the timer give the events since the
last report. Only one triggerer claims each report, so the counts add up. A triggerer whose login may not
turn a wheel reports whether another program does. Without metrics the broker is not asked.

Each number is sent under one name with tags. As for Airflow's own metrics, ``[metrics] legacy_names_on``
adds a second name that contains the tags' values, for a StatsD without tags.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk.configuration import conf
from airflow.sdk.observability import stats

from duewheel.store.metrics.metering import measured
from duewheel.triggers.watched_groups import RINGS, WATCHED

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping

    from duewheel.store import Broker

log = logging.getLogger(__name__)

EVERY_SECONDS = 60.0
"""How often the broker is asked; a larger ``[duewheel] metrics_interval_seconds`` in Airflow's options makes
it rarer."""

_CALLS = {"gauge": "gauge", "count": "incr", "timing": "timing"}


class Metrics:
    """The metrics of one connection.

    Args:
        conn_id: the connection.
    """

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id
        asked_seconds = conf.getfloat("duewheel", "metrics_interval_seconds", fallback=EVERY_SECONDS)
        self._every_seconds = max(asked_seconds, EVERY_SECONDS)
        self._with_dotted = conf.getboolean("metrics", "legacy_names_on", fallback=True)
        self._told_of: frozenset[tuple[str, str]] = frozenset()

    async def keep_reporting(self, broker: Broker, turns: bool = True) -> None:
        """Report again and again until cancelled; an error is logged and does not end the reporting.

        Args:
            broker: the broker.
            turns: whether this process turns a wheel.
        """
        while True:
            rings = RINGS.taken(self._conn_id)
            await self.report_watchers()
            try:
                await asyncio.to_thread(self._report, broker, rings, turns)
            except Exception:  # an error of the metrics must not stop the wheel
                log.exception(
                    "The metrics of connection %s failed this time; trying again in %g s",
                    self._conn_id,
                    self._every_seconds,
                )
            await asyncio.sleep(self._every_seconds)

    async def report_watchers(self) -> None:
        """Report how many watchers of each group cannot ring."""
        failing = WATCHED.failing(self._conn_id)
        try:
            await asyncio.to_thread(self._report_failing, failing)
        except Exception:  # as above
            log.exception("The watchers of connection %s could not be reported this time", self._conn_id)

    def forget_watchers(self) -> None:
        """Reset the numbers of watchers that no longer exist."""
        self._report_failing({})

    def _report_failing(self, failing: Mapping[tuple[str, str], int]) -> None:
        for topic, group in self._told_of - failing.keys():
            self._gauge("watchers.failing", 0, topic=topic, group=group)
        self._told_of = frozenset(failing)
        for (topic, group), count in failing.items():
            self._gauge("watchers.failing", count, topic=topic, group=group)

    def turning(self, turns: bool) -> None:
        """Report whether this process turns a wheel. The call blocks, so it is not for the event loop."""
        self._gauge("wheel.turning", int(turns))

    def _report(self, broker: Broker, rings: Counter[tuple[str, str]], turns: bool = True) -> None:
        for (topic, group), count in rings.items():
            self._count("rings", count, topic=topic, group=group)
        for kind, name, value, tags in measured(broker, timedelta(seconds=self._every_seconds), turns=turns):
            if value or kind != "count":
                self._send(getattr(stats, _CALLS[kind]), name, value, **tags)

    def _count(self, name: str, count: int, **tags: str) -> None:
        if count:
            self._send(stats.incr, name, count, **tags)

    def _gauge(self, name: str, value: int, **tags: str) -> None:
        self._send(stats.gauge, name, value, **tags)

    def _send(self, send: Callable[..., None], name: str, value: int | timedelta, **tags: str) -> None:
        tagged = {"connection": self._conn_id, **tags}
        send(f"duewheel.{name}", value, tags=tagged)
        if self._with_dotted:
            send(dotted(f"duewheel.{name}", tagged), value)


def dotted(name: str, tags: Mapping[str, str]) -> str:
    """The name with the tags' values in it; dots are only between values, never inside one.

    Example:
        >>> dotted("duewheel.waiting", {"connection": "shop", "topic": "order.timeout"})
        'duewheel.waiting.shop.order__timeout'
    """
    parts = (stats.normalize_name_for_stats(value, log_warning=False) for value in tags.values())
    return ".".join((name, *(part.replace(".", "__") for part in parts)))
