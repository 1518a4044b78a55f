"""A group whose next messages are recalled or not chosen: looks and receives are bounded."""

from __future__ import annotations

import pytest
from tests.acting import DAY, HOUR, MINUTE, SECOND
from tests.clock import Clock
from tests.upkeeping import portions
from tests.waiting import ask, connected

from duewheel.store.broker import Broker
from duewheel.store.consuming.leasing_enough import lease_enough
from duewheel.store.consuming.ready_messages import ready_messages

#: The broker's rows that a transaction has read so far.
READ = """
select sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)) from pg_stat_xact_user_tables
where schemaname = 'duewheel'
"""
#: Of 40 000 released messages, all but the last are recalled.
MESSAGES = 40_000


@pytest.mark.slow
@pytest.mark.owner
def test_x22_x25_a_group_whose_next_messages_are_recalled(timed_broker: Broker, clock: Clock) -> None:
    """Looks at it are bounded, a consumer is rung for what lies behind, and nothing is kept for it."""
    broker = timed_broker
    broker.create_topic("orders", queues=1, max_delay=4 * DAY, retention=DAY)
    broker.consumer("orders", "shop")
    broker.maintain()
    recalled = [{"body": b"", "tag": "paid", "delay": HOUR}] * (MESSAGES - 1)
    broker.send_many("orders", [*recalled, {"body": b"", "delay": HOUR}])
    broker.recall_many("orders", tag="paid")
    clock.advance(2 * HOUR)
    broker.tick("orders")
    looks = (
        "select count(*) from duewheel.group_doorbells(array['orders'], array['shop'], p_now => %s)",
        "select count(*) from duewheel.group_stats(%s)",
        """
        select exists (select from duewheel.groups_that_need(s.starts_at, s.ends_at))
        from duewheel.slot s, (select %s::timestamptz) u where s.starts_at = '2026-01-05'
        """,
    )
    for look in looks:
        with connected(broker.dsn, autocommit=False) as connection:
            ask(connection, look, clock())
            # Of ten thousand, each with its recall, and once more by their places.
            assert ask(connection, READ)[0][0] < 35_000, look
    broker.consumer("orders", "idle")
    (bell,) = broker.doorbells(["orders"], ["shop"])
    assert (bell.ready, bell.oldest_deliver_at, bell.more) == (1, None, True)
    # None of those that were looked at is for the group: a consumer comes, and a sensor waits for enough.
    assert bell.has(1)
    assert not bell.has(2)
    consumer = broker.consumer("orders", "shop")
    received = 0
    while batch := consumer.receive(max_messages=10):
        received += len(batch)
        consumer.ack(batch)
    assert received == 1
    (bell,) = broker.doorbells(["orders"], ["shop"])
    assert bell.ready == 0
    # Nobody is warned of more than the other group has not read.
    clock.advance(2 * DAY)
    (warning,) = broker.maintain().warnings
    assert "about 1 messages past retention" in warning
    assert len(broker.consumer("orders", "idle").receive(max_messages=10)) == 1


def test_x01_a_recall_at_the_instant_of_the_last_batch_counts(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("orders", queues=1)
    sent = timed_broker.send_many("orders", [{"body": body, "delay": HOUR} for body in ("a", "b", "c")])
    timed_broker.recall(sent[1].message_id)
    clock.advance(HOUR)
    consumer = timed_broker.consumer("orders", "shop")
    assert [message.body for message in consumer.receive(max_messages=1)] == [b"a"]
    assert [message.body for message in consumer.receive()] == [b"c"]


@pytest.mark.owner
def test_x22_only_recalled_messages_make_no_abandoned_group(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("orders", max_delay=4 * DAY, retention=DAY)
    timed_broker.consumer("orders", "shop")
    timed_broker.maintain()
    timed_broker.send_many("orders", [{"body": b"", "tag": "paid", "delay": HOUR}] * 1_000)
    timed_broker.recall_many("orders", tag="paid")
    clock.advance(2 * HOUR)
    timed_broker.tick("orders")
    clock.advance(3 * DAY)
    done = timed_broker.maintain()
    assert done.warnings == ()
    assert "message_2026010500" in done.dropped
    assert timed_broker.doorbells(["orders"], ["shop"])[0].ready == 0


def test_x25_a_group_before_a_recalled_message_costs_no_upkeep(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("orders", queues=1)
    timed_broker.consumer("orders", "shop")
    waiting = timed_broker.send("orders", b"", delay=SECOND)
    timed_broker.recall(waiting.message_id)
    clock.advance(MINUTE)
    timed_broker.tick("orders")
    with connected(timed_broker.dsn) as connection:

        def leases() -> int:
            ((count,),) = ask(connection, "select count(*) from duewheel.lease")
            return int(count)

        def leases_of_upkeep() -> int:
            before = leases()
            list(portions(connection, "watch", 1_000, clock()))
            return leases() - before

        assert leases_of_upkeep() == 0
        # An hour later it is passed, once.
        clock.advance(HOUR)
        assert leases_of_upkeep() == 1
        clock.advance(SECOND)
        assert leases_of_upkeep() == 0


@pytest.mark.owner
def test_x25_a_look_without_a_lease_passes_recalled_messages(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("orders", queues=1)
    timed_broker.consumer("orders", "shop")
    timed_broker.send_many("orders", [{"body": b"", "tag": "paid", "delay": HOUR}] * 25)
    timed_broker.recall_many("orders", tag="paid")
    timed_broker.send("orders", b"", delay=HOUR, key="unpaid")
    clock.advance(HOUR)
    with connected(timed_broker.dsn) as owner, owner.cursor() as cursor:
        cursor.execute(
            "create or replace function duewheel.portion() returns integer language sql immutable return 10"
        )
        for _ in range(2):
            assert [one.key for one in ready_messages(timed_broker, "orders", "shop", 5)] == ["unpaid"]
        receive = "select key from duewheel.receive('orders', 'shop', now => %s)"
        assert ask(owner, receive, clock()) == [("unpaid",)]


@pytest.mark.owner
def test_x25_leases_behind_recalled_messages_are_as_large_as_any(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("orders", queues=1, max_delay=4 * DAY)
    timed_broker.consumer("orders", "shop")
    timed_broker.send_many("orders", [{"body": b"", "tag": "paid", "delay": HOUR}] * 20_000)
    timed_broker.send_many("orders", [{"body": b"", "delay": 2 * HOUR}] * 50_000)
    timed_broker.recall_many("orders", tag="paid")
    clock.advance(3 * HOUR)
    timed_broker.tick("orders")
    with connected(timed_broker.dsn) as connection:
        # The first call passes a portion of the recalled messages.
        (passed,), ((leases, messages),) = (
            ask(
                connection,
                "select count(l.topic_id), sum(l.lease_count) from duewheel.subscription s cross join lateral"
                " duewheel.lease_evenly(s.group_id, s.topic_id, 1000, 4, '1 min', 'job', %s) l",
                clock(),
            )
            for _ in range(2)
        )
    assert passed == (0, None)
    assert messages == 1_000
    assert 8 <= leases <= 16


@pytest.mark.owner
def test_x25_one_recalled_message_lets_a_lease_look_at_few_more(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("orders", queues=1, max_delay=4 * DAY)
    timed_broker.consumer("orders", "shop")
    timed_broker.send("orders", b"", tag="paid", delay=HOUR)
    timed_broker.send_many("orders", [{"body": b"", "delay": 2 * HOUR}] * 50_000)
    timed_broker.recall_many("orders", tag="paid")
    clock.advance(3 * HOUR)
    timed_broker.tick("orders")
    with connected(timed_broker.dsn, autocommit=False) as connection:
        ask(
            connection,
            "select count(*) from duewheel.subscription s cross join lateral"
            " duewheel.lease_evenly(s.group_id, s.topic_id, 100, 4, '1 min', 'job', %s) l",
            clock(),
        )
        assert ask(connection, READ)[0][0] < 2_000


@pytest.mark.parametrize("waiting", ["a message", "a retry", "a lease"])
def test_a_bell_names_what_comes_next_behind_recalled_messages(
    timed_broker: Broker, clock: Clock, waiting: str
) -> None:
    broker = timed_broker
    broker.create_topic("orders", queues=1, max_delay=4 * DAY)
    consumer = broker.consumer("orders", "shop")
    due = 30 * SECOND
    if waiting == "a message":
        broker.send("orders", b"", delay=due)
    else:
        broker.send("orders", b"", delay_level=0)
        (message,) = consumer.receive(invisible=due)
        if waiting == "a retry":
            consumer.nack([message], due)
    expected = clock() + due
    paid = broker.send("orders", b"", delay=SECOND)
    broker.recall(paid.message_id)
    clock.advance(2 * SECOND)
    (bell,) = broker.doorbells(["orders"], ["shop"])
    assert (bell.ready, bell.next_at) == (0, expected)


@pytest.fixture
def recalled(timed_broker: Broker, clock: Clock) -> Broker:
    """Of ten messages, the first seven and the ninth are recalled; a transaction passes three."""
    timed_broker.create_topic("orders", queues=1)
    timed_broker.consumer("orders", "shop")
    sent = timed_broker.send_many("orders", [{"body": f"{n}", "delay": HOUR} for n in range(10)])
    for n in (*range(7), 8):
        timed_broker.recall(sent[n].message_id)
    clock.advance(HOUR)
    timed_broker.tick("orders")
    with connected(timed_broker.dsn) as owner:
        ask(
            owner,
            "create or replace function duewheel.portion() returns integer language sql immutable return 3",
        )
    return timed_broker


@pytest.mark.owner
def test_x25_one_transaction_skips_a_portion_of_recalls(recalled: Broker, clock: Clock) -> None:
    """The next one begins behind it, and says so as long as there is more."""
    receive = (
        "select (r).seq is not null or (r).lease is not null from duewheel.receive_batch("
        "(select group_id from duewheel.subscription), 1, 1, '1 min', 'me', 1, true, %s) r"
    )
    position = "select deliver_at, seq from duewheel.any_message order by 1, 2 offset %s limit 1"
    newest = "select to_at, to_seq from duewheel.lease where topic_id = 1 order by n desc limit 1"
    with connected(recalled.dsn) as session:
        assert ask(session, receive, clock()) == [(False,)]
        assert ask(session, newest) == ask(session, position, 3)
        # The one that is not recalled, its lease, and that there may be more.
        assert ask(session, receive, clock()) == [(True,), (True,), (False,)]


@pytest.mark.owner
def test_x25_a_consumer_returns_after_each_recalled_portion(recalled: Broker) -> None:
    consumer = recalled.consumer("orders", "shop")
    first = consumer.receive(max_messages=10)
    consumer.ack(first)
    assert [message.body for message in (*first, *consumer.receive())] == [b"7", b"9"]
    assert not consumer.receive()


@pytest.mark.owner
def test_x25_a_lease_of_enough_passes_recalled_messages(recalled: Broker) -> None:
    consumer = recalled.consumer("orders", "shop")
    batch = lease_enough(recalled, consumer, 2, 10, MINUTE)
    assert [message.body for message in batch] == [b"7", b"9"]


@pytest.mark.owner
@pytest.mark.parametrize("choice", [{"tags": "paid"}, {"filter": "$.paid == true"}], ids=str)
@pytest.mark.parametrize("is_late", [False, True], ids=["in time", "late"])
def test_x25_one_transaction_passes_a_portion_that_is_not_chosen(
    timed_broker: Broker, clock: Clock, choice: dict[str, str], is_late: bool
) -> None:
    """Of ten messages of one transaction, the eighth is chosen; the client comes back behind each portion."""
    timed_broker.create_topic("orders", queues=1)
    consumer = timed_broker.consumer("orders", "shop", **choice)
    timed_broker.send("orders", b"punctual", delay=HOUR, tag="open")
    with connected(timed_broker.dsn, autocommit=False) as sending:
        for n in range(10):
            tag = "paid" if n == 7 else "open"
            properties = {"paid": n == 7}
            timed_broker.send(
                "orders", f"{n}", delay=HOUR, tag=tag, properties=properties, connection=sending
            )
        if not is_late:
            sending.commit()
        clock.advance(HOUR)
        timed_broker.tick("orders")
        sending.commit()
    clock.advance(SECOND)
    timed_broker.tick("orders")
    position = "select straggler_to, to_at, to_seq from duewheel.lease where topic_id = 1 order by n"
    fourth = "select seq from duewheel.any_message order by deliver_at, seq offset 3 limit 1"
    with connected(timed_broker.dsn) as owner:
        ask(
            owner,
            "create or replace function duewheel.portion() returns integer language sql immutable return 3",
        )
        assert [message.body for message in consumer.receive(max_messages=1)] == [b"7"]
        # Where the group begins, and where its first transaction ended.
        _, (straggler, _, seq), *_ = ask(owner, position)
        ((fourth_seq,),) = ask(owner, fourth)
    assert (straggler == 4) if is_late else (seq == fourth_seq)
    assert not consumer.receive()
