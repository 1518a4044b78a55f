"""A group that is renamed goes on where it was: nothing is repeated and nothing lost."""

from __future__ import annotations

from functools import partial

import psycopg2
import pytest
from tests.acting import HOUR, bodies, rows, send, taken
from tests.clock import Clock
from tests.waiting import ask, beside, connected, until_blocked, until_somebody_waits

from duewheel.store import InvalidArgument, RetryPolicy, UnknownGroup
from duewheel.store.broker import Broker


def test_x28_a_renamed_group_repeats_nothing_and_keeps_all(topic: Broker, clock: Clock) -> None:
    old = topic.consumer("t", "old", retry=RetryPolicy.unordered(max_retries=1))
    send(topic, "acked", "retried", "dead", "leased")
    acked, retried, dead, leased = old.receive(invisible=HOUR)
    old.ack(acked)
    old.nack(retried)
    old.dead_letter(dead)
    topic.rename_group("old", "new")
    old.ack(leased)
    assert [group.group for group in topic.groups()] == ["new"]
    assert [letter.body for letter in topic.dead_letters("new")] == [b"dead"]
    send(topic, "next")
    clock.advance(HOUR)
    assert sorted(bodies(taken(topic.consumer("t", "new")))) == [b"next", b"retried"]


def test_x28_a_renamed_broadcasting_group_keeps_its_instances(topic: Broker) -> None:
    for name in ("one", "two"):
        topic.consumer("t", "old", mode="broadcasting", name=name)
    topic.rename_group("old", "new")
    (group,) = topic.groups()
    assert (group.group, group.instances) == ("new", ("one", "two"))


def test_a_group_is_not_renamed_to_one_that_is_there(topic: Broker) -> None:
    topic.consumer("t", "old")
    topic.consumer("t", "new")
    with pytest.raises(InvalidArgument, match='there is a group "new" already'):
        topic.rename_group("old", "new")
    with pytest.raises(InvalidArgument, match="is not a group name"):
        topic.rename_group("old", "a b")
    with pytest.raises(UnknownGroup):
        topic.rename_group("nobody", "somebody")


@pytest.mark.parametrize("mode", ["clustering", "broadcasting"])
def test_x28_no_subscription_gets_the_old_names_of_another_group(topic: Broker, mode: str) -> None:
    subscribe = partial(topic.consumer, "t", mode=mode, name="one")
    subscribe("a")
    topic.rename_group("a", "b")
    topic.rename_group("b", "c")
    for old in ("a", "b"):
        with pytest.raises(InvalidArgument, match=f'group "{old}" was renamed to "c".*"c"'):
            subscribe(old)
    subscribe("c")
    # Another group, and the renamed one, may be given the name.
    subscribe("other")
    topic.rename_group("other", "a")
    topic.rename_group("c", "b")
    assert {group.group for group in topic.groups()} == {"a", "b"}
    for name in ("a", "b"):
        subscribe(name)
    topic.delete_group("b")
    subscribe("c")


def test_x20_a_rename_during_a_delete_blocks_no_name(topic: Broker) -> None:
    topic.consumer("t", "old")
    with connected(topic.dsn, autocommit=False) as deleting, beside() as begin:
        ask(deleting, "select duewheel.delete_topic('t')")
        renaming = begin(lambda: topic.rename_group("old", "new"))
        until_somebody_waits(topic.dsn)
        deleting.commit()
        renaming.result()
    topic.delete_group("new")
    topic.create_topic("t")
    topic.consumer("t", "another")
    topic.rename_group("another", "new")
    assert [group.group for group in topic.groups()] == ["new"]


#: A rename between two statements that fail messages: the second one does not find the old name.
RENAMED_MEANWHILE = """
do $$ begin
    execute replace(
        pg_get_functiondef('duewheel.{function}'::regproc), 'v_group := duewheel',
        'perform duewheel.rename_group(''old'', ''new''); v_group := duewheel');
end $$
"""


@pytest.mark.owner
@pytest.mark.parametrize(("message_type", "function"), [("DELAY", "resend"), ("FIFO", "fifo_put_back")])
def test_x28_a_message_failing_during_a_rename_is_retried(
    timed_broker: Broker, clock: Clock, message_type: str, function: str
) -> None:
    timed_broker.create_topic("t", message_type=message_type, queues=1)
    consumer = timed_broker.consumer("t", "old")
    if message_type == "FIFO":
        timed_broker.send("t", b"one", message_group="a")
    else:
        send(timed_broker, "one")
    timed_broker.tick("t")
    failed = consumer.receive()
    rows(timed_broker, RENAMED_MEANWHILE.format(function=function))
    consumer.nack(failed)
    assert [group.group for group in timed_broker.groups()] == ["new"]
    clock.advance(HOUR)
    timed_broker.tick("t")
    assert bodies(consumer.receive()) == [b"one"]


#: A removal that waits for an advisory lock when it has removed the subscription, and not yet its topics.
REMOVED_IN_STEPS = """
do $$ begin
    execute replace(
        pg_get_functiondef('duewheel.remove_subscription'::regproc), 'returning * into v_gone;',
        'returning * into v_gone; perform pg_advisory_xact_lock(1);');
end $$
"""


@pytest.mark.owner
def test_x23_a_group_that_is_removed_meanwhile_is_not_renamed(topic: Broker, dsn: str) -> None:
    """Both lock the subscription first: neither waits for the other in a circle."""
    group_id = topic.consumer("t", "old").group_id
    rows(topic, REMOVED_IN_STEPS)
    with connected(dsn) as holder, connected(dsn) as upkeep, connected(dsn) as admin, beside() as start:
        ask(holder, "select pg_advisory_lock(1)")
        removed = start(lambda: ask(upkeep, "select duewheel.remove_subscription(%s)", group_id))
        until_blocked(dsn, upkeep.info.backend_pid)
        renamed = start(lambda: ask(admin, "select duewheel.rename_group('old', 'new')"))
        until_blocked(dsn, admin.info.backend_pid)
        ask(holder, "select pg_advisory_unlock(1)")
        assert removed.result() == [("",)]
        with pytest.raises(psycopg2.Error, match='there is no consumer group "old"'):
            renamed.result()
    assert topic.groups() == []
