"""docs/how-to/groups.md: what each change does to a DAG that is deployed, and how it loses nothing."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import Context
from tests.pages import examples

from duewheel.operators.consume import ConsumeMessagesOperator
from duewheel.operators.due_messages import DueMessages
from duewheel.operators.topic import CreateTopicOperator
from duewheel.store import InvalidArgument, RetryPolicy, TopicExists
from duewheel.triggers.polling import DoorbellPoller, LonePoller, Watched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duewheel.store import Broker, Message

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "groups.md").read_text(encoding="utf-8")
BOTH_WAYS = [({"tags": "a"}, {"tags": "b"}), ({"filter": "$.n == 1"}, {"filter": "$.n == 2"})]


def send(broker: Broker, *keys: str, topic: str = "orders", **fields: Any) -> None:
    """Send messages with these keys that are due at once."""
    broker.send_many(topic, [{"body": b"", "key": key, "delay": timedelta(0), **fields} for key in keys])


def handled(**arguments: Any) -> list[str]:
    """The keys that a run of the DAG handles."""
    keys: list[str] = []

    def work(messages: Sequence[Message]) -> None:
        keys.extend(str(message.key) for message in messages)

    given = {"topic": "orders", "group": "g", "python_callable": work, **arguments}
    ConsumeMessagesOperator(task_id="consume", **given).execute(Context())
    return keys


def failed(**arguments: Any) -> list[str]:
    """The keys of a run that fails for all of its messages, which are due again at once."""
    keys: list[str] = []

    def work(messages: Sequence[Message]) -> None:
        keys.extend(str(message.key) for message in messages)
        raise LookupError

    with pytest.raises(LookupError):
        handled(python_callable=work, drain=False, **arguments)
    return keys


def watch(broker: Broker, watched: Watched) -> LonePoller:
    """Let a watcher begin, as in the triggerer."""
    poller = LonePoller(broker)
    poller.take({watched})
    return poller


def test_x28_another_group_handles_everything_again(orders: Broker) -> None:
    send(orders, "1", "2")
    assert handled(group="old") == ["1", "2"]
    assert handled(group="new") == ["1", "2"]


def test_x28_a_group_that_is_renamed_first_continues(orders: Broker) -> None:
    send(orders, "1", "2")
    assert handled(group="old") == ["1", "2"]
    orders.rename_group("old", "new")
    send(orders, "3")
    assert handled(group="new") == ["3"]


def test_x28_the_old_version_is_refused_after_the_rename(orders: Broker) -> None:
    send(orders, "1", "2")
    handled(group="old")
    orders.rename_group("old", "new")
    old = Watched("orders", "old")
    assert 'group "old" was renamed to "new"' in str(watch(orders, old).poll().refused[old])
    with pytest.raises(InvalidArgument, match='group "old" was renamed to "new"'):
        handled(group="old")
    assert [group.group for group in orders.groups()] == ["new"]


def test_x28_a_deployed_version_with_another_group(orders: Broker) -> None:
    send(orders, "1")
    handled(group="old")
    send(orders, "2")
    assert handled(group="new") == ["1", "2"]
    with pytest.raises(InvalidArgument, match='there is a group "new" already'):
        orders.rename_group("old", "new")
    orders.delete_group("new")
    orders.rename_group("old", "new")
    assert handled(group="new") == ["2"]


@pytest.mark.parametrize(("before", "after"), BOTH_WAYS, ids=["tags", "filter"])
def test_x28_other_tags_or_filter_are_refused_and_lose_nothing(
    orders: Broker, before: dict[str, str], after: dict[str, str]
) -> None:
    send(orders, "1", tag="b", properties={"n": 2})
    assert handled(**before) == []
    with pytest.raises(InvalidArgument, match="set-subscription"):
        handled(**after)
    watched = Watched("orders", "g", **after)
    poller = watch(orders, watched)
    assert "set-subscription" in str(poller.poll().refused[watched])
    running = orders.consumer("orders", "g", **before)
    assert orders.set_subscription("orders", "g", **after).missed == 1
    with pytest.raises(InvalidArgument, match="set-subscription"):
        handled(**before)
    send(orders, "2", tag="b", properties={"n": 2})
    running.ack(running.receive())
    send(orders, "3", tag="b", properties={"n": 2})
    assert watch(orders, watched).poll().doorbells[watched].ready == 1
    assert handled(**after) == ["3"]
    orders.rewind("orders", "g", "earliest")
    assert handled(**after) == ["1", "2", "3"]


def test_x28_a_dag_without_tags_uses_those_of_the_subscription(orders: Broker) -> None:
    send(orders, "1", tag="a")
    assert handled(tags="a") == ["1"]
    orders.set_subscription("orders", "g", "b")
    send(orders, "2", tag="a")
    send(orders, "3", tag="b")
    assert handled() == ["3"]
    assert orders.groups()[0].tags == "b"


def test_x20_messages_of_the_old_topic_stay_there(orders: Broker) -> None:
    send(orders, "1", "2")
    failed(max_messages=1, retry=RetryPolicy.intervals([timedelta(0)]))
    orders.create_topic("new")
    send(orders, "3", topic="new")
    assert handled(topic="new") == ["3"]
    # One is a retry.
    assert sorted(handled()) == ["1", "2"]
    on_new, on_old = orders.groups()
    assert on_new.retry == on_old.retry
    orders.delete_group("g", topic="orders")
    assert [group.topic for group in orders.groups()] == ["new"]


def test_x20_a_dag_may_read_both_topics() -> None:
    scope: dict[str, Any] = {}
    (program,) = (each for each in examples(PAGE, "python") if "airflow" in each)
    exec(program.replace("schedule=old | new)", "schedule=old | new) as dag"), scope)
    dag = scope["dag"]
    assert {task.topic for task in dag.tasks} == {"order-timeout", "order-timeout-2"}
    assert {task.group for task in dag.tasks} == {"canceller"}


def test_x20_a_key_is_recalled_on_its_own_topic(orders: Broker) -> None:
    orders.create_topic("new")
    orders.send("orders", b"", key="1", delay=timedelta(hours=1))
    assert orders.recall_key("new", "1").outcome == "not_found"
    assert orders.recall_key("orders", "1").outcome == "recalled"


def test_another_asset_changes_nothing_for_the_group(orders: Broker) -> None:
    before, after = DueMessages("orders", "g"), DueMessages("orders", "g", min_messages=2)
    assert before.name != after.name
    send(orders, "1")
    assert handled() == ["1"]
    send(orders, "2", "3")
    watched = Watched("orders", "g")
    new = DoorbellPoller(orders, left_alone_seconds=3600)
    assert new.poll({watched}, frozenset()).doorbells[watched].ready == 2
    assert handled() == ["2", "3"]


def test_r12_the_next_run_sets_the_policy_or_keeps_it(orders: Broker) -> None:
    policy = RetryPolicy.intervals([timedelta(hours=1)])
    handled(retry=RetryPolicy.http())
    assert orders.groups()[0].retry == RetryPolicy.http()
    handled(retry=policy)
    handled()
    assert orders.groups()[0].retry == policy
    handled(retry=RetryPolicy.unordered())
    assert orders.groups()[0].retry == RetryPolicy.unordered()


def test_r12_retries_that_wait_keep_their_instant_and_attempts(orders: Broker) -> None:
    send(orders, "1")
    hourly = RetryPolicy.intervals([timedelta(0), timedelta(hours=1)])
    fail = partial(failed, retry=hourly)
    assert (fail(), fail()) == (["1"], ["1"])
    assert handled(retry=RetryPolicy.intervals([timedelta(0)])) == []
    (message,) = orders.find_key("orders", "1")
    orders.retry_now("g", [message.message_id])
    assert failed() == ["1"]
    assert [letter.attempt for letter in orders.dead_letters("g")] == [3]


def test_changed_queues_are_refused_other_settings_change_first(orders: Broker) -> None:
    with pytest.raises(TopicExists, match="queues"):
        CreateTopicOperator(task_id="create", topic="orders", queues=8).execute(Context())
    week = CreateTopicOperator(task_id="create", topic="orders", queues=1, max_delay=timedelta(days=7))
    with pytest.raises(TopicExists, match="max_delay"):
        week.execute(Context())
    orders.update_topic("orders", max_delay=timedelta(days=7))
    week.execute(Context())
