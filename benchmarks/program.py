"""The one way to run: measure some subjects on one server, print each row as it is known, write the results.

The subjects of `python -m benchmarks` run on a tuned server and on tables at rest. Each `python -m
benchmarks.NAME` measures the set-up of most users: Postgres as it is installed (100 connections, 64 locks per
transaction, autovacuum by default), and tables that were never vacuumed or analyzed by hand.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from benchmarks import report
from benchmarks.bench import Bench, Subject
from benchmarks.measure import Row
from benchmarks.server import STOCK_SETTINGS, Server


def run(
    name: str,
    description: str | None,
    subjects: Sequence[Subject],
    settings: Mapping[str, str],
    *,
    is_long: bool = False,
) -> int:
    """Measure the subjects and write `results/NAME.md` and `results/NAME.json`.

    Args:
        name: the program's, or empty for `python -m benchmarks`.
        description: shown by --help.
        subjects: in the order of the table.
        settings: the server's.
        is_long: whether sizes are full unless --quick is given; else they are small unless --long is.

    Returns:
        0 when all could be measured, whether or not goals were reached.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks{name and '.'}{name}", description=description
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="only this subject; may be repeated")
    parser.add_argument(
        "--update", action="store_true", help="with --only: put its rows into the last results"
    )
    if is_long:
        parser.add_argument("--quick", action="store_true", help="small sizes; results are not written")
    else:
        parser.add_argument("--long", action="store_true", help="full sizes; without it, some minutes")
    parser.add_argument("--pairs", type=int, help="readings of each side (default 5; with small sizes 2)")
    parser.add_argument("--list", action="store_true", help="list the subjects")
    options = parser.parse_args()
    quick = options.quick if is_long else not options.long
    if options.list:
        for subject in subjects:
            print(f"{subject.name:16} {subject.what}")
        return 0
    if unknown := set(options.only or []) - {subject.name for subject in subjects}:
        parser.error(f"no such subject: {', '.join(sorted(unknown))}; --list shows them")
    chosen = [subject for subject in subjects if not options.only or subject.name in options.only]
    if missing := [text for subject in chosen if (text := subject.missing())]:
        parser.error("; ".join(missing))

    pairs = options.pairs or (2 if quick else 5)
    rows: list[Row] = []
    failed: list[str] = []
    with Server(settings) as server:
        facts = {**report.machine_facts(), **server.facts()}
        bench = Bench(server, pairs=pairs, quick=quick)
        for subject in chosen:
            try:
                for row in subject.run(bench):
                    row.measured_at = datetime.now(UTC).isoformat(timespec="seconds")
                    row.load_average = os.getloadavg()[0]
                    row.flush_ms = server.flush_milliseconds()
                    rows.append(row)
                    print(report.line(row), *row.notes, sep="\n    ", flush=True)
            except Exception:
                # The results of the other subjects are kept; the exit status tells of the failure.
                logging.exception("%s could not be measured", subject.name)
                failed.append(subject.name)
    if rows and (options.update or not options.only) and not (is_long and quick):
        kept = report.updated(name, rows) if options.only else rows
        report.write(name, kept, facts, pairs=pairs, quick=quick)
    if failed:
        print(f"Could not be measured: {', '.join(failed)}. The errors are above.", file=sys.stderr)
    return 1 if failed else 0


def main(
    name: str,
    description: str | None,
    subjects: Sequence[Subject],
    settings: Mapping[str, str] = STOCK_SETTINGS,
) -> None:
    """Run a program with small sizes unless --long is given, and end the process with its status."""
    # Installed packages contain their bytecode, so Airflow's processes may write theirs.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.exit(run(name, description, subjects, settings))
