"""The measured figures in README.md, measuring.md and the how-tos are those of benchmarks/results.

A paragraph may be worded in any way: its figures have to be there with their units, in their order.
"""

from __future__ import annotations

import inspect
import json
import re
from datetime import timedelta
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from benchmarks import latency, ours
from benchmarks.report import RESULTS, number

ROOT = Path(__file__).parent.parent
WAYS = ("run_after", "date_time_trigger")
PERCENTILES = ("p50", "p99")


@cache
def measured(program: str) -> dict[str, dict[str, Any]]:
    """The rows of a program's results, by their names."""
    document = json.loads((RESULTS / f"{program}.json").read_text(encoding="utf-8"))
    return {row["name"]: row for row in document["rows"]}


def figure(program: str, name: str, side: str = "ours") -> str:
    """A median, as pages write it."""
    return number(median(measured(program)[name][side]))


def rounded(value: float) -> str:
    """To two digits, as the README has its figures."""
    return f"{float(f'{value:.2g}'):g}"


def with_unit(program: str, name: str) -> str:
    return f"{figure(program, name)} {measured(program)[name]['unit']}".strip()


def ratio(program: str, name: str) -> str:
    return number(measured(program)[name]["ratio_spread"]["median"])


def of_ways(row: str) -> list[float]:
    """Of a row of the comparison in Airflow: ours, and each of Airflow's own ways."""
    rows = measured("waiting_in_airflow") | measured("first_line")
    found = [rows.get(f"{row}-{way}-1000") or rows[f"{row}-{way}"] for way in WAYS]
    return [median(found[0]["ours"]), *(median(way["baseline"]) for way in found)]


def growth_of_spark(part: str) -> str:
    """How many times as much memory ten million messages take at most as one million."""
    peaks = {name: max(row["ours"]) for name, row in measured("spark_memory").items()}
    jobs = ("write", "read", "stream")
    return (
        f"{max(peaks[f'{job}-{part}-10000000'] / peaks[f'{job}-{part}-1000000'] for job in jobs):.2f} times"
    )


def in_notes(program: str, pattern: str) -> str:
    """A figure that only the text of the results has; the largest, where there are several."""
    return max(re.findall(pattern, (RESULTS / f"{program}.md").read_text("utf-8"), re.MULTILINE), key=float)


def handled(load: str) -> tuple[str, ...]:
    """From due instant to handler, with the default granularity: p50, p99."""
    note = rf"^- due instant to handler start, p\d\d, {load}, default settings: .*"
    return tuple(in_notes("ten_minutes_table", rf"{note}{p} ([\d.]+) ms") for p in PERCENTILES)


def latency_row(p50: str, p99: str) -> str:
    """The cells of a row of the table of latency."""
    return f"| {p50} ms | {p99} ms |"


def paragraphs() -> dict[str, tuple[str, list[str]]]:
    """By what each is about: its page, and its figures in order."""
    memory, first_line = of_ways("memory"), of_ways("first-line-p50")
    first_lines = zip(*(of_ways(f"first-line-{p}") for p in PERCENTILES), strict=True)
    granularity = inspect.signature(ours.create_topic).parameters["granularity"].default
    return {
        "a DAG's first line": (
            "README.md",
            [f"{rounded(first_line[0] / 1000)} s", f"{rounded(first_line[1] / 1000)} s"],
        ),
        "waiting in Airflow": (
            "README.md",
            [f"{rounded(memory[0])} MB", f"{rounded(memory[1])} MB", f"{rounded(memory[2])} MB"],
        ),
        "a queue in a table": (
            "README.md",
            [
                f"{rounded(measured('results')[name]['ratio_spread']['median'])} times"
                for name in ("receive-100", "receive-1", "send-one")
            ],
        ),
        "the three ways": (
            "docs/compare.md",
            [
                f"| {' | '.join(map(number, of_ways(name)))} |"
                for name in ("rows", "rows-left", "memory", "recall")
            ]
            + [f"| {' | '.join(f'{told:.0f}' for told in of_ways('told'))} |"],
        ),
        "100 000 messages": (
            "docs/compare.md",
            [f"{figure('waiting_in_airflow', 'memory-alone-100000')} MB"],
        ),
        "sizing": (
            "docs/measuring.md",
            [
                f"| {with_unit(program, name)} |"
                for program, name in (
                    *(("results", "send-many"), ("results", "send-one"), ("results", "receive-1000")),
                    *(("results", "receive-100"), ("results", "receive-1"), ("ten_minutes_table", "disk")),
                    *(("results", "wheel-memory"), ("horizon", "memory-60 days")),
                )
            ],
        ),
        "a message beside its body": (
            "docs/how-to/operate.md",
            [f"about {round(median(measured('ten_minutes_table')['disk']['ours']) - 100, -1):.0f} bytes"],
        ),
        "an idle wheel": (
            "docs/measuring.md",
            [
                f"{in_notes('table', r'ours: [^;]*; the idle consumer used ([0-9.]+)%')}%",
                *(f"{figure('operating', name)}%" for name in ("idle-wheel", "idle-server")),
                figure("operating", "idle-questions"),
                f"{number(1000 * median(measured('operating')['idle-wal']['ours']))} bytes",
            ],
        ),
        "a year": ("docs/measuring.md", [with_unit("year", "messages-12"), f"{figure('year', 'wal')} bytes"]),
        "upkeep that catches up": (
            "docs/measuring.md",
            [
                ratio("catching_up", "rate"),
                f"load of {number(measured('catching_up')['rate-of-100-million']['load_average'])}",
                ratio("catching_up", "rate-of-100-million"),
                f"{figure('catching_up', 'longest-of-100-million')} ms",
            ],
        ),
        "runs that wait": (
            "docs/how-to/wait-for-an-answer.md",
            [
                f"| {figure('waiting_runs', f'{name}-{count}')}{unit} |"
                for count in (10, 100, 1000)
                for name, unit in (
                    *(("memory", " MB"), ("transactions", "")),
                    *(("process", " ms"), ("server", " ms")),
                )
            ],
        ),
        "an upgrade": (
            "docs/how-to/production.md",
            [f"| {figure('operating', f'upgrade-{name}')} s |" for name in ("first", "nothing", "functions")],
        ),
        "a larger machine": (
            "docs/measuring.md",
            [
                f"| {figure('ten_minutes_table', 'disk')} |",
                f"{1e6 / median(measured('results')['send-many']['ours']):.0f} µs",
            ],
        ),
        "granularities": (
            "docs/measuring.md",
            [f"{span / timedelta(milliseconds=1):g} ms" for span in (latency.GRANULARITY, granularity)],
        ),
        "single messages": (
            "docs/measuring.md",
            [
                f"{ratio('results', 'receive-1')} times",
                *(f"{ratio('ten_minutes_table', name)} times" for name in ("receive-1", "send-1")),
            ],
        ),
        "latency": (
            "docs/measuring.md",
            [
                latency_row(*(figure("due_to_task", f"due-to-task-ring-{p}") for p in PERCENTILES)),
                latency_row(*(figure("staying", f"staying-program-{p}") for p in PERCENTILES)),
                latency_row(*(figure("staying", f"staying-task-{p}") for p in PERCENTILES)),
                latency_row(*handled("a lone message on an idle topic")),
                latency_row(*handled("200/s")),
                *(latency_row(number(p50), number(p99)) for p50, p99 in first_lines),
            ],
        ),
        "what was measured once": (
            "docs/measuring.md",
            [
                *(f"{figure('many_topics', 'topics-lateness', side)} ms" for side in ("ours", "baseline")),
                *(growth_of_spark(part) for part in ("driver", "workers")),
            ],
        ),
    }


@pytest.mark.parametrize("what", paragraphs())
def test_the_figures_are_what_was_measured(what: str) -> None:
    page, figures = paragraphs()[what]
    text, place = " ".join((ROOT / page).read_text(encoding="utf-8").split()), 0
    for each in figures:
        found = re.compile(rf"(?<![\d.]){re.escape(each)}(?![\d.]*\d)").search(text, place)
        assert found, f"{page} lacks {each!r}, in this order: {figures}"
        place = found.end() - each.endswith("|")
