"""Very many messages, very old ones, and some that nobody can read."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tests.chaos.arena import Arena
from tests.chaos.fault import fault
from tests.chaos.traffic import GROUPS, TOPIC, Log
from tests.waiting import PATIENCE_SECONDS, ask, connected, until

from duewheel.store.broker import Broker
from duewheel.store.values.messages import Message, RecallOutcome
from duewheel.store.values.retry_policy import RetryPolicy

_BURST_PER_SECOND = 5_000
_CONSUMERS = 8
_WAITING_PER_SECOND = 20_000
#: Far from the numbers that the server gives to messages.
_FIRST_BLOCK = 1_000_000_000
#: As a sender writes them, due within a day from half an hour on.
_WAITING = """
insert into duewheel.message (topic_id, queue, deliver_at, seq, xid, born_at, key, body)
select t.topic_id, n %% t.queues, clock_timestamp() + interval '30 minutes' + n * interval '20 hours' / %s,
       (%s + n) * 65536, pg_current_xact_id(), statement_timestamp(), 'crowd-' || n, repeat('x', 100)::bytea
from duewheel.topic t, generate_series(%s::bigint, %s) n where t.name = 'crowd'
"""
_PORTION = 100_000
_LONGEST_ROUNDS_SECONDS = 30.0
_AT_ONCE = timedelta(0)
#: No text: it cannot be decoded.
_POISON = b"\xff" * (4 * 1024 * 1024)
_GOOD = 6


@fault("burst", "Tens of thousands of messages due in one instant, eight consumers", full_seconds=200)
def burst(arena: Arena) -> str:
    """In full size a million."""
    for _ in range(_CONSUMERS - len(arena.crew.of_role("consumer"))):
        arena.crew.start("consumer", environment={"DUEWHEEL_CHAOS_MOST": "1000"})
    log = Log(arena.crew.directory / "fault.log")
    count = int(_BURST_PER_SECOND * arena.seconds)
    bodies = [f"burst-{number}" for number in range(count)]
    deliver_at = datetime.now(UTC) + timedelta(seconds=arena.seconds)
    log("sending", bodies=bodies)
    with Broker(arena.dsn) as broker:
        broker.send_many(TOPIC, [{"body": body, "deliver_at": deliver_at} for body in bodies])
        log("sent", bodies=bodies, ids=[])
        for _ in arena.rounds():
            pass

        def left() -> int:
            return max(bell.ready for bell in broker.doorbells([TOPIC] * len(GROUPS), GROUPS))

        # It takes as long as it takes, while there is less and less of it.
        while (before := left()) >= _BURST_PER_SECOND:
            until(lambda before=before: left() < before, "the burst to be received", pause_seconds=1.0)
    return f"{count:,} messages of one instant".replace(",", " ")


@fault(
    "stale-statistics",
    "Many messages wait, and statistics are from when the tables were empty, then missing",
    full_seconds=50,
    autovacuum="off",
)
def stale_statistics(arena: Arena) -> str:
    """Of another topic, in the same tables. In full size a million, and with 500 seconds ten."""
    count = int(_WAITING_PER_SECOND * arena.seconds)
    with Broker(arena.dsn) as broker, connected(arena.dsn) as connection:
        ask(connection, "analyze")
        broker.create_topic("crowd")
        for first in range(1, count + 1, _PORTION):
            last = min(first + _PORTION - 1, count)
            ask(connection, _WAITING, count, _FIRST_BLOCK, first, last)
        # The time of a full size is that of its messages.
        for number in replace(arena, seconds=min(arena.seconds, _LONGEST_ROUNDS_SECONDS)).rounds():
            if number == 2:
                ask(connection, "delete from pg_statistic")
            taken = broker.recall_key("crowd", f"crowd-{number}").outcome
            assert taken is RecallOutcome.RECALLED, taken
    return f"{count:,} messages wait".replace(",", " ")


@fault("poison", "Bodies of the largest size that the handler cannot read, among good ones")
def poison(arena: Arena) -> str:
    """The good ones are done once, the others become dead letters; both within a push consumer."""
    done: list[str] = []
    complete = threading.Event()
    letters = 0

    def listener(message: Message) -> str:
        try:
            done.append(message.body.decode())
        except UnicodeDecodeError:
            return "reconsume_later"
        complete.set()
        return "success"

    with Broker(arena.dsn) as broker:
        broker.create_topic("poisoned")
        retry = RetryPolicy.unordered(max_retries=0)
        sent: list[str] = []
        with broker.push_consumer("poisoned", "poisoned", listener, retry=retry, threads=4):
            for number in arena.rounds():
                broker.send("poisoned", _POISON, delay=_AT_ONCE)
                letters += 1
                for name in (f"{number}-{of}" for of in range(_GOOD)):
                    broker.send("poisoned", name, delay=_AT_ONCE)
                    sent.append(name)
                while len(done) < len(sent):
                    complete.clear()
                    assert len(done) >= len(sent) or complete.wait(PATIENCE_SECONDS), "a good one never came"
            with connected(arena.dsn) as connection:
                until(
                    lambda: (
                        ask(
                            connection,
                            "select sum(messages)::int from duewheel.dead_letter_reasons('poisoned')",
                        )
                        == [(letters,)]
                    ),
                    "the poison to be dead letters",
                    pause_seconds=0.2,
                )
    assert sorted(done) == sorted(sent), "a good one was done twice"
    return f"{letters} bodies of 4 MiB among {len(sent)} others"
