"""The options of ``spark.read.format("duewheel")``, all checked before the broker is asked anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from duewheel.spark.lease_partition import DEFAULT_BATCH_BYTES
from duewheel.spark.leasing import MOST_PARTITIONS
from duewheel.spark.message_columns import ALL_COLUMNS, check_columns
from duewheel.store.database.connections import libpq_dsn
from duewheel.store.leases import from_json
from duewheel.store.values import filters
from duewheel.store.values import tags as tag_expressions
from duewheel.store.values.errors import DueWheelError, InvalidArgument
from duewheel.store.values.instants import to_datetime
from duewheel.store.values.leases import Lease
from duewheel.store.values.tags import EVERY

DEFAULT_MAX_MESSAGES = 10_000
DEFAULT_INVISIBLE_SECONDS = 600
DEFAULT_PARTITIONS = 4
DEFAULT_RECONNECT_SECONDS = 600
MOST_RECONNECT_SECONDS = 7 * 24 * 60 * 60
MOST_INVISIBLE_SECONDS = 12 * 60 * 60

OPTIONS = frozenset(
    {
        "dsn",
        "lease",
        "topic",
        "group",
        "tags",
        "filter",
        "max_messages",
        "invisible_seconds",
        "partitions",
        "batch_bytes",
        "with_answered",
        "columns",
        "startingOffsets",
        "failOnDataLoss",
        "reconnect_seconds",
        "mode",
        "due_from",
        "due_until",
    }
)
_OF_STREAMS = ("startingOffsets", "failOnDataLoss", "reconnect_seconds")
_OF_LEASING = ("topic", "group", "tags", "filter", "max_messages", "invisible_seconds")
_NOT_FOR_PEEK = (
    "lease",
    "group",
    "max_messages",
    "invisible_seconds",
    "partitions",
    "with_answered",
    *_OF_STREAMS,
)
_NOT_FOR_A_STREAM = ("invisible_seconds", "partitions", "with_answered")


@dataclass(frozen=True)
class ReadOptions:
    """The messages to read, and how.

    Attributes:
        dsn: the broker's database, as a libpq string or URL.
        leases: leases that are held; None takes one.
        topic, group, tags, filter: the messages to lease when ``leases`` is None.
        max_messages: how many to lease at most.
        invisible: how long the lease lasts.
        partitions: the largest number of partitions.
        batch_bytes: about how large an Arrow batch becomes.
        with_answered: whether to read also the messages of a lease that were answered one by one.
        columns: the columns wanted.
        starting_offsets: where a new stream begins; None is the position of its group.
        fail_on_data_loss: whether a stream fails when retention has dropped messages that it had not read.
        stream_max_messages: how many messages a stream reads in a micro-batch at most; None is all.
        reconnect: how long the driver of a stream waits for a broker that cannot be reached.
        peek: whether to read the stored messages and lease nothing.
        due_from, due_until: with ``peek``, only messages due at or after the first instant and before the
            second; None is no limit.
    """

    dsn: str
    leases: list[Lease] | None
    topic: str
    group: str
    tags: str
    filter: str | None
    max_messages: int
    invisible: timedelta
    partitions: int
    batch_bytes: int
    with_answered: bool
    columns: tuple[str, ...]
    starting_offsets: str | None
    fail_on_data_loss: bool
    stream_max_messages: int | None
    reconnect: timedelta
    peek: bool
    due_from: datetime | None
    due_until: datetime | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadOptions:
        """Read the options.

        Raises:
            InvalidArgument: an option is unknown, missing or cannot be understood.
            InvalidTagExpression, InvalidFilter: the tags or the filter cannot be understood.
        """
        check_option_names(options, OPTIONS)
        address = required_dsn(options)
        lease = options.get("lease")
        peek = _peeks(options)
        if lease is None:
            for option in ("topic",) if peek else ("topic", "group"):
                if not options.get(option):
                    raise InvalidArgument(
                        f"the option {option!r} is missing: give a topic and a group, or a lease; to read "
                        "without a lease, give a topic and the mode peek"
                    )
        tags = options.get("tags") or EVERY
        expression = options.get("filter") or None
        tag_expressions.parse(tags)
        if expression is not None:
            filters.to_jsonpath(expression)
        seconds = _number(options, "invisible_seconds", DEFAULT_INVISIBLE_SECONDS, MOST_INVISIBLE_SECONDS)
        reconnect = _number(options, "reconnect_seconds", DEFAULT_RECONNECT_SECONDS, MOST_RECONNECT_SECONDS)
        return cls(
            dsn=address,
            leases=None if lease is None else from_json(lease),
            topic=options.get("topic") or "",
            group=options.get("group") or "",
            tags=tags,
            filter=expression,
            max_messages=_number(options, "max_messages", DEFAULT_MAX_MESSAGES),
            invisible=timedelta(seconds=seconds),
            partitions=_number(options, "partitions", DEFAULT_PARTITIONS, MOST_PARTITIONS),
            batch_bytes=_number(options, "batch_bytes", DEFAULT_BATCH_BYTES),
            with_answered=_truth(options, "with_answered", default=False),
            columns=_columns(options.get("columns")),
            starting_offsets=options.get("startingOffsets"),
            fail_on_data_loss=_truth(options, "failOnDataLoss"),
            stream_max_messages=_number(options, "max_messages", 1) if "max_messages" in options else None,
            reconnect=timedelta(seconds=reconnect),
            peek=peek,
            due_from=_instant(options, "due_from"),
            due_until=_instant(options, "due_until"),
        )


def check_for_a_read(options: Mapping[str, str]) -> None:
    """Refuse options that a batch read would ignore."""
    _refuse(options, _OF_STREAMS, "for a stream, and this is none")
    if "lease" in options:
        _refuse(options, _OF_LEASING, "for taking a lease, and one is given")


def check_for_a_stream(options: Mapping[str, str]) -> None:
    """Refuse options that a stream would ignore."""
    _refuse(options, _NOT_FOR_A_STREAM, "for a lease, and a stream takes none")


def check_option_names(
    options: Mapping[str, str], names: frozenset[str], others: frozenset[str] = frozenset()
) -> None:
    """Refuse options that are neither in ``names``, which the error lists, nor in ``others``."""
    # Spark adds options of its own for some catalogs; those have a dot.
    known = {option.lower() for option in names | others}
    unknown = sorted(option for option in options if option.lower() not in known and "." not in option)
    if unknown:
        raise InvalidArgument(f"unknown options {unknown}: choose from {sorted(names)}")


def required_dsn(options: Mapping[str, str]) -> str:
    """The option ``dsn`` as libpq takes it."""
    dsn = options.get("dsn")
    if not dsn:
        raise InvalidArgument("the option 'dsn' is missing: give the address of the broker's database")
    return libpq_dsn(dsn)


def _refuse(options: Mapping[str, str], names: Sequence[str], why: str) -> None:
    given = [name for name in names if name in options]
    if given:
        raise InvalidArgument(f"the options {given} are {why}: leave them out")


def _peeks(options: Mapping[str, str]) -> bool:
    mode = options.get("mode", "lease")
    if mode not in ("lease", "peek"):
        raise InvalidArgument(f"the option 'mode' is {mode!r}: give lease or peek")
    refused = _NOT_FOR_PEEK if mode == "peek" else ("due_from", "due_until")
    given = [option for option in refused if option in options]
    if given and mode == "peek":
        raise InvalidArgument(f"the mode peek leases nothing: leave {', '.join(given)} out")
    if given:
        raise InvalidArgument(f"{', '.join(given)} are for the mode peek: leave them out, or give that mode")
    return mode == "peek"


def instant_in(text: str, option: str, others: str = "") -> datetime:
    """The instant that an option gives.

    Args:
        text: its value.
        option: its name.
        others: what else it may be, for the error.

    Raises:
        InvalidArgument: the value is no instant.
    """
    try:
        return to_datetime(int(text) if text.isdecimal() else datetime.fromisoformat(text))
    except (DueWheelError, ValueError) as error:
        raise InvalidArgument(
            f"the option {option!r} is {text!r}: give {others}an instant such as 2026-01-31T12:00:00+00:00, "
            "or milliseconds since 1970"
        ) from error


def _instant(options: Mapping[str, str], option: str) -> datetime | None:
    text = options.get(option)
    return None if text is None else instant_in(text, option)


def _columns(names: str | None) -> tuple[str, ...]:
    if names is None:
        return ALL_COLUMNS
    return check_columns(name.strip() for name in names.split(",") if name.strip())


def _truth(options: Mapping[str, str], option: str, *, default: bool = True) -> bool:
    text = options.get(option, str(default))
    if text.lower() not in ("true", "false"):
        raise InvalidArgument(f"the option {option!r} is {text!r}: give true or false")
    return text.lower() == "true"


def _number(options: Mapping[str, str], option: str, default: int, most: int | None = None) -> int:
    text = options.get(option)
    if text is None:
        return default
    if not text.strip().isdecimal() or int(text) < 1 or (most is not None and int(text) > most):
        limit = "of 1 or more" if most is None else f"from 1 to {most}"
        raise InvalidArgument(f"the option {option!r} is {text!r}: give a whole number {limit}")
    return int(text)
