"""What an administrator does while messages are on their way."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta

from tests.chaos.arena import Arena
from tests.chaos.fault import fault
from tests.chaos.traffic import GROUPS, TOPIC
from tests.proof.stalling import stalls
from tests.waiting import ask, beside, connected, until

from duewheel.store.broker import Broker
from duewheel.store.values.retry_policy import RetryPolicy

_AT_ONCE = timedelta(0)
_PATIENCE = timedelta(seconds=30)
_LETTERS = 40
_LEAST_KILLS = 5


@fault("upkeep-killed", "Upkeep killed and stalled wherever it is")
def upkeep_killed(arena: Arena) -> str:
    """Two processes do it all the time."""
    kills = 0
    ended = threading.Event()

    def kill() -> None:
        nonlocal kills
        victims = (
            "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()"
            " and state = 'active'"
            " and query ~ 'duewheel.upkeep_step'"
        )
        with connected(arena.dsn) as connection:
            while not ended.wait(0.05):
                kills += len(ask(connection, victims))

    with beside() as start, stalls(arena.dsn, seed=arena.chance.randrange(1 << 30)):
        killing = start(kill)
        for role in ("keeper", "keeper"):
            arena.crew.start(role)
        try:
            for _ in arena.rounds():
                pass
            until(lambda: kills >= _LEAST_KILLS, "upkeep to be killed", pause_seconds=0.1)
        finally:
            ended.set()
        killing.result()
    return f"{kills} kills in the midst of it"


@fault("groups-deleted", "Group and topic deleted, made again and rewound, with messages in flight")
def groups_deleted(arena: Arena) -> str:
    """Of a topic of its own; the others go on as if nothing were."""
    rounds = 0
    with Broker(arena.dsn) as broker:
        for number in arena.rounds():
            broker.create_topic("fleeting")
            consumer = broker.consumer("fleeting", "fleeting")
            for name in (b"1", b"2", b"3"):
                broker.send("fleeting", name, delay=_AT_ONCE)
            held = consumer.receive(2, wait=_PATIENCE)
            assert held, "nothing came"
            broker.rewind("fleeting", "fleeting", "earliest")
            again = list(consumer.receive(10, wait=_PATIENCE))
            assert {message.body for message in again} >= {message.body for message in held}
            broker.delete_group("fleeting", topic="fleeting" if number % 2 else None)
            broker.delete_topic("fleeting")
            rounds += 1
    return f"{rounds} times"


@fault(
    "redriven-twice", "Redrives of the same dead letters by two at the same time, one of them ended midway"
)
def redriven_twice(arena: Arena) -> str:
    """Each letter is sent again once."""
    redriven = 0
    with Broker(arena.dsn) as broker, Broker(arena.dsn) as another:
        broker.create_topic("failing")
        consumer = broker.consumer("failing", "failing", retry=RetryPolicy.unordered(max_retries=0))
        for _ in arena.rounds():
            sent = {
                receipt.message_id
                for receipt in broker.send_many("failing", [{"body": b"x", "delay": _AT_ONCE}] * _LETTERS)
            }
            failed = 0
            while failed < _LETTERS:
                batch = consumer.receive(_LETTERS, wait=_PATIENCE)
                consumer.nack(batch, _AT_ONCE)
                failed += len(batch)
            with beside() as start, connected(arena.dsn, autocommit=False) as midway:
                # It redrives some, and is ended before its COMMIT.
                ask(midway, "select redriven from duewheel.redrive('failing')")
                both = [start(one.redrive, "failing") for one in (broker, another)]
                midway.rollback()
                for one in both:
                    one.result()
            came: Counter[str] = Counter()
            while came.total() < _LETTERS:
                batch = consumer.receive(_LETTERS, wait=_PATIENCE)
                came.update(message.message_id for message in batch)
                consumer.ack(batch)
            assert came == Counter(sent), "a letter was redriven twice, or not"
            redriven += _LETTERS
    return f"{redriven} letters"


@fault("groups-paused", "Groups paused and resumed again and again")
def groups_paused(arena: Arena) -> str:
    """What a paused group had leased goes on; nothing else comes to it."""
    pauses = 0
    with Broker(arena.dsn) as broker:
        for _ in arena.rounds(pause_seconds=0.1):
            group = arena.chance.choice(GROUPS)
            broker.pause_group(group, topic=TOPIC)
            broker.resume_group(group, topic=TOPIC)
            pauses += 1
    return f"{pauses} pauses"


@fault("everything-at-once", "Wheels and consumers killed while backends stop wherever they are")
def everything_at_once(arena: Arena) -> str:
    """Senders that commit late, roll back, and recalls that race the release are in every run."""
    kills = 0
    with stalls(arena.dsn, seed=arena.chance.randrange(1 << 30)):
        arena.crew.start("ticker")
        for _ in arena.rounds():
            for role in ("consumer", "worker", "ordered_consumer", "wheel"):
                arena.crew.kill_one(role, arena.chance)
                arena.crew.start(role)
                kills += 1
    return f"{kills} kills"
