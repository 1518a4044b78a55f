"""The options of ``spark.read.format("duewheel")`` and ``readStream``, checked before the broker is asked.

A read is of one of three kinds, and each kind has a class with the options that it takes: messages that are
leased, messages that are looked at, and a stream. An option of another kind is refused, because it would have
no effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ClassVar, Self

from pyspark.sql.datasource import CaseInsensitiveDict

from duewheel.spark.lease_partition import (
    BYTES_PER_PARTITION,
    DEFAULT_BATCH_BYTES,
    MESSAGES_PER_PARTITION,
)
from duewheel.spark.leasing import MOST_PARTITIONS
from duewheel.spark.message_columns import ALL_COLUMNS, check_columns, suggestion
from duewheel.store.database.connections import with_ends
from duewheel.store.leases import from_json
from duewheel.store.values import filters
from duewheel.store.values import tags as tag_expressions
from duewheel.store.values.errors import DueWheelError, InvalidArgument
from duewheel.store.values.instants import to_datetime
from duewheel.store.values.leases import Lease
from duewheel.store.values.tags import EVERY

DEFAULT_PARTITIONS = 4
DEFAULT_RECONNECT_SECONDS = 600
MOST_RECONNECT_SECONDS = 7 * 24 * 60 * 60
MOST_BYTES = 2**53
DEFAULT_TRIGGER_DELAY = timedelta(minutes=15)
_STARTS = ("earliest", "latest", "group")


def with_topic(options: Mapping[str, str]) -> Mapping[str, str]:
    """The options with the path of ``load(...)``, ``save(...)`` or ``start(...)`` as their topic.

    Raises:
        InvalidArgument: the option ``topic`` names another one.
    """
    path = options.get("path")
    if path is None:
        return options
    topic = options.get("topic")
    if topic not in (None, path):
        raise InvalidArgument(
            f"the topic is {topic!r} as an option and {path!r} as the path: give one of the two"
        )
    named = {name: value for name, value in options.items() if name.lower() != "path"}
    return CaseInsensitiveDict({**named, "topic": path})


def check_option_names(
    options: Mapping[str, str], names: frozenset[str], others: frozenset[str] = frozenset()
) -> None:
    """Refuse options that are neither in ``names``, which the error suggests, nor in ``others``."""
    # A table's properties are options when it is made. When it is read it has none.
    if "provider" in options:
        raise InvalidArgument(f"Spark forgets the options of a table {_MAKE_A_VIEW}")
    # Spark adds options for some catalogs; their names have a dot.
    known = {option.lower() for option in names | others}
    unknown = sorted(option for option in options if option.lower() not in known and "." not in option)
    if unknown:
        raise InvalidArgument(f"unknown options {unknown}: {suggestion(unknown, sorted(names))}")


_MAKE_A_VIEW = (
    "whose source is written in Python: make a view, by create temporary view NAME using duewheel "
    "options (dsn '...', topic '...')"
)


def required_dsn(options: Mapping[str, str], option: str = "dsn") -> str:
    """The option ``dsn`` as libpq takes it, for connections of the driver and of its tasks."""
    dsn = options.get(option)
    if not dsn:
        raise InvalidArgument(
            "the option 'dsn' is missing: give the address of the broker's database"
            + ("" if options else f". If this is a table, Spark has forgotten its options, {_MAKE_A_VIEW}")
        )
    return with_ends(dsn)


def _topics(options: Mapping[str, str], option: str) -> tuple[str, ...]:
    """The topics of a comma-separated list, each once; none where a pattern names them."""
    if "topicPattern" in options:
        return ()
    names = (name.strip() for name in (options.get(option) or "").split(","))
    named = tuple(dict.fromkeys(name for name in names if name))
    if not named:
        raise InvalidArgument(
            "the option 'topic' is missing: give a topic, several with commas between, or a topicPattern"
        )
    return named


def _pattern(options: Mapping[str, str], option: str) -> str | None:
    pattern = options.get(option)
    if pattern is None:
        return None
    if options.get("topic"):
        raise InvalidArgument("topic and topicPattern both name topics: give one of the two")
    try:
        re.compile(pattern)
    except re.error as error:
        raise InvalidArgument(
            f"the option 'topicPattern' is {pattern!r}, which is not a regular expression ({error}): give "
            "one such as orders-.*, which has to match a topic's whole name"
        ) from None
    return pattern


def _start(options: Mapping[str, str], option: str) -> str:
    text = options.get(option, "group").lower()
    return text if text in _STARTS else "at"


def _instant(options: Mapping[str, str], option: str, words: tuple[str, ...] = ()) -> datetime | None:
    """An instant; None without one, and for one of the words that the option may have in its place."""
    text = options.get(option)
    if text is None or text.lower() in words:
        return None
    others = "".join(f"{word}, " for word in words)
    try:
        instant = int(text) if text.isdecimal() else datetime.fromisoformat(text)
        if isinstance(instant, int) or instant.tzinfo is not None:
            return to_datetime(instant)
    except (DueWheelError, ValueError) as error:
        raise InvalidArgument(
            f"the option {option!r} is {text!r}: give {others}an instant such as 2026-01-31T12:00:00+00:00, "
            "or milliseconds since 1970"
        ) from error
    raise InvalidArgument(
        f"the option {option!r} is {text!r}, which has no time zone: add one, as "
        f"{instant.isoformat()}+00:00 for UTC"
    )


def _span(options: Mapping[str, str], option: str, default: timedelta) -> timedelta:
    """A duration as Kafka's source takes it: ``15m``, ``30s``, ``500ms``, ``2h``."""
    text = options.get(option)
    if text is None:
        return default
    parts = re.fullmatch(r"\s*(\d{1,9})\s*(ms|s|m|h|d)\s*", text.lower(), re.ASCII)
    if parts is None:
        raise InvalidArgument(f"the option {option!r} is {text!r}: give a duration such as 15m, 30s or 500ms")
    return int(parts[1]) * _UNITS[parts[2]]


_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}


def _columns(options: Mapping[str, str], option: str) -> tuple[str, ...]:
    names = options.get(option)
    if names is None:
        return ALL_COLUMNS
    return check_columns(name.strip() for name in names.split(",") if name.strip())


def _text(options: Mapping[str, str], option: str) -> str | None:
    return options.get(option) or None


def _tags(options: Mapping[str, str], option: str) -> str:
    tags = options.get(option) or EVERY
    tag_expressions.parse(tags)
    return tags


def _filter(options: Mapping[str, str], option: str) -> str | None:
    expression = _text(options, option)
    if expression is not None:
        filters.check_filter(expression)
    return expression


def _truth(options: Mapping[str, str], option: str, *, default: bool = True) -> bool:
    text = options.get(option, str(default))
    if text.lower() not in ("true", "false"):
        raise InvalidArgument(f"the option {option!r} is {text!r}: give true or false")
    return text.lower() == "true"


def _number(
    options: Mapping[str, str], option: str, default: int | None = None, most: int | None = None
) -> int | None:
    text = options.get(option)
    if text is None:
        return default
    if not text.strip().isdecimal() or int(text) < 1 or (most is not None and int(text) > most):
        limit = "of 1 or more" if most is None else f"from 1 to {most}"
        raise InvalidArgument(f"the option {option!r} is {text!r}: give a whole number {limit}")
    return int(text)


def _seconds(options: Mapping[str, str], option: str, default: int, most: int) -> timedelta:
    return timedelta(seconds=_number(options, option, default, most) or default)


def _by(name: str, read: Callable[..., Any], **limits: Any) -> dict[str, Any]:
    """What a field notes of the option that gives it.

    Args:
        name: the option.
        read: makes the field's value of all options and the name.
        limits: further arguments of ``read``.
    """
    return {"option": name, "read": partial(read, option=name, **limits)}


def _options_of(kind: type[ReadOptions]) -> frozenset[str]:
    return frozenset(one.metadata["option"] for one in fields(kind))


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What every read has.

    Attributes:
        KIND: what the errors call such a read.
        dsn: the broker's database, as a libpq string or URL.
        batch_bytes: about how large an Arrow batch becomes.
        columns: the columns wanted.
    """

    KIND: ClassVar[str]

    dsn: str = field(metadata=_by("dsn", required_dsn))
    batch_bytes: int = field(metadata=_by("batchBytes", _number, default=DEFAULT_BATCH_BYTES))
    columns: tuple[str, ...] = field(metadata=_by("columns", _columns))

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Read the options.

        Raises:
            InvalidArgument: an option is unknown, missing, of another kind of read, or cannot be understood.
            InvalidTagExpression, InvalidFilter: the tags or the filter cannot be understood.
        """
        options = with_topic(options)
        check_option_names(options, OPTIONS, _KNOWN)
        foreign = [name for name in sorted(_KNOWN - _options_of(cls)) if name in options]
        if foreign:
            raise InvalidArgument(f"{cls.KIND} does not take the options {foreign}: leave them out")
        return cls(**{one.name: one.metadata["read"](options) for one in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class LeaseRead(ReadOptions):
    """A read of leases that a batch holds: these options are set by the batch, never by a user.

    Attributes:
        leases: the leases.
        partitions: the largest number of partitions.
        min_partitions: the number of partitions however few messages each then has.
        with_answered: whether to read also the messages of a lease that were answered one by one.
    """

    KIND = "the read of a lease"

    leases: list[Lease] = field(metadata=_by("lease", lambda options, option: from_json(options[option])))
    partitions: int = field(
        metadata=_by("partitions", _number, default=DEFAULT_PARTITIONS, most=MOST_PARTITIONS)
    )
    min_partitions: int = field(metadata=_by("minPartitions", _number, default=1, most=MOST_PARTITIONS))
    with_answered: bool = field(metadata=_by("withAnswered", _truth, default=False))


@dataclass(frozen=True, kw_only=True)
class UnleasedRead(ReadOptions):
    """A read that leases nothing.

    Attributes:
        topics, tags, filter: the messages to read.
        pattern: a regular expression for the names of the topics, in the place of ``topics``; or None.
        min_partitions: into how many partitions to cut them at least.
        partition_messages: how many messages a partition has at most.
        partition_bytes: about how many bytes the bodies of a partition have at most.
    """

    topics: tuple[str, ...] = field(metadata=_by("topic", _topics))
    pattern: str | None = field(metadata=_by("topicPattern", _pattern))
    tags: str = field(metadata=_by("tags", _tags))
    filter: str | None = field(metadata=_by("filter", _filter))
    min_partitions: int = field(metadata=_by("minPartitions", _number, default=1, most=MOST_PARTITIONS))
    partition_messages: int = field(
        metadata=_by(
            "maxMessagesPerPartition", _number, default=MESSAGES_PER_PARTITION, most=MESSAGES_PER_PARTITION
        )
    )
    partition_bytes: int = field(
        metadata=_by("maxBytesPerPartition", _number, default=BYTES_PER_PARTITION, most=MOST_BYTES)
    )


@dataclass(frozen=True, kw_only=True)
class LookRead(UnleasedRead):
    """A look at the messages that are stored.

    Attributes:
        due_from, due_until: only messages due at or after the first instant and before the second; None means
            unlimited.
    """

    KIND = "a look, which leases nothing,"

    due_from: datetime | None = field(metadata=_by("dueFrom", _instant))
    due_until: datetime | None = field(metadata=_by("dueUntil", _instant))


@dataclass(frozen=True, kw_only=True)
class StreamRead(UnleasedRead):
    """A stream of the messages that are released.

    Attributes:
        group: the stream's own consumer group; None where it draws one for itself.
        start: where a new stream begins: "group" for the position of its group, "earliest", "latest" or "at".
        start_at: the instant, for "at".
        fail_on_data_loss: whether the stream fails when retention has dropped messages that it had not read.
        reconnect: how long the driver waits for a broker that cannot be reached.
        max_messages: how many messages a micro-batch has at most; None is all.
        max_bytes: about how many bytes the bodies of a micro-batch have at most; None means unlimited.
        min_messages: how many messages a micro-batch waits for.
        max_delay: how long it waits for them.
        listen: whether a release ends the rest of an idle driver.
    """

    KIND = "a stream"

    group: str | None = field(metadata=_by("group", _text))
    start: str = field(metadata=_by("startingOffsets", _start))
    start_at: datetime | None = field(metadata=_by("startingOffsets", _instant, words=_STARTS))
    fail_on_data_loss: bool = field(metadata=_by("failOnDataLoss", _truth))
    reconnect: timedelta = field(
        metadata=_by(
            "reconnectSeconds", _seconds, default=DEFAULT_RECONNECT_SECONDS, most=MOST_RECONNECT_SECONDS
        )
    )
    max_messages: int | None = field(metadata=_by("maxMessagesPerTrigger", _number))
    max_bytes: int | None = field(metadata=_by("maxBytesPerTrigger", _number, most=MOST_BYTES))
    min_messages: int = field(metadata=_by("minMessagesPerTrigger", _number, default=1))
    max_delay: timedelta = field(metadata=_by("maxTriggerDelay", _span, default=DEFAULT_TRIGGER_DELAY))
    listen: bool = field(metadata=_by("listen", _truth))


OPTIONS = _options_of(LookRead) | _options_of(StreamRead)
"""The options that a user gives."""
_KNOWN = OPTIONS | _options_of(LeaseRead)


def read_options(options: Mapping[str, str]) -> LeaseRead | LookRead | StreamRead:
    """The read that the options ask for: of a lease, a stream if an option of streams is given, or a look.

    Spark asks for the columns before it says whether they are those of a look or of a stream.

    Raises:
        InvalidArgument, InvalidTagExpression, InvalidFilter: as :meth:`ReadOptions.of`.
    """
    if "lease" in options:
        return LeaseRead.of(options)
    of_stream = {name.lower() for name in _options_of(StreamRead) - _options_of(LookRead)}
    is_stream = any(option.lower() in of_stream for option in options)
    return (StreamRead if is_stream else LookRead).of(options)
