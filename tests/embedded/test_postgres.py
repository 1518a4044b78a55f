"""The embedded Postgres: shared while used, gone when unused, back after any crash."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psutil
import psycopg2
import pytest
from tests.conftest import execute
from tests.waiting import until

from duewheel.embedded.postgres import EmbeddedPostgres, EmbeddedPostgresError

FAST = {"fsync": "off"}

#: Opens the directory, says so, and stays until its input ends or it is killed.
USER = """
import sys
from duewheel.embedded.postgres import EmbeddedPostgres
with EmbeddedPostgres(sys.argv[1], settings={"fsync": "off"}) as server:
    print(server.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    # Not tmp_path: pytest takes the right to pass through its folders away again, and a server run by another
    # user needs it.
    with tempfile.TemporaryDirectory(prefix="duewheel-test-") as name:
        yield Path(name) / "broker"


def pid_of(server: EmbeddedPostgres) -> int:
    pid = server.pid
    assert pid is not None
    return pid


def is_alive(process: psutil.Process) -> bool:
    # A zombie has ended; in a container whose first process is no init, nobody may ever collect it.
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill_and_wait(pid: int) -> None:
    """Kills the server and waits until its supervisor, which collects it, has ended too."""
    server = psutil.Process(pid)
    supervisor = server.parent()
    assert supervisor is not None
    server.kill()
    await_end(server, supervisor)


def await_end(*processes: psutil.Process) -> None:
    # No signal reaches us when a process that is not our child ends: looking again is the only way.
    until(lambda: not any(is_alive(process) for process in processes), "processes to end")


def start_user(directory: Path) -> tuple[subprocess.Popen[str], int]:
    user = subprocess.Popen(
        [sys.executable, "-c", USER, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert user.stdout is not None
    return user, int(user.stdout.readline())


def end_user(user: subprocess.Popen[str]) -> None:
    user.communicate("")
    assert user.returncode == 0


def test_is_postgres_18_on_loopback_alone(directory: Path) -> None:
    with EmbeddedPostgres(directory, settings=FAST) as server:
        assert execute(server.dsn(), "SELECT current_setting('server_version_num')::int / 10000") == [(18,)]
        assert execute(server.dsn(), "SHOW listen_addresses") == [("127.0.0.1",)]
        assert execute(server.dsn(), "SHOW unix_socket_directories") == [("",)]
        assert execute(server.dsn(), "SHOW max_connections") == [("200",)]
        assert execute(server.dsn(), "SHOW fsync") == [("off",)]
    assert server.pid is None


@pytest.mark.slow
def test_asks_for_the_password(directory: Path) -> None:
    with EmbeddedPostgres(directory, settings=FAST) as server:
        with pytest.raises(psycopg2.OperationalError, match="password"):
            psycopg2.connect(f"postgresql://postgres:guess@127.0.0.1:{server.port}/postgres")
        assert (directory / "server.json").stat().st_mode & 0o077 == 0


def test_keeps_data_and_port_over_restarts(directory: Path) -> None:
    with EmbeddedPostgres(directory, settings=FAST) as server:
        port = server.port
        dsn = server.ensure_database("duewheel")
        assert server.ensure_database("duewheel") == dsn
        execute(dsn, "CREATE TABLE kept AS SELECT 42 AS answer")
    with EmbeddedPostgres(directory, settings=FAST) as server:
        assert server.port == port
        assert execute(dsn, "SELECT answer FROM kept") == [(42,)]


@pytest.mark.long
@pytest.mark.slow
def test_takes_another_port_when_its_own_was_taken(directory: Path) -> None:
    with EmbeddedPostgres(directory, settings=FAST) as server:
        port = server.port
    with closing(socket.socket()) as other_program:
        other_program.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other_program.bind(("127.0.0.1", port))
        other_program.listen()
        with EmbeddedPostgres(directory, settings=FAST) as server:
            assert server.port != port
            assert execute(server.dsn(), "SELECT 1") == [(1,)]
        with pytest.raises(EmbeddedPostgresError, match="in use by another program"):
            EmbeddedPostgres(directory, port=port, settings=FAST).start()


@pytest.mark.slow
def test_is_shared_within_a_process_and_the_last_stops_it(directory: Path) -> None:
    first = EmbeddedPostgres(directory, settings=FAST).start()
    second = EmbeddedPostgres(directory).start()
    pid = first.pid
    assert second.pid == pid
    assert second.dsn() == first.dsn()
    first.stop()
    assert execute(second.dsn(), "SELECT 1") == [(1,)]
    second.stop()
    assert second.pid is None
    second.stop()


@pytest.mark.long
@pytest.mark.slow
def test_is_shared_between_processes(directory: Path) -> None:
    user, pid = start_user(directory)
    with EmbeddedPostgres(directory) as server:
        assert server.pid == pid
        end_user(user)
        assert execute(server.dsn(), "SELECT 1") == [(1,)]
    assert server.pid is None


@pytest.mark.long
@pytest.mark.slow
def test_many_openers_at_once_get_one_server(directory: Path) -> None:
    servers = [EmbeddedPostgres(directory, settings=FAST) for _ in range(8)]
    with ThreadPoolExecutor(len(servers)) as threads:
        list(threads.map(EmbeddedPostgres.start, servers))
        assert len({server.pid for server in servers}) == 1
        list(threads.map(lambda server: server.ensure_database("duewheel"), servers))
        list(threads.map(EmbeddedPostgres.stop, servers))
    assert servers[0].pid is None


@pytest.mark.slow
def test_stops_when_its_only_user_is_killed(directory: Path) -> None:
    user, pid = start_user(directory)
    server = psutil.Process(pid)
    supervisor = server.parent()
    assert supervisor is not None
    with user:
        user.kill()
    await_end(server, supervisor)


@pytest.mark.slow
def test_a_killed_server_starts_again_with_what_was_committed(directory: Path) -> None:
    with EmbeddedPostgres(directory) as server:
        execute(server.dsn(), "CREATE TABLE kept AS SELECT 42 AS answer")
        killed = pid_of(server)
        os.kill(killed, signal.SIGKILL)
        server.start()
        assert server.pid != killed
        assert execute(server.dsn(), "SELECT answer FROM kept") == [(42,)]


@pytest.mark.long
@pytest.mark.slow
def test_a_server_whose_supervisor_was_killed_is_not_left_behind(directory: Path) -> None:
    user, pid = start_user(directory)
    server = psutil.Process(pid)
    supervisor = server.parent()
    assert supervisor is not None
    supervisor.kill()
    with user:
        user.kill()
    await_end(supervisor)
    assert is_alive(server)
    with EmbeddedPostgres(directory, settings=FAST) as again:
        assert again.pid != pid
        assert execute(again.dsn(), "SELECT 1") == [(1,)]
    assert not is_alive(server)
    assert again.pid is None


@pytest.mark.long
@pytest.mark.slow
def test_a_stale_process_id_of_another_program_does_no_harm(directory: Path) -> None:
    with EmbeddedPostgres(directory) as server:
        execute(server.dsn(), "CREATE TABLE kept AS SELECT 42 AS answer")
        note = directory / "data" / "postmaster.pid"
        kill_and_wait(pid_of(server))
        lines = note.read_text().splitlines(keepends=True)
        bystander = subprocess.Popen(["sleep", "600"], user=note.stat().st_uid, cwd="/")
        try:
            note.write_text("".join([f"{bystander.pid}\n", *lines[1:]]))
            assert server.pid is None
            server.start()
            assert execute(server.dsn(), "SELECT answer FROM kept") == [(42,)]
            assert bystander.poll() is None
        finally:
            bystander.kill()
            bystander.wait()


@pytest.mark.long
@pytest.mark.slow
def test_a_fork_leaves_the_server_to_its_parent(directory: Path) -> None:
    with EmbeddedPostgres(directory, settings=FAST) as server:
        child = os.fork()
        if child == 0:
            server.stop()
            try:
                server.start()
            except EmbeddedPostgresError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert execute(server.dsn(), "SELECT 1") == [(1,)]


@pytest.mark.long
@pytest.mark.slow
def test_an_unknown_setting_is_a_clear_error(directory: Path) -> None:
    server = EmbeddedPostgres(directory, settings={**FAST, "no_such_setting": "1"})
    with pytest.raises(EmbeddedPostgresError, match=r"ended while starting.*server\.log"):
        server.start()
    assert server.pid is None
    with EmbeddedPostgres(directory, settings=FAST) as server:
        assert execute(server.dsn(), "SELECT 1") == [(1,)]


@pytest.mark.long
@pytest.mark.slow
def test_another_port_than_the_running_servers_is_a_clear_error(directory: Path) -> None:
    with EmbeddedPostgres(directory, settings=FAST) as server:
        with pytest.raises(EmbeddedPostgresError, match=f"already runs on port {server.port}"):
            EmbeddedPostgres(directory, port=1).start()
        assert execute(server.dsn(), "SELECT 1") == [(1,)]


def test_an_address_before_the_first_start_is_a_clear_error(directory: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match=r"call start\(\) first"):
        EmbeddedPostgres(directory).dsn()


def test_a_directory_that_cannot_be_made_is_a_clear_error(directory: Path) -> None:
    directory.write_text("a file")
    with pytest.raises(EmbeddedPostgresError, match="cannot be made or written"):
        EmbeddedPostgres(directory / "below").start()
