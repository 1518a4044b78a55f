"""The entry points by which Airflow finds duewheel. The package imports nothing, because Airflow loads it in
every process."""

from __future__ import annotations
