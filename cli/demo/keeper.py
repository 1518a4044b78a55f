"""Keeps a command until its input ends, then ends it with everything in the session of this process.

The process that starts this one holds the other end of the input. The kernel closes that end even if the
process is killed, so the command never outlives it. `airflow standalone` alone would: it ends its parts after
Ctrl-C only, and the tasks and workers of a part that was killed not at all.

Run as `python -m duewheel.cli.demo.keeper COMMAND...`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

from duewheel.cli.demo.processes import end_sessions
from duewheel.cli.stopping import stopped_by_signal

#: For Airflow to end in order. A task may be at work for longer, and is killed.
_GRACE_SECONDS = 6.0


def main(command: list[str]) -> int:
    """Return the exit status of the command."""
    # A second signal must not keep the first one from ending the children.
    stopping = stopped_by_signal(second_ends=False)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def read_to_end() -> None:
        while os.read(sys.stdin.fileno(), 1024):
            pass
        stopping.set()

    def wait_for_the_command() -> None:
        process.wait()
        stopping.set()

    for waiting in (read_to_end, wait_for_the_command):
        threading.Thread(target=waiting, daemon=True).start()
    stopping.wait()
    # As Ctrl-C does: after no other signal `airflow standalone` ends its parts.
    process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_SECONDS)
    end_sessions([os.getsid(0)])
    return process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
