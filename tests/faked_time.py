"""Processes that are told another time than the machine's, by libfaketime."""

from __future__ import annotations

from pathlib import Path

#: The package of Debian, as ``.ci/system_packages`` names it.
PACKAGE = "libfaketime"


def told_by(file: Path) -> dict[str, str]:
    """The environment of processes whose clock a file moves: see :func:`set_clock`."""
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_NO_CACHE": "1",
        # Pauses are as long as they are.
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def set_clock(file: Path, ahead_seconds: int) -> None:
    """Have clocks that go by a file be ahead by so many seconds, from now on."""
    new = file.with_suffix(".new")
    new.write_text(f"{ahead_seconds:+d}")
    new.chmod(0o644)
    new.replace(file)
