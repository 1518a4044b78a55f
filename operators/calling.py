"""Calling a function of the DAG author until it has really run.

A coroutine function returns at once, and so does a generator function: nothing of their bodies has run by
then, and messages acked there would be lost without a word. So is it with ``map(handle, messages)``. So a
coroutine is awaited, and a generator, or any other iterator, is run to its end; what it yields is the result,
as a list.
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
"""Names of the context that only callbacks get."""


def call(
    function: Callable[..., Any],
    given: Sequence[Any],
    named: Mapping[str, Any],
    context: Mapping[str, Any],
) -> Any:
    """Call a function as ``PythonOperator`` does, and return what it came to.

    Args:
        function: the function; plain, ``async``, with ``yield``, or one that returns an iterator.
        given: its first arguments.
        named: further arguments by name.
        context: Airflow's context, of which it gets what its parameters name; with ``**kwargs`` all of it.

    Raises:
        Exception: whatever it raised.

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
        named: the names of those that it gets by name.
        offered: what it gets beside Airflow's context if it names it.

    Raises:
        InvalidArgument: it has no room for an argument, or needs one that nobody gives.

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
            f"{getattr(function, '__name__', function)}{signature} cannot be called with {given} arguments"
            f"{by_name}: {error}; beside these a function gets what it names of Airflow's context"
        ) from error


def _named(
    function: Callable[..., Any], given: Sequence[Any], named: Mapping[str, Any], context: Mapping[str, Any]
) -> Mapping[str, Any]:
    try:
        inspect.signature(function)
    except ValueError:
        # Some functions written in C do not say what they take.
        return named
    wanted = determine_kwargs(function, given, {**context, **named})
    # A name that the function does not know is a mistake of the author, not something to leave out.
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
