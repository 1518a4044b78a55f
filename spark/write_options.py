"""The options of ``df.write.format("duewheel")`` and ``writeStream``, checked before anything is staged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from duewheel.spark.read_options import check_option_names, required_dsn, with_topic
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.limits import LONGEST_IDEMPOTENCY_KEY

if TYPE_CHECKING:
    from collections.abc import Mapping

OPTIONS = frozenset({"dsn", "topic", "idempotencyKey"})
# Options that Spark itself understands and passes on.
_SPARKS_OWN = frozenset({"checkpointLocation", "queryName"})


@dataclass(frozen=True)
class WriteOptions:
    """The target of a write.

    Attributes:
        dsn: the broker's database, as a libpq string or URL.
        topic: the topic to send to; None where a column names the topic of each row.
        idempotency_key: None, or the name under which this job sends once.
    """

    dsn: str
    topic: str | None
    idempotency_key: str | None

    @classmethod
    def of(cls, options: Mapping[str, str], *, is_stream: bool) -> WriteOptions:
        """Read the options.

        Raises:
            InvalidArgument: an option is unknown, missing or cannot be understood.
        """
        options = with_topic(options)
        check_option_names(options, OPTIONS, (_SPARKS_OWN if is_stream else frozenset()))
        dsn = required_dsn(options)
        key = options.get("idempotencyKey")
        if key is not None and is_stream:
            raise InvalidArgument(
                "a stream has no idempotencyKey: each of its micro-batches is sent once by the checkpoint. "
                "Leave the option out"
            )
        if key is not None and not 1 <= len(key) <= LONGEST_IDEMPOTENCY_KEY:
            raise InvalidArgument(
                f"the option 'idempotencyKey' has {len(key)} characters: give 1 to {LONGEST_IDEMPOTENCY_KEY}"
            )
        return cls(dsn, options.get("topic") or None, key)
