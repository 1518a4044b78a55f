"""The system user that a server runs as: processes that ask for it at the same time get the same one."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

#: Says that it is ready, waits for the others, and asks.
ASK = """
import sys
from duewheel.embedded import machine
machine.SERVER_USER = sys.argv[1]
print("ready", flush=True)
sys.stdin.readline()
account = machine.server_account()
print(account and (account.pw_uid, account.pw_gid))
"""


@pytest.fixture
def name() -> Iterator[str]:
    """The name of a system user that nobody has made; it goes after the test."""
    name = f"duewheel-{os.getpid()}"
    yield name
    if any(account.pw_name == name for account in pwd.getpwall()):
        subprocess.run([str(shutil.which("userdel", path="/usr/sbin:/sbin")), name], check=True)


@pytest.mark.parametrize("time", range(5))
def test_processes_starting_on_a_new_machine_share_one_account(name: str, time: int) -> None:
    asking = [
        subprocess.Popen(
            [sys.executable, "-c", ASK, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    for process in asking:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in asking:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    answers = {process.communicate(timeout=60)[0].strip() for process in asking}
    found = next((account for account in pwd.getpwall() if account.pw_name == name), None)
    # An ordinary user runs the server by itself.
    expected = None if os.geteuid() != 0 else found and (found.pw_uid, found.pw_gid)
    assert answers == {str(expected)}
    assert (os.geteuid() == 0) == (found is not None)
