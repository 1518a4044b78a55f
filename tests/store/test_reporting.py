"""What a report says: each release and each lease that ended, once, whatever happens around it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg2
import pytest
from tests.waiting import ask, connected, until

from duewheel.store.database.connections import OWN_TRANSACTION
from duewheel.store.metrics import reporting
from duewheel.store.metrics.reporting import claim_report

if TYPE_CHECKING:
    from datetime import datetime

    from duewheel.store import Broker
    from duewheel.store.database.connections import DriverConnection


def report_until(dsn: str, ago: timedelta) -> None:
    """Pretend that the last report is so long ago."""
    with connected(dsn) as connection:
        ask(connection, "update duewheel.report set reported_to = clock_timestamp() - %s returning 1", ago)


def released(dsn: str, since: datetime, max_ms: int = 1000) -> tuple[int, bool]:
    """How many messages of the one topic were released, and whether that is exact."""
    with connected(dsn) as connection:
        ((messages, exact),) = ask(
            connection,
            "select messages, exact from duewheel.releases_between(%s, 'infinity', 10, %s)",
            since,
            max_ms,
        )
    return messages, exact


def until_clock(connection: DriverConnection, instant: datetime) -> None:
    """Return once the database's clock is past it."""
    until(lambda: ask(connection, "select clock_timestamp() > %s", instant)[0][0], f"{instant}")


@pytest.mark.owner
def test_a_claim_with_unreadable_numbers_is_left_to_the_next(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    report_until(broker.dsn, timedelta(minutes=1))
    with monkeypatch.context() as patch:
        patch.setattr(reporting, "_RELEASES", "select 1 / 0, %s, %s")
        with pytest.raises(psycopg2.Error):
            claim_report(broker, timedelta(seconds=30))
    assert claim_report(broker, timedelta(seconds=30)) is not None


@pytest.mark.owner
def test_a_rare_report_leaves_nothing_out(broker: Broker) -> None:
    report_until(broker.dsn, timedelta(seconds=902))
    with broker.connection() as connection:
        ((span,),) = ask(connection, "select until_at - since_at from duewheel.claim_report('810 seconds')")
    assert timedelta(seconds=895) < span < timedelta(seconds=902)


@pytest.mark.slow
@pytest.mark.owner
def test_a_release_that_commits_late_is_in_the_next_report(broker: Broker) -> None:
    broker.create_topic("t")
    broker.send("t", b"x", delay_level=0)
    with connected(broker.dsn) as slow, broker.connection() as connection:
        slow.autocommit = False
        ((began,),) = ask(slow, "select transaction_timestamp()")
        ask(slow, f"{OWN_TRANSACTION}select duewheel.tick_topic(topic_id) from duewheel.topic")
        until_clock(connection, began + timedelta(seconds=2.2))
        report_until(broker.dsn, timedelta(minutes=1))
        assert ask(connection, "select until_at from duewheel.claim_report('1 second')") == [(began,)]
        slow.commit()
        ((until_at,),) = ask(connection, "select until_at from duewheel.claim_report('0 seconds')")
        assert until_at > began
        assert released(broker.dsn, began) == (1, True)


def test_what_was_released_is_counted_and_not_guessed(broker: Broker) -> None:
    broker.create_topic("t", queues=1)
    with broker.connection() as connection:
        ((since,),) = ask(connection, "select clock_timestamp()")
    sent = broker.send_many("t", [{"body": b"x", "delay": timedelta(milliseconds=1)}] * 12_000)
    assert len(sent) == 12_000
    with broker.connection() as connection:
        until_clock(connection, sent[-1].deliver_at)
        ask(connection, "call duewheel.tick('t')")
    assert released(broker.dsn, since) == (12_000, True)
    # Without the time for it, it says that it is an estimate, and of what size.
    guessed, exact = released(broker.dsn, since, max_ms=1)
    assert exact or 10_000 <= guessed <= 100_000


def test_every_topic_is_in_the_report_however_short_the_time(broker: Broker) -> None:
    with broker.connection() as connection:
        ((since,),) = ask(connection, "select clock_timestamp()")
    for number in range(5):
        broker.create_topic(f"t{number}")
        broker.send(f"t{number}", b"x", delay_level=0)
        with broker.connection() as connection:
            ask(connection, "call duewheel.tick(%s)", f"t{number}")
    with broker.connection() as connection:
        assert ask(
            connection,
            "select sum(messages) from duewheel.releases_between(%s, 'infinity', max_ms => 1)",
            since,
        ) == [(5,)]


@pytest.mark.slow
def test_a_lease_that_ended_counts_when_that_is_noticed(broker: Broker) -> None:
    broker.create_topic("t")
    consumer = broker.consumer("t", "g")
    broker.send("t", b"x", delay_level=0)
    (lease,) = consumer.receive(invisible=timedelta(seconds=1)).leases
    with broker.connection() as connection:
        until_clock(connection, lease.expires_at)
        ((since,),) = ask(connection, "select clock_timestamp()")
        consumer.receive()
        found = "select * from duewheel.expired_between(%s, %s)"
        assert ask(connection, found, since, "infinity") == [("g", "t", 1)]
        assert ask(connection, found, lease.expires_at - timedelta(minutes=1), since) == []
