"""docs/reference/limits.md has the versions that the tests run on.

DUEWHEEL_WRITE_COMPATIBILITY=1 writes the table anew.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path

from tests.conftest import execute

from duewheel.embedded.postgres import EmbeddedPostgres

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "limits.md"
#: By extra, in the order of the table.
PACKAGES = {
    "": ("psycopg2-binary",),
    "upgrade": ("sqlalchemy", "alembic"),
    "airflow": (
        "apache-airflow",
        "apache-airflow-providers-common-messaging",
        "apache-airflow-providers-standard",
    ),
    "spark": ("pyspark", "pyarrow", "adbc-driver-postgresql"),
    "dev": (
        "apache-airflow-providers-postgres",
        "apache-airflow-providers-fab",
        "apache-airflow-providers-openlineage",
        "psycopg",
        "asyncpg",
    ),
}


def table(postgres: str, python: str) -> str:
    """The lowest versions that are allowed, on which `make oldest` runs, and those of `make test`.

    Args:
        postgres: the version of the server on which the tests run.
        python: the version of Python.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    newest = dict(
        re.findall(r"^([a-z0-9-]+)==([^ \n]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    )
    (debian,) = re.findall(r"/usr/lib/postgresql/(\d+)/bin", (ROOT / ".ci" / "run").read_text())
    (oldest_python,) = re.findall(r"^>=([\d.]+)$", project["requires-python"])
    lines = [
        "| package | oldest | newest |",
        "|---|---|---|",
        f"| Python | {oldest_python} | {python} |",
        f"| PostgreSQL | {debian} | {postgres} |",
    ]
    for extra, names in PACKAGES.items():
        asked = project["optional-dependencies"][extra] if extra else project["dependencies"]
        oldest = dict(re.findall(r"([a-z0-9-]+)(?:\[\w+\])?>=([\d.]+)", "\n".join(asked)))
        lines += [f"| `{name}` | {oldest[name]} | {newest[name]} |" for name in names]
    return "\n".join(lines) + "\n"


def test_the_table_has_the_versions_that_the_tests_run_on(postgres: EmbeddedPostgres) -> None:
    page = PAGE.read_text(encoding="utf-8")
    (found,) = re.findall(r"^\| package \| oldest.*?(?=\n\n)", page, re.MULTILINE | re.DOTALL)
    ((server,),) = execute(postgres.dsn(), "show server_version")
    # On another Python than the build's the table stays as it is.
    (listed,) = re.findall(r"^\| Python \| \S+ \| (\S+) \|$", found, re.MULTILINE)
    running = ".".join(map(str, sys.version_info[:2]))
    wanted = table(server.split()[0], running if "CI" in os.environ else listed)
    if os.environ.get("DUEWHEEL_WRITE_COMPATIBILITY"):
        PAGE.write_text(page.replace(found, wanted.rstrip("\n")), encoding="utf-8")
    else:
        assert found + "\n" == wanted
