"""Mixes of faults: drawn, written and read, shrunk, and played."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chaos.__main__ import breaks
from tests.chaos.arena import Arena
from tests.chaos.fault import FAULTS, Fault
from tests.chaos.mix import as_fault, drawn, read, shortest
from tests.chaos.playing import play
from tests.waiting import ask, connected

DELETE_WAITING = """
delete from duewheel.message where deliver_at > clock_timestamp() + interval '0.1 s' returning 1
"""


def test_a_mix_is_read_as_written_and_a_seed_draws_the_same() -> None:
    for seed in range(50):
        assert read(str(drawn(seed))) == drawn(seed)


@pytest.mark.long
def test_a_mix_holds_every_promise(tmp_path: Path) -> None:
    outcome = play(
        as_fault(read("two-phase+wheels-killed:2,upkeep-killed+consumers-killed:2,autovacuum=off")),
        tmp_path,
        1,
        0,
    )
    assert not outcome.violations, [violation.sentence for violation in outcome.violations]


@pytest.mark.long
def test_a_loss_that_is_planted_is_what_a_mix_is_shrunk_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lose(arena: Arena) -> str:
        deleted = 0
        with connected(arena.dsn) as connection:
            # On a slow machine few messages wait in one second, and recalls may excuse the loss of those.
            while deleted < 20:
                for _ in arena.rounds():
                    # Of those that wait: what is in a consumer's hands ends in an error instead.
                    deleted += len(ask(connection, DELETE_WAITING))
        return f"{deleted} messages deleted"

    monkeypatch.setitem(FAULTS, "planted", Fault("planted", "messages are deleted", lose))
    mix = read("savepoints:1,planted+wheels-killed:1,autovacuum=off")
    assert breaks(mix, 1)
    assert "lost" in capsys.readouterr().out
    least = shortest(mix, lambda shorter: any(part.fault == "planted" for part in shorter.parts))
    assert str(least) == "planted:1"
    assert breaks(least, 1)
