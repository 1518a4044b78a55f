"""What a check of `duewheel doctor` finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        check: what was looked at.
        status: ``ok``; ``warning`` where messages still come; ``error`` where they do not, or may be lost.
        says: what is there, without a full stop.
        advice: what to do; empty where nothing is to be done.
    """

    check: str
    status: Status
    says: str
    advice: str = ""
