"""A group that is renamed goes on where it was: nothing is repeated and nothing lost."""

from __future__ import annotations

import pytest
from tests.acting import HOUR, bodies, rows, send, taken
from tests.clock import Clock

from duewheel.store import InvalidArgument, RetryPolicy, UnknownGroup
from duewheel.store.broker import Broker


def test_x28_a_renamed_group_repeats_nothing_and_keeps_everything(topic: Broker, clock: Clock) -> None:
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


#: A rename between two statements that fail messages: the second one does not find the old name.
RENAMED_MEANWHILE = """
do $$ begin
    execute replace(
        pg_get_functiondef('duewheel.{function}'::regproc), 'select g.* into v_group',
        'perform duewheel.rename_group(''old'', ''new''); select g.* into v_group');
end $$
"""


@pytest.mark.owner
@pytest.mark.parametrize(("message_type", "function"), [("DELAY", "resend"), ("FIFO", "fifo_put_back")])
def test_x28_a_message_that_fails_while_its_group_is_renamed_is_retried(
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
