"""The answer to a COMMIT, or to any statement, never arrives."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from psycopg2.extensions import make_dsn, parse_dsn
from tests.chaos.arena import Arena
from tests.chaos.fault import fault
from tests.waiting import until

#: Of so many answers one is lost.
_ONE_OF = 40
_LEAST_LOST = 10
_PIECE_BYTES = 65_536


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
            for role in ("sender", "recaller", "consumer", "worker", "ordered_sender", "wheel")
        ]
        for _ in arena.rounds():
            until(lambda: proxy.lost >= _LEAST_LOST, "answers to be lost", pause_seconds=0.1)
        for process in further:
            arena.crew.kill(process)
    return f"{proxy.lost} answers"
