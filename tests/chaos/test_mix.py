"""Mixes of faults: drawn, written and read, shrunk, and played."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chaos.__main__ import breaks
from tests.chaos.arena import Arena
from tests.chaos.fault import FAULTS, Fault
from tests.chaos.mix import Mix, as_fault, drawn, read, shortest
from tests.chaos.playing import play
from tests.waiting import ask, connected


def test_a_seed_draws_the_same_mix_and_another_one_another() -> None:
    assert [drawn(seed) for seed in range(20)] == [drawn(seed) for seed in range(20)]
    assert len({drawn(seed) for seed in range(20)}) > 15


def test_a_mix_is_read_as_it_is_written() -> None:
    for seed in range(50):
        assert read(str(drawn(seed))) == drawn(seed)


def test_it_is_shrunk_to_what_breaks() -> None:
    mix = read(
        "two-phase+wheels-killed:4,savepoints+consumers-killed:4,burst:2,replication:4,fsync=on,work_mem=64kB"
    )
    tried = []

    def needs_these(one: Mix) -> bool:
        tried.append(one)
        return {"savepoints", "replication"} <= {part.fault for part in one.parts} and (
            ("work_mem", "64kB") in one.settings
        )

    assert str(shortest(mix, needs_these)) == "savepoints:1,replication:1,work_mem=64kB"
    assert len(tried) < 30


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
        with connected(arena.dsn) as connection:
            for _ in arena.rounds():
                ask(connection, "delete from duewheel.message")
        return "deleted"

    monkeypatch.setitem(FAULTS, "planted", Fault("planted", "messages are deleted", lose))
    mix = read("savepoints:1,planted+wheels-killed:1,autovacuum=off")
    assert breaks(mix, 1)
    assert str(shortest(mix, lambda shorter: breaks(shorter, 1))) == "planted:1"
    assert "lost" in capsys.readouterr().out
