"""Plays the faults and prints the tables: ``make chaos``. All of them together write ``docs/faults.md``.

Environment:
    CHAOS: the names of faults, with commas, ``full-size``, or ``mix``; all faults otherwise.
    CHAOS_SECONDS: how long each goes on, or for how long mixes are drawn.
    MIX: a mix to play, as a broken one is printed.
    SEED: of every choice.
    DUEWHEEL_TEST_POSTGRES: the folder of the server's programs.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
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

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
#: The tables are between them and their ends.
MARK = "<!-- written by `make chaos` -->\n"
FULL_MARK = "<!-- written by `make chaos CHAOS=full-size` -->\n"
END = "<!-- end -->\n"
COLUMNS = (
    *("fault", "command", "done", "sent", "received", "lost", "early", "doubled", "recalled, but delivered"),
    *("out of order", "longest wait", "recovered after", "upkeep after", "verdict"),
)


def in_seconds(seconds: float | None) -> str:
    """A cell of the table."""
    return "" if seconds is None else f"{seconds:.1f} s"


def row(outcome: Outcome) -> str:
    """A row of the table, in Markdown."""
    cells = [
        f'<a id="{outcome.fault.name}"></a>{outcome.fault.title}',
        f"`make chaos CHAOS={outcome.fault.name}`",
        outcome.done,
        *(f"{number:,}".replace(",", " ") for number in (outcome.sent, outcome.received)),
        *(outcome.count("lost"), outcome.count("early")),
        outcome.count("doubled") + outcome.count("held twice"),
        *(outcome.count("recalled"), outcome.count("order")),
        *map(in_seconds, (outcome.longest_wait_seconds, outcome.recovery_seconds, outcome.upkeep_seconds)),
        "**broken**" if outcome.violations else "held",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def table(outcomes: Sequence[Outcome], told: str) -> str:
    """The table, and under it how it was made."""
    head = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"
    return "\n".join([head, *map(row, outcomes), "", told, ""])


def proven_table(results: Sequence[tuple[Proven, bool]]) -> str:
    """The table of the faults that tests play, in Markdown."""
    rows = [
        f'| <a id="{one.name}"></a>{one.title} | `make chaos CHAOS={one.name}`'
        f" | {', '.join(f'`{test}`' for test in one.tests)} | {'held' if holds else '**broken**'} |"
        for one, holds in results
    ]
    return "\n".join(["| fault | command | tests | verdict |", "|---|---|---|---|", *rows, ""])


def write(mark: str, tables: str) -> None:
    """Put tables in the page, below a mark, in place of those there."""
    before, _, rest = PAGE.read_text().partition(mark)
    PAGE.write_text(f"{before}{mark}\n{tables}\n{END}{rest.partition(END)[2]}")


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


def play_in_full(seed: int) -> int:
    """Play those that have a full size in it, and write their table."""
    chosen = [(one, one.full_seconds) for one in FAULTS.values() if one.full_seconds is not None]
    with ThreadPoolExecutor(len(chosen)) as threads:
        # Beside each other, as most of them stand still for most of the time.
        playing = [threads.submit(played, one, seed, seconds) for one, seconds in chosen]
        outcomes = [one.result() for one in playing]
    told = f"Seed {seed}, Postgres {outcomes[0].server_version}."
    write(FULL_MARK, table(outcomes, told))
    print(table(outcomes, told))
    return int(any(outcome.violations for outcome in outcomes))


def main() -> int:
    """Play what the environment asks for; the status is 1 where a promise was broken."""
    seed, seconds = int(os.environ.get("SEED", "1")), float(os.environ.get("CHAOS_SECONDS", "10"))
    if os.environ.get("CHAOS") == "mix":
        given = os.environ.get("MIX")
        return int(breaks(read(given), seed)) if given else play_mixes(seed, seconds)
    if os.environ.get("CHAOS") == "full-size":
        return play_in_full(seed)
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
        outcomes = [played(FAULTS[name], seed, seconds) for name in chosen if name in FAULTS]
        results = [(one, one.holds(passed.result())) for one in proven] if passed else []
    server = f", Postgres {outcomes[0].server_version}" if outcomes else ""
    tables = "\n".join(
        [
            *([table(outcomes, f"Seed {seed}, {seconds:g} s for each fault{server}.")] if outcomes else []),
            *([proven_table(results)] if results else []),
        ]
    )
    print(f"\n{tables}")
    if chosen == known:
        write(MARK, tables)
    broken = any(outcome.violations for outcome in outcomes) or not all(holds for _, holds in results)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
