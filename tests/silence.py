"""A way to the server that falls silent: it takes whatever a program sends, and answers nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from psycopg2.extensions import make_dsn, parse_dsn

_PIECE_BYTES = 65_536
_NAME = b"application_name\0"


class Way:
    """Passes bytes on between programs and a server, until some of its connections fall silent.

    Args:
        dsn: of the server's database.

    Attributes:
        dsn: the address of the database by this way.
        unanswered: set when something that a silent connection was sent gets no answer.
    """

    def __init__(self, dsn: str) -> None:
        self._server = "127.0.0.1", int(parse_dsn(dsn)["port"])
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        # Without TLS the way can read which program begins to talk. A silent one is given up after 2 seconds.
        self.dsn = make_dsn(
            dsn, host="127.0.0.1", port=port, sslmode="disable", gssencmode="disable", connect_timeout=2
        )
        self.unanswered = threading.Event()
        self._silent: str | None = None
        self._silenced: set[socket.socket] = set()
        self._open: dict[socket.socket, str] = {}

    def silence(self, name: str, *, later_ones: bool = False) -> None:
        """Silence the connections whose application name begins so, if wanted also those opened later on."""
        self._silenced |= {one for one, known in tuple(self._open.items()) if known.startswith(name)}
        assert self._silenced, f"none of {sorted(self._open.values())} is a {name!r}"
        if later_ones:
            self._silent = name

    def restore(self) -> None:
        """Answer connections that are opened from now on."""
        self._silent = None

    def run(self) -> None:
        """Serve until the listener is closed."""
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def close(self) -> None:
        """Take no more connections, and end those that are open."""
        for one in (self._listener, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self, client: socket.socket) -> None:
        with closing(client), suppress(OSError):
            with closing(socket.create_connection(self._server)) as server:
                answering = threading.Thread(target=self._answer, args=(server, client), daemon=True)
                answering.start()
                self._ask(client, server)
                server.shutdown(socket.SHUT_RDWR)
                answering.join()
        self._open.pop(client, None)
        self._silenced.discard(client)

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        while piece := client.recv(_PIECE_BYTES):
            if client not in self._open:
                name = piece.partition(_NAME)[2].partition(b"\0")[0].decode()
                self._open[client] = name
                if self._silent is not None and name.startswith(self._silent):
                    self._silenced.add(client)
            if client in self._silenced:
                self.unanswered.set()
            else:
                server.sendall(piece)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while piece := server.recv(_PIECE_BYTES):
                if client in self._silenced:
                    self.unanswered.set()
                else:
                    client.sendall(piece)
        if client not in self._silenced:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)


@contextmanager
def way(dsn: str) -> Iterator[Way]:
    """A way to the server for the length of the block."""
    one = Way(dsn)
    serving = threading.Thread(target=one.run)
    serving.start()
    try:
        yield one
    finally:
        one.close()
        serving.join()
