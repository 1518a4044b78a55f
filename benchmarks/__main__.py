"""`python -m benchmarks`: run the subjects, print each row as it is known, write the results."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from datetime import UTC, datetime

from benchmarks import report
from benchmarks.bench import Bench
from benchmarks.measure import Row
from benchmarks.server import Server
from benchmarks.subjects import SUBJECTS


def main(arguments: list[str]) -> int:
    """Run the subjects that `arguments` select; returns 0 when all could be measured, whether or not goals
    were reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="only this subject; may be repeated")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, for development; results are not written"
    )
    parser.add_argument(
        "--update", action="store_true", help="with --only: put its rows into the last results"
    )
    parser.add_argument("--pairs", type=int, help="readings of each side (default 5, quick 3)")
    parser.add_argument("--list", action="store_true", help="list the subjects")
    options = parser.parse_args(arguments)

    if options.list:
        for subject in SUBJECTS:
            print(f"{subject.name:16} {subject.what}")
        return 0
    if options.update and (options.quick or not options.only):
        parser.error("--update goes with --only, and not with --quick")
    names = {subject.name for subject in SUBJECTS}
    if unknown := set(options.only or []) - names:
        parser.error(f"no such subject: {', '.join(sorted(unknown))}; there are {', '.join(sorted(names))}")
    chosen = [subject for subject in SUBJECTS if not options.only or subject.name in options.only]
    if missing := [text for subject in chosen if (text := subject.missing())]:
        parser.error("; ".join(missing))
    pairs = options.pairs or (3 if options.quick else 5)

    rows: list[Row] = []
    failed: list[str] = []
    with Server() as server:
        facts = {**report.machine_facts(), **server.facts()}
        bench = Bench(server, pairs=pairs, quick=options.quick)
        for subject in chosen:
            try:
                for row in subject.run(bench):
                    row.measured_at = datetime.now(UTC).isoformat(timespec="seconds")
                    row.load_average = os.getloadavg()[0]
                    row.flush_ms = server.flush_milliseconds()
                    rows.append(row)
                    print(report.line(row), flush=True)
            except Exception:
                # The results of the other subjects are kept; the exit status tells of the failure.
                logging.exception("%s could not be measured", subject.name)
                failed.append(subject.name)
    print()
    print(report.table(rows, facts, pairs=pairs, quick=options.quick))
    if options.update:
        report.write(report.updated(rows), facts, pairs=pairs)
    elif not options.quick and not options.only:
        report.write(rows, facts, pairs=pairs)
    if failed:
        print(f"Could not be measured: {', '.join(failed)}. The errors stand above.", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
