"""The operations on topics, groups, messages and schedules, apart from consuming: the parts of the broker."""

from __future__ import annotations
