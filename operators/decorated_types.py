"""The types of functions that the decorators make tasks, for type checkers.

A task is called without the messages and the consumer, which the operator gives. The call returns the task's
result, typed ``Any``, because it is used where the result's own type is expected: as parameters of other
tasks and of operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, overload

if TYPE_CHECKING:
    from collections.abc import Callable

    from duewheel.operators.handed_message import HandedMessage
    from duewheel.spark import Batch as SparkBatch
    from duewheel.store import Batch, Consumer

Parameters = ParamSpec("Parameters")


class DecoratedTask(Protocol[Parameters]):
    """A task made of a function; ``Parameters`` are the parameters of its call in the DAG."""

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Any: ...

    def partial(self, **kwargs: Any) -> DecoratedTask[...]: ...

    def expand(self, **kwargs: Any) -> Any: ...

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> Any: ...

    def override(self, **kwargs: Any) -> DecoratedTask[Parameters]: ...


class DecoratesBatchFunction(Protocol):
    """Decorates a function whose first parameter is the batch; ``consumer`` may be the second."""

    @overload
    def __call__(
        self, python_callable: Callable[Concatenate[Batch, Consumer, Parameters], object], /
    ) -> DecoratedTask[Parameters]: ...

    @overload
    def __call__(
        self, python_callable: Callable[Concatenate[Batch, Parameters], object], /
    ) -> DecoratedTask[Parameters]: ...


class DecoratesMessageFunction(Protocol):
    """Decorates a function whose first parameter is a message; ``consumer`` may be the second."""

    @overload
    def __call__(
        self, python_callable: Callable[Concatenate[HandedMessage, Consumer, Parameters], object], /
    ) -> DecoratedTask[Parameters]: ...

    @overload
    def __call__(
        self, python_callable: Callable[Concatenate[HandedMessage, Parameters], object], /
    ) -> DecoratedTask[Parameters]: ...


class DecoratesSparkFunction(Protocol):
    """Decorates a function whose first parameter is the batch of a Spark task."""

    def __call__(
        self, python_callable: Callable[Concatenate[SparkBatch, Parameters], object], /
    ) -> DecoratedTask[Parameters]: ...
