"""The findings of `duewheel doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        check: the thing that was checked.
        status: ``ok``; ``warning`` if messages are still delivered; ``error`` if not, or if they may be lost.
        says: the finding, without a full stop.
        advice: how to repair it; empty if nothing is wrong.
    """

    check: str
    status: Status
    says: str
    advice: str = ""
