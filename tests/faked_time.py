"""Processes that are told another time than the machine's, by libfaketime."""

from __future__ import annotations

import time
from pathlib import Path

#: The package of Debian, as ``.ci/system_packages`` names it.
PACKAGE = "libfaketime"
#: After so long each process has read the file again. The cache counts whole seconds, and lasts for over one.
_READ_AGAIN_SECONDS = 2.1


def told_by(file: Path) -> dict[str, str]:
    """The environment of processes whose clock a file moves: see :func:`set_clock`."""
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        # Without a cache each reading of the clock opens the file. Postgres also reads it in its handler of
        # SIGALRM: there the malloc of fopen() may meet an interrupted malloc, and abort the session.
        "FAKETIME_CACHE_DURATION": "1",
        # Pauses are as long as they are.
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def set_clock(file: Path, ahead_seconds: int) -> None:
    """Have clocks that go by a file be ahead by so many seconds, and return when all of them are."""
    new = file.with_suffix(".new")
    new.write_text(f"{ahead_seconds:+d}")
    new.chmod(0o644)
    new.replace(file)
    # A process does not tell that it has read the file.
    time.sleep(_READ_AGAIN_SECONDS)
