"""Postgres servers that are copies of another one: standbys, and clusters restored from a backup."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg2
from psycopg2.extensions import make_dsn, parse_dsn
from tests.waiting import PATIENCE_SECONDS, ask, connected, until

from duewheel.embedded.machine import binaries, free_port, let_pass, server_account
from duewheel.embedded.postgres import EmbeddedPostgres


def own_folder(folder: Path) -> Path:
    """A folder that servers may write into, whatever user they run as."""
    folder.mkdir(mode=0o700)
    account = server_account()
    if account is not None:
        let_pass(folder.parent)
        os.chown(folder, account.pw_uid, account.pw_gid)
    return folder


def base_backup(server: EmbeddedPostgres, data: Path, *options: str) -> None:
    """Copies a running server's cluster into a new folder."""
    account = server_account()
    own_folder(data)
    done = subprocess.run(
        [
            *(str(binaries() / "pg_basebackup"), f"--dbname={server.dsn()}", f"--pgdata={data}"),
            *("--checkpoint=fast", "--no-sync", *options),
        ],
        user=account.pw_uid if account else None,
        group=account.pw_gid if account else None,
        extra_groups=[] if account else None,
        cwd=data,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


class CopiedServer:
    """A server on a copy of another one's cluster, with its users and passwords.

    Attributes:
        pid: its process id.
    """

    def __init__(self, data: Path, original: EmbeddedPostgres, database: str) -> None:
        self._port = free_port()
        self._dsn = make_dsn(original.dsn(database), port=self._port)
        account = server_account()
        settings = {"port": self._port, "listen_addresses": "127.0.0.1", "unix_socket_directories": ""}
        settings |= {
            "fsync": "off",
            "max_connections": 200,
            "max_locks_per_transaction": 256,
            "timezone": "UTC",
        }
        command = [str(binaries() / "postgres"), "-D", str(data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        self._log = data / "server.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                user=account.pw_uid if account else None,
                group=account.pw_gid if account else None,
                extra_groups=[] if account else None,
                cwd=data,
                env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pid = self._process.pid

    @property
    def dsn(self) -> str:
        """The address of the database."""
        return self._dsn

    def wait_until_ready(self, *, promoted: bool) -> None:
        """Returns when it answers, as the standby it is or after its promotion."""

        def is_ready() -> bool:
            assert self._process.poll() is None, self._log.read_text()
            try:
                with connected(self._dsn) as connection:
                    return ask(connection, "select pg_is_in_recovery()") == [(not promoted,)]
            except psycopg2.OperationalError:
                return False

        until(is_ready, "the server to be ready", pause_seconds=0.02)

    def stop(self) -> None:
        """Ends it, by its process id."""
        if self._process.poll() is None:
            os.kill(self.pid, signal.SIGINT)
        try:
            self._process.wait(PATIENCE_SECONDS)
        finally:
            if self._process.poll() is None:
                os.kill(self.pid, signal.SIGKILL)
                self._process.wait()


@contextmanager
def copied_server(data: Path, original: EmbeddedPostgres, dsn: str) -> Iterator[CopiedServer]:
    """A server on a copied cluster, for the length of the block."""
    server = CopiedServer(data, original, parse_dsn(dsn)["dbname"])
    try:
        yield server
    finally:
        server.stop()
