"""Tasks that wait until messages are due."""

from __future__ import annotations
