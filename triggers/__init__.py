"""The timing wheel inside Airflow's triggerer, and the doorbell it rings for DAGs and sensors."""

from __future__ import annotations
