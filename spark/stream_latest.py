"""How far a micro-batch reads: all queues of all topics up to one instant.

Spark takes a row for late by the newest of the rows before it, whatever its topic and its queue. If one queue
were read further ahead in time than the watermark waits, the messages of the others would be dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

from duewheel.spark.statements import statement
from duewheel.spark.stream_place import Place, StreamOffset
from duewheel.spark.topic_stream import StreamBroker, StreamRange, TopicStream

_LATEST = statement("stream_latest")
_CUT = statement("stream_cut")

Offsets = Mapping[TopicStream, StreamOffset]


def released(broker: StreamBroker, begins: Offsets, targets: Offsets | None = None) -> Offsets:
    """How far streams that begin at these positions may read: to ``targets``, or all that is released.

    Raises:
        UnknownTopic, UnknownGroup: a topic or its group was deleted.
        GroupBusy: another reader has moved a group.
        InvalidArgument: an offset is of another topic or group.
    """
    if targets is None:
        for stream in begins:
            stream.release()
    subscribed = {stream.key[0]: stream for stream in begins}
    rows = broker.ask(
        _LATEST,
        list(subscribed),
        [stream.key[1] for stream in begins],
        list(subscribed),
        [offset.stream or None for offset in begins.values()],
        *_places(begins.values()),
        *([None] * 4 if targets is None else _without_seqs(*_places(targets.values()))),
    )
    found: dict[TopicStream, list[tuple[Any, ...]]] = {stream: [] for stream in begins}
    for topic_id, *place, is_deleted in rows:
        if is_deleted or place[0] is None:
            subscribed[topic_id].refuse_deleted(with_topic=is_deleted)
        found[subscribed[topic_id]].append(tuple(place))
    latest = {stream: StreamOffset.of_rows(begins[stream].stream, places) for stream, places in found.items()}
    for stream, offset in latest.items():
        stream.refuse_foreign(begins[stream], offset)
    return latest


def targets_of(broker: StreamBroker, streams: Iterable[TopicStream]) -> Offsets:
    """How far messages are released now, as the targets of a query that ends there."""
    return released(broker, {stream: StreamOffset("", {}) for stream in streams})


def cut(
    broker: StreamBroker, begins: Offsets, latest: Offsets, messages: int | None, body_bytes: int | None
) -> Offsets:
    """How far streams read that may read up to ``latest``, with a limit.

    Args:
        messages: how many messages at most; None means unlimited.
        body_bytes: how many bytes their bodies have at most, and one body more; None means unlimited.
    """
    ranges: list[StreamRange] = list(
        chain.from_iterable(stream.ranges(begins[stream], offset) for stream, offset in latest.items())
    )
    if not ranges or (messages is None and body_bytes is None):
        return latest
    starts, ends = [part.start for part in ranges], [part.end for part in ranges]
    rows = broker.ask(
        _CUT,
        [part.topic_id for part in ranges],
        [part.queue for part in ranges],
        *_columns(starts),
        *_columns(ends),
        messages,
        body_bytes,
    )
    places = {(topic_id, queue): Place(*place) for topic_id, queue, *place in rows}
    return {
        stream: replace(offset, places={key: places.get(key, place) for key, place in offset.places.items()})
        for stream, offset in latest.items()
    }


def _columns(places: Iterable[Place]) -> tuple[list[Any], ...]:
    return tuple(map(list, zip(*((place.at, place.seq, place.straggler) for place in places), strict=True)))


def _places(offsets: Iterable[StreamOffset]) -> tuple[list[Any], ...]:
    """The places of several topics as parallel arrays."""
    return StreamOffset("", dict(chain.from_iterable(one.places.items() for one in offsets))).parameters()


def _without_seqs(*places: list[Any]) -> tuple[list[Any], ...]:
    topic_ids, queues, ats, _, stragglers = places
    return topic_ids, queues, ats, stragglers
