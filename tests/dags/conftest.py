"""All DAGs of this folder are run by one process, which imports Airflow once."""

from __future__ import annotations

from tests.airflow_runs import duewheel_airflow as duewheel_airflow
