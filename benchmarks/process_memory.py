"""Memory of processes, as Linux tells it."""

from __future__ import annotations

from pathlib import Path


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return _kilobytes(pid, "status", b"VmRSS:")


def peak_bytes(pid: int) -> int:
    """The most resident memory that a process has had."""
    return _kilobytes(pid, "status", b"VmHWM:")


def proportional_bytes(pid: int) -> int:
    """Resident memory of a process, of pages that others have too its part; 0 where it has ended."""
    return _kilobytes(pid, "smaps_rollup", b"Pss:")


def descendants(parent: int) -> list[int]:
    """The processes below one, however deep."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            stat = told(int(entry.name), "stat").rpartition(b")")[2].split()
            if stat:
                parents[int(entry.name)] = int(stat[1])
    found = [parent]
    for pid in found:
        found += [child for child, of in parents.items() if of == pid]
    return found[1:]


def told(pid: int, what: str) -> bytes:
    """A file of a process that the system makes, empty where the process has ended."""
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        return b""


def _kilobytes(pid: int, what: str, name: bytes) -> int:
    for line in told(pid, what).splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0
