"""From an Airflow connection to a broker."""

from __future__ import annotations
