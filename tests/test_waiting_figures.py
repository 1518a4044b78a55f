"""The figures in docs/how-to/when-to-use-what.md are those that benchmarks/waiting_in_airflow.py has read."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.report import RESULTS, number

PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "when-to-use-what.md"
WAYS = ("run_after", "date_time_trigger")
ROWS = {
    "rows": "rows in Airflow's database for each that waits",
    "rows-left": "rows left there for each when all is over",
    "memory": "more memory of triggerer and scheduler, MB",
    "recall": "one recall, ms",
    "p50": "due instant until let out, p50, ms",
    "p99": "the same, p99, ms",
    "told": "of 10 recalls that came too late, told so",
}


def readings() -> dict[str, tuple[float, float | None]]:
    """Of each line that was measured, our reading and the other's."""
    document = json.loads((RESULTS / "waiting_in_airflow.json").read_text(encoding="utf-8"))
    return {row["name"]: (row["ours"][0], *row["baseline"][:1], None)[:2] for row in document["rows"]}


def table() -> str:
    """The table of the page."""
    read = readings()
    lines = [
        "| of 1 000 | duewheel | a run with `run_after` each | a deferred `DateTimeTrigger` each |",
        "|---|---|---|---|",
    ]
    for name, text in ROWS.items():
        ours, _ = read[f"{name}-{WAYS[0]}-1000"]
        theirs = [read[f"{name}-{way}-1000"][1] for way in WAYS]
        shown = "{:.0f}".format if name == "told" else number
        lines.append(
            f"| {text} | {' | '.join(shown(value) for value in (ours, *theirs) if value is not None)} |"
        )
    return "\n".join(lines) + "\n"


def of_many() -> str:
    """The sentence about 100 000 messages."""
    memory, _ = readings()["memory-alone-100000"]
    return f"100 000 messages that wait cost triggerer and scheduler {number(memory)} MB more"


def test_the_figures_are_what_was_measured() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert table() in page
    assert of_many() in " ".join(page.split())
