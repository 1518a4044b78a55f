"""Calling a function of the DAG author until it has really run.

A coroutine function returns at once, and so does a generator function; so does ``map(handle, messages)``.
None of their work has been done by then, and messages acked at that moment would be lost silently. So a
coroutine is awaited, and a generator, or any other iterator, is run to its end. The values that it yields are
the result, as a list.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from airflow.sdk.bases.decorator import determine_kwargs
from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS

from duewheel.store.values.errors import InvalidArgument

NOT_WHILE_IT_RUNS = frozenset({"exception", "reason"})
"""Names in the context that only callbacks get."""


def call(
    function: Callable[..., Any],
    given: Sequence[Any],
    named: Mapping[str, Any],
    context: Mapping[str, Any],
) -> Any:
    """Call a function as ``PythonOperator`` does, and return its final result.

    Args:
        function: the function; plain, ``async``, with ``yield``, or one that returns an iterator.
        given: its first arguments.
        named: further arguments by name.
        context: Airflow's context. The function gets the values that its parameters name; with ``**kwargs``,
            all.

    Raises:
        Exception: any error of the function.

    Example:
        >>> def doubled(numbers, factor):
        ...     yield from (factor * number for number in numbers)
        >>> call(doubled, [[1, 2]], {"factor": 2}, {})
        [2, 4]
    """
    return _run(function(*given, **_named(function, given, named, context)))


def check_call(
    function: Callable[..., Any], given: int, named: Collection[str], offered: Collection[str] = ()
) -> None:
    """Refuse a function that cannot be called as :func:`call` will.

    Args:
        function: the function.
        given: how many arguments it gets by position.
        named: the names of the arguments that it gets by name.
        offered: names beside those of Airflow's context that it may ask for.

    Raises:
        InvalidArgument: the function has no parameter for an argument, or requires one that it would not get.

    Example:
        >>> check_call(lambda messages, factor, ds: None, 1, ["factor"])
    """
    try:
        signature = inspect.signature(function)
    except ValueError:
        return
    context = dict.fromkeys({*KNOWN_CONTEXT_KEYS - NOT_WHILE_IT_RUNS, *offered})
    arguments = [None] * given
    try:
        signature.bind(*arguments, **_named(function, arguments, dict.fromkeys(named), context))
    except (TypeError, ValueError) as error:
        by_name = f" and {', '.join(sorted(named))} by name" if named else ""
        raise InvalidArgument(
            f"{getattr(function, '__name__', function)}{signature} cannot be called with {given} "
            f"arguments{by_name}: {error}; in addition, a function gets the values of Airflow's context that "
            "its parameters name"
        ) from error


def _named(
    function: Callable[..., Any], given: Sequence[Any], named: Mapping[str, Any], context: Mapping[str, Any]
) -> Mapping[str, Any]:
    try:
        inspect.signature(function)
    except ValueError:
        # Some functions written in C do not reveal their parameters.
        return named
    wanted = determine_kwargs(function, given, {**context, **named})
    # A name that the function does not know is a mistake of the author, and must not be left out silently.
    return {**wanted, **named}


def _run(result: Any) -> Any:
    if inspect.isawaitable(result):
        return _run(asyncio.run(_awaited(result)))
    if isinstance(result, AsyncIterator):
        return asyncio.run(_collected(result))
    if isinstance(result, Iterator):
        return list(result)
    return result


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


async def _collected(results: AsyncIterator[Any]) -> list[Any]:
    return [result async for result in results]
