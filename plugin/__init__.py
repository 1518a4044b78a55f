"""What Airflow finds duewheel by. Imports nothing: Airflow loads it in every process."""

from __future__ import annotations
