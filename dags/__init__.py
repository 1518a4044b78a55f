"""Example DAGs that run as they stand; docs/how-to.md lists what each shows."""

from __future__ import annotations
