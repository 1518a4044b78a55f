"""The answer to a COMMIT, or to any statement, never arrives."""

from __future__ import annotations

import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta

import psycopg2
from psycopg2.extensions import make_dsn, parse_dsn
from tests.chaos.arena import Arena
from tests.chaos.fault import fault
from tests.waiting import until

from duewheel.store.broker import Broker
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.values.errors import AlreadyReleased, BrokerUnreachable
from duewheel.store.values.messages import Message
from duewheel.store.values.retry_policy import RetryPolicy

#: Of so many answers one is lost.
_ONE_OF = 40
_LEAST_LOST = 10
_PIECE_BYTES = 65_536
_AT_ONCE = timedelta(0)
_PATIENCE = timedelta(seconds=30)
_LETTERS = 5


class Proxy:
    """Passes bytes on between programs and a server, and now and then cuts a connection instead of an answer.

    Args:
        port: the server's.
        seed: of the choice.

    Attributes:
        port: where it listens.
        lost: how many answers were lost.
    """

    def __init__(self, port: int, seed: int) -> None:
        self._server_port = port
        self._chance = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.lost = 0

    def run(self) -> None:
        """Serve until the listener is closed."""
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        # A thread that waits in accept wakes.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self, client: socket.socket) -> None:
        with closing(client), suppress(OSError):
            with closing(socket.create_connection(("127.0.0.1", self._server_port))) as server:
                asking = threading.Thread(target=self._pass_on, args=(client, server), daemon=True)
                asking.start()
                self._answer(server, client)
                for one in (server, client):
                    with suppress(OSError):
                        one.shutdown(socket.SHUT_RDWR)
                asking.join()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(_PIECE_BYTES):
                target.sendall(piece)
        # The server ends the session of a client that was killed, in whatever transaction.
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        pieces = 0
        while piece := server.recv(_PIECE_BYTES):
            pieces += 1
            # The first ones let the client in.
            if pieces > 4 and self._chance.randrange(_ONE_OF) == 0:
                self.lost += 1
                return
            client.sendall(piece)


@contextmanager
def _proxy(arena: Arena) -> Iterator[Proxy]:
    proxy = Proxy(int(parse_dsn(arena.dsn)["port"]), arena.chance.randrange(1 << 30))
    serving = threading.Thread(target=proxy.run)
    serving.start()
    try:
        yield proxy
    finally:
        proxy.close()
        serving.join()


@fault("answers-lost", "What the server did is done, and its answer is lost (a proxy cuts the connection)")
def answers_lost(arena: Arena) -> str:
    """To sends, commits, acks, recalls and receives of further workers."""
    with _proxy(arena) as proxy:
        through = make_dsn(arena.dsn, port=proxy.port)
        further = [
            arena.crew.start(role, through)
            for role in ("sender", "recaller", "consumer", "worker", "ordered_sender", "wheel", "keeper")
        ]
        with Broker(arena.dsn) as broker, Broker(through) as unheard:
            broker.create_topic("failing")
            broker.create_topic("moved")
            broker.create_topic("scheduled")
            broker.create_schedule("scheduled", "scheduled", "", every=timedelta(seconds=1), misfire="all")
            failing = broker.consumer("failing", "failing", retry=RetryPolicy.unordered(max_retries=0))
            moved = broker.consumer("moved", "moved")
            scheduled = broker.consumer("scheduled", "scheduled")
            for number in arena.rounds():
                _redrive(broker, unheard, failing)
                _move(broker, unheard, moved, f"moved-{number}")
                until(lambda: proxy.lost >= _LEAST_LOST, "answers to be lost", pause_seconds=0.1)
            broker.delete_schedule("scheduled")
            occurred = [message.deliver_at for message in _all_of(scheduled, 2)]
            assert len(occurred) == len(set(occurred)), "an occurrence was sent twice"
        for process in further:
            arena.crew.kill(process)
    return f"{proxy.lost} answers, {number} redrives and moves, {len(occurred)} occurrences of a schedule"


def _answered(call: Callable[[], object]) -> None:
    """Call until the answer comes; what was asked for may be done by then."""
    while True:
        with suppress(BrokerUnreachable, psycopg2.OperationalError, psycopg2.InterfaceError):
            call()
            return


def _redrive(broker: Broker, unheard: Broker, failing: Consumer) -> None:
    """Each letter comes once more, however often its redrive is repeated."""
    sent = broker.send_many("failing", [{"body": b"x", "delay": _AT_ONCE}] * _LETTERS)
    ids = sorted(receipt.message_id for receipt in sent)
    left = _LETTERS
    while left:
        batch = failing.receive(wait=_PATIENCE)
        failing.nack(batch, _AT_ONCE)
        left -= len(batch)
    _answered(lambda: unheard.redrive("failing"))
    came = Counter(message.message_id for message in _all_of(failing, _LETTERS))
    assert came == Counter(ids), "a letter was redriven twice, or not"


def _move(broker: Broker, unheard: Broker, moved: Consumer, name: str) -> None:
    """The message comes once, however often its move is repeated."""
    message_id = broker.send("moved", name, delay=timedelta(hours=1)).message_id
    with suppress(AlreadyReleased):
        _answered(lambda: unheard.reschedule(message_id, delay=_AT_ONCE))
    assert [message.body.decode() for message in _all_of(moved, 1)] == [name], "it came twice, or another did"


def _all_of(consumer: Consumer, least: int) -> list[Message]:
    """What comes until there is no more, once there were so many; acked."""
    came: list[Message] = []
    while batch := consumer.receive(wait=_PATIENCE if len(came) < least else _AT_ONCE):
        consumer.ack(batch)
        came += batch
    return came
