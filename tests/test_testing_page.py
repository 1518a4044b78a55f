"""docs/how-to/test-your-dag.md: its examples are the files of a project, whose tests pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.pages import examples

from duewheel.embedded.postgres import EmbeddedPostgres

PAGE = (Path(__file__).parents[1] / "docs" / "how-to" / "test-your-dag.md").read_text(encoding="utf-8")
FILES = {
    name: text
    for block in examples(PAGE, "py")
    for name, text in re.findall(r"\A# (\w+\.py)\n(.*)\Z", block, re.DOTALL)
}

#: A test that does not use the fixture, in a run that has the plugin.
BYSTANDER = """
import sys

def test_nothing_is_imported():
    heavy = {"airflow", "alembic", "psutil", "psycopg2", "pyspark", "sqlalchemy"}
    assert not heavy & set(sys.modules)
    assert not [name for name in sys.modules if name.startswith(("duewheel.store", "duewheel.embedded"))]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The page's files in a folder."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def run_pytest(project: Path, *arguments: str, **variables: str) -> str:
    """Run a project's tests, which have to pass, with this package's plugin and no other; the last line."""
    options = ["-p", "duewheel.testing.plugin", "-p", "no:cacheprovider", "-q", "--rootdir", str(project)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *arguments],
        cwd=project,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()[-1]


def test_every_example_is_a_file() -> None:
    assert len(FILES) == len(examples(PAGE, "py"))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.airflow
@pytest.mark.timeout(1200)
def test_the_tests_of_the_page_pass_on_a_server_of_its_own(project: Path, postgres: EmbeddedPostgres) -> None:
    assert re.match("9 passed", run_pytest(project, TEST_POSTGRES=postgres.dsn()))


@pytest.mark.slow
def test_without_a_server_one_is_started(project: Path) -> None:
    (project / "conftest.py").unlink()
    assert re.match("1 passed", run_pytest(project, "test_time.py"))


def test_a_run_that_does_not_use_the_plugin_imports_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_bystander.py").write_text(BYSTANDER)
    assert re.match("1 passed", run_pytest(tmp_path))
