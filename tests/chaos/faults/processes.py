"""Processes of the broker's users that are killed or stopped."""

from __future__ import annotations

import signal
import time

from tests.chaos.arena import Arena
from tests.chaos.fault import fault
from tests.proof.stalling import stalls


@fault("wheels-killed", "SIGKILL of both wheels in the midst of releases, again and again")
def wheels_killed(arena: Arena) -> str:
    """No wheel is spared, so for a moment none turns."""
    kills = 0
    for _ in arena.rounds(pause_seconds=0.3):
        for wheel in arena.crew.of_role("wheel"):
            arena.crew.kill(wheel)
            kills += 1
        for _ in range(2):
            arena.crew.start("wheel")
    return f"{kills} kills"


@fault("wheel-stopped", "Two wheels, one stopped for a while and then continued", full_seconds=180)
def wheel_stopped(arena: Arena) -> str:
    """It may hold a lock, and goes on with what it knew. In full size it stops for a minute."""
    stops = 0
    for _ in arena.rounds():
        # Another fault may have killed all of them just now.
        if not (wheels := arena.crew.of_role("wheel")):
            continue
        wheel = arena.chance.choice(wheels)
        wheel.send_signal(signal.SIGSTOP)
        try:
            time.sleep(arena.seconds / 3)
        finally:
            wheel.send_signal(signal.SIGCONT)
        stops += 1
    return f"{stops} stops of {arena.seconds / 3:.1f} s"


@fault("consumers-killed", "SIGKILL of consumers that hold leases, started again at once")
def consumers_killed(arena: Arena) -> str:
    """Their leases end, and the messages come again."""
    kills = 0
    for _ in arena.rounds():
        role = arena.chance.choice(["consumer", "worker", "ordered_consumer"])
        arena.crew.kill_one(role, arena.chance)
        arena.crew.start(role)
        kills += 1
    return f"{kills} kills"


@fault("backends-stalled", "Backends stop wherever they are and go on later")
def backends_stalled(arena: Arena) -> str:
    """A busy machine does that to any process."""
    rounds = 0
    with stalls(arena.dsn, seed=arena.chance.randrange(1 << 30)):
        for _ in arena.rounds():
            rounds += 1
    return f"up to three at a time, through {rounds} rounds of receives"
