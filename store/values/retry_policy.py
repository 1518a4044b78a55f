"""Retry policies: how many retries a message gets, and the wait before each.

A consumer that starts with a policy sets it for its whole group, so the consumer started last decides. The
wait is counted from the failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.instants import said_span, to_span

#: The largest ``max_retries``; for ordered retries it means no limit.
NO_LIMIT = 2**31 - 1
#: The most intervals a policy may list.
MAX_INTERVALS = 1000

_SECOND = timedelta(seconds=1)
_MINUTE = timedelta(minutes=1)
_LONGEST = timedelta(days=3660)
_SHORTEST_ORDERED = timedelta(milliseconds=10)
_LONGEST_ORDERED = timedelta(seconds=30)
_HTTP_RETRIES = 288
_TCP_WAITS = (
    timedelta(seconds=10),
    timedelta(seconds=30),
    *(timedelta(minutes=minutes) for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a group's failed messages are delivered again; made with one of the class methods.

    Attributes:
        max_retries: the retries of a message before it is a dead letter; None is no limit, for ordered
            retries only.
        waits: the wait before each retry; the last wait also applies to all further retries.
        jitter: 0 to 1; each wait is drawn evenly from its length times 1 - jitter to 1 + jitter.
        is_ordered: whether it is for FIFO topics, where a failed message holds up its message group.

    Example:
        >>> str(RetryPolicy.intervals([timedelta(seconds=5), timedelta(minutes=1)]))
        '2 retries, after 5 s, 1 min'
    """

    max_retries: int | None
    waits: tuple[timedelta, ...]
    jitter: float = 0.0
    is_ordered: bool = False

    def __post_init__(self) -> None:
        if self.max_retries is not None and (
            type(self.max_retries) is not int or not 0 <= self.max_retries <= NO_LIMIT
        ):
            raise InvalidArgument(
                f"max_retries must be 0 to {NO_LIMIT}; got {self.max_retries!r}: give a whole number"
            )
        if self.max_retries is None and not self.is_ordered:
            raise InvalidArgument("max_retries is None: only ordered retries may be unlimited")
        if not 1 <= len(self.waits) <= MAX_INTERVALS:
            raise InvalidArgument(
                f"a retry policy must have 1 to {MAX_INTERVALS} intervals; got {len(self.waits)}: "
                "the last one serves for all further retries"
            )
        for wait in self.waits:
            if not timedelta(0) <= to_span(wait, "interval") <= _LONGEST:
                raise InvalidArgument(
                    f"a retry interval must be 0 to 3660 days; got {said_span(wait)}: give another one"
                )
        if type(self.jitter) not in (int, float) or not 0 <= self.jitter <= 1:
            raise InvalidArgument(
                f"jitter must be 0 to 1; got {self.jitter!r}: "
                "0.2 draws each wait from 80 % to 120 % of its length"
            )

    @classmethod
    def unordered(cls, max_retries: int = 16) -> RetryPolicy:
        """RocketMQ's policy: 10 s, 30 s, each minute from 1 to 10, 20 min, 30 min, 1 h, 2 h.

        Args:
            max_retries: 0 to 2^31-1; each retry after the 16th waits 2 h.

        Raises:
            InvalidArgument: out of its limit.

        Example:
            >>> len(RetryPolicy.unordered(20).waits)
            16
        """
        return cls(max_retries, _TCP_WAITS)

    @classmethod
    def ordered(cls, interval: timedelta = _SECOND, max_retries: int | None = None) -> RetryPolicy:
        """For FIFO topics: the message is tried again after one interval, and its message group waits.

        Args:
            interval: 10 ms to 30 s.
            max_retries: None is no limit, like RocketMQ's 2^31-1.

        Raises:
            InvalidArgument: out of its limit.

        Example:
            >>> RetryPolicy.ordered(timedelta(milliseconds=500)).max_retries is None
            True
        """
        interval = to_span(interval, "interval")
        if not _SHORTEST_ORDERED <= interval <= _LONGEST_ORDERED:
            raise InvalidArgument(
                f"the interval of ordered retries must be 10 ms to 30 s; got {said_span(interval)}: "
                "longer, and one message would hold up its group for too long"
            )
        return cls(None if max_retries == NO_LIMIT else max_retries, (interval,), is_ordered=True)

    @classmethod
    def http(cls) -> RetryPolicy:
        """The fixed profile of HTTP consumers: 288 retries, 5 minutes apart."""
        return cls(_HTTP_RETRIES, (5 * _MINUTE,))

    @classmethod
    def http_ordered(cls) -> RetryPolicy:
        """The fixed profile of HTTP consumers on FIFO topics: 288 retries, 1 minute apart."""
        return cls(_HTTP_RETRIES, (_MINUTE,), is_ordered=True)

    @classmethod
    def intervals(cls, waits: Sequence[timedelta], max_retries: int | None = None) -> RetryPolicy:
        """A wait for each retry.

        Args:
            waits: 1 to 1000 of them, each 0 to 3660 days.
            max_retries: None is the number of waits; with more, the last wait also applies to the rest.

        Raises:
            InvalidArgument: out of its limit.

        Example:
            >>> RetryPolicy.intervals([timedelta(seconds=5), timedelta(minutes=1)]).max_retries
            2
        """
        waits = tuple(to_span(wait, "interval") for wait in waits)
        return cls(len(waits) if max_retries is None else max_retries, waits)

    @classmethod
    def exponential(
        cls,
        first: timedelta,
        *,
        factor: float = 2.0,
        longest: timedelta,
        jitter: float = 0.0,
        max_retries: int = 16,
    ) -> RetryPolicy:
        """Waits that grow by a factor up to a longest one.

        Args:
            first: the wait before the first retry, more than 0.
            factor: each wait is so many times the previous one, 1 or more.
            longest: no wait is longer.
            jitter: 0 to 1; spreads messages that failed together.
            max_retries: 0 to 2^31-1.

        Raises:
            InvalidArgument: out of its limit, or ``longest`` is reached only after more than 1000 retries.

        Example:
            >>> policy = RetryPolicy.exponential(timedelta(seconds=1), longest=timedelta(seconds=5))
            >>> [wait.total_seconds() for wait in policy.waits]
            [1.0, 2.0, 4.0, 5.0]
        """
        first, longest = to_span(first, "first"), to_span(longest, "longest")
        if not timedelta(0) < first <= longest <= _LONGEST:
            raise InvalidArgument(
                f"first must be more than 0, and longest from first to 3660 days; got first {first} and "
                f"longest {longest}: give waits within these limits"
            )
        if type(factor) not in (int, float) or not 1 <= factor <= NO_LIMIT:
            raise InvalidArgument(
                f"factor must be 1 to {NO_LIMIT}; got {factor!r}: give a number within these limits"
            )
        waits = [first]
        while factor > 1 and waits[-1] < longest and len(waits) <= MAX_INTERVALS:
            # Each wait is longer than the previous one, however small the factor.
            grown = max(waits[-1] * min(factor, longest / waits[-1]), waits[-1] + timedelta(microseconds=1))
            waits.append(min(grown, longest))
        return cls(max_retries, tuple(waits), jitter)

    def __str__(self) -> str:
        times = "retries without end" if self.max_retries is None else f"{self.max_retries} retries"
        spread = f" with jitter {self.jitter:g}" if self.jitter else ""
        kind = "ordered " if self.is_ordered else ""
        return f"{kind}{times}, after {', '.join(map(said_span, self.waits))}{spread}"


def stored_policy(max_retries: int, waits_us: Sequence[int], jitter: float, is_ordered: bool) -> RetryPolicy:
    """The policy of a group as the database keeps it, with waits in microseconds."""
    has_no_limit = is_ordered and max_retries == NO_LIMIT
    waits = tuple(timedelta(microseconds=wait_us) for wait_us in waits_us)
    return RetryPolicy(None if has_no_limit else max_retries, waits, jitter, is_ordered)
