"""Example DAGs that run as they stand: unpaid orders that are cancelled, customers who are reminded."""

from __future__ import annotations
