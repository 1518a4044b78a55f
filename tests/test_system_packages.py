"""A test whose packages are missing is left out, and the run says so first; a build leaves none out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import SYSTEM_PACKAGES

ROOT = Path(__file__).parents[1]


def collected(**variables: str) -> subprocess.CompletedProcess[str]:
    """Collect the tests of other languages on a machine that has no compiler of Java."""
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    collect = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only"]
    return subprocess.run(
        [*collect, "tests/test_languages.py"],
        cwd=ROOT,
        env={**environment, "PATH": "/nowhere", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_test_without_its_packages_is_left_out_and_reported() -> None:
    done = collected()
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(
        r"^left out: tests of \d+ files, for want of default-jdk-headless", done.stdout, re.MULTILINE
    )
    assert "`.ci/system_packages install` brings what is missing" in done.stdout
    assert "[js]" in done.stdout
    assert "[java]" not in done.stdout
    assert "1 deselected" in done.stdout


@pytest.mark.slow
def test_a_build_leaves_none_out() -> None:
    done = collected(CI="true")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "missing: default-jdk-headless" in done.stderr


def test_the_packages_that_tests_name_are_listed() -> None:
    listed = re.findall(r"\|\| echo ([a-z0-9-]+)$", SYSTEM_PACKAGES.read_text(), re.MULTILINE)
    for path in (ROOT / "tests").rglob("test_*.py"):
        for needed in re.findall(r"mark\.needs\(([^)]*)\)", path.read_text()):
            for package in re.findall(r'"([^"]+)"', needed):
                # Root is no package.
                assert package in [*listed, "root"], f"{path}: {package}"
