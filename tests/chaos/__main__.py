"""Plays the faults and prints the tables: ``make chaos``. Each writes its row of ``docs/faults.md``.

Environment:
    CHAOS: the names of faults, with commas, ``full-size``, or ``mix``; all faults otherwise.
    CHAOS_SECONDS: how long each goes on, or for how long mixes are drawn; 10 without it.
    MIX: a mix to play, as a broken one is printed.
    SEED: of every choice.
    DUEWHEEL_TEST_POSTGRES: the folder of the server's programs.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.chaos.checker import Violation
from tests.chaos.fault import FAULTS, Fault
from tests.chaos.faults import (
    administration,
    answers,
    clocks,
    crowds,
    neighbours,
    processes,
    programs,
    servers,
)
from tests.chaos.mix import Mix, as_fault, drawn, read, shortest
from tests.chaos.playing import Outcome, play
from tests.chaos.proven import PROVEN, Proven, run

#: Each enters its faults where it is imported.
MODULES = (processes, programs, servers, clocks, crowds, answers, administration, neighbours)

#: Those that have a full size.
FULL = [name for name, one in FAULTS.items() if one.full_seconds is not None]

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
#: The tables of the page are between them and their ends.
MARK = "<!-- written by `make chaos` -->\n"
FULL_MARK = "<!-- written by `make chaos CHAOS=full-size` -->\n"
PROVEN_MARK = "<!-- written by `make chaos`: tests -->\n"
END = "<!-- end -->\n"
COLUMNS = (
    *("fault", "command", "done", "sent", "received", "lost", "early", "doubled", "recalled, but delivered"),
    *("out of order", "longest wait", "recovered after", "upkeep after", "run", "verdict"),
)
PROVEN_COLUMNS = ("fault", "command", "tests", "verdict")


def in_seconds(seconds: float | None) -> str:
    """A cell of the table."""
    return "" if seconds is None else f"{seconds:.1f} s"


def is_full(fault: Fault, seconds: float) -> bool:
    """Whether so many seconds are its full size, which has a table of its own."""
    return fault.full_seconds is not None and seconds >= fault.full_seconds


def row(outcome: Outcome, seed: int, seconds: float) -> str:
    """A row of the table, in Markdown."""
    fault = outcome.fault
    cells = [
        *beginning(fault.name, fault.title, seconds if is_full(fault, seconds) else None),
        outcome.done,
        *(f"{number:,}".replace(",", " ") for number in (outcome.sent, outcome.received)),
        *(outcome.count("lost"), outcome.count("early")),
        outcome.count("doubled") + outcome.count("held twice"),
        *(outcome.count("recalled"), outcome.count("order")),
        *map(in_seconds, (outcome.longest_wait_seconds, outcome.recovery_seconds, outcome.upkeep_seconds)),
        f"seed {seed}, {seconds:g} s, Postgres {outcome.server_version}",
        "**broken**" if outcome.violations else "held",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def proven_row(one: Proven, holds: bool) -> str:
    """A row of the table of faults that tests play, in Markdown."""
    tests = ", ".join(f"`{test}`" for test in one.tests)
    cells = [*beginning(one.name, one.title), tests, "held" if holds else "**broken**"]
    return f"| {' | '.join(cells)} |"


def beginning(name: str, title: str, full_seconds: float | None = None) -> tuple[str, str]:
    """The first cells of a row; in full size the fault has another row."""
    if full_seconds is None:
        return f'<a id="{name}"></a>{title}', f"`make chaos CHAOS={name}`"
    command = f"`make chaos CHAOS={name} CHAOS_SECONDS={full_seconds:g}`"
    return f'<a id="{name}-in-full"></a>{title}', command


def name_of(written: str) -> str:
    """The fault of a row."""
    return written.partition("CHAOS=")[2].partition("`")[0].partition(" ")[0]


def table(columns: Sequence[str], rows: Iterable[str]) -> str:
    """A table, in Markdown."""
    head = f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"
    return "\n".join([head, *rows, ""])


def rows_of(mark: str) -> dict[str, str]:
    """The rows that the page has below a mark, by fault."""
    lines = PAGE.read_text().partition(mark)[2].partition(END)[0].splitlines()
    return {name_of(line): line for line in lines if "CHAOS=" in line}


def write(mark: str, columns: Sequence[str], known: Iterable[str], rows: Iterable[str]) -> None:
    """Put rows in the page, in place of those of the same faults; those of no fault go."""
    there = rows_of(mark) | {name_of(one): one for one in rows}
    before, _, rest = PAGE.read_text().partition(mark)
    text = table(columns, [there[name] for name in known if name in there])
    PAGE.write_text(f"{before}{mark}\n{text}\n{END}{rest.partition(END)[2]}")


def played(fault: Fault, seed: int, seconds: float) -> Outcome:
    """Play a fault in a folder of its own, and say what came of it; an error is a broken promise, too."""
    try:
        with tempfile.TemporaryDirectory(prefix="duewheel-chaos-") as folder:
            outcome = play(fault, Path(folder), seed, seconds)
    except Exception as error:  # noqa: BLE001 -- the other faults are played all the same
        said = " ".join(f"{type(error).__name__}: {error}".split())[:2000]
        outcome = Outcome(
            *(fault, "ended with an error", 0, 0, None, None, None), (Violation("error", 1, said),), ""
        )
    print(f"{fault.name}: {'broken' if outcome.violations else 'held'}; {outcome.done}", flush=True)
    for violation in outcome.violations:
        print(f"  {violation.kind}: {violation.sentence}", flush=True)
    return outcome


def breaks(mix: Mix, seed: int) -> bool:
    """Play a mix; whether it broke a promise, or ended with an error."""
    print(f"MIX={mix}", flush=True)
    return bool(played(as_fault(mix), seed, 0.0).violations)


def play_mixes(seed: int, seconds: float) -> int:
    """Draw mixes for so long, and shrink the first that breaks a promise; the status is 1 then."""
    ends, count = time.monotonic() + seconds, 0
    while count == 0 or time.monotonic() < ends:
        mix, of = drawn(seed + count), seed + count
        if breaks(mix, of):
            found = shortest(mix, partial(breaks, seed=of))
            print(f"Broken. The shortest: make chaos CHAOS=mix SEED={of} MIX={found}")
            return 1
        count += 1
    print(f"{count} mixes held, of the seeds from {seed} on.")
    return 0


def play_faults(chosen: Iterable[str], seed: int, seconds: float | None) -> list[Outcome]:
    """Play faults, each of which writes its row.

    Args:
        chosen: their names.
        seed: of every choice.
        seconds: how long each goes on; None for its full size.
    """
    outcomes = []
    for fault in (FAULTS[name] for name in chosen):
        lasts = fault.full_seconds if seconds is None else seconds
        assert lasts is not None
        outcomes.append(played(fault, seed, lasts))
        written = row(outcomes[-1], seed, lasts)
        write(*((FULL_MARK, COLUMNS, FULL) if is_full(fault, lasts) else (MARK, COLUMNS, FAULTS)), [written])
    return outcomes


def main() -> int:
    """Play what the environment asks for; the status is 1 where a promise was broken."""
    seed, seconds = int(os.environ.get("SEED", "1")), float(os.environ.get("CHAOS_SECONDS", "10"))
    if os.environ.get("CHAOS") == "mix":
        given = os.environ.get("MIX")
        return int(breaks(read(given), seed)) if given else play_mixes(seed, seconds)
    if os.environ.get("CHAOS") == "full-size":
        return int(any(outcome.violations for outcome in play_faults(FULL, seed, None)))
    known = [*FAULTS, *PROVEN]
    chosen = [name for name in os.environ.get("CHAOS", "").split(",") if name] or known
    if unknown := [name for name in chosen if name not in known]:
        print(f"There is no fault {unknown[0]}: give mix, full-size, or names of {', '.join(known)}.")
        return 2
    print(f"Seed {seed}, {seconds:g} s for each fault.", flush=True)
    proven = [PROVEN[name] for name in chosen if name in PROVEN]
    with ThreadPoolExecutor(1) as beside:
        # They need what faults do not, and wait for most of the time.
        passed = beside.submit(run, proven) if proven else None
        outcomes = play_faults([name for name in chosen if name in FAULTS], seed, seconds)
        results = [(one, one.holds(passed.result())) for one in proven] if passed else []
    proven_rows = [proven_row(*one) for one in results]
    write(PROVEN_MARK, PROVEN_COLUMNS, PROVEN, proven_rows)
    rows = [row(outcome, seed, seconds) for outcome in outcomes]
    print(f"\n{table(COLUMNS, rows)}\n{table(PROVEN_COLUMNS, proven_rows)}")
    broken = any(outcome.violations for outcome in outcomes) or not all(holds for _, holds in results)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
