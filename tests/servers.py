"""Postgres servers that are copies of another one, standbys and clusters restored from a backup; and one that
compiles its plans, as Debian's and managed servers do."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg2
from psycopg2.extensions import make_dsn, parse_dsn
from tests.waiting import PATIENCE_SECONDS, ask, connected, until

from duewheel.embedded.machine import binaries, free_port, let_pass, let_run, server_account
from duewheel.embedded.postgres import EmbeddedPostgres


def own_folder(folder: Path) -> Path:
    """A folder that servers may write into, whatever user they run as."""
    folder.mkdir(mode=0o700)
    account = server_account()
    if account is not None:
        let_pass(folder.parent)
        os.chown(folder, account.pw_uid, account.pw_gid)
    return folder


def base_backup(server: EmbeddedPostgres | InstalledPostgres, data: Path, *options: str) -> None:
    """Copies a running server's cluster into a new folder."""
    account = server_account()
    own_folder(data)
    done = subprocess.run(
        [
            *(str(programs() / "pg_basebackup"), f"--dbname={server.dsn()}", f"--pgdata={data}"),
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


class Server:
    """A server on a cluster.

    Attributes:
        pid: its process id.

    Args:
        programs: the folder of its programs.
        data: the cluster's folder.
        dsn: the address of a database of it; the port is filled in.
        port: where it listens; any free port for None.
        environment: of its processes, beside what every test server has.
        settings: settings beside those that every test server has.
    """

    def __init__(
        self,
        programs: Path,
        data: Path,
        dsn: str,
        port: int | None = None,
        environment: Mapping[str, str] | None = None,
        **settings: object,
    ) -> None:
        port = free_port() if port is None else port
        self._dsn = make_dsn(dsn, port=port)
        account = server_account()
        settings = {
            "port": port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
            "max_connections": 200,
            "max_locks_per_transaction": 256,
            "timezone": "UTC",
            **settings,
        }
        command = [str(programs / "postgres"), "-D", str(data)]
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
                env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC", **(environment or {})},
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

    def wait_until_ready(self, *, promoted: bool = True) -> None:
        """Returns when it answers, as the standby it is or else as a server of its own."""

        def is_ready() -> bool:
            assert self._process.poll() is None, self._log.read_text()
            try:
                with connected(self._dsn) as connection:
                    return ask(connection, "select pg_is_in_recovery()") == [(not promoted,)]
            except psycopg2.OperationalError:
                return False

        until(is_ready, "the server to be ready", pause_seconds=0.02)

    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Ends it, by its process id: SIGINT fast, SIGQUIT at once, SIGKILL as a crash does."""
        if self._process.poll() is None:
            os.kill(self.pid, how)
        try:
            self._process.wait(PATIENCE_SECONDS)
        finally:
            if self._process.poll() is None:
                os.kill(self.pid, signal.SIGKILL)
                self._process.wait()


@contextmanager
def copied_server(data: Path, original: EmbeddedPostgres, dsn: str) -> Iterator[Server]:
    """A server on a copied cluster, with its users and passwords, for the length of the block."""
    server = Server(binaries(), data, original.dsn(parse_dsn(dsn)["dbname"]))
    try:
        yield server
    finally:
        server.stop()


def debian_programs() -> Path:
    """The folder of the programs of Debian's newest Postgres, which can compile plans."""
    found = [
        programs
        for programs in Path("/usr/lib/postgresql").glob("*/bin")
        if (programs / "postgres").exists() and (programs.parent / "lib" / "llvmjit.so").exists()
    ]
    assert found, "Debian's Postgres is not installed: apt-get install postgresql"
    return max(found, key=lambda programs: int(programs.parent.name))


def programs() -> Path:
    """The folder of the programs of the Postgres that the tests run on: DUEWHEEL_TEST_POSTGRES, or else the
    embedded one's."""
    named = os.environ.get("DUEWHEEL_TEST_POSTGRES")
    return Path(named) if named else binaries()


def _users_of(data: Path) -> list[str]:
    """The processes whose working directory is a cluster's folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").readlink() == data:
                found.append(process.name)
    return found


class InstalledPostgres:
    """A new cluster of an installed Postgres, with that one's own settings but for those given.

    Args:
        programs: the folder of its programs.
        data: the cluster's folder, to be made.
        environment: further variables of the server's processes.
        settings: further settings.
    """

    def __init__(
        self, programs: Path, data: Path, environment: Mapping[str, str] | None = None, **settings: object
    ) -> None:
        self._programs, self._data, self._settings = programs, data, settings
        self._environment = environment

    def __enter__(self) -> InstalledPostgres:
        account = server_account()
        let_run(self._programs)
        own_folder(self._data)
        done = subprocess.run(
            [
                *(str(self._programs / "initdb"), f"--pgdata={self._data}", "--username=postgres"),
                *("--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"),
            ],
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
            cwd=self._data,
            env={"PATH": os.defpath},
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        address = "postgresql://postgres@127.0.0.1/postgres"
        self._server = Server(
            self._programs, self._data, address, environment=self._environment, **self._settings
        )
        try:
            self._server.wait_until_ready()
        except BaseException:
            self._server.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def fail_over(self, standby: Path) -> None:
        """Crashes the server, and has a standby's cluster take its place at the same address."""
        self._server.stop(signal.SIGQUIT)
        until(lambda: not _users_of(self._data), "the server's last process to end")
        # Nobody reaches it before it is the primary.
        promoted = Server(
            self._programs, standby, self._server.dsn, environment=self._environment, **self._settings
        )
        try:
            promoted.wait_until_ready(promoted=False)
            with connected(promoted.dsn) as connection:
                ask(connection, "select pg_promote()")
            promoted.wait_until_ready()
        finally:
            promoted.stop()
        self._data = standby
        self.start_again()

    def stop(self, how: signal.Signals) -> None:
        """Ends the server, as :meth:`Server.stop` does; :meth:`start_again` has it back."""
        self._server.stop(how)

    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._server.is_running()

    def start_again(self) -> None:
        """Starts it at the same address, and returns when it answers."""
        address = self._server.dsn
        # The children of a server that was killed end when they notice.
        until(lambda: not _users_of(self._data), "the server's last process to end")
        self._server = Server(
            *(self._programs, self._data, address, int(parse_dsn(address)["port"])),
            environment=self._environment,
            **self._settings,
        )
        self._server.wait_until_ready()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._server.pid

    def dsn(self, database: str = "postgres") -> str:
        """The address of a database."""
        port = parse_dsn(self._server.dsn)["port"]
        return f"postgresql://postgres@127.0.0.1:{port}/{database}"

    def ensure_database(self, name: str) -> str:
        """Make the database if it does not exist, and return its address."""
        with connected(self.dsn()) as connection:
            if not ask(connection, "select 1 from pg_database where datname = %s", name):
                ask(connection, f"create database {name}")
        return self.dsn(name)


@contextmanager
def jit_server(data: Path) -> Iterator[str]:
    """The address of a database on a server that compiles dear plans, and counts what it has compiled."""
    counting = {"pg_stat_statements.track": "all", "pg_stat_statements.max": 50000}
    with InstalledPostgres(
        debian_programs(),
        data,
        autovacuum="off",
        shared_preload_libraries="pg_stat_statements",
        track_functions="all",
        **counting,
    ) as server:
        yield server.dsn()
