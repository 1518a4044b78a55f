"""Tasks that send, recall and consume delay messages. Each operator is imported from its own module."""

from __future__ import annotations
