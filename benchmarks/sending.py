"""Sending: in bulk against COPY, singly against a one-row INSERT."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.bench import Bench, Subject, rates_row
from benchmarks.measure import Goal, Row
from benchmarks.stand import Stand, plain_sending
from benchmarks.tables import LEASED


def _row(
    name: str, what: str, size: int, baseline: str, at_least: float, bench: Bench, *, with_key: bool = False
) -> Iterator[Row]:
    rounds = bench.size(30, 8)
    ours_side = partial(Stand(bench, LEASED).ours_sending, size, rounds, with_key=with_key)
    plain_side = partial(plain_sending, bench, size, rounds, with_key)
    yield rates_row(
        bench, name, what, ours_side, plain_side, baseline, [Goal(at_least, "at least")], rounds=rounds
    )


MANY = "`send_many` of 1 000 x 100 bytes due over the next hour"
COPY = "plain COPY, same primary key"
INSERT = "one-row INSERT + commit, one round trip"

SUBJECTS = [
    Subject("send-many", "send_many against COPY", partial(_row, "send-many", MANY, 1_000, COPY, 0.5)),
    Subject(
        "send-many-keys",
        "send_many with keys against COPY",
        partial(_row, "send-many-keys", "the same with keys", 1_000, COPY, 0.35, with_key=True),
    ),
    Subject(
        "send-one",
        "send against a one-row INSERT",
        partial(_row, "send-one", "single `send`", 1, INSERT, 0.8),
    ),
]
