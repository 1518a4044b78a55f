"""Plays the faults and prints the table: ``make chaos``. All of them together write ``docs/faults.md``.

Environment:
    CHAOS: the names of faults, with commas; all of them otherwise.
    CHAOS_SECONDS: how long each goes on.
    SEED: of every choice.
    DUEWHEEL_TEST_POSTGRES: the folder of the server's programs.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.fault import FAULTS
from tests.chaos.faults import administration, answers, neighbours, processes, servers
from tests.chaos.playing import Outcome, play

#: Each enters its faults where it is imported.
MODULES = (processes, servers, answers, administration, neighbours)

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
#: The table begins below it.
MARK = "<!-- written by `make chaos` -->\n"
COLUMNS = (
    *("fault", "done", "sent", "received", "lost", "early", "doubled", "recalled, but delivered"),
    *("out of order", "longest wait", "verdict"),
)


def row(outcome: Outcome) -> str:
    """A row of the table, in Markdown."""
    cells = [
        f"{outcome.fault.title} (`{outcome.fault.name}`)",
        outcome.done,
        *(f"{number:,}".replace(",", " ") for number in (outcome.sent, outcome.received)),
        *(outcome.count("lost"), outcome.count("early")),
        outcome.count("doubled") + outcome.count("held twice"),
        *(outcome.count("recalled"), outcome.count("order")),
        f"{outcome.longest_wait_seconds:.1f} s",
        "**broken**" if outcome.violations else "held",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def table(outcomes: Sequence[Outcome], told: str) -> str:
    """The table, and under it how it was made."""
    head = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"
    return "\n".join([head, *map(row, outcomes), "", told, ""])


def main() -> int:
    """Play what the environment asks for; the status is 1 where a promise was broken."""
    seed, seconds = int(os.environ.get("SEED", "1")), float(os.environ.get("CHAOS_SECONDS", "10"))
    chosen = [name for name in os.environ.get("CHAOS", "").split(",") if name] or list(FAULTS)
    if unknown := [name for name in chosen if name not in FAULTS]:
        print(f"There is no fault {unknown[0]}: give names of {', '.join(FAULTS)}.")
        return 2
    print(f"Seed {seed}, {seconds:g} s for each fault.", flush=True)
    outcomes, server = [], ""
    for name in chosen:
        with tempfile.TemporaryDirectory(prefix="duewheel-chaos-") as folder:
            outcome = play(FAULTS[name], Path(folder), seed, seconds)
        server = f"Postgres {outcome.server_version}"
        print(f"{name}: {'broken' if outcome.violations else 'held'}; {outcome.done}", flush=True)
        for violation in outcome.violations:
            print(f"  {violation.kind}: {violation.sentence}", flush=True)
        outcomes.append(outcome)
    written = table(outcomes, f"Seed {seed}, {seconds:g} s for each fault, {server}.")
    print(f"\n{written}")
    if len(outcomes) == len(FAULTS):
        PAGE.write_text(PAGE.read_text().partition(MARK)[0] + MARK + "\n" + written)
    return int(any(outcome.violations for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
