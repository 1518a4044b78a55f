"""Checks of mapped operators when the DAG is read.

Airflow makes the instances of ``Operator.partial(...).expand(...)`` when the task runs, so their constructors
check nothing before. Here each instance whose arguments are known is also made when the DAG is read, and
thrown away. A templated argument that another task will give counts as a template does. An instance with
another unknown argument is left to its run, except for the names of its topic and its group.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, BaseSensorOperator
from airflow.sdk.definitions.mappedoperator import OperatorPartial

from duewheel.hooks.arguments.declared import check_group, check_topic, is_given_later

if TYPE_CHECKING:
    from airflow.sdk.definitions.mappedoperator import MappedOperator


class CheckedWhenMapped:
    """Base of the operators: the known arguments of mapped operators are checked when the DAG is read."""

    if not TYPE_CHECKING:

        @classmethod
        def partial(cls, **kwargs: Any) -> OperatorPartial:
            """Like Airflow's own."""
            made = super().partial(**kwargs)
            # Marked as used, because Airflow warns about a partial that is never expanded.
            made._expand_called = True
            return _CheckedPartial(operator_class=cls, kwargs=made.kwargs, params=made.params)


class _CheckedPartial(OperatorPartial):
    """Airflow's own, with checks."""

    def expand(self, **mapped_kwargs: Any) -> MappedOperator:
        """Make the mapped operator.

        Raises:
            DueWheelError: an instance that is known would refuse its arguments.
        """
        mapped = super().expand(**mapped_kwargs)
        for given in _instances(mapped_kwargs):
            _check(mapped, given)
        return mapped

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> MappedOperator:
        """Like :meth:`expand`, for arguments that are given together."""
        mapped = super().expand_kwargs(kwargs, strict=strict)
        for given in [kwargs] if is_given_later(kwargs) and not isinstance(kwargs, list) else kwargs:
            if isinstance(given, Mapping):
                _check(mapped, given)
            else:
                _check_names(mapped)
        return mapped


class _Later:
    """Stands for a value that another task will give."""

    def resolve(self) -> None:
        """Only marks it as such; see :func:`is_given_later`."""

    def iter_references(self) -> None:
        """Like ``resolve``."""


def _instances(mapped: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The arguments of as few instances as have every known value once."""
    values = {name: _values(given) for name, given in mapped.items()}
    for number in range(max(map(len, values.values()))):
        # A list that is used up continues with its last value; a mistake in it was found by then.
        yield {name: each[min(number, len(each) - 1)] for name, each in values.items()}


def _values(mapped: Any) -> list[Any]:
    if hasattr(mapped, "resolve"):
        return [_Later()]
    return list(mapped.items() if isinstance(mapped, Mapping) else mapped) or [_Later()]


def _check(mapped: MappedOperator, given: Mapping[str, Any]) -> None:
    kind = mapped.operator_class
    known = {name: value for name, value in given.items() if name not in _of_airflow()}
    if any(is_given_later(value) and name not in kind.template_fields for name, value in known.items()):
        _check_names(mapped)
    else:
        mapped.unmap(known)


def _check_names(mapped: MappedOperator) -> None:
    for name, check in (("topic", check_topic), ("group", check_group)):
        if name in mapped.partial_kwargs:
            check(mapped.partial_kwargs[name])


@cache
def _of_airflow() -> frozenset[str]:
    return frozenset(
        {*inspect.signature(BaseOperator.__init__).parameters}
        | {*inspect.signature(BaseSensorOperator.__init__).parameters}
    )
