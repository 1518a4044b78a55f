"""The table and the file of results.

Numbers are written with the precision of the readings: three significant digits. Each row is marked
in the same place, whether it reaches its goal or misses it.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.measure import Goal, Row, Spread

RESULTS = Path(__file__).parent / "results"


def number(value: float) -> str:
    """`value` with three significant digits and thin groups of thousands: 0.512, 3.14, 84 300.

    A failed operation counts as a reading of infinity; the ratio of two such readings is not a number.
    """
    if not math.isfinite(value):
        return "failed"
    if value == 0:
        return "0"
    if abs(value) >= 100:
        digits = len(str(int(abs(value))))
        return f"{round(value, 3 - digits):,.0f}".replace(",", " ")
    return f"{value:#.3g}".rstrip(".")


def goal_text(goal: Goal, unit: str) -> str:
    """The goal in words: `ratio at least 0.5`, `at most 2 ms`."""
    if goal.of == "ratio":
        return f"ratio {goal.direction} {goal.bound:g}"
    more = "more " if goal.of == "difference" else ""
    return f"{goal.direction} {goal.bound:g} {unit} {more}".strip()


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return "—"
    return f"**{number(spread.median)}** ({number(spread.smallest)} to {number(spread.largest)})"


def line(row: Row) -> str:
    """One row of the table."""
    baseline = "—"
    if row.baseline:
        baseline = f"{number(Spread.of(row.baseline).median)} {row.unit}: {row.baseline_name}"
    goals = ", ".join(goal_text(goal, row.unit) for goal in row.goals) or "—"
    reached = {True: "yes", False: "**no**", None: "—"}[row.reached()]
    ours = f"{number(Spread.of(row.ours).median)} {row.unit}".strip()
    busy = f"{row.load_average:.1f} | {row.flush_ms:.2f} ms"
    cells = (row.what, ours, baseline, _spread(row.spread("ratio")), goals, reached, busy)
    return f"| {' | '.join(cells)} |"


def when(rows: Sequence[Row]) -> str:
    """From when to when rows were measured, to the minute: the table may have rows of several ages."""
    instants = sorted(row.measured_at for row in rows)
    first, last = (f"{instant[:16].replace('T', ' ')} UTC" for instant in (instants[0], instants[-1]))
    return f"at {first}" if first == last else f"from {first} to {last}"


def table(rows: Sequence[Row], facts: dict[str, str], *, pairs: int, quick: bool) -> str:
    """The whole report as Markdown."""
    lines = [
        "# Benchmark",
        "",
        f"Medians of {pairs} interleaved pairs{', small sizes (a quick run)' if quick else ''}.",
        "Ratio = ours / baseline of the same pair: median (smallest to largest).",
        "",
        f"Measured {when(rows)}; the JSON beside this table has the time of each row.",
        "Load (average, 1 min) and flush (the disk's time for one durable page) are those at the row's end.",
        "",
        "| what | ours | baseline | ratio | goal | reached | load | flush |",
        "|---|---|---|---|---|---|---|---|",
        *(line(row) for row in rows),
        "",
    ]
    notes = [f"- {row.what}: {note}" for row in rows for note in row.notes]
    if notes:
        lines += ["Notes:", "", *notes, ""]
    ran_on = ", ".join(f"{name} {value}" for name, value in facts.items())
    return "\n".join([*lines, f"Run on: {ran_on}.", ""])


def machine_facts() -> dict[str, str]:
    """The machine that the figures were taken on."""
    return {
        "processors": str(os.cpu_count()),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "psycopg2": version("psycopg2-binary"),
    }


def updated(name: str, rows: Sequence[Row]) -> list[Row]:
    """The rows of a program's last results, with `rows` in place of those with the same names."""
    merged = {row.name: row for row in rows_of(json.loads(_json_file(name).read_text("utf-8")))}
    merged.update({row.name: row for row in rows})
    return list(merged.values())


def rows_of(document: dict[str, Any]) -> list[Row]:
    """The rows of a file of results."""
    names = {field.name for field in fields(Row)} - {"goals"}
    return [
        Row(goals=[Goal(**goal) for goal in row["goals"]], **{name: row[name] for name in names & row.keys()})
        for row in document["rows"]
    ]


def _json_file(name: str) -> Path:
    return RESULTS / f"{name or 'results'}.json"


def write(name: str, rows: Sequence[Row], facts: dict[str, str], *, pairs: int, quick: bool) -> None:
    """Write a program's table and readings; the main table's program has no name."""
    made = table(rows, facts, pairs=pairs, quick=quick)
    (RESULTS / f"{name or 'table'}.md").write_text(made, encoding="utf-8")
    document = {"pairs": pairs, "quick": quick, "facts": facts, "rows": [_as_json(row) for row in rows]}
    _json_file(name).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _as_json(row: Row) -> dict[str, object]:
    ratio, difference = row.spread("ratio"), row.spread("difference")
    return {
        **asdict(row),
        "ours_spread": asdict(Spread.of(row.ours)),
        "ratio_spread": asdict(ratio) if ratio else None,
        "difference_spread": asdict(difference) if difference else None,
        "reached": row.reached(),
    }
