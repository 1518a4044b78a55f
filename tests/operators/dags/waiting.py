"""A DAG whose sensor has nothing to see when it looks first."""

from __future__ import annotations

from airflow.sdk import DAG

from duewheel.sensors.due_messages import DueMessagesSensor

with DAG("waiting", schedule=None) as dag:
    DueMessagesSensor(task_id="wait", topic="waiting", group="handler", timeout=1000, deferrable=True)
