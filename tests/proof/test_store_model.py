"""The whole store against a model of it, under a clock that also steps back (design: invariants).

Hypothesis plays a user with two topics, four consumer groups, a transaction that stays open for a while, and
a bad sense of time. After each call the answer is compared with the model's; at the end the clock runs far
ahead, everything is received and acked, and each group must have had exactly what the model says.

The number of runs is small and the same every time. ``DUEWHEEL_MODEL_EXAMPLES=2000`` plays so many new ones.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg2
import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.clock import BELIEVED_AFTER, Clock, believe
from tests.proof.playing import play
from tests.proof.store_model import (
    DAY,
    HOUR,
    MICROSECOND,
    Copy,
    Lease,
    Message,
    State,
    Topic,
    fail,
    give_back,
    slot_of,
)
from tests.upkeeping import only

from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.store.broker import Broker
from duewheel.store.consuming import consumer as consumer_module
from duewheel.store.database.prepared import Prepared
from duewheel.store.values.errors import AlreadyReleased, DelayOutOfRange, LeaseLost, UnknownMessage
from duewheel.store.values.messages import Message as Received
from duewheel.store.values.messages import RecallOutcome, RecallReceipt, SendOutcome, SendReceipt
from duewheel.store.wheel.upkeep import STEP

BEGINNING = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
MAX_DELAY = 2 * HOUR
#: The messages of one topic outlive the slots that the other would drop.
RETENTIONS = {"one": 5 * HOUR, "three": 20 * HOUR}
MAX_RETRIES = 2
EVERYTHING: frozenset[str] | None = None

ZERO = timedelta(0)
DELAYS = st.one_of(
    st.sampled_from(
        [
            *(timedelta(days=-1), -MICROSECOND, ZERO, MICROSECOND, timedelta(milliseconds=1)),
            *(timedelta(seconds=1), timedelta(minutes=30), HOUR, MAX_DELAY, MAX_DELAY + MICROSECOND),
        ]
    ),
    st.integers(-2_000, 7_200_000).map(lambda ms: timedelta(milliseconds=ms)),
)
STEPS = st.sampled_from(
    [
        *(MICROSECOND, timedelta(milliseconds=1), timedelta(seconds=1), timedelta(seconds=10)),
        *(timedelta(minutes=1), timedelta(minutes=30), HOUR, 3 * HOUR, timedelta(days=1)),
    ]
)
TOPICS = st.sampled_from(["one", "three"])
GROUPS = st.sampled_from(["all", "some"])
KEYS = st.sampled_from([None, "k1", "k2"])
TAGS = st.sampled_from([None, "red", "blue", "green"])
IDEMPOTENCY_KEYS = st.sampled_from([None, None, None, "i1", "i2"])
CONFLICTS = st.sampled_from(["allow", "allow", "keep", "replace"])
SPANS = st.sampled_from([timedelta(seconds=s) for s in (1, 2, 10, 60, 3600)])
CHOICE = st.integers(0, 1_000)
#: Mostly the groups read.
PAUSES = st.sampled_from([True, False, False])


class StoreAgainstModel(RuleBasedStateMachine):
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
        self.sent = 0
        self.leases: dict[tuple[int, ...], Lease] = {}
        #: What was received and not forgotten yet: topic, group and the messages of one receive.
        self.hands: list[tuple[Topic, str, list[Received]]] = []
        self.topics: dict[str, Topic] = {}
        self.consumers: dict[tuple[str, str], Any] = {}
        self.retry_topics: dict[tuple[str, str], int] = {}
        #: The instant that a retry sent by the next call is due at, at the latest, if it is due at once.
        self.floors_before: dict[tuple[str, str], datetime] = {}

    @property
    def now(self) -> datetime:
        return self.clock()

    @initialize()
    def set_up(self) -> None:
        for name, queues, policy in (("one", 1, "reject"), ("three", 3, "deliver")):
            self.broker.create_topic(
                name, queues=queues, max_delay=MAX_DELAY, out_of_range=policy, retention=RETENTIONS[name]
            )
            tags = {"all": EVERYTHING, "some": frozenset({"red", "blue"})}
            self.topics[name] = Topic(
                name, queues, MAX_DELAY, RETENTIONS[name], policy == "reject", MAX_RETRIES, tags
            )
            for group, expression in (("all", "*"), ("some", "red || blue")):
                consumer = self.broker.consumer(name, group, expression)
                # Often a queue that there is, which receive_few then takes for the one it stays in.
                consumer._next_source = itertools.cycle(range(4))
                self.consumers[name, group] = consumer
                ((number,),) = self.ask(
                    "select retry_topic_id from duewheel.subscription where group_id = %s and topic_id = %s",
                    (consumer.group_id, consumer.topic_id),
                )
                self.retry_topics[name, group] = number
        self.ask("update duewheel.consumer_group set max_retries = %s", (MAX_RETRIES,))
        # Each look at a key marks what is over.
        self.ask("create or replace function duewheel.key_mark_after() returns integer return 0")
        self.broker.maintain()

    # --- time

    @rule(step=STEPS)
    def clock_forward(self, step: timedelta) -> None:
        self.clock.advance(step)

    @rule(choice=CHOICE, early=st.sampled_from([ZERO, MICROSECOND]))
    def clock_to_something(self, choice: int, early: timedelta) -> None:
        """To the instant of something that waits, or just before it."""
        ahead = sorted({i for topic in self.topics.values() for i in topic.next_instants(self.now)})
        if ahead:
            self.clock.set(max(self.now, ahead[choice % len(ahead)] - early))

    @rule(step=STEPS)
    def clock_back(self, step: timedelta) -> None:
        self.clock.advance(-step)

    # --- sending

    @rule(
        name=TOPICS, delay=DELAYS, absolute=st.sampled_from(["no", "exact", "hour"]), key=KEYS, tag=TAGS,
        idempotency_key=IDEMPOTENCY_KEYS, on_conflict=CONFLICTS,
    )  # fmt: skip
    def send(
        self, name: str, delay: timedelta, absolute: str, key: str | None, tag: str | None,
        idempotency_key: str | None, on_conflict: str,
    ) -> None:  # fmt: skip
        topic = self.topics[name]
        if key is None:
            on_conflict = "allow"
        asked, when = self.asked(delay, absolute)
        body = self.new_body()

        def call() -> SendReceipt:
            return self.broker.send(
                name, body, **when, key=key, tag=tag,
                idempotency_key=idempotency_key, on_conflict=on_conflict,
            )  # fmt: skip

        known = topic.idempotency.get(idempotency_key or "")
        if topic.rejects and topic.is_out_of_range(asked, self.now):
            with pytest.raises(DelayOutOfRange):
                call()
            return
        receipt = call()
        if known is not None and (known[1] > self.now or receipt.outcome is SendOutcome.DUPLICATE):
            # Once its time is over the broker may have forgotten the key.
            assert receipt.outcome is SendOutcome.DUPLICATE
            assert receipt.message_id == known[0].identity
            return
        expected = SendOutcome.SENT
        if on_conflict != "allow":
            waiting = [m for m in topic.of_key(str(key)) if topic.is_waiting(m)]
            if waiting and on_conflict == "keep":
                assert receipt.outcome is SendOutcome.KEPT
                assert receipt.message_id == waiting[0].identity
                if idempotency_key is not None:
                    forgotten_at = topic.delivery(asked, self.now) + topic.retention
                    topic.idempotency[idempotency_key] = (waiting[0], forgotten_at)
                return
            for message in waiting:
                message.recalled = True
                message.replaced_by = receipt.message_id
                expected = SendOutcome.REPLACED
        assert receipt.outcome is expected, receipt
        message = self.accepted(topic, receipt, asked, body, key, tag)
        if idempotency_key is not None:
            topic.idempotency[idempotency_key] = (message, message.deliver_at + topic.retention)

    @rule(name=TOPICS, wanted=st.lists(st.tuples(DELAYS, KEYS, TAGS), min_size=1, max_size=5))
    def send_many(self, name: str, wanted: list[tuple[timedelta, str | None, str | None]]) -> None:
        topic = self.topics[name]
        messages = [
            {"body": self.new_body(), "delay": delay, "key": key, "tag": tag} for delay, key, tag in wanted
        ]
        if topic.rejects and any(topic.is_out_of_range(self.now + delay, self.now) for delay, _, _ in wanted):
            with pytest.raises(DelayOutOfRange):
                self.broker.send_many(name, messages)
            return
        receipts = self.broker.send_many(name, messages)
        assert len(receipts) == len(messages)
        for receipt, message, (delay, key, tag) in zip(receipts, messages, wanted, strict=True):
            self.accepted(topic, receipt, self.now + delay, bytes(message["body"]), key, tag)  # type: ignore[arg-type]

    @rule(name=TOPICS, delay=st.one_of(DELAYS.filter(lambda delay: delay <= MAX_DELAY)), tag=TAGS)
    def send_in_open_transaction(self, name: str, delay: timedelta, tag: str | None) -> None:
        """Leaves the transaction open: its messages are due before anybody can see them."""
        topic = self.topics[name]
        asked = self.now + delay
        if self.sender is None:
            self.sender = psycopg2.connect(self.dsn)
        body = self.new_body()
        receipt = self.broker.send(name, body, delay=delay, tag=tag, connection=self.sender)
        self.accepted(topic, receipt, asked, body, None, tag, committed=False)

    @precondition(lambda self: self.sender is not None)
    @rule(commits=st.booleans())
    def end_open_transaction(self, commits: bool) -> None:
        if commits:
            self.sender.commit()
        else:
            self.sender.rollback()
        self.sender.close()
        self.sender = None
        for topic in self.topics.values():
            if commits:
                for message in topic.messages.values():
                    message.committed = True
            topic.forget_uncommitted()

    # --- recalling

    @rule(name=TOPICS, choice=CHOICE)
    def recall(self, name: str, choice: int) -> None:
        topic = self.topics[name]
        message = self.pick(topic, choice)
        if message is None:
            return
        answer = self.broker.recall(message.identity)
        message = message.present
        if not message.committed or message.dropped:
            assert answer == RecallReceipt(RecallOutcome.NOT_FOUND, None)
        elif topic.is_waiting(message):
            assert answer == RecallReceipt(RecallOutcome.RECALLED, message.identity)
            message.recalled = True
        elif message.replaced_by is not None:
            assert answer == RecallReceipt(RecallOutcome.REPLACED, message.replaced_by)
        elif message.recalled:
            # It is true whoever asks.
            assert answer == RecallReceipt(RecallOutcome.RECALLED, message.identity)
        else:
            assert answer == RecallReceipt(RecallOutcome.ALREADY_RELEASED, message.identity)

    @rule(name=TOPICS, key=KEYS.filter(bool))
    def recall_key(self, name: str, key: str) -> None:
        topic = self.topics[name]
        found = topic.of_key(key)
        waiting = [message for message in found if topic.is_waiting(message)]
        released = [message for message in found if message not in waiting and not message.recalled]
        answer = self.broker.recall_key(name, key)
        assert answer.recalled == len(waiting)
        assert bool(answer.already_released) == bool(released)
        if released:
            assert answer.outcome is RecallOutcome.ALREADY_RELEASED
        elif waiting:
            assert answer.outcome is RecallOutcome.RECALLED
        elif not found:
            assert answer.outcome is RecallOutcome.NOT_FOUND
        for message in waiting:
            message.recalled = True

    @rule(name=TOPICS, choice=CHOICE, delay=DELAYS)
    def reschedule(self, name: str, choice: int, delay: timedelta) -> None:
        topic = self.topics[name]
        known = self.pick(topic, choice)
        if known is None:
            return
        asked = self.now + delay
        message = known.present
        if not message.committed or message.dropped or message.recalled:
            with pytest.raises(UnknownMessage):
                self.broker.reschedule(known.identity, delay=delay)
        elif not topic.is_waiting(message):
            with pytest.raises(AlreadyReleased):
                self.broker.reschedule(known.identity, delay=delay)
        elif topic.rejects and topic.is_out_of_range(asked, self.now):
            with pytest.raises(DelayOutOfRange):
                self.broker.reschedule(known.identity, delay=delay)
        else:
            receipt = self.broker.reschedule(known.identity, delay=delay)
            message.recalled = True
            message.moved_to = self.accepted(topic, receipt, asked, message.body, message.key, message.tag)

    @rule(name=TOPICS, tag=TAGS, prefix=st.sampled_from([None, "k", "k2"]), dry_run=st.booleans())
    def recall_many(self, name: str, tag: str | None, prefix: str | None, dry_run: bool) -> None:
        topic = self.topics[name]
        criteria = {"tag": tag, "key_prefix": prefix} if tag or prefix else {"everything": True}
        chosen = [
            message
            for message in topic.messages.values()
            if message.committed and not message.dropped and not message.recalled
            if tag is None or message.tag == tag
            if prefix is None or (message.key or "").startswith(prefix)
        ]
        waiting = [message for message in chosen if topic.is_waiting(message)]
        done = self.broker.recall_many(name, **criteria, dry_run=dry_run)
        assert done.matched == len(chosen)
        assert done.already_released == len(chosen) - len(waiting)
        assert done.recalled == (0 if dry_run else len(waiting))
        if not dry_run:
            for message in waiting:
                message.recalled = True

    # --- consuming

    @rule(name=TOPICS, group=GROUPS)
    def redrive(self, name: str, group: str) -> None:
        """Every dead letter that is kept goes out once more, with one attempt more."""
        topic = self.topics[name]
        floor = self.now
        kept = {
            letter.message_id: letter.attempt
            for letter in self.broker.dead_letters(group, topic=name, max_messages=1_000, redriven=False)
        }
        done = self.broker.redrive(group, topic=name)
        assert (done.matched, done.redriven) == (len(kept), len(kept))
        for identity, attempt in kept.items():
            message = topic.messages[identity]
            copy = message.copies[group]
            assert (copy.state, copy.attempt) == (State.DEAD, attempt)
            copy.state, copy.is_released, copy.attempt = State.RETRY, False, attempt + 1
            copy.due_at = self.due_of_retry(name, group, message, copy)
            earliest = max(self.now, message.born_at)
            assert earliest <= copy.due_at <= max(earliest, floor)
            copy.slots.add(slot_of(copy.due_at))

    @rule(name=TOPICS, group=GROUPS, most=st.sampled_from([1, 2, 3, 100]), invisible=SPANS)
    def receive(self, name: str, group: str, most: int, invisible: timedelta) -> None:
        self.received(name, group, most, invisible)

    def received(self, name: str, group: str, most: int, invisible: timedelta) -> list[Received]:
        topic = self.topics[name]
        now = self.now
        topic.tick(now)
        self.remember_floor(name, group)
        ready = {message.identity: message for message in topic.ready(group, now)}
        received = list(self.consumers[name, group].receive(most, invisible))
        self.observe_revivals(topic, group, now)
        topic.tick_retries(group, now)
        got = [message.message_id for message in received]
        note(f"received {len(got)} of {len(ready)} ready")
        assert len(set(got)) == len(got), "a message came twice in one receive"
        for message in received:
            self.check_received(topic, group, message, ready)
        missing = [message for identity, message in ready.items() if identity not in got]
        assert len(got) == min(most, len(ready)), f"ready and not given out: {missing}"
        firsts = [
            (m.queue, m.deliver_at, m.seq)
            for m in (topic.messages[message.message_id] for message in received)
            if m.copies[group].state is State.WAITING and not m.straggler
        ]
        for queue in range(topic.queues):
            places = [place for place in firsts if place[0] == queue]
            assert places == sorted(places), "a queue was not read in order of delivery"
        for message in received:
            handle = message.lease
            place = (handle.group_id, handle.topic_id, handle.queue, handle.n)
            assert handle.expires_at == now + invisible
            lease = self.leases.setdefault(place, Lease(handle.expires_at))
            lease.holds.append(message.message_id)
            copy = topic.messages[message.message_id].copies[group]
            copy.lease, copy.state = lease, State.INFLIGHT
            copy.deliveries += 1
        if received:
            self.hands.append((topic, group, received))
        return received

    def check_received(self, topic: Topic, group: str, received: Received, ready: dict[str, Message]) -> None:
        message = ready.get(received.message_id)
        if message is None:
            sent = topic.messages.get(received.message_id)
            raise AssertionError(f"what nobody may be given now was received: {received!r}, {sent}")
        copy = message.copies[group]
        assert copy.state in (State.WAITING, State.RETRY), "it is in somebody's hands"
        assert received.attempt == copy.attempt
        assert received.reconsume_times == copy.attempt - 1
        assert (received.body, received.key, received.tag) == (message.body, message.key, message.tag)
        is_first = copy.state is State.WAITING
        reached = topic.released_to if is_first else received.deliver_at
        assert reached is not None
        assert received.deliver_at <= reached
        assert received.deliver_at == (message.deliver_at if is_first else copy.due_at)

    @precondition(lambda self: self.hands)
    @rule(choice=CHOICE, part=st.integers(0, 7), whole=st.booleans(), skips=st.booleans())
    def ack(self, choice: int, part: int, whole: bool, skips: bool) -> None:
        self.acked(*self.hand(choice, part, whole), skips=skips)

    def acked(self, topic: Topic, group: str, messages: list[Received], *, skips: bool = False) -> None:
        def call(consumer: Any) -> None:
            consumer.skip(messages) if skips else consumer.ack(messages)

        for identity in self.answered(topic, group, messages, "ack", call):
            copy = topic.messages[identity].copies[group]
            copy.state, copy.lease = State.ACKED, None
            copy.skipped = skips

    @precondition(lambda self: self.hands)
    @rule(
        choice=CHOICE, part=st.integers(0, 7), whole=st.booleans(),
        delay=st.sampled_from([None, ZERO, timedelta(seconds=5), timedelta(minutes=30), HOUR]),
    )  # fmt: skip
    def nack(self, choice: int, part: int, whole: bool, delay: timedelta | None) -> None:
        topic, group, messages = self.hand(choice, part, whole)
        floor = self.now
        failed = self.answered(topic, group, messages, "nack", lambda c: c.nack(messages, delay, reason="no"))
        due_at = None if delay is None else self.now + delay
        copies = [topic.messages[identity].copies[group] for identity in failed]
        self.send_on(topic, copies, due_at, self.now, floor)

    @precondition(lambda self: self.hands)
    @rule(choice=CHOICE, part=st.integers(0, 7), whole=st.booleans())
    def dead_letter(self, choice: int, part: int, whole: bool) -> None:
        topic, group, messages = self.hand(choice, part, whole)
        failed = self.answered(
            topic, group, messages, "dead_letter", lambda c: c.dead_letter(messages, reason="no")
        )
        fail([topic.messages[one].copies[group] for one in failed], -1, None, self.now, self.now)

    @precondition(lambda self: self.hands)
    @rule(choice=CHOICE, part=st.integers(0, 7), whole=st.booleans())
    def give_back(self, choice: int, part: int, whole: bool) -> None:
        topic, group, messages = self.hand(choice, part, whole)
        floor = self.now
        returned = self.answered(
            topic, group, messages, "give_back", lambda c: c.give_back(messages, reason="no")
        )
        for message in (topic.messages[identity] for identity in returned):
            give_back([message.copies[group]], self.now, max(floor, message.born_at))

    @precondition(lambda self: self.hands)
    @rule(choice=CHOICE, duration=SPANS)
    def extend(self, choice: int, duration: timedelta) -> None:
        topic, group, messages = self.hand(choice, 0, True)
        leases = self.leases_of(group, topic, messages)
        consumer = self.consumers[topic.name, group]
        if all(lease.is_live(self.now) for lease in leases):
            consumer.change_invisible_duration(messages, duration)
            for lease in leases:
                lease.ends_at = self.now + duration
        else:
            with pytest.raises(LeaseLost):
                consumer.change_invisible_duration(messages, duration)

    @rule(name=st.sampled_from(["one", "three", None]), group=GROUPS, pauses=PAUSES)
    def pause_or_resume(self, name: str | None, group: str, pauses: bool) -> None:
        """On one topic or on both: it is a change where the group was not so before."""
        now = self.now
        changed = 0
        for topic in self.topics.values() if name is None else [self.topics[name]]:
            changed += (group in topic.paused_at) is not pauses
            if pauses:
                topic.paused_at.setdefault(group, now)
            else:
                topic.paused_at.pop(group, None)
        act = self.broker.pause_group if pauses else self.broker.resume_group
        assert act(group, topic=name) == changed
        for one in self.broker.groups():
            assert one.paused_at == self.topics[one.topic].paused_at.get(one.group)

    def answered(
        self, topic: Topic, group: str, messages: list[Received], kind: str, call: Callable[[Any], None]
    ) -> set[str]:
        """Give an answer and compare what came of it; the messages that had none before and have it now."""
        said = {"ack": "acked", "give_back": "returned"}.get(kind, "failed")
        leases = self.leases_of(group, topic, messages)
        named = {id(one): [m.message_id for m in messages if m.message_id in one.holds] for one in leases}
        repeats = said if kind in ("ack", "nack") else None
        consumer = self.consumers[topic.name, group]
        if not all(lease.takes(named[id(lease)], repeats, self.now) for lease in leases):
            with pytest.raises(LeaseLost):
                call(consumer)
            return set()
        call(consumer)
        answered: set[str] = set()
        for lease in leases:
            new = set(named[id(lease)]).intersection(lease.unanswered())
            answered |= new
            lease.answers.update(dict.fromkeys(new, said))
            if lease.final is None and not lease.unanswered():
                lease.final = said
        return answered

    # --- releasing and keeping order

    @rule(name=TOPICS, late_limit=st.sampled_from([1, 10_000]))
    def tick(self, name: str, late_limit: int) -> None:
        self.ask(f"create or replace function duewheel.late_limit() returns integer return {late_limit}")
        now, topic = self.now, self.topics[name]
        released = topic.tick(now)
        retry_topics = [topic_id for (topic, _), topic_id in self.retry_topics.items() if topic == name]
        for group in topic.groups:
            self.remember_floor(name, group)
        ticks = "select max(tick_id) from duewheel.tick where topic_id = any (%s)"
        before = self.ask(ticks, (retry_topics,))
        answer = self.broker.tick(name)
        # It ends leases and releases retries, too, as far as no receive has done so before.
        for group in topic.groups:
            self.observe_revivals(topic, group, now)
            topic.tick_retries(group, now)
        assert answer is (released or self.ask(ticks, (retry_topics,)) != before)
        self.ask("create or replace function duewheel.late_limit() returns integer return 10000")

    @rule()
    def ring(self) -> None:
        """Asking for what is ready releases and revives, and hands out nothing."""
        now = self.now
        pairs = list(self.consumers)
        expected = {}
        for name, group in pairs:
            topic = self.topics[name]
            topic.tick(now)
            self.remember_floor(name, group)
            expected[name, group] = len(topic.ready(group, now))
        bells = self.broker.doorbells([name for name, _ in pairs], [group for _, group in pairs])
        for bell in bells:
            topic = self.topics[bell.topic]
            self.observe_revivals(topic, bell.group, now)
            topic.tick_retries(bell.group, now)
            if topic.groups[bell.group] is EVERYTHING:
                note(f"{bell}")
                assert bell.ready == expected[bell.topic, bell.group]
        assert len(bells) == len(pairs)

    @rule()
    def maintain(self) -> None:
        now = self.now
        newest = {name: self.newest_tick(name) for name in self.topics}
        retries = {pair: self.newest_retry_tick(*pair) for pair in self.retry_topics}
        for step in ("prepare", "note_over"):
            self.step(step, 1_000)
        assert not any("swept" in report for report in self.step("sweep", 1_000)), "ticks left something out"
        # A few rows at a time: nobody needs any more what the logs forget.
        self.step("forget", 20)
        self.move_out()
        dropped = [name for report in self.step("drop", 1_000) for name in report.get("dropped", [])]
        for topic in self.topics.values():
            if self.newest_tick(topic.name) != newest[topic.name]:
                self.observe_tick(topic, now)
        for (name, group), tick in retries.items():
            if self.newest_retry_tick(name, group) != tick:
                self.topics[name].tick_retries(group, now)
        self.observe_trimming()
        for name in dropped:
            slot = datetime.strptime(name, "message_%Y%m%d%H").replace(tzinfo=UTC)
            assert slot + DAY + min(RETENTIONS.values()) <= now
        self.step("forget_outlived", 2)
        self.observe_drops(self.now)
        self.step("forget", 20)
        self.observe_trimming()

    @precondition(lambda self: self.sender is None)
    @rule(name=TOPICS, hours=st.sampled_from([7, 30, 60]))
    def some_hours_later(self, name: str, hours: int) -> None:
        """The groups of a topic work off all of it, and time passes: the rest may outlive its slot."""
        self.send_many(name, [(ZERO, None, "red")] * 9)
        self.clock.advance(HOUR)
        for group in self.topics[name].groups:
            while received := self.received(name, group, 1_000, timedelta(minutes=1)):
                self.acked(self.topics[name], group, received)
        self.clock.advance(hours * HOUR)
        believe(self.dsn, self.now)
        self.maintain()

    @rule(hours=st.sampled_from([8, 100]), is_believed=st.booleans())
    def upkeep_while_the_clock_is_ahead(self, hours: int, is_believed: bool) -> None:
        """It is put right. Until then upkeep comes, maybe for so long that it believes the clock."""
        right = self.now
        self.clock.set(right + hours * HOUR)
        for _ in range(1 + is_believed):
            self.maintain()
            self.clock.advance(BELIEVED_AFTER)
        self.clock.set(right)

    def move_out(self) -> None:
        """Messages that outlive their slot leave it: nobody notices."""
        count = "select count(*) from duewheel.any_message"
        before = self.ask(count)
        self.step("move_out", 2)
        assert self.ask(count) == before

    def step(self, name: str, rows: int) -> list[dict[str, Any]]:
        """One step of upkeep, in portions; returns what they report."""
        state, reports = only(name), []
        while not state.get("finished"):
            ((state,),) = self.ask(STEP, (json.dumps(state), rows, self.now))
            reports.append(state["report"])
        assert not state["failed"], state
        return reports

    def observe_trimming(self) -> None:
        """Which leases the logs know no more: everything of them was answered."""
        known = set(self.ask("select group_id, topic_id, queue, n from duewheel.lease"))
        for place in self.leases.keys() - known:
            lease = self.leases.pop(place)
            assert lease.final is not None or not lease.unanswered(), f"trimmed while live: {place}"
        for topic in self.topics.values():
            ((floor_at,),) = self.ask(
                "select coalesce(floor_at, '-infinity') from duewheel.topic where name = %s", (topic.name,)
            )
            for message in topic.messages.values():
                if message.committed and message.deliver_at < floor_at:
                    assert all(topic.is_finished(group, message) for group in topic.groups), message
        self.hands = [
            hand
            for hand in self.hands
            if all((m.lease.group_id, m.lease.topic_id, m.lease.queue, m.lease.n) in known for m in hand[2])
        ]

    def observe_drops(self, now: datetime) -> None:
        """Which messages are not there any more: past their retention, and finished by every group."""
        rows = self.ask(
            "select coalesce(t.parent_topic_id, t.topic_id), m.deliver_at,"
            " duewheel.message_id(m.topic_id, m.queue, m.deliver_at, m.seq)"
            " from duewheel.any_message m join duewheel.topic t using (topic_id)"
            " where not duewheel.is_forgotten(m.topic_id, m.queue, m.deliver_at, m.seq, m.xid)"
        )
        present = {identity for *_, identity in rows}
        for topic in self.topics.values():
            number = self.consumers[topic.name, "all"].topic_id
            slots = {slot_of(at.astimezone(UTC)) for topic_id, at, _ in rows if topic_id == number}
            for message in topic.messages.values():
                if message.committed and not message.dropped and message.identity not in present:
                    self.drop(topic, message, now)
                for copy in message.copies.values():
                    if not copy.slots <= slots:
                        copy.slots.add(datetime.min.replace(tzinfo=UTC))

    @rule(limit=st.sampled_from([1, 2, 1_000]))
    def settle(self, limit: int) -> None:
        """Messages without a slot are moved into theirs: nobody notices."""
        count = "select count(*) from duewheel.any_message"
        before = self.ask(count)
        self.step("settle", limit)
        assert self.ask(count) == before

    def newest_tick(self, name: str) -> tuple[int | None, datetime | None]:
        """The number of a topic's newest tick, and up to where the topic is released."""
        (newest,) = self.ask(
            "select max(tick_id), max(hi) from duewheel.tick where topic_id = %s",
            (self.consumers[name, "all"].topic_id,),
        )
        return newest

    def observe_tick(self, topic: Topic, now: datetime) -> None:
        """Upkeep ticks a topic whose slot it seals, and what is due goes out with that, late messages too."""
        _, hi = self.newest_tick(topic.name)
        assert hi is not None
        latest = now if topic.released_to is None else max(now, topic.released_to)
        topic.tick(now)
        assert (topic.released_to or BEGINNING - HOUR) <= hi <= latest
        topic.released_to = hi.astimezone(UTC)

    def drop(self, topic: Topic, message: Message, now: datetime) -> None:
        slot = slot_of(message.deliver_at)
        assert message.deliver_at + topic.retention <= now, f"dropped before its time: {message}"
        for group, copy in message.copies.items():
            last = slot_of(copy.due_at if copy.due_at is not None else message.deliver_at)
            finished = topic.is_finished(group, message)
            assert finished or last != slot, f"dropped before {group} was done with it: {message}"
        message.dropped = True

    # --- looking up

    @rule(name=TOPICS, choice=CHOICE)
    def find(self, name: str, choice: int) -> None:
        topic = self.topics[name]
        message = self.pick(topic, choice)
        if message is None:
            return
        stored = self.broker.find(message.identity)
        known, message = message, message.present
        if message.key is not None and known.committed and not known.dropped:
            of_key = {one.message_id: one for one in self.broker.find_key(name, message.key)}
            assert of_key[known.identity].moved_to == (None if known is message else message.identity)
            assert of_key[known.identity].recalled == (known is message and message.recalled)
        if not message.committed or message.dropped:
            assert stored is None
            return
        assert stored is not None
        assert (stored.message_id, stored.topic, stored.body) == (message.identity, name, message.body)
        assert (stored.key, stored.tag, stored.deliver_at) == (message.key, message.tag, message.deliver_at)
        assert (stored.recalled, stored.replaced_by) == (message.recalled, message.replaced_by)
        assert stored.released == (message.released and not message.recalled)

    @rule(name=TOPICS, choice=CHOICE)
    def history(self, name: str, choice: int) -> None:
        known = self.pick(self.topics[name], choice)
        if known is None:
            return
        message = known.present
        if not message.committed or message.dropped:
            return
        entries = self.broker.history(known.identity)
        assert entries[-1].known_as == message.identity
        assert ("Moved", known.identity) in {(e.state, e.known_as) for e in entries} or known is message
        states = [entry.state for entry in entries if entry.consumer_group is None]
        assert {"Initialized", "Timing"} <= set(states)
        assert ("Deleted" in states) == message.recalled
        if not message.recalled:
            assert ("Ready" in states) == message.released
        for group, copy in message.copies.items():
            if datetime.min.replace(tzinfo=UTC) in copy.slots:
                # Slots of its retries are gone, and what they would tell.
                continue
            of_group = [entry for entry in entries if entry.consumer_group == group]
            seen = [entry.state for entry in of_group]
            assert seen.count("Inflight") == copy.deliveries, (group, entries)
            assert seen.count("Acked") == (copy.state is State.ACKED and not copy.skipped), (group, entries)
            assert seen.count("Skipped") == copy.skipped, (group, entries)
            assert seen.count("DLQ") == copy.deaths, (group, entries)

    @invariant()
    def every_group_has_its_dead_letters(self) -> None:
        for topic in self.topics.values():
            for group in topic.groups:
                dead = {
                    message.identity
                    for message in topic.messages.values()
                    if message.copies[group].state is State.DEAD
                }
                if dead and not any(m.dropped for m in topic.messages.values()):
                    letters = self.broker.dead_letters(
                        group, topic=topic.name, max_messages=1_000, redriven=False
                    )
                    assert {letter.message_id for letter in letters} == dead

    # --- the end

    def teardown(self) -> None:
        try:
            if self.topics:
                self.drain()
        finally:
            if self.sender is not None:
                self.sender.close()
            self.broker.close()
            self.drop_database(self.database)

    def drain(self) -> None:
        """Everything that was accepted reaches each group, at last and exactly as often as said."""
        if self.sender is not None:
            self.end_open_transaction(True)
        for group in ("all", "some"):
            self.pause_or_resume(None, group, False)
        for _ in range(2 * MAX_RETRIES + 4):
            self.clock.advance(13 * HOUR)
            for name, group in self.consumers:
                while received := self.received(name, group, 1_000, timedelta(minutes=1)):
                    self.acked(self.topics[name], group, received)
        for topic in self.topics.values():
            for message in topic.messages.values():
                for group in topic.groups:
                    assert topic.is_finished(group, message), f"{group} never got {message}"

    # --- helpers

    def ask(self, statement: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self.broker.connection() as connection, connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []

    def new_body(self) -> bytes:
        self.sent += 1
        return b"%d" % self.sent

    def asked(self, delay: timedelta, absolute: str) -> tuple[datetime, dict[str, Any]]:
        if absolute == "no":
            return self.now + delay, {"delay": delay}
        # An instant that many choose: the full hour.
        instant = self.now + delay
        if absolute == "hour":
            instant = instant.replace(minute=0, second=0, microsecond=0) + HOUR
        return instant, {"deliver_at": instant}

    def accepted(
        self, topic: Topic, receipt: SendReceipt, asked: datetime, body: bytes, key: str | None,
        tag: str | None, *, committed: bool = True,
    ) -> Message:  # fmt: skip
        assert receipt.deliver_at == topic.delivery(asked, self.now)
        message = Message(
            receipt.message_id, receipt.deliver_at, self.now, body, key, tag, committed=committed
        )
        topic.accept(message)
        return message

    def pick(self, topic: Topic, choice: int) -> Message | None:
        messages = list(topic.messages.values())
        return messages[choice % len(messages)] if messages else None

    def hand(self, choice: int, part: int, whole: bool) -> tuple[Topic, str, list[Received]]:
        topic, group, messages = self.hands[choice % len(self.hands)]
        if whole:
            return topic, group, messages
        chosen = [message for place, message in enumerate(messages) if (part >> place % 3) & 1]
        return topic, group, chosen or messages[:1]

    def leases_of(self, group: str, topic: Topic, messages: list[Received]) -> list[Lease]:
        handles = {(m.lease.group_id, m.lease.topic_id, m.lease.queue, m.lease.n) for m in messages}
        return [self.leases[handle] for handle in sorted(handles)]

    def send_on(
        self, topic: Topic, copies: list[Copy], due_at: datetime | None, now: datetime, floor: datetime
    ) -> None:
        births = {id(c): m.born_at for m in topic.messages.values() for c in m.copies.values()}
        for copy in copies:
            fail([copy], MAX_RETRIES, due_at, now, max(floor, births[id(copy)]))

    def newest_retry_tick(self, name: str, group: str) -> tuple[int | None, datetime | None]:
        """The number of the newest tick of a group's retries, and up to where they are released."""
        (newest,) = self.ask(
            "select max(tick_id), max(hi) from duewheel.tick where topic_id = %s",
            (self.retry_topics[name, group],),
        )
        return newest

    def remember_floor(self, name: str, group: str) -> None:
        _, released_to = self.newest_retry_tick(name, group)
        floor = self.now if released_to is None else max(self.now, released_to + MICROSECOND)
        self.floors_before[name, group] = floor

    def observe_revivals(self, topic: Topic, group: str, now: datetime) -> None:
        """Which leases the broker ended, and when it says their messages are due again."""
        consumer = self.consumers[topic.name, group]
        places = self.ask(
            "select group_id, topic_id, queue, n from duewheel.lease_event"
            " where kind = 'expired' and group_id = %s and topic_id in (%s, %s)",
            (consumer.group_id, consumer.topic_id, self.retry_topics[topic.name, group]),
        )
        for place in places:
            lease = self.leases.get(place)
            if lease is None or lease.final is not None:
                continue
            assert lease.ends_at <= now, "a lease was ended while it was live"
            lease.final = "expired"
            for identity in lease.unanswered():
                message = topic.messages[identity]
                copy = message.copies[group]
                fail([copy], MAX_RETRIES, now, now, now)
                if copy.state is State.RETRY:
                    copy.due_at = self.due_of_retry(topic.name, group, message, copy)
                    # At once: by the clock, or one step past what was released before it stepped back.
                    latest = max(
                        now, message.born_at, self.floors_before[topic.name, group] + 4 * MICROSECOND
                    )
                    assert max(now, message.born_at) <= copy.due_at <= latest
                    copy.slots.add(slot_of(copy.due_at))

    def due_of_retry(self, name: str, group: str, message: Message, copy: Copy) -> datetime:
        ((due_at,),) = self.ask(
            "select deliver_at from duewheel.any_message where topic_id = %s and origin_seq = %s"
            " and origin_deliver_at = %s and attempt = %s order by seq desc limit 1",
            (self.retry_topics[name, group], message.seq, message.deliver_at, copy.attempt),
        )
        assert isinstance(due_at, datetime)
        return due_at.astimezone(UTC)


@pytest.mark.slow
@pytest.mark.tenfold
def test_the_store_does_what_the_model_does(
    postgres: EmbeddedPostgres,
    fresh_database: Callable[[], tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # By an injected clock a consumer never stays in a queue. Here each receive tries the short way first.
    text = consumer_module._RECEIVE.text.replace("receive_batch", "receive_few")
    monkeypatch.setattr(consumer_module, "_RECEIVE", Prepared("duewheel_receive_few_at", text))
    play(StoreAgainstModel, postgres, fresh_database, steps=40)
