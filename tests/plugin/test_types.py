"""The types of the page's sources are those of its API."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

UI = Path(__file__).parents[2] / "plugin" / "ui"

pytestmark = [
    pytest.mark.airflow,
    # Importing Airflow's API warns of a library's future.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]


def test_the_description_is_that_of_the_api() -> None:
    from duewheel.plugin.openapi import description

    assert (UI / "openapi.json").read_text() == description(), (
        "run: python -m duewheel.plugin.openapi > plugin/ui/openapi.json; then npm run types in plugin/ui"
    )


@pytest.mark.slow
def test_the_types_are_made_from_it(tmp_path: Path) -> None:
    program = UI / "node_modules" / ".bin" / "openapi-typescript"
    if not program.exists():
        pytest.fail("the page's tools are not installed: run `make page-check`")
    node = shutil.which("node") or "node"
    made = tmp_path / "schema.d.ts"
    subprocess.run(
        [node, str(program), "openapi.json", "--output", str(made)], cwd=UI, check=True, capture_output=True
    )
    assert made.read_text() == (UI / "src" / "schema.d.ts").read_text()
