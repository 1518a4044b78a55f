"""A separate program for one question, `python -m benchmarks.NAME`, on a server with stock settings.

The subjects of `python -m benchmarks` run on a tuned server and on tables at rest. These programs measure the
set-up of most users: Postgres as it is installed (100 connections, 64 locks per transaction, autovacuum as it
comes), and tables that were never vacuumed or analyzed by hand.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from benchmarks import report
from benchmarks.bench import Bench, Subject
from benchmarks.measure import Row
from benchmarks.server import STOCK_SETTINGS, Server


def run(name: str, description: str | None, subjects: Sequence[Subject]) -> int:
    """Measure the subjects, print each row as it is known, and write `results/NAME.md` and `NAME.json`.

    Returns:
        0 when all could be measured, whether or not goals were reached.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        choices=[subject.name for subject in subjects],
        help="only this subject, and results are not written; may be repeated",
    )
    parser.add_argument(
        "--long", action="store_true", help="full sizes; without it, about two minutes on an idle machine"
    )
    parser.add_argument("--pairs", type=int, help="readings of each side (default 2, long 5)")
    parser.add_argument("--list", action="store_true", help="list the subjects")
    options = parser.parse_args()
    if options.list:
        for subject in subjects:
            print(f"{subject.name:16} {subject.what}")
        return 0
    pairs = options.pairs or (5 if options.long else 2)
    rows: list[Row] = []
    with Server(STOCK_SETTINGS) as server:
        facts = {**report.machine_facts(), **server.facts()}
        bench = Bench(server, pairs=pairs, quick=not options.long)
        for subject in subjects:
            if options.only and subject.name not in options.only:
                continue
            for row in subject.run(bench):
                row.measured_at = datetime.now(UTC).isoformat(timespec="seconds")
                row.load_average = os.getloadavg()[0]
                row.flush_ms = server.flush_milliseconds()
                rows.append(row)
                print(report.line(row), flush=True)
                for note in row.notes:
                    print(f"    {note}", flush=True)
    if not options.only:
        report.write(rows, facts, pairs=pairs, quick=not options.long, table_name=name, json_name=name)
    return 0


def main(name: str, description: str | None, subjects: Sequence[Subject]) -> None:
    """Run the program and end the process with its status."""
    sys.exit(run(name, description, subjects))
