"""Commands that run until a signal."""

from __future__ import annotations

import subprocess
import sys

# The handler runs while the main thread holds the lock of the event, as it does for a moment in each wait().
PROGRAM = """
import os, signal
from duewheel.cli.stopping import stopped_by_signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
stopping = stopped_by_signal({options})
with stopping._cond:
    os.kill(os.getpid(), signal.{name})
print(stopping.wait(60), flush=True)
os.kill(os.getpid(), signal.{name})
"""


def test_a_signal_in_the_midst_of_a_wait_stops_and_the_second_one_ends() -> None:
    for name, status in (("SIGINT", -2), ("SIGTERM", -15)):
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(name=name, options="")],
            stdout=subprocess.PIPE,
            text=True,
            timeout=120,
        )
        assert (ended.stdout, ended.returncode) == ("True\n", status)


def test_a_program_that_ends_others_is_not_ended_by_the_second_signal() -> None:
    program = PROGRAM.format(name="SIGTERM", options="second_ends=False")
    ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=120)
    assert (ended.stdout, ended.returncode) == ("True\n", 0)
