"""Whatever a listener or a task raises can be kept as the reason of a retry."""

from __future__ import annotations

from datetime import timedelta

import pytest

from duewheel.store import Broker
from duewheel.store.values.reasons import LONGEST_REASON, reason_of


@pytest.mark.parametrize(
    "text", ["plain", "a NUL \0 within", "half a pair \ud800", "x" * 5_000, "'; drop --"]
)
def test_x08_any_error_text_is_kept_with_the_retry(broker: Broker, text: str) -> None:
    broker.create_topic("t")
    receipt = broker.send("t", b"", delay=timedelta(0))
    consumer = broker.consumer("t", "g")
    consumer.nack(consumer.receive(wait=timedelta(seconds=5)), reason=reason_of(ValueError(text)))
    (kept,) = {entry.reason for entry in broker.history(receipt.message_id) if entry.reason is not None}
    assert kept.startswith("ValueError: ")
    assert len(kept) == min(len(text) + len("ValueError: "), LONGEST_REASON)
