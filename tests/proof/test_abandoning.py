"""Whatever groups do, one loses messages only after abandoned_after, past retention, and counted."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest
from tests.acting import DAY, HOUR, SECOND
from tests.clock import NOW, Clock
from tests.conftest import drop_database

from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.store.broker import Broker

RETENTION = 2 * DAY
ABANDONED_AFTER = 4 * DAY
GROUPS = ("quick", "slow")
RUNS = 8
STEPS = 25


def chosen(random: Random) -> tuple[Any, ...]:
    """One step. The slow group is away for days, and either may be paused at times."""
    step = random.choices(["send", "rest", "take", "pause", "resume"], [8, 8, 8, 1, 2])[0]
    group = random.choices(GROUPS, [9, 1])[0]
    if step == "send":
        return step, random.randint(1, 6), random.choice([0, 1, 30])
    if step == "rest":
        return step, random.choice([1, 10, 30, 60])
    if step == "take":
        return step, group, random.randint(1, 9), random.choice(["ack", "nack", "keep"])
    return step, random.choice(GROUPS)


class Run:
    """One topic, two groups, and what each has still to finish."""

    def __init__(self, dsn: str, message_type: str) -> None:
        self.clock = Clock(NOW, dsn)
        self.broker = Broker(dsn, clock=self.clock)
        self.is_fifo = message_type == "FIFO"
        self.broker.create_topic(
            "t", message_type=message_type, queues=2, max_delay=90 * DAY, retention=RETENTION
        )
        self.consumers = {group: self.broker.consumer("t", group) for group in GROUPS}
        self.broker.maintain()
        self.broker.update_settings(abandoned_after=ABANDONED_AFTER)
        self.sent = 0
        #: What has been done, for the report of a failure.
        self.steps: list[tuple[Any, ...]] = []
        #: For each group what it has not acked: the body, and when it was due.
        self.open: dict[str, dict[bytes, datetime]] = {group: {} for group in GROUPS}
        self.lost = dict.fromkeys(GROUPS, 0)
        #: Since when, at the latest, a group may have been idle.
        self.active_at = dict.fromkeys(GROUPS, NOW)
        self.holding: set[str] = set()
        self.paused: set[str] = set()

    def send(self, messages: int, hours: int) -> None:
        rows: list[dict[str, Any]] = []
        for _ in range(messages):
            self.sent += 1
            body = b"%d" % self.sent
            delay = timedelta(0) if self.is_fifo else hours * HOUR
            rows.append(
                {
                    "body": body,
                    **({"message_group": f"{self.sent % 3}"} if self.is_fifo else {"delay": delay}),
                }
            )
            for group in GROUPS:
                self.open[group][body] = self.clock() + delay
        self.broker.send_many("t", rows)

    def take(self, group: str, most: int, how: str) -> int:
        self.clock.advance(SECOND)
        batch = self.consumers[group].receive(max_messages=most, invisible=HOUR)
        if not batch:
            return 0
        self.active_at[group] = self.clock()
        if how == "ack":
            self.consumers[group].ack(batch)
            for message in batch:
                # Each comes again at most until it is acked, and nothing that was lost does.
                del self.open[group][message.body]
        elif how == "nack":
            self.consumers[group].nack(batch, delay=HOUR)
        else:
            self.holding.add(group)
        return len(batch)

    def pause(self, group: str) -> None:
        self.broker.pause_group(group)
        self.paused.add(group)

    def resume(self, group: str) -> None:
        if self.broker.resume_group(group):
            self.active_at[group] = self.clock()
        self.paused.discard(group)

    def rest(self, hours: int) -> None:
        """Time passes; then a wheel turns, and upkeep is done twice."""
        self.clock.advance(hours * HOUR)
        for _ in range(2):
            self.broker.tick("t")
            # Leases that end count as something that the group has done.
            self.active_at.update(dict.fromkeys(self.holding, self.clock()))
            self.holding.clear()
            self.upkeep()
            self.clock.advance(HOUR)
        self.everything_was_passed_over()

    def upkeep(self) -> None:
        for warning in self.broker.maintain().warnings:
            if found := re.search(r"group (\w+) .*it has lost (\d+) ", warning):
                group, lost = found[1], int(found[2])
                self.lost[group] += lost
                now = self.clock()
                assert group not in self.paused, self.steps
                assert self.active_at[group] + ABANDONED_AFTER <= now, self.steps
                past = sum(due + RETENTION <= now for due in self.open[group].values())
                assert self.lost[group] <= past, self.steps

    def everything_was_passed_over(self) -> None:
        now = self.clock()
        for found in self.broker.stats().topics[0].groups:
            since = self.active_at[found.group]
            if found.group not in self.paused and since + ABANDONED_AFTER + 3 * HOUR <= now:
                assert found.kept_messages == 0, self.steps

    def end(self) -> None:
        """All that is left is taken; the rest is what was lost."""
        for group in GROUPS:
            self.resume(group)
            for _ in range(40):
                while self.take(group, 100, "ack"):
                    pass
                self.clock.advance(HOUR)
                self.broker.tick("t")
            assert len(self.open[group]) == self.lost[group], self.steps


@pytest.mark.slow
@pytest.mark.parametrize("message_type", ["DELAY", pytest.param("FIFO", marks=pytest.mark.long)])
def test_d09_what_a_group_loses_is_counted_and_was_past_its_time(
    postgres: EmbeddedPostgres, fresh_database: Callable[[], tuple[str, str]], message_type: str
) -> None:
    losses = 0
    for seed in range(RUNS):
        random = Random(seed)
        name, dsn = fresh_database()
        run = Run(dsn, message_type)
        try:
            for _ in range(STEPS):
                step, *given_to_it = chosen(random)
                run.steps.append((step, *given_to_it))
                getattr(run, step)(*given_to_it)
            run.end()
        finally:
            run.broker.close()
            drop_database(postgres, name)
        losses += sum(run.lost.values())
    assert losses > 40, "the steps leave too little to lose"
