"""Tests of programs and DAGs that use duewheel: a broker for the test, and a clock that the test moves.

The extra ``testing`` has a pytest plugin. Its fixture ``duewheel`` is a :class:`BrokerInTest`::

    from datetime import timedelta

    def test_an_order_has_half_an_hour(duewheel):
        duewheel.create_topic("order-timeout")
        place_order(duewheel, "4711")
        duewheel.assert_sent("order-timeout", key="4711", due_in=timedelta(minutes=30))

Names are imported on first use, so a run of pytest that does not use the fixture imports none of this.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duewheel.testing.broker_in_test import BrokerInTest as BrokerInTest
    from duewheel.testing.dag_runs import DagRunResult as DagRunResult
    from duewheel.testing.dag_runs import TaskResult as TaskResult
    from duewheel.testing.messages import message as message

_HOMES = {
    "BrokerInTest": "broker_in_test",
    "DagRunResult": "dag_runs",
    "TaskResult": "dag_runs",
    "message": "messages",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"duewheel.testing.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
