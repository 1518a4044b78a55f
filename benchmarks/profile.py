"""Where the time of a single message goes: the costs of a round trip, a commit and a function by themselves.

Beside each call of ours stand the smallest calls that do a part of it, taken in turn on one server with stock
settings: a statement that does nothing, the insert of one row with its commit, the same from within a
function. The difference between those and ours is our own cost. The way of a lone message is divided at the
instants that both processes see: the release's clock, the notification, and the two ends of the receive.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from psycopg2.extensions import connection as Connection  # noqa: N812 - it is a class

from benchmarks import ours, ten_minutes_table, workers
from benchmarks.bench import Bench, Subject
from benchmarks.measure import Row
from benchmarks.processes import crew
from benchmarks.program import main
from benchmarks.server import connect
from duewheel.store import Batch, Broker
from duewheel.store.database.listening import Notification, NotificationListener

BODY = (
    b'{"order": 1, "customer": "customer-1", "state": "unpaid", "note": "0123456789abcdef0123456789abcdef"}'
)
GAP = timedelta(milliseconds=700)

PLAIN = """
create table plain (id bigint generated always as identity primary key, due_at timestamptz, body bytea);
create function insert_plain(p_due_at timestamptz, p_body bytea) returns bigint language plpgsql as $$
declare
    v_id bigint;
begin
    insert into plain (due_at, body) values (p_due_at, p_body) returning id into v_id;
    return v_id;
end
$$;
prepare nothing as select 1;
prepare one_row as insert into plain (due_at, body) values ($1, $2);
prepare one_row_by_function as select insert_plain($1, $2);
"""


class Way:
    """One kind of call, with the time of each."""

    def __init__(self, what: str, call: Callable[[], object], backend_pid: int) -> None:
        self.what = what
        self._call = call
        self._schedstat = Path(f"/proc/{backend_pid}/schedstat")
        self.microseconds: list[float] = []
        self.server_microseconds: list[float] = []

    def once(self) -> None:
        """Call once, and note how long it took and how long the server's process ran for it."""
        ran = self._ran_nanoseconds()
        began = time.perf_counter()
        self._call()
        self.microseconds.append((time.perf_counter() - began) * 1e6)
        self.server_microseconds.append((self._ran_nanoseconds() - ran) / 1e3)

    def row(self, name: str) -> Row:
        """Its line of the table."""
        return Row(
            name,
            self.what,
            "us",
            [statistics.median(self.microseconds)],
            notes=[
                f"the server's process ran for {statistics.median(self.server_microseconds):.0f} us of it"
            ],
        )

    def _ran_nanoseconds(self) -> int:
        return int(self._schedstat.read_text().split()[0])


def _in_turn(ways: dict[str, Way], rounds: int) -> Iterator[Row]:
    for way in ways.values():
        for _ in range(20):
            way.once()
        way.microseconds.clear()
        way.server_microseconds.clear()
    for _ in range(rounds):
        for way in ways.values():
            way.once()
    yield from (way.row(name) for name, way in ways.items())


def _execute(connection: Connection, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []


def _pid_of(broker: Broker) -> int:
    """The server's process that the broker's one connection talks to."""
    with broker.connection() as lent:
        return int(lent.info.backend_pid)


def sending(bench: Bench) -> Iterator[Row]:
    """A single send, and the smaller calls that it is made of."""
    with bench.server.duewheel() as dsn, closing(connect(dsn)) as raw, Broker(dsn) as broker:
        ours.create_topic(dsn)
        _execute(raw, PLAIN)
        due_at = ours.now() + timedelta(hours=1)
        pid = raw.info.backend_pid
        yield from _in_turn(
            {
                "nothing": Way(
                    "a statement that does nothing", lambda: _execute(raw, "execute nothing"), pid
                ),
                "row": Way(
                    "an insert of one row, with its commit",
                    lambda: _execute(raw, "execute one_row (%s, %s)", due_at, BODY),
                    pid,
                ),
                "row-by-function": Way(
                    "the same from within a function",
                    lambda: _execute(raw, "execute one_row_by_function (%s, %s)", due_at, BODY),
                    pid,
                ),
                "send": Way(
                    "a single send",
                    lambda: broker.send(ours.TOPIC, BODY, deliver_at=due_at),
                    _pid_of(broker),
                ),
            },
            bench.size(2_000, 300),
        )


def receiving(bench: Bench) -> Iterator[Row]:
    """A single receive and its ack, beside the table's claim and its end."""
    rounds = bench.size(2_000, 300)
    with ExitStack() as stack:
        dsn = stack.enter_context(ten_minutes_table.ours_due(bench, rounds + 100, 1))
        table = stack.enter_context(
            closing(connect(stack.enter_context(ten_minutes_table.table_due(bench, rounds + 100, 1))))
        )
        broker = stack.enter_context(Broker(dsn))
        consumer = broker.consumer(ours.TOPIC, ours.GROUP)
        # Releases the messages, as a wheel would have done.
        consumer.ack(consumer.receive(1, ours.INVISIBLE))
        claimed: list[list[tuple[int, Any]]] = []
        received: list[Batch] = []
        yield from _in_turn(
            {
                "claim": Way(
                    "the table: claim one",
                    lambda: claimed.append(ten_minutes_table.claim(table, 1)),
                    table.info.backend_pid,
                ),
                "done": Way(
                    "the table: mark it as done",
                    lambda: ten_minutes_table.done(table, claimed.pop()),
                    table.info.backend_pid,
                ),
                "receive": Way(
                    "a single receive",
                    lambda: received.append(consumer.receive(1, ours.INVISIBLE)),
                    _pid_of(broker),
                ),
                "ack": Way("its ack", lambda: consumer.ack(received.pop()), _pid_of(broker)),
            },
            rounds,
        )


class _Watched(NotificationListener):
    """A listener that remembers when it last heard something."""

    heard_at = 0.0

    def _take(self) -> list[Notification]:
        notifications = super()._take()
        if notifications:
            _Watched.heard_at = time.time()
        return notifications


def lone(bench: Bench) -> Iterator[Row]:
    """A lone message on an idle topic, default settings: from its instant to its handler, step by step."""
    count = bench.size(60, 10)
    steps: dict[str, list[float]] = {"tick": [], "heard": [], "handled": []}
    with (
        patch("duewheel.store.consuming.signals.NotificationListener", _Watched),
        bench.server.duewheel() as dsn,
        closing(connect(dsn)) as raw,
    ):
        with Broker(dsn) as broker:
            broker.create_topic(ours.TOPIC, message_type="DELAY")
        with crew(1, workers.turn_wheel, dsn) as wheel, Broker(dsn) as broker:
            consumer = broker.consumer(ours.TOPIC, ours.GROUP)
            consumer.receive(1)
            wheel.wait_until_ready()
            start = ours.now() + timedelta(seconds=2)
            # The first is not counted, as its connections are new.
            for number in range(count + 1):
                broker.send(ours.TOPIC, BODY, deliver_at=start + number * GAP)
            for number in range(count + 1):
                while not (batch := consumer.receive(1, ours.INVISIBLE, timedelta(seconds=20))):
                    pass
                handled_at = time.time()
                due_at = batch[0].deliver_at
                consumer.ack(batch)
                ((ticked_at,),) = _execute(
                    raw,
                    "select extract(epoch from min(ticked_at))::float8 from duewheel.tick where hi >= %s",
                    due_at,
                )
                if number == 0 or not due_at.timestamp() < ticked_at < _Watched.heard_at < handled_at:
                    # Found by a query before the notification was heard.
                    continue
                steps["tick"].append((ticked_at - due_at.timestamp()) * 1e6)
                steps["heard"].append((_Watched.heard_at - ticked_at) * 1e6)
                steps["handled"].append((handled_at - _Watched.heard_at) * 1e6)
    for name, what in (
        ("tick", "lone message: from its instant until the release has read its clock"),
        ("heard", "lone message: from there until a consumer has heard of the release, which is committed"),
        ("handled", "lone message: from there until the consumer has it, leased and committed"),
    ):
        yield Row(f"lone-{name}", what, "us", [statistics.median(steps[name])])


SUBJECTS = [
    Subject("send", "a single send and what stands beneath it", sending),
    Subject("receive", "a single receive and ack beside the table's", receiving),
    Subject("lone", "a lone message's way from its instant to its handler", lone),
]

if __name__ == "__main__":
    main("profile", __doc__, SUBJECTS)
