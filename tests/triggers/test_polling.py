"""Which groups the stream asks the broker about, and which it leaves alone."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting import ask, connected

from duewheel.store.consuming import watching
from duewheel.triggers import polling
from duewheel.triggers.polling import TURN_SECONDS, DoorbellPoller, DoorbellSnapshot, LonePoller, Watched

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from tests.clock import Clock

    from duewheel.store import Broker

NOTHING: frozenset[int] = frozenset()
NOBODY: frozenset[Watched] = frozenset()
ORDERS = Watched("orders", "g")
WATCHED = frozenset({ORDERS})


@pytest.fixture
def topic_id(broker: Broker) -> int:
    """The number of the topic ``orders``, which has the group ``g``."""
    broker.create_topic("orders", message_type="DELAY")
    return broker.consumer("orders", "g").topic_id


@pytest.fixture
def poller(broker: Broker, topic_id: int) -> DoorbellPoller:
    """A poller that has polled once, when there was nothing to see."""
    poller = DoorbellPoller(broker, left_alone_seconds=3600)
    assert poller.poll(WATCHED, NOTHING).doorbells[ORDERS].ready == 0
    return poller


class SlowLink:
    """Over which each call takes as long as a poll may go on; its clock counts only that."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        """What time it is."""
        return self.seconds

    def over(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, made over the link."""

        def slow(*arguments: Any, **options: Any) -> Any:
            self.seconds += TURN_SECONDS
            return call(*arguments, **options)

        return slow


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> SlowLink:
    """A slow link, over which groups are made and polled."""
    link = SlowLink()
    for name in ("subscribe", "poll"):
        monkeypatch.setattr(watching, name, link.over(getattr(watching, name)))
    return link


def tried(lone: LonePoller, groups: Collection[Watched]) -> DoorbellSnapshot:
    """What a poll finds about these groups."""
    lone.take(groups)
    return lone.poll()


def waiting_for_locks(broker: Broker) -> int:
    """How many sessions of the broker's database wait for a lock."""
    with connected(broker.dsn) as session:
        ((count,),) = ask(
            session,
            "select count(*) from pg_stat_activity"
            " where datname = current_database() and wait_event_type = 'Lock'",
        )
    return int(count)


def test_a_release_of_its_topic_is_polled(broker: Broker, poller: DoorbellPoller, topic_id: int) -> None:
    broker.send("orders", b"x", delay_level=0)
    assert poller.poll(WATCHED, frozenset({topic_id + 1})).doorbells == {}
    assert poller.poll(WATCHED, frozenset({topic_id})).doorbells[ORDERS].ready == 1


def test_a_release_of_a_topic_that_was_made_again_is_polled(broker: Broker, poller: DoorbellPoller) -> None:
    broker.delete_topic("orders")
    broker.create_topic("orders")
    new_id = broker.consumer("orders", "g").topic_id
    broker.send("orders", b"x", delay_level=0)
    assert poller.poll(WATCHED, frozenset({new_id})).doorbells[ORDERS].ready == 1


def test_a_group_with_ready_messages_is_polled_again_and_again(
    broker: Broker, poller: DoorbellPoller, topic_id: int
) -> None:
    broker.send("orders", b"x", delay_level=0)
    poller.poll(WATCHED, frozenset({topic_id}))
    assert poller.poll(WATCHED, NOTHING).doorbells[ORDERS].ready == 1


def test_a_group_with_leases_is_polled_again_and_again(
    broker: Broker, poller: DoorbellPoller, topic_id: int
) -> None:
    broker.send("orders", b"x", delay_level=0)
    batch = broker.consumer("orders", "g").receive()
    assert poller.poll(WATCHED, frozenset({topic_id})).doorbells[ORDERS].inflight
    assert poller.poll(WATCHED, NOTHING).doorbells[ORDERS].inflight
    broker.consumer("orders", "g").ack(batch)
    assert not poller.poll(WATCHED, NOTHING).doorbells[ORDERS].inflight
    assert poller.poll(WATCHED, NOTHING).doorbells == {}


def test_a_message_on_its_way_is_polled_when_it_is_due(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("orders", message_type="DELAY")
    timed_broker.consumer("orders", "g")
    poller = DoorbellPoller(timed_broker, left_alone_seconds=3600)
    sent = timed_broker.send("orders", b"x", delay=timedelta(seconds=30))
    assert poller.poll(WATCHED, NOTHING).doorbells[ORDERS].next_at == sent.deliver_at
    clock.advance(timedelta(seconds=29))
    assert poller.poll(WATCHED, NOTHING).doorbells == {}
    clock.advance(timedelta(seconds=1))
    assert poller.poll(WATCHED, NOTHING).doorbells[ORDERS].ready == 1


def test_no_group_is_left_alone_for_ever(broker: Broker, topic_id: int) -> None:
    poller = DoorbellPoller(broker, left_alone_seconds=0)
    for _ in range(3):
        assert poller.poll(WATCHED, NOTHING).doorbells[ORDERS].ready == 0


def test_a_group_of_a_deleted_topic_is_given_up(
    broker: Broker, poller: DoorbellPoller, topic_id: int
) -> None:
    broker.delete_topic("orders")
    assert poller.poll(WATCHED, frozenset({topic_id})).doorbells == {}
    assert poller.given_up == WATCHED


def test_a_group_unwatched_for_a_while_is_polled_at_once(
    broker: Broker, poller: DoorbellPoller, topic_id: int
) -> None:
    broker.send("orders", b"x", delay_level=0)
    assert poller.poll(NOBODY, frozenset({topic_id})).doorbells == {}
    assert poller.poll(WATCHED, NOTHING).doorbells[ORDERS].ready == 1


def test_d12_a_group_is_polled_for_the_messages_it_receives(broker: Broker, topic_id: int) -> None:
    paid, open_ = Watched("orders", "paid", "paid"), Watched("orders", "open", "open", "$.amount > 5")
    for group in (paid, open_):
        broker.consumer(group.topic, group.group, group.tags, filter=group.filter)
    broker.send("orders", b"x", delay_level=0, tag="open", properties={"amount": 10})
    snapshot = DoorbellPoller(broker, left_alone_seconds=3600).poll(frozenset({paid, open_}), NOTHING)
    assert {group: bell.ready for group, bell in snapshot.doorbells.items()} == {paid: 0, open_: 1}


def test_a_group_without_messages_of_its_tags_awaits_a_release(broker: Broker, topic_id: int) -> None:
    paid = frozenset({Watched("orders", "paid", "paid")})
    broker.consumer("orders", "paid", "paid")
    poller = DoorbellPoller(broker, left_alone_seconds=3600)
    broker.send("orders", b"x", delay_level=0, tag="open")
    assert poller.poll(paid, NOTHING).doorbells
    assert not poller.poll(paid, NOTHING).doorbells
    assert poller.poll(paid, frozenset({topic_id})).doorbells


@pytest.mark.parametrize("portion", [1, 100])
def test_more_ready_groups_than_a_poll_has_time_for_take_turns(
    broker: Broker, topic_id: int, link: SlowLink, portion: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "PORTION", portion)
    groups = frozenset(Watched("orders", f"g{number}") for number in range(3))
    for group in groups:
        broker.consumer("orders", group.group)
    poller = DoorbellPoller(broker, left_alone_seconds=3600)
    assert len(poller.poll(groups, NOTHING).doorbells) == len(groups)
    assert not poller.has_more
    broker.send("orders", b"x", delay_level=0)
    # Without any time, a poll asks about one group, and a statement is about one, too.
    monkeypatch.setattr(polling, "TURN_SECONDS", 0.0)
    # The release is heard once, and counts for all of them.
    snapshots = [poller.poll(groups, frozenset({topic_id}))]
    assert poller.has_more
    snapshots += [poller.poll(groups, NOTHING) for _ in range(2)]
    assert not poller.has_more
    rang = [group for snapshot in snapshots for group, bell in snapshot.doorbells.items() if bell.ready]
    assert sorted(rang) == sorted(groups)


def test_a_new_group_is_made_and_told_of_alone(broker: Broker, topic_id: int) -> None:
    new = Watched("orders", "new")
    lone = LonePoller(broker)
    broker.send("orders", b"x", delay_level=0)
    assert tried(lone, {new}).doorbells[new].ready == 1
    assert lone.settled == {new}
    assert lone.silent == NOBODY


def test_many_new_groups_over_a_slow_link_are_made_bit_by_bit(
    broker: Broker, topic_id: int, link: SlowLink
) -> None:
    lone = LonePoller(broker, clock=link.now)
    new = frozenset(Watched("orders", f"g{number}") for number in range(3))
    told = [len(tried(lone, new).doorbells) for _ in range(3)]
    assert told == [1, 1, 1]


def test_a_topic_that_does_not_exist_is_tried_until_it_does(broker: Broker, link: SlowLink) -> None:
    lone = LonePoller(broker, clock=link.now)
    assert tried(lone, WATCHED).doorbells == {}
    assert lone.silent == WATCHED
    broker.create_topic("orders")
    link.seconds += lone.pause_seconds()
    assert tried(lone, WATCHED).doorbells[ORDERS].ready == 0
    assert lone.silent == NOBODY


def test_topics_that_do_not_exist_keep_no_others_from_their_turn(
    broker: Broker, topic_id: int, link: SlowLink
) -> None:
    lone = LonePoller(broker, clock=link.now)
    groups = WATCHED | {Watched("never", "g"), Watched("nowhere", "g")}
    snapshots = [tried(lone, groups) for _ in range(3)]
    assert [ORDERS in snapshot.doorbells for snapshot in snapshots].count(True) == 1


def test_a_missing_topic_is_logged_again_for_a_new_watcher(
    broker: Broker, link: SlowLink, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere = frozenset({Watched("nowhere", "g")})
    lone = LonePoller(broker, clock=link.now)
    for groups in (nowhere, nowhere, NOBODY, nowhere):
        tried(lone, groups)
        link.seconds += 10
    assert caplog.text.count("No doorbell for group g on topic nowhere") == 2


def test_r02_a_broadcasting_group_is_refused_for_its_watchers(broker: Broker, topic_id: int) -> None:
    broker.consumer("orders", "everyone", mode="broadcasting", name="one")
    everyone = Watched("orders", "everyone")
    lone = LonePoller(broker)
    snapshot = tried(lone, WATCHED | {everyone})
    assert "everyone" in str(snapshot.refused[everyone])
    assert ORDERS in snapshot.doorbells
    assert tried(lone, WATCHED).refused == {}


def test_d12_an_invalid_filter_is_refused_for_its_watchers_alone(broker: Broker, topic_id: int) -> None:
    mistaken = Watched("orders", "mistaken", filter="$.amount >")
    lone = LonePoller(broker)
    snapshot = tried(lone, WATCHED | {mistaken})
    assert "not a predicate of jsonpath" in str(snapshot.refused[mistaken])
    assert ORDERS in snapshot.doorbells
    assert {group.group for group in broker.groups()} == {"g"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    [
        "select from duewheel.receive('orders', 'a new one')",
        "select duewheel.update_topic('orders', retention => '80 hours')",
    ],
)
def test_x18_a_group_that_an_open_transaction_locks_waits_alone(
    broker: Broker,
    topic_id: int,
    statement: str,
    link: SlowLink,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(polling, "LONGEST_ALONE_SECONDS", polling.ALONE_SECONDS)
    monkeypatch.setattr(polling, "TURN_SECONDS", 1_000.0)
    new = Watched("orders", "new")
    lone = LonePoller(broker, clock=link.now)
    with connected(broker.dsn, autocommit=False) as open_:
        ask(open_, statement.replace("a new one", "new"))
        for _ in range(2):
            snapshot = tried(lone, {new, ORDERS})
            assert ORDERS in snapshot.doorbells
            assert lone.silent == {new}
            assert waiting_for_locks(broker) == 0
            link.seconds += 100
        assert caplog.text.count("No doorbell for group new on topic orders, watched by") == 1
        assert "An open transaction may have locked" in caplog.text
    assert new in tried(lone, {new}).doorbells


@pytest.mark.owner
@pytest.mark.slow
def test_x18_a_poll_that_waits_for_a_lock_is_tried_apart(
    broker: Broker, topic_id: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The doorbell of a FIFO topic alone reads the table that is locked."""
    monkeypatch.setattr(polling, "TURN_SECONDS", 1_000.0)
    monkeypatch.setattr(polling, "TRY_AGAIN_SECONDS", 0.0)
    broker.create_topic("steps", message_type="FIFO")
    broker.consumer("steps", "g")
    steps = Watched("steps", "g")
    both = frozenset({ORDERS, steps})
    poller, lone = DoorbellPoller(broker, left_alone_seconds=0), LonePoller(broker)
    with connected(broker.dsn, autocommit=False) as open_:
        ask(open_, "lock table duewheel.fifo_backlog in access exclusive mode")
        assert poller.poll(both, NOTHING).doorbells == {}
        assert poller.given_up == both
        assert set(tried(lone, both).doorbells) == WATCHED
        assert (lone.settled, lone.silent) == (WATCHED, {steps})
        assert set(poller.poll(WATCHED, NOTHING).doorbells) == WATCHED
        assert waiting_for_locks(broker) == 0
    assert "an open transaction holds a lock" in caplog.text
    assert steps in tried(lone, {steps}).doorbells
    assert lone.silent == NOBODY
