"""How far a stream has read: a place for each queue, as Spark keeps it in a checkpoint.

The JSON is a stored format: checkpoints of older versions stay readable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from duewheel.store.values.errors import InvalidArgument

LAST_SEQ = 2**63 - 1
"""Sorts behind every message of an instant."""


@dataclass(frozen=True)
class Place:
    """A place in a queue of the release log; everything released up to it has been read.

    Attributes:
        at: instant in microseconds since 1970, None for the beginning.
        seq: number of the last message read at that instant.
        straggler: number of the last straggler read.
    """

    at: int | None
    seq: int
    straggler: int

    @classmethod
    def beginning(cls) -> Place:
        """The place before all messages."""
        return cls(None, LAST_SEQ, 0)


@dataclass(frozen=True)
class StreamOffset:
    """The places of a stream in all queues of its topic and in the queue of its retries.

    Attributes:
        stream: the stream's own name; no one else may use its group.
        places: by number of the topic and queue.
    """

    stream: str
    places: Mapping[tuple[int, int], Place]

    def as_dict(self) -> dict[str, Any]:
        """The offset as Spark keeps it: dictionaries of plain values."""
        queues = {
            f"{topic_id}.{queue}": f"{'-' if place.at is None else place.at}.{place.seq}.{place.straggler}"
            for (topic_id, queue), place in sorted(self.places.items())
        }
        return {"v": 1, "stream": self.stream, "queues": queues}

    @classmethod
    def of(cls, written: Mapping[str, Any]) -> StreamOffset:
        """The offset that :meth:`as_dict` made.

        Raises:
            InvalidArgument: the text is not an offset, or is one of a later version.
        """
        try:
            if written["v"] != 1:
                raise InvalidArgument(
                    f"the checkpoint is of version {written['v']!r}, not known here: upgrade duewheel"
                )
            places = {}
            for name, place in written["queues"].items():
                topic_id, queue = name.split(".")
                at, seq, straggler = place.rsplit(".", 2)
                places[int(topic_id), int(queue)] = Place(
                    None if at == "-" else int(at), int(seq), int(straggler)
                )
            return cls(str(written["stream"]), places)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidArgument(
                f"the checkpoint is not one of duewheel ({error}): give the stream a checkpoint of its own"
            ) from error

    @classmethod
    def of_rows(cls, stream: str, rows: Iterable[Sequence[Any]]) -> StreamOffset:
        """From rows of topic, queue, instant, number and straggler."""
        return cls(
            stream,
            {(topic_id, queue): Place(at, seq, straggler) for topic_id, queue, at, seq, straggler in rows},
        )

    def parameters(self) -> tuple[list[Any], ...]:
        """The places as parallel arrays: topics, queues, instants, numbers, stragglers."""
        items = sorted(self.places.items())
        return (
            [topic_id for (topic_id, _), _ in items],
            [queue for (_, queue), _ in items],
            [place.at for _, place in items],
            [place.seq for _, place in items],
            [place.straggler for _, place in items],
        )


@dataclass(frozen=True)
class StreamOffsets:
    """The offsets of a stream in each of its topics.

    Attributes:
        group: the group that the stream has drawn for itself; None where its options name one.
        topics: by name of the topic.
        is_begun: whether the stream has looked for topics; of one that it finds later it reads everything.
    """

    VERSION: ClassVar[int] = 2

    group: str | None
    topics: Mapping[str, StreamOffset]
    is_begun: bool = True

    def as_dict(self) -> dict[str, Any]:
        """The offsets as Spark keeps them."""
        topics = {topic: offset.as_dict() for topic, offset in sorted(self.topics.items())}
        written = {"v": self.VERSION, **({"group": self.group} if self.group else {}), "topics": topics}
        # Topics say so themselves.
        return written | ({"begun": True} if self.is_begun and not topics else {})

    @classmethod
    def of(cls, written: Mapping[str, Any]) -> StreamOffsets:
        """The offsets that :meth:`as_dict` made."""
        topics = {topic: StreamOffset.of(offset) for topic, offset in written["topics"].items()}
        return cls(written.get("group"), topics, bool(topics) or written.get("begun", False))
