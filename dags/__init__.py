"""Example DAGs that run as they stand; README.md lists them."""

from __future__ import annotations
