"""docs/how-to/first-steps-spark.md: the program prints what the page says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import execute
from tests.pages import examples

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "first-steps-spark.md").read_text(encoding="utf-8")


def test_the_first_job_cancels_what_was_not_paid(dsn: str, tmp_path: Path) -> None:
    (program,) = examples(PAGE, "py")
    (printed,) = examples(PAGE, "text")
    here = 'Broker.embedded("./broker")'
    assert here in program
    file = tmp_path / "cancel_orders.py"
    file.write_text(program.replace(here, f"Broker({dsn!r})"))
    done = subprocess.run(
        [sys.executable, str(file)], cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True, timeout=900
    )
    assert done.stdout == printed
    paid = "select count(cancelled_at), count(*) filter (where cancelled_at is null) from orders"
    assert execute(dsn, paid) == [(999, 1)]
