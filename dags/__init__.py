"""Example DAGs that run as they stand: an unpaid order is cancelled by its timeout message."""

from __future__ import annotations
