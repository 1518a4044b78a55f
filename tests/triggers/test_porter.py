"""Which groups the stream asks the broker about, and which it leaves alone."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from duewheel.triggers import wheel_stream
from duewheel.triggers.wheel_stream import LOOKING_SECONDS, Porter, Watched

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.clock import Clock

    from duewheel.store import Broker

NOTHING: frozenset[int] = frozenset()
NOBODY: frozenset[Watched] = frozenset()
ORDERS = Watched("orders", "g")
WATCHED = frozenset({ORDERS})


@pytest.fixture
def topic_id(broker: Broker) -> int:
    """The number of the topic ``orders``."""
    broker.create_topic("orders", message_type="DELAY")
    return broker.consumer("orders", "someone").topic_id


@pytest.fixture
def porter(broker: Broker, topic_id: int) -> Porter:
    """Somebody who has looked once, when there was nothing to see."""
    porter = Porter(broker, left_alone_seconds=3600)
    assert porter.look(WATCHED, NOTHING).doorbells[ORDERS].ready == 0
    return porter


def test_a_release_of_its_topic_is_looked_at(broker: Broker, porter: Porter, topic_id: int) -> None:
    broker.send("orders", b"x", delay_level=0)
    assert porter.look(WATCHED, frozenset({topic_id + 1})).doorbells == {}
    assert porter.look(WATCHED, frozenset({topic_id})).doorbells[ORDERS].ready == 1


def test_what_is_ready_is_looked_at_again_and_again(broker: Broker, porter: Porter, topic_id: int) -> None:
    broker.send("orders", b"x", delay_level=0)
    porter.look(WATCHED, frozenset({topic_id}))
    assert porter.look(WATCHED, NOTHING).doorbells[ORDERS].ready == 1


def test_what_is_leased_is_looked_at_again_and_again(broker: Broker, porter: Porter, topic_id: int) -> None:
    broker.send("orders", b"x", delay_level=0)
    batch = broker.consumer("orders", "g").receive()
    assert porter.look(WATCHED, frozenset({topic_id})).doorbells[ORDERS].inflight
    assert porter.look(WATCHED, NOTHING).doorbells[ORDERS].inflight
    broker.consumer("orders", "g").ack(batch)
    assert not porter.look(WATCHED, NOTHING).doorbells[ORDERS].inflight
    assert porter.look(WATCHED, NOTHING).doorbells == {}


def test_a_message_on_its_way_is_looked_at_when_it_is_due(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("orders", message_type="DELAY")
    porter = Porter(timed_broker, left_alone_seconds=3600)
    sent = timed_broker.send("orders", b"x", delay=timedelta(seconds=30))
    assert porter.look(WATCHED, NOTHING).doorbells[ORDERS].next_at == sent.deliver_at
    clock.advance(timedelta(seconds=29))
    assert porter.look(WATCHED, NOTHING).doorbells == {}
    clock.advance(timedelta(seconds=1))
    assert porter.look(WATCHED, NOTHING).doorbells[ORDERS].ready == 1


def test_nobody_is_left_alone_for_ever(broker: Broker, topic_id: int) -> None:
    porter = Porter(broker, left_alone_seconds=0)
    for _ in range(3):
        assert porter.look(WATCHED, NOTHING).doorbells[ORDERS].ready == 0


def test_a_group_of_a_deleted_topic_comes_back_with_it(broker: Broker, porter: Porter, topic_id: int) -> None:
    broker.delete_topic("orders")
    assert porter.look(WATCHED, frozenset({topic_id})).doorbells == {}
    assert porter.look(WATCHED, NOTHING).doorbells == {}
    broker.create_topic("orders")
    assert porter.look(WATCHED, NOTHING).doorbells[ORDERS].ready == 0


def test_a_release_of_a_topic_that_was_made_again_is_looked_at(broker: Broker, porter: Porter) -> None:
    broker.delete_topic("orders")
    broker.create_topic("orders")
    new_id = broker.consumer("orders", "g").topic_id
    broker.send("orders", b"x", delay_level=0)
    assert porter.look(WATCHED, frozenset({new_id})).doorbells[ORDERS].ready == 1


def test_a_group_that_nobody_watched_for_a_while_is_looked_at_at_once(
    broker: Broker, porter: Porter, topic_id: int
) -> None:
    broker.send("orders", b"x", delay_level=0)
    assert porter.look(NOBODY, frozenset({topic_id})).doorbells == {}
    assert porter.look(WATCHED, NOTHING).doorbells[ORDERS].ready == 1


def test_the_log_says_again_what_is_missing_when_somebody_watches_it_again(
    porter: Porter, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere = frozenset({Watched("nowhere", "g")})
    for groups in (nowhere, nowhere, NOBODY, nowhere):
        porter.look(groups, NOTHING)
    assert caplog.text.count("No doorbell for group g on topic nowhere") == 2


def test_d12_a_group_is_looked_at_for_the_messages_it_asks_for(broker: Broker, topic_id: int) -> None:
    paid, open_ = Watched("orders", "g", "paid"), Watched("orders", "g", "open", "amount > 5")
    broker.send("orders", b"x", delay_level=0, tag="open", properties={"amount": 10})
    look = Porter(broker, left_alone_seconds=3600).look(frozenset({paid, open_}), NOTHING)
    assert {group: bell.ready for group, bell in look.doorbells.items()} == {paid: 0, open_: 1}


def test_a_group_without_messages_of_its_tags_is_left_alone_until_a_release(
    broker: Broker, topic_id: int
) -> None:
    paid = frozenset({Watched("orders", "g", "paid")})
    porter = Porter(broker, left_alone_seconds=3600)
    broker.send("orders", b"x", delay_level=0, tag="open")
    assert porter.look(paid, NOTHING).doorbells
    assert not porter.look(paid, NOTHING).doorbells
    assert porter.look(paid, frozenset({topic_id})).doorbells


def test_r02_a_broadcasting_group_is_refused_for_its_watchers_alone(broker: Broker, porter: Porter) -> None:
    broker.consumer("orders", "everyone", mode="broadcasting", name="one")
    everyone = Watched("orders", "everyone")
    look = porter.look(WATCHED | {everyone}, NOTHING)
    assert "everyone" in str(look.refused[everyone])
    assert porter.look(WATCHED, NOTHING).refused == {}


class SlowLink:
    """Over which each call takes as long as a look may go on; its clock counts only that."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        """What time it is."""
        return self.seconds

    def over(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, made over the link."""

        def slow(*arguments: Any, **options: Any) -> Any:
            self.seconds += LOOKING_SECONDS
            return call(*arguments, **options)

        return slow


def test_many_new_groups_over_a_slow_link_are_made_bit_by_bit(
    broker: Broker, topic_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = SlowLink()
    monkeypatch.setattr(broker, "consumer", link.over(broker.consumer))
    porter = Porter(broker, left_alone_seconds=3600, clock=link.now)
    broker.send("orders", b"x", delay_level=0)
    new = frozenset(Watched("orders", f"g{number}") for number in range(3))
    told = [(len(porter.look(new, NOTHING).doorbells), porter.has_more) for _ in range(4)]
    assert told == [(1, True), (2, True), (3, False), (3, False)]


def test_topics_that_do_not_exist_keep_no_others_from_their_turn(
    broker: Broker, topic_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = SlowLink()
    monkeypatch.setattr(broker, "consumer", link.over(broker.consumer))
    porter = Porter(broker, left_alone_seconds=3600, clock=link.now)
    groups = WATCHED | {Watched("never", "g"), Watched("nowhere", "g")}
    looks = [porter.look(groups, NOTHING) for _ in range(3)]
    assert looks[-1].doorbells[ORDERS].ready == 0
    # Those that are tried again are no reason to hurry.
    assert not porter.has_more
    broker.create_topic("nowhere")
    looks = [porter.look(groups, NOTHING) for _ in range(2)]
    assert any(Watched("nowhere", "g") in look.doorbells for look in looks)


def test_more_ready_groups_than_a_look_has_time_for_take_turns(
    broker: Broker, topic_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheel_stream, "PORTION", 1)
    link = SlowLink()
    porter = Porter(broker, left_alone_seconds=3600, clock=link.now)
    groups = frozenset(Watched("orders", f"g{number}") for number in range(3))
    assert len(porter.look(groups, NOTHING).doorbells) == len(groups)
    assert not porter.has_more
    broker.send("orders", b"x", delay_level=0)
    monkeypatch.setattr(broker, "doorbells", link.over(broker.doorbells))
    # The release is heard once, and counts for all of them.
    looks = [porter.look(groups, frozenset({topic_id}))]
    assert porter.has_more
    looks += [porter.look(groups, NOTHING) for _ in range(2)]
    assert not porter.has_more
    rang = [group for look in looks for group, bell in look.doorbells.items() if bell.ready]
    assert sorted(rang) == sorted(groups)
