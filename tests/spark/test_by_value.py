"""Functions travel to executors, also those of a module that no executor can import."""

from __future__ import annotations

import importlib.util
import pickle
import sys
from pathlib import Path

import pytest

from duewheel.spark.partition_work import dumped
from duewheel.store.values.instants import to_datetime

DAG_FILE = """
FACTOR = 3

def helper(number):
    return FACTOR * number

def work(number):
    return helper(number) + 1
"""


def test_function_of_a_dag_file_travels_with_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow loads a DAG file under a name of its own, which is on no path."""
    path = tmp_path / "dag.py"
    path.write_text(DAG_FILE)
    name = "unusual_prefix_0123_dag"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)

    sent = dumped(module.work)
    monkeypatch.delitem(sys.modules, name)

    assert pickle.loads(sent)(2) == 7


def test_function_that_can_be_imported_is_sent_by_its_name() -> None:
    sent = dumped(to_datetime)

    assert len(sent) < 100
    assert pickle.loads(sent) is to_datetime
