"""Example DAGs, ready to run; README.md lists them."""

from __future__ import annotations
