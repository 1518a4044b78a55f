"""Example DAGs that run as they stand; docs/how-to.md explains each."""

from __future__ import annotations
