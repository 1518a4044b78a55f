"""Limits that Python checks before it asks the database; docs/reference/limits.md lists them all.

A module of numbers alone, so that a DAG file can be judged without importing the broker.
"""

from __future__ import annotations

from datetime import timedelta

#: A receive: messages, invisible duration, wait for the first message.
MOST_RECEIVED = 10_000
SHORTEST_INVISIBLE, LONGEST_INVISIBLE = timedelta(seconds=1), timedelta(hours=12)
LONGEST_WAIT = timedelta(seconds=30)

#: A topic: queues, the shortest time between two releases, its spans of time, its delay levels.
MOST_QUEUES = 64
SHORTEST_GRANULARITY, LONGEST_GRANULARITY = timedelta(milliseconds=1), timedelta(hours=1)
LONGEST_SETTING = timedelta(days=3660)
MOST_LEVELS = 64

#: A message: characters of its names.
LONGEST_KEY = 255
LONGEST_MESSAGE_GROUP = 255
LONGEST_IDEMPOTENCY_KEY = 512

#: A redrive: messages in a second.
SLOWEST_PER_SECOND, FASTEST_PER_SECOND = 0.001, 1_000_000
