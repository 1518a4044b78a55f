"""The wheel's numbers in Airflow's metrics, from the stream of a connection.

If Airflow sends metrics (StatsD, Datadog or OpenTelemetry), the stream asks the broker for them once a
minute, in a thread of its own, so that neither the event loop nor a doorbell waits. Gauges give the present
state, and every triggerer sends them for each connection. Counters and the timer give the events since the
last report. Only one of all triggerers claims a report, so that they add up. Without metrics the broker is
not asked.

Each number goes out under one name with tags. As for Airflow's own metrics, ``[metrics] legacy_names_on``
adds a second name that contains the tags' values, for a StatsD that knows no tags.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk.configuration import conf
from airflow.sdk.observability import stats

from duewheel.store.operations.reporting import claim_report
from duewheel.triggers.wheel_stream import RINGS

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping

    from duewheel.store import Broker

log = logging.getLogger(__name__)

EVERY_SECONDS = 60.0
"""How often the broker is asked; a larger ``[duewheel] metrics_interval_seconds`` in Airflow's options makes
it rarer."""

CLAIMED_AFTER = 0.9
"""The share of that time after which a triggerer may claim the report. It is below 1, since the clocks of two
triggerers may differ."""


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

    async def keep_reporting(self, broker: Broker) -> None:
        """Report again and again until cancelled; an error is logged and does not end the reporting."""
        while True:
            rings = RINGS.taken(self._conn_id)
            try:
                await asyncio.to_thread(self._report, broker, rings)
            except Exception:  # an error of the metrics must not stop the wheel
                log.exception(
                    "The metrics of connection %s failed this time; trying again in %g s",
                    self._conn_id,
                    self._every_seconds,
                )
            await asyncio.sleep(self._every_seconds)

    def turning(self, turns: bool) -> None:
        """Report whether this process turns a wheel. The call blocks, so it is not for the event loop."""
        self._gauge("wheel.turning", int(turns))

    def _report(self, broker: Broker, rings: Counter[tuple[str, str]]) -> None:
        self.turning(True)
        for (topic, group), count in rings.items():
            self._count("rings", count, topic=topic, group=group)
        for found in broker.stats().topics:
            self._gauge("waiting", found.waiting, topic=found.topic)
            for reader in found.groups:
                names = {"topic": found.topic, "group": reader.group}
                self._gauge("ready", reader.ready, **names)
                self._gauge("inflight", reader.inflight, **names)
                self._gauge("retries", reader.waiting_retry, **names)
                self._gauge("dead_letters", reader.dead, **names)
                self._gauge("paused", int(reader.paused_at is not None), **names)
        report = claim_report(broker, timedelta(seconds=CLAIMED_AFTER * self._every_seconds))
        if report is None:
            return
        for released in report.released:
            if not released.exact:
                log.warning(
                    "The %d messages released of topic %s are an estimate: counting took too long",
                    released.messages,
                    released.topic,
                )
            self._count("released", released.messages, topic=released.topic)
            for late in released.late:
                self._send(stats.timing, "lateness", late, topic=released.topic)
        for expired in report.expired:
            self._count("expired_leases", expired.leases, topic=expired.topic, group=expired.group)

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
    """The name with the tags' values in it; dots stand only between values, never inside one.

    Example:
        >>> dotted("duewheel.waiting", {"connection": "shop", "topic": "order.timeout"})
        'duewheel.waiting.shop.order__timeout'
    """
    parts = (stats.normalize_name_for_stats(value, log_warning=False) for value in tags.values())
    return ".".join((name, *(part.replace(".", "__") for part in parts)))
