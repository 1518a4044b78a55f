"""PgBouncer in front of a server, which gives each transaction whatever session is free."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg2
from psycopg2.extensions import parse_dsn
from tests.servers import own_folder
from tests.waiting import BEHIND, until

from duewheel.embedded.machine import free_port, server_account

#: Sessions of a database: few, so that programs do share them.
SESSIONS = 8


@contextmanager
def pooler(program: Path, folder: Path, dsn: str) -> Iterator[int]:
    """PgBouncer, which logs everybody in as the user of an address. Yields its port.

    Args:
        program: PgBouncer.
        folder: a folder to be made for its files.
        dsn: an address of the server.
    """
    own_folder(folder)
    server = parse_dsn(dsn)
    port = free_port()
    of_server = " ".join(
        f"{name}={server[name]}" for name in ("host", "port", "user", "password") if name in server
    )
    (folder / "pgbouncer.ini").write_text(f"""
[databases]
* = {of_server}
[pgbouncer]
pool_mode = transaction
default_pool_size = {SESSIONS}
max_client_conn = 500
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
""")
    account = server_account()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(program), str(folder / "pgbouncer.ini")],
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
            cwd=folder,
            env={"PATH": os.defpath},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

    def is_ready() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            with closing(psycopg2.connect(through(dsn, port))):
                return True
        except psycopg2.OperationalError:
            return False

    try:
        until(is_ready, "the pooler to be ready")
        BEHIND[str(port)] = server["port"]
        yield port
    finally:
        BEHIND.pop(str(port), None)
        process.terminate()
        process.wait()


def through(dsn: str, port: int) -> str:
    """The address of the same database, as a URI, by way of the pooler."""
    of_server = parse_dsn(dsn)["port"]
    return dsn.replace(f":{of_server}/", f":{port}/")
