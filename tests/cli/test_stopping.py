"""Commands that run until a signal."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The handler runs while the main thread holds the lock of the event, as it does for a moment in each wait().
PROGRAM = """
import os, signal
from duewheel.cli.stopping import stopped_by_signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
stopping = stopped_by_signal(second_ends={second_ends})
with stopping._cond:
    os.kill(os.getpid(), signal.{name})
print(stopping.wait(60), flush=True)
os.kill(os.getpid(), signal.{name})
"""


@pytest.mark.parametrize(
    ("name", "second_ends", "status"), [("SIGINT", True, -2), ("SIGTERM", True, -15), ("SIGTERM", False, 0)]
)
def test_a_signal_in_a_wait_stops_and_the_second_may_end(name: str, second_ends: bool, status: int) -> None:
    program = PROGRAM.format(name=name, second_ends=second_ends)
    ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=120)
    assert (ended.stdout, ended.returncode) == ("True\n", status)
