"""FIFO topics against a model of them, under a clock that also steps back (D10, R07).

Hypothesis plays two consumers of one group, a sender, a second sender whose transaction stays open for a
while, and crashes: handles that are lost. After every receive the model says whether each message was allowed
to come, and, where the batch had room for everything, whether all came that had to. At the end the clock runs
ahead, everything is received and acked, and nothing may be missing.

The number of runs is small and the same every time. ``DUEWHEEL_MODEL_EXAMPLES=2000`` plays so many new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg2
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.clock import Clock
from tests.conftest import execute
from tests.proof.fifo_model import INTERVAL, Lease, Message, State, Subscription
from tests.proof.playing import play
from tests.waiting import ask

from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.store.broker import Broker
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.values.errors import LeaseLost
from duewheel.store.values.messages import Message as Received
from duewheel.store.values.messages import RecallOutcome, SendReceipt

BEGINNING = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
MAX_RETRIES = 2
ROOM_FOR_ALL = 1_000
CHOICE = st.integers(0, 1_000)
MESSAGE_GROUPS = st.sampled_from("aaabcd")
STEPS = st.sampled_from(
    [
        MICROSECOND,
        timedelta(milliseconds=1),
        INTERVAL,
        10 * INTERVAL,
        timedelta(minutes=1),
        timedelta(hours=2),
    ]
)
SPANS = st.sampled_from([timedelta(seconds=s) for s in (1, 10, 60)])
DELAYS = st.sampled_from([None, None, timedelta(0), timedelta(seconds=5), timedelta(minutes=5)])


class FifoAgainstModel(RuleBasedStateMachine):
    """One run; the database is made by `make_database` and removed by `drop_database`."""

    def __init__(
        self, make_database: Callable[[], tuple[str, str]], drop_database: Callable[[str], None]
    ) -> None:
        super().__init__()
        self.database, self.dsn = make_database()
        self.drop_database = drop_database
        self.clock = Clock(BEGINNING)
        self.broker = Broker(self.dsn, clock=self.clock)
        self.sender: Any = None
        self.model = Subscription(MAX_RETRIES)
        self.leases: dict[tuple[int, int], Lease] = {}
        #: Received and not forgotten: messages under one lease each.
        self.hands: list[tuple[Lease, list[Received]]] = []
        #: Sent by the transaction that is still open.
        self.uncommitted: list[Message] = []
        self.step = 0
        self.sent = 0

    @property
    def now(self) -> datetime:
        return self.clock()

    def count(self) -> int:
        """The next step: what happens at one step happens at once."""
        self.step += 1
        return self.step

    @initialize(queues=st.sampled_from([1, 2]))
    def set_up(self, queues: int) -> None:
        self.broker.create_topic("steps", message_type="FIFO", queues=queues)
        self.consumers = [self.broker.consumer("steps", "g", "red") for _ in range(2)]
        execute(self.dsn, f"update duewheel.consumer_group set ordered_max_retries = {MAX_RETRIES}")

    # --- time

    @rule(step=STEPS)
    def clock_forward(self, step: timedelta) -> None:
        self.clock.advance(step)

    @rule(step=STEPS)
    def clock_back(self, step: timedelta) -> None:
        self.clock.advance(-step)

    @rule()
    def upkeep(self) -> None:
        if self.sender is None:
            self.broker.maintain()
            self.observe_expiries()

    @rule()
    def tick(self) -> None:
        """Releases what nobody receives yet, and ends leases whose time is over."""
        self.broker.tick("steps")
        self.observe_expiries()

    # --- sending

    def accepted(self, receipt: SendReceipt, message_group: str, sent: int, place: int) -> Message:
        return Message(receipt.message_id, message_group, receipt.deliver_at, sent, sent, place)

    def content(self, message_group: str, tag: str | None) -> dict[str, Any]:
        self.sent += 1
        return {"body": f"{message_group}{self.sent}", "message_group": message_group, "tag": tag}

    @rule(message_group=MESSAGE_GROUPS, tag=st.sampled_from(["red", "red", "red", "blue", None]))
    def send(self, message_group: str, tag: str | None) -> None:
        receipt = self.broker.send("steps", **self.content(message_group, tag))
        if tag == "red":
            self.model.messages.append(self.accepted(receipt, message_group, self.count(), 0))

    @rule(message_groups=st.lists(MESSAGE_GROUPS, min_size=2, max_size=8))
    def send_many(self, message_groups: list[str]) -> None:
        receipts = self.broker.send_many("steps", [self.content(name, "red") for name in message_groups])
        sent = self.count()
        for place, (receipt, name) in enumerate(zip(receipts, message_groups, strict=True)):
            self.model.messages.append(self.accepted(receipt, name, sent, place))

    @rule(message_group=MESSAGE_GROUPS)
    def send_and_recall(self, message_group: str) -> None:
        receipt = self.broker.send("steps", **self.content(message_group, "red"))
        assert self.broker.recall(receipt.message_id).outcome is RecallOutcome.RECALLED

    @rule(message_group=MESSAGE_GROUPS)
    def send_slowly(self, message_group: str) -> None:
        """In the transaction that stays open."""
        if self.sender is None:
            self.sender = psycopg2.connect(self.dsn)
        receipt = self.broker.send("steps", **self.content(message_group, "red"), connection=self.sender)
        self.uncommitted.append(self.accepted(receipt, message_group, self.count(), 0))

    @precondition(lambda self: self.uncommitted)
    @rule(commits=st.sampled_from([True, True, True, False]))
    def end_slow_send(self, commits: bool) -> None:
        if commits:
            self.sender.commit()
            committed = self.count()
            for message in self.uncommitted:
                message.committed = committed
                self.model.messages.append(message)
        else:
            self.sender.rollback()
        self.uncommitted = []
        self.sender.close()
        self.sender = None

    # --- consuming

    @rule(who=st.integers(0, 1), most=st.sampled_from([1, 2, 3, 5, ROOM_FOR_ALL]), invisible=SPANS)
    def receive(self, who: int, most: int, invisible: timedelta) -> None:
        batch = self.consumers[who].receive(most, invisible)
        assert len(batch) <= most
        self.observe_expiries()
        obtainable = self.model.obtainable(self.now)
        by_identity = {message.identity: message for message in self.model.messages}
        brought = [by_identity[message.message_id] for message in batch]
        if most == ROOM_FOR_ALL:
            missing = [message for message in obtainable if message not in brought]
            assert not missing, f"{missing} could have come"
        elif obtainable:
            assert brought, f"nothing came of {obtainable}"
        by_lease: dict[tuple[int, int], list[Received]] = {}
        for message in batch:
            by_lease.setdefault((message.lease.queue, message.lease.n), []).append(message)
        for place, received in by_lease.items():
            lease = self.model.take(
                [by_identity[message.message_id] for message in received],
                [message.attempt for message in received],
                self.now + invisible,
                self.now,
            )
            self.leases[place] = lease
            self.hands.append((lease, received))

    def observe_expiries(self) -> None:
        with self.broker.connection() as connection:
            ended = ask(connection, "select queue, n from duewheel.lease_event where kind = 'expired'")
        for place in ended:
            lease = self.leases[place]
            if not lease.final:
                assert lease.ends_at <= self.now, "a lease was ended while it was live"
                self.model.expire(lease, self.now)

    @rule(pauses=st.sampled_from([True, False, False]))
    def pause_or_resume(self, pauses: bool) -> None:
        act = self.broker.pause_group if pauses else self.broker.resume_group
        assert act("g") == (self.model.is_paused is not pauses)
        self.model.is_paused = pauses

    def answer(
        self, choice: int, mask: int, said: str, call: Callable[[Consumer, list[Received]], None]
    ) -> tuple[Lease, list[Message]] | None:
        """Answer some of what one hand holds, and compare what came of it; what had no answer before."""
        if not self.hands:
            return None
        lease, received = self.hands[choice % len(self.hands)]
        chosen = [message for place, message in enumerate(received) if mask >> (place % 10) & 1] or received
        named = {message.message_id for message in chosen}
        if lease.takes(named, said if said != "returned" else None, self.now):
            call(self.consumers[1], chosen)
            # Whoever names all of a lease answers what is left of it.
            return lease, [message for message in lease.unanswered() if message.identity in named]
        with pytest.raises(LeaseLost):
            call(self.consumers[0], chosen)
        return None

    @rule(choice=CHOICE, mask=CHOICE)
    def ack(self, choice: int, mask: int) -> None:
        if given := self.answer(choice, mask, "acked", lambda c, received: c.ack(received)):
            self.model.ack(*given)

    @rule(choice=CHOICE, mask=CHOICE, delay=DELAYS)
    def nack(self, choice: int, mask: int, delay: timedelta | None) -> None:
        if given := self.answer(choice, mask, "failed", lambda c, received: c.nack(received, delay)):
            self.model.fail(*given, self.now + (INTERVAL if delay is None else delay))

    @rule(choice=CHOICE, mask=CHOICE)
    def give_back(self, choice: int, mask: int) -> None:
        if given := self.answer(choice, mask, "returned", lambda c, received: c.give_back(received)):
            self.model.fail(*given, None)

    @rule(choice=CHOICE, duration=SPANS)
    def extend(self, choice: int, duration: timedelta) -> None:
        if not self.hands:
            return
        lease, received = self.hands[choice % len(self.hands)]
        if lease.is_live(self.now) and lease.unanswered():
            self.consumers[0].change_invisible_duration(received, duration)
            lease.ends_at = self.now + duration
        else:
            self.refused("change_invisible_duration", received, duration)

    def refused(self, action: str, received: list[Received], *more: object) -> None:
        with pytest.raises(LeaseLost):
            getattr(self.consumers[0], action)(received, *more)

    @rule(choice=CHOICE)
    def crash(self, choice: int) -> None:
        """A consumer forgets what it had."""
        if self.hands:
            self.hands.pop(choice % len(self.hands))

    # --- the end

    def teardown(self) -> None:
        try:
            if self.sender is not None:
                self.sender.close()
            if self.model.messages:
                self.drain()
        finally:
            self.broker.close()
            self.drop_database(self.database)

    def drain(self) -> None:
        """Everything comes in the end."""
        self.pause_or_resume(False)
        self.clock.set(max(self.now, BEGINNING) + timedelta(days=1))
        for _ in range(MAX_RETRIES + 3):
            self.receive(0, ROOM_FOR_ALL, timedelta(seconds=60))
            for lease, received in self.hands:
                if lease.is_live(self.now) and lease.unanswered():
                    left = {message.identity for message in lease.unanswered()}
                    chosen = [message for message in received if message.message_id in left]
                    self.consumers[0].ack(chosen)
                    self.model.ack(lease, lease.unanswered())
            self.clock.advance(timedelta(days=1))
        states = {message.state for message in self.model.messages}
        assert states <= {State.DONE, State.DEAD}, "something did not come"
        dead = {message.identity for message in self.model.messages if message.state is State.DEAD}
        assert {letter.message_id for letter in self.broker.dead_letters("g", max_messages=1000)} == dead
        with self.broker.connection() as connection:
            assert ask(connection, "select count(*) from duewheel.fifo_backlog") == [(0,)]


@pytest.mark.slow
@pytest.mark.tenfold
def test_a_fifo_topic_does_what_the_model_does(
    postgres: EmbeddedPostgres, fresh_database: Callable[[], tuple[str, str]]
) -> None:
    play(FifoAgainstModel, postgres, fresh_database, steps=50)
