"""``@task.due_messages`` and ``@task.spark_due_messages`` make a function that gets messages a task.

The operator passes some arguments when the task runs: the messages and ``consumer``, or for Spark the batch.
They are not arguments of the call in the DAG, so Airflow is shown the function without them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, Literal, ParamSpec, overload

from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory

from duewheel.hooks.arguments.declared import check_callable
from duewheel.operators.consume import ConsumeMessagesOperator
from duewheel.operators.consuming import ConsumingOperator
from duewheel.operators.spark import SparkConsumeMessagesOperator
from duewheel.store.values.errors import InvalidArgument

if TYPE_CHECKING:
    from typing import Concatenate

    from duewheel.operators.decorated_types import (
        DecoratedTask,
        DecoratesBatchFunction,
        DecoratesMessageFunction,
        DecoratesSparkFunction,
    )
    from duewheel.spark import Batch as SparkBatch
    from duewheel.store import Batch, Consumer

GIVEN_BY_NAME = frozenset({"consumer"})
"""Parameters that the operator passes by name."""


class _Decorated(DecoratedOperator, ConsumingOperator):  # type: ignore[misc]  # both name the function
    """The common base of both decorated operators."""

    template_fields: Sequence[str] = ConsumingOperator.template_fields

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            kwargs_to_upstream={
                "python_callable": python_callable,
                "op_args": op_args,
                "op_kwargs": op_kwargs,
            },
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=op_kwargs,
            **kwargs,
        )
        self.python_callable = authors(python_callable)

    def _check_callable(self, function: Callable[..., Any]) -> None:
        """As in the base class, for the author's function."""
        super()._check_callable(authors(function))

    @property
    def is_async(self) -> bool:
        """Never: the operator awaits the function itself, between the lease and the ack."""
        return False


SHOWN = "__duewheel_shown__"
"""Marks the function that Airflow is shown instead of the author's."""


def authors(function: Callable[..., Any]) -> Callable[..., Any]:
    """The author's function, from the one that Airflow is shown."""
    behind: Callable[..., Any] = inspect.unwrap(function, stop=lambda each: not hasattr(each, SHOWN))
    return behind


class _DueMessagesOperator(_Decorated, ConsumeMessagesOperator):  # type: ignore[misc]  # as above
    """A function that gets a batch, or one message after the other."""

    custom_operator_name = "@task.due_messages"


class _SparkDueMessagesOperator(_Decorated, SparkConsumeMessagesOperator):  # type: ignore[misc]  # as above
    """A function that gets the leased batch, for Spark."""

    template_fields: Sequence[str] = SparkConsumeMessagesOperator.template_fields
    template_fields_renderers: ClassVar[dict[str, str]] = (
        SparkConsumeMessagesOperator.template_fields_renderers
    )
    custom_operator_name = "@task.spark_due_messages"


Parameters = ParamSpec("Parameters")


@overload
def due_messages_task(
    python_callable: Callable[Concatenate[Batch, Consumer, Parameters], object], /
) -> DecoratedTask[Parameters]: ...


@overload
def due_messages_task(
    python_callable: Callable[Concatenate[Batch, Parameters], object], /
) -> DecoratedTask[Parameters]: ...


@overload
def due_messages_task(*, one_by_one: Literal[True], **kwargs: Any) -> DecoratesMessageFunction: ...


@overload
def due_messages_task(*, one_by_one: Literal[False] = ..., **kwargs: Any) -> DecoratesBatchFunction: ...


def due_messages_task(python_callable: Callable[..., object] | None = None, /, **kwargs: Any) -> Any:
    """Make a function a task that handles due messages: ``@task.due_messages``.

    Args:
        python_callable: the function; its first parameter is the batch, or with ``one_by_one`` a message.
        kwargs: the parameters of :class:`~duewheel.operators.consume.ConsumeMessagesOperator`.

    Raises:
        InvalidArgument: the function has no parameter for the messages.

    Example::

        @task.due_messages(topic="order-timeout", group="canceller", one_by_one=True)
        def cancel(message, region):
            cancel_order(region, message.key)


        cancel("north")
    """
    return _decorator(_DueMessagesOperator, python_callable, kwargs)


@overload
def spark_due_messages_task(
    python_callable: Callable[Concatenate[SparkBatch, Parameters], object], /
) -> DecoratedTask[Parameters]: ...


@overload
def spark_due_messages_task(**kwargs: Any) -> DecoratesSparkFunction: ...


def spark_due_messages_task(python_callable: Callable[..., object] | None = None, /, **kwargs: Any) -> Any:
    """Make a function a task that handles due messages with Spark: ``@task.spark_due_messages``.

    Args:
        python_callable: the function; its first parameter is the batch.
        kwargs: the parameters of :class:`~duewheel.operators.spark.SparkConsumeMessagesOperator`.

    Raises:
        InvalidArgument: the function has no parameter for the batch.

    Example::

        @task.spark_due_messages(topic="order-timeout", group="counter")
        def count(batch):
            batch.messages.groupBy("tag").count().write.mode("append").saveAsTable("timeouts")


        count()
    """
    return _decorator(_SparkDueMessagesOperator, python_callable, kwargs)


def _decorator(
    operator: type[_Decorated], function: Callable[..., Any] | None, kwargs: dict[str, Any]
) -> Any:
    def decorate(function: Callable[..., Any]) -> Any:
        check_callable(function, "the decorated function")
        return task_decorator_factory(
            python_callable=_shown(function), decorated_operator_class=operator, **kwargs
        )

    return decorate if function is None else decorate(function)


def _shown(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that Airflow is shown: without the parameters that the operator fills."""
    signature = inspect.signature(function)
    if "self" in signature.parameters:
        raise InvalidArgument(
            f"{function.__name__}{signature} is a method, which has no object when the DAG runs: decorate a "
            "function"
        )
    parameters = list(signature.parameters.values())
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    first = parameters[0] if parameters else None
    if first is None or first.kind not in (*positional, inspect.Parameter.VAR_POSITIONAL):
        raise InvalidArgument(
            f"{function.__name__}{signature} has no first parameter for the messages: give it one"
        )
    if first.kind in positional:
        parameters = parameters[1:]

    @wraps(function)
    def shown(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    shown.__signature__ = signature.replace(  # type: ignore[attr-defined] # inspect reads it
        parameters=[each for each in parameters if each.name not in GIVEN_BY_NAME]
    )
    setattr(shown, SHOWN, True)
    return shown
