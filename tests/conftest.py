"""The base of every test: a real Postgres, a database of its own for each test, and a clock that only moves
when told.

One server is started for the session and one database in it is upgraded to the current schema: the template.
Each test that asks for ``dsn`` gets a fresh copy of it, a matter of milliseconds, and no test sees another's
messages. The server's directory is temporary, and in memory where there is room: a copy is hundreds of small
files, which a busy disk takes a second for. The server ends with the last process that uses it, also when the
run is killed.

Whatever else a run or its programs write lies in one folder, which goes with the run, however it ends
(``leftovers.py``).
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.clock import NOW, Clock, believe
from tests.logins import (
    OWNING,
    SUPERUSER,
    TEST_LOGIN,
    TURNING,
    as_user,
    make_everybody,
    make_owner,
    upgrade_as_owner,
)
from tests.pooler import pooler, through
from tests.servers import InstalledPostgres, programs
from tests.waiting import ask, connected, until

from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.testing.databases import TEST_SETTINGS, folder_for_a_server

# The plugin of this package, whether or not it is installed here.
from duewheel.testing.plugin import duewheel as duewheel
from duewheel.testing.plugin import duewheel_airflow as duewheel_airflow
from duewheel.testing.plugin import duewheel_databases as duewheel_databases

if TYPE_CHECKING:
    from duewheel.store.broker import Broker

#: The folder of this run, in which its programs make their temporary files too, and pytest its folders. The
#: one that pytest shares between the runs of a user is closed to others at every start, and a Postgres that
#: runs as another user would lose its files under it.
RUN_FOLDER = Path(tempfile.mkdtemp(prefix="duewheel-run-"))
os.environ["TMPDIR"] = os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.tempdir = str(RUN_FOLDER)

#: Removes it when the run is over, also when it is killed.
leftovers = subprocess.Popen(
    [sys.executable, "-I", "-S", str(Path(__file__).with_name("leftovers.py")), str(RUN_FOLDER)],
    env={},
    stdin=subprocess.PIPE,
    start_new_session=True,
)

#: Airflow looks for its home once, when it is first imported, and writes there: tests get an empty one.
AIRFLOW_HOME = RUN_FOLDER / "airflow"
AIRFLOW_HOME.mkdir()
os.environ["AIRFLOW_HOME"] = str(AIRFLOW_HOME)
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
#: A JVM of seconds never earns back what the second compiler and a parallel collector cost. The folder is for
#: the libraries that it unpacks, and leaves when it is killed.
os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={RUN_FOLDER}"
#: However slow the machine: DAG files are imported, and not given up.
os.environ["AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT"] = "300"

#: Py4J says at INFO that it closes a connection, also when the interpreter exits. The stream to which
#: Airflow's logging writes is closed by then, and each such line would become an error of 20 lines. One
#: of its threads writes to the root logger: see `pytest_unconfigure`.
logging.getLogger("py4j").setLevel(logging.WARNING)


#: Lists the packages of the system that tests need.
SYSTEM_PACKAGES = Path(__file__).parents[1] / ".ci" / "system_packages"
BRINGS_THEM = "As root on Debian, `.ci/system_packages install` brings what is missing."


@cache
def missing_packages() -> frozenset[str]:
    """Debian's packages that tests need and this machine does not have."""
    said = subprocess.run([str(SYSTEM_PACKAGES), "tests"], check=True, capture_output=True, text=True)
    return frozenset(said.stdout.split())


def missing_needs() -> frozenset[str]:
    """What tests need and this machine, or its user, does not have."""
    return missing_packages() | (frozenset() if os.geteuid() == 0 else {"root"})


def pytest_configure(config: pytest.Config) -> None:
    """A build leaves no test out."""
    if os.environ.get("CI") and missing_packages():
        raise pytest.UsageError(f"missing: {', '.join(sorted(missing_packages()))}. {BRINGS_THEM}")


def pytest_report_header() -> list[str]:
    """Says in one line how many files have tests that are left out, for want of what, and how to get it."""
    needs = {
        path: set(re.findall(r'"([^"]+)"', " ".join(re.findall(r"mark\.needs\(([^)]*)\)", path.read_text()))))
        for path in Path(__file__).parent.rglob("test_*.py")
    }
    short = [path for path, needed in needs.items() if needed & missing_needs()]
    wanted = ", ".join(sorted(missing_needs() & set().union(*needs.values())))
    return [f"left out: tests of {len(short)} files, for want of {wanted}. {BRINGS_THEM}"] if short else []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the tests that use the session of Spark.

    Leaves out those whose packages are missing, or that need more rights than DUEWHEEL_TEST_LOGIN has.
    """
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
    left_out = [
        item
        for item in items
        if any(missing_needs().intersection(mark.args) for mark in item.iter_markers("needs"))
        or (TEST_LOGIN == "roles" and item.get_closest_marker("owner"))
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_unconfigure() -> None:
    """Ends what the run has left, and removes its folder."""
    logging.getLogger().setLevel(logging.WARNING)
    leftovers.communicate(b"\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that runs in a process of its own is reported as UTF-8, whatever text it logged."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections
    ]
    return report


#: All else is as the server has it, where DUEWHEEL_TEST_POSTGRES names one.
WITHOUT_DURABILITY = {
    name: TEST_SETTINGS[name] for name in ("fsync", "synchronous_commit", "full_page_writes")
}


def execute(dsn: str, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    """Runs one statement on a connection of its own, outside a transaction, and returns its rows."""
    with connected(dsn) as connection:
        return ask(connection, statement, *parameters)


@contextmanager
def temporary_server(prefix: str) -> Iterator[EmbeddedPostgres | InstalledPostgres]:
    """A server that is fast and not durable, and whose files are gone after the block."""
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=folder_for_a_server()))
    assert leftovers.stdin is not None
    leftovers.stdin.write(f"{directory}\n".encode())
    leftovers.stdin.flush()
    try:
        if os.environ.get("DUEWHEEL_TEST_POSTGRES"):
            with InstalledPostgres(programs(), directory / "data", **WITHOUT_DURABILITY) as server:
                yield server
        else:
            with EmbeddedPostgres(directory, settings=TEST_SETTINGS) as server:
                yield server
    finally:
        shutil.rmtree(directory)


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """The session's server: fast, not durable. A test of durability starts one of its own."""
    with temporary_server("duewheel-test-") as server:
        yield server


@pytest.fixture(scope="session")
def duewheel_server(postgres: EmbeddedPostgres) -> str:
    """The session's server serves the fixture ``duewheel``, too."""
    return postgres.dsn()


@pytest.fixture(scope="session")
def other_postgres() -> Iterator[EmbeddedPostgres]:
    """A second server: another cluster, with transaction ids of its own."""
    with temporary_server("duewheel-other-") as server:
        yield server


@pytest.fixture(scope="session")
def template_dsn(postgres: EmbeddedPostgres) -> str:
    """A database at the current schema, to be copied and never written to."""
    from duewheel.store.database import migration

    dsn = postgres.ensure_database("template_duewheel")
    if OWNING == SUPERUSER:
        migration.upgrade(dsn)
    else:
        make_owner(dsn)
        execute(dsn, f"alter database template_duewheel owner to {OWNING}")
        upgrade_as_owner(dsn)
        make_everybody(dsn)
    execute(postgres.dsn(), "ALTER DATABASE template_duewheel WITH is_template true allow_connections false")
    return dsn


@pytest.fixture(scope="session")
def fresh_database(postgres: EmbeddedPostgres, template_dsn: str) -> Callable[[], tuple[str, str]]:
    """Makes a copy of the template; returns its name and address."""
    assert template_dsn
    numbers = count(1)

    def make() -> tuple[str, str]:
        name = f"test_{next(numbers)}"
        copied = f"CREATE DATABASE {name} TEMPLATE template_duewheel STRATEGY file_copy OWNER {OWNING}"
        execute(postgres.dsn(), copied)
        return name, as_user(postgres.dsn(name), OWNING)

    return make


def drop_database(postgres: EmbeddedPostgres, name: str) -> None:
    """Ends the sessions of a database and drops it."""
    ending = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
    with connected(postgres.dsn()) as connection:
        # The server itself would look for their end every tenth of a second: longer than most tests take.
        until(lambda: not ask(connection, ending, name), f"the sessions of {name} to end")
        ask(connection, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def dsn(postgres: EmbeddedPostgres, fresh_database: Callable[[], tuple[str, str]]) -> Iterator[str]:
    """The address, for its owner, of a database of this test alone, at the current schema and empty."""
    name, address = fresh_database()
    yield address
    drop_database(postgres, name)


#: PgBouncer's program; where it is set, the brokers of the tests go through it.
POOLER = os.environ.get("DUEWHEEL_TEST_POOLER")


@pytest.fixture(scope="session")
def pooler_port(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int | None]:
    """The port of the pooler of DUEWHEEL_TEST_POOLER, if any."""
    if POOLER is None:
        yield None
    else:
        with pooler(Path(POOLER), tmp_path_factory.mktemp("pooler") / "files", postgres.dsn()) as port:
            yield port


@pytest.fixture
def turning_dsn(dsn: str, pooler_port: int | None) -> str:
    """The address of ``dsn`` as the tests' brokers have it."""
    address = as_user(dsn, TURNING)
    return address if pooler_port is None else through(address, pooler_port)


@pytest.fixture
def broker(turning_dsn: str) -> Iterator[Broker]:
    """A broker on ``dsn`` with the database's own clock."""
    from duewheel.store.broker import Broker

    with Broker(turning_dsn, listen=POOLER is None) as broker:
        yield broker


@pytest.fixture
def clock() -> Clock:
    """A clock that stands at a fixed instant until it is moved."""
    return Clock(NOW)


@pytest.fixture
def timed_broker(turning_dsn: str, clock: Clock) -> Iterator[Broker]:
    """A broker on ``dsn`` that takes ``clock`` for the database's clock."""
    from duewheel.store.broker import Broker

    believe(turning_dsn, clock())
    clock.upkeep_dsn = turning_dsn
    with Broker(turning_dsn, clock=clock, listen=POOLER is None) as broker:
        yield broker


@pytest.fixture
def topic(timed_broker: Broker) -> Broker:
    """``timed_broker`` with a DELAY topic ``t``, of one queue so that the order is total."""
    timed_broker.create_topic("t", queues=1)
    return timed_broker
