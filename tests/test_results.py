"""A table of results is that of the JSON beside it, and says when and at what load it was measured.

DUEWHEEL_WRITE_RESULTS=1 writes the tables anew.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from benchmarks.report import RESULTS, rows_of, table

FILES = sorted(RESULTS.glob("*.json"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_table_is_that_of_the_readings(file: Path) -> None:
    document = json.loads(file.read_text(encoding="utf-8"))
    page = file.with_name("table.md" if file.stem == "results" else f"{file.stem}.md")
    made = table(rows_of(document), document["facts"], pairs=document["pairs"], quick=document["quick"])
    if os.environ.get("DUEWHEEL_WRITE_RESULTS"):
        page.write_text(made, encoding="utf-8")
    assert page.read_text(encoding="utf-8") == made
    assert re.search(r"^Measured (at|from) 20\d\d-\d\d-\d\d \d\d:\d\d", made, re.MULTILINE)
