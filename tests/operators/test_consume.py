"""Consuming: the lease, the ack after the work, and what happens when the work fails."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import psycopg2
import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Context, RetryDecision
from airflow.sdk import RetryPolicy as AirflowRetryPolicy
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from tests.leasing import LEASE, consumer_at, extend_often, wait_for_extensions
from tests.logged import logged
from tests.operators.tasks import a_try, states
from tests.outages import outage

from duewheel.operators import consume
from duewheel.operators.consume import ConsumeMessagesOperator, MessagesFailed
from duewheel.operators.handed_message import HandedMessage
from duewheel.store import RetryPolicy
from duewheel.store.values.errors import (
    BrokerUnreachable,
    DueWheelError,
    InvalidArgument,
    LeaseLost,
    UnknownTopic,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from duewheel.store import Broker, Consumer, EmbeddedPostgres, Message
    from duewheel.store.values.messages import Batch

CONTEXT = Context()


@pytest.fixture
def consumer(orders: Broker) -> Consumer:
    """A consumer beside the operator, of the same group, on a topic with three ready messages."""
    for number in range(3):
        orders.send("orders", str(number), delay_level=0)
    return orders.consumer("orders", "g")


def operator(work: Callable[..., Any], **arguments: Any) -> ConsumeMessagesOperator:
    """An operator that does ``work`` on one batch, unless told to drain."""
    return ConsumeMessagesOperator(
        task_id="consume",
        **{"topic": "orders", "group": "g", "python_callable": work, "drain": False, **arguments},
    )


def last_state(broker: Broker, message: Message) -> str:
    """The state of a message for the group."""
    return states(broker, message.message_id)[-1]


@pytest.mark.parametrize("durable_acks", [True, False])
def test_d16_the_tasks_acks_are_durable_or_not(consumer: Consumer, durable_acks: bool) -> None:
    def work(_messages: Sequence[Message], consumer: Consumer) -> bool:
        return consumer.durable_acks

    assert operator(work, durable_acks=durable_acks).execute(CONTEXT) is durable_acks
    assert not consumer.receive()


def test_x09_the_ack_comes_after_the_work(broker: Broker, consumer: Consumer) -> None:
    seen: list[list[str]] = []

    def work(messages: Sequence[Message], *, factor: int) -> int:
        seen.extend(states(broker, message.message_id) for message in messages)
        return factor * sum(int(message.body) for message in messages)

    assert operator(work, op_kwargs={"factor": 10}).execute(CONTEXT) == 30
    assert [each[-1] for each in seen] == ["Inflight"] * 3
    assert not consumer.receive()


def test_x11_work_may_take_longer_than_the_lease(
    broker: Broker, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(messages: Sequence[Message]) -> str:
        first_end = max(message.lease.expires_at for message in messages)
        assert consume._held is not None
        wait_for_extensions(consume._held.keeper, 5)
        with consumer_at(broker, consumer, first_end + timedelta(milliseconds=1)) as late:
            assert not late.receive()
        return messages[0].message_id

    extend_often(monkeypatch)
    consume = operator(work, invisible=LEASE)
    message_id = consume.execute(CONTEXT)
    assert states(broker, message_id)[-1] == "Acked"


def test_x10_a_lost_lease_fails_the_task_unless_its_work_did(consumer: Consumer) -> None:
    def lose(messages: Sequence[Message]) -> None:
        consumer.nack(messages, delay=timedelta(0))

    def lose_and_fail(messages: Sequence[Message]) -> None:
        lose(messages)
        raise ZeroDivisionError("no orders")

    with pytest.raises(LeaseLost):
        operator(lose).execute(CONTEXT)
    with pytest.raises(ZeroDivisionError):
        operator(lose_and_fail).execute(CONTEXT)
    assert len(consumer.receive()) == 3


def test_r03_work_that_lost_its_lease_gives_its_messages_back(broker: Broker, consumer: Consumer) -> None:
    def work(messages: Sequence[Message]) -> None:
        other = broker.consumer("orders", "other")
        batch = other.receive()
        other.nack(batch)
        other.ack(batch)

    with pytest.raises(LeaseLost):
        operator(work).execute(CONTEXT)
    assert {state for state, _ in outcomes(broker).values()} == {"WaitingRetry"}


def test_x09_a_kill_gives_the_lease_back_and_stops_later_acks(consumer: Consumer) -> None:
    killed = operator(lambda messages: killed.on_kill())
    with pytest.raises(LeaseLost):
        killed.execute(CONTEXT)
    again = consumer.receive()
    assert [message.attempt for message in again] == [1, 1, 1]


def test_a_kill_before_or_after_the_work_changes_nothing(consumer: Consumer) -> None:
    idle = operator(len)
    idle.on_kill()
    idle = operator(len)
    assert idle.execute(CONTEXT) == 3
    idle.on_kill()
    assert not consumer.receive()


def test_d12_only_what_tags_and_filter_choose_is_given(broker: Broker, consumer: Consumer) -> None:
    for tag, amount in (("late", 5), ("late", 500), ("early", 500)):
        broker.send("orders", b"", tag=tag, properties={"amount": amount}, delay_level=0)
    assert operator(len, group="tagged", tags="late").execute(CONTEXT) == 2
    assert operator(len, group="dear", filter="$.amount > 100").execute(CONTEXT) == 2


def test_nothing_ready_returns_none_or_skips(consumer: Consumer) -> None:
    assert operator(len, max_messages=2).execute(CONTEXT) == 2
    assert operator(len, max_messages=2).execute(CONTEXT) == 1
    assert operator(len).execute(CONTEXT) is None
    with pytest.raises(AirflowSkipException):
        operator(len, skip_if_empty=True).execute(CONTEXT)


# --- tries


def fail(messages: Sequence[Message]) -> None:
    """Work that cannot be done."""
    raise ZeroDivisionError("no orders")


def test_x09_the_next_try_has_the_messages_that_failed(broker: Broker, consumer: Consumer) -> None:
    kept = operator(fail, retry_delay=timedelta(hours=1))
    with pytest.raises(ZeroDivisionError):
        kept.execute(a_try(1, retries=2))
    assert not consumer.receive()
    with pytest.raises(ZeroDivisionError):
        operator(fail).execute(a_try(2, retries=2))
    attempts: list[int] = []
    operator(lambda messages: attempts.extend(message.attempt for message in messages)).execute(
        a_try(3, retries=2)
    )
    assert attempts == [1, 1, 1]
    assert not consumer.receive()


def test_r03_after_the_last_try_the_groups_policy_applies(broker: Broker, consumer: Consumer) -> None:
    for number in (1, 2):
        with pytest.raises(ZeroDivisionError):
            operator(fail).execute(a_try(number, retries=1))
    assert {state for state, _ in outcomes(broker).values()} == {"WaitingRetry"}


def test_x10_the_next_try_takes_over_from_a_dead_worker(broker: Broker, consumer: Consumer) -> None:
    def hang(messages: Sequence[Message]) -> None:
        assert operator(len).execute(a_try(2, retries=1)) == 3

    # The first worker is cut off and not dead: it finds out when it acks.
    with pytest.raises(LeaseLost):
        operator(hang).execute(a_try(1, retries=1))
    assert not consumer.receive()


def test_a_retry_delay_longer_than_any_lease_keeps_nothing(broker: Broker, consumer: Consumer) -> None:
    with pytest.raises(ZeroDivisionError):
        operator(fail, retry_delay=timedelta(hours=12)).execute(a_try(1, retries=1))
    assert broker.stats().topics[0].groups[0].waiting_retry == 3


@pytest.mark.parametrize(
    ("arguments", "number", "kept_for"),
    [
        ({"retry_delay": timedelta(minutes=5)}, 1, timedelta(minutes=7)),
        ({"retry_delay": timedelta(minutes=5), "retry_exponential_backoff": 2.0}, 3, timedelta(minutes=42)),
        (
            {
                "retry_delay": timedelta(minutes=5),
                "retry_exponential_backoff": 2.0,
                "max_retry_delay": timedelta(minutes=6),
            },
            3,
            timedelta(minutes=8),
        ),
    ],
)
def test_messages_are_kept_until_the_next_try_has_surely_begun(
    arguments: dict[str, Any], number: int, kept_for: timedelta
) -> None:
    assert operator(fail, **arguments)._kept_for(a_try(number, retries=9), ZeroDivisionError()) == kept_for


class AsTheErrorSays(AirflowRetryPolicy):
    """Airflow's own policy of a task: another delay for one error, no further try for another."""

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Decide."""
        assert (try_number, max_tries) == (1, 9)
        if isinstance(exception, ZeroDivisionError):
            return RetryDecision.retry(timedelta(hours=3))
        return RetryDecision.fail() if isinstance(exception, ValueError) else RetryDecision.default()


def test_messages_are_kept_as_long_as_the_retry_policy_asks() -> None:
    consume = operator(fail, retry_policy=AsTheErrorSays(), retry_delay=timedelta(minutes=1))
    kept_for = partial(consume._kept_for, a_try(1, retries=9))
    assert kept_for(ZeroDivisionError()) == timedelta(hours=3, minutes=2)
    assert kept_for(ValueError()) is None
    assert kept_for(KeyError()) == timedelta(minutes=3)
    # A policy that fails decides nothing, as in Airflow.
    assert consume._kept_for(a_try(2, retries=9), ValueError()) == timedelta(minutes=3)


def test_x14_the_ack_waits_for_a_database_that_is_away(
    broker: Broker, consumer: Consumer, postgres: EmbeddedPostgres
) -> None:
    away = threading.Event()

    def work(messages: Sequence[Message]) -> int:
        refused.start()
        away.wait()
        return len(messages)

    def refuse() -> None:
        with outage(postgres, broker.dsn):
            away.set()
            tried.wait()

    refused = threading.Thread(target=refuse)
    with logged("duewheel.store.database.connections", "trying a read again") as tried:
        assert operator(work).execute(CONTEXT) == 3
    refused.join()
    assert not consumer.receive()


def test_an_ack_is_given_up_when_the_lease_has_surely_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer() -> None:
        raise BrokerUnreachable("gone")

    consume = operator(len)
    monkeypatch.setattr(consume, "invisible", timedelta(milliseconds=50))
    with pytest.raises(BrokerUnreachable):
        consume._persistently(answer)


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (object(), TypeError),
        ({"amount": float("nan")}, ValueError),
        ("\ud800", ValueError),
        (["nul \0"], InvalidArgument),
    ],
)
def test_x09_a_result_invalid_for_airflow_fails_before_the_ack(
    broker: Broker, consumer: Consumer, result: object, error: type[Exception]
) -> None:
    with pytest.raises(error):
        operator(lambda messages: result).execute(CONTEXT)
    assert broker.stats().topics[0].groups[0].waiting_retry == 3
    assert operator(lambda messages: result, do_xcom_push=False, group="other").execute(CONTEXT) == result
    # Text that only speaks of a NUL character is no NUL.
    assert operator(lambda messages: r"no \u0000 here", group="third").execute(CONTEXT) == r"no \u0000 here"


def test_x09_a_result_useless_to_the_dag_fails_before_the_ack(broker: Broker, consumer: Consumer) -> None:
    with pytest.raises(InvalidArgument, match="returned an int, but other tasks are mapped over the result"):
        mapped_over(len).execute(a_try(1))
    several = operator(len, group="several", multiple_outputs=True)
    with pytest.raises(InvalidArgument, match="returned an int, but the task has multiple_outputs"):
        several.execute(a_try(1))
    for name in ("", "n" * 513):
        named = operator(
            lambda messages, of: {of: 1},
            group=f"named-{len(name)}",
            multiple_outputs=True,
            op_kwargs={"of": name},
        )
        with pytest.raises(InvalidArgument, match="text of 1 to 512 characters"):
            named.execute(a_try(1))
    assert {group.waiting_retry for group in broker.stats().topics[0].groups} == {3}


def mapped_over(work: Callable[..., Any], **arguments: Any) -> ConsumeMessagesOperator:
    """An operator over whose result other tasks are mapped."""
    with DAG("mapped"):
        mapped = operator(work, **arguments)
        EmptyOperator.partial(task_id="each").expand(doc=mapped.output)
    return mapped


def test_x09_an_empty_try_after_another_maps_no_tasks(consumer: Consumer) -> None:
    consumer.ack(consumer.receive())
    assert mapped_over(len).execute(a_try(1)) == []
    # Airflow fails it.
    assert mapped_over(len).execute(a_try(2, retries=1)) is None


@pytest.mark.parametrize("way", ["one_by_one", "drain"])
def test_x09_tries_that_each_map_tasks_over_a_part_are_refused(consumer: Consumer, way: str) -> None:
    with pytest.raises(InvalidArgument, match=r"retries is 1, .*: set retries=0, give drain=False"):
        mapped_over(repr, retries=1, **{way: True}).execute(a_try(1, retries=1))
    batch = consumer.receive()
    assert [message.attempt for message in batch] == [1] * 3
    consumer.nack(batch, delay=timedelta(0))
    # Airflow counts a task that was cleared as one more try.
    assert mapped_over(repr, retries=0, **{way: True}).execute(a_try(2, retries=1))


@pytest.mark.parametrize(
    ("arguments", "results", "failed"),
    [
        ({}, [0, 0, 0], 3),
        ({"one_by_one": True}, [0, 0, 0], 1),
        ({"drain": True, "max_messages": 1}, 0, 1),
        ({"drain": True, "max_messages": 1}, [0, 0, 0], 1),
    ],
    ids=["batch", "one by one", "drain", "lists of a drain"],
)
def test_x09_too_many_results_to_map_fail_before_the_ack(
    broker: Broker,
    consumer: Consumer,
    monkeypatch: pytest.MonkeyPatch,
    arguments: dict[str, Any],
    results: object,
    failed: int,
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__MAX_MAP_LENGTH", "2")
    mapped = mapped_over(lambda given: results, **arguments)
    with pytest.raises(InvalidArgument, match="3 results, but Airflow maps tasks over 2 at most"):
        mapped.execute(a_try(1))
    (group,) = broker.stats().topics[0].groups
    assert (group.inflight, group.waiting_retry) == (0, failed)


@pytest.mark.parametrize("in_a_batch", [1, 3])
def test_the_lists_of_a_drain_are_joined_for_mapped_tasks(consumer: Consumer, in_a_batch: int) -> None:
    def keys(messages: Sequence[Message]) -> list[str]:
        return [message.body.decode() for message in messages]

    mapped = mapped_over(keys, drain=True, max_messages=in_a_batch)
    assert sorted(mapped.execute(a_try(1))) == ["0", "1", "2"]


def test_large_results_are_stored_with_a_warning(
    consumer: Consumer, capsys: pytest.CaptureFixture[str]
) -> None:
    def large(message: Message) -> str:
        return "x" * 400_000

    operator(large, one_by_one=True).execute(CONTEXT)
    said = capsys.readouterr().out
    assert said.count("The results have more than 1 000 000 bytes as JSON") == 1
    assert "do_xcom_push=False" in said


# --- functions of all kinds


def test_x09_work_of_any_kind_is_done_before_the_ack(broker: Broker, consumer: Consumer) -> None:
    def state_of(message: Message, group: str) -> str:
        return states(broker, message.message_id, group)[-1]

    async def coroutine(messages: Sequence[Message]) -> list[str]:
        await asyncio.sleep(0)
        return [state_of(message, "coroutine") for message in messages]

    def generator(messages: Sequence[Message]) -> Iterator[str]:
        for message in messages:
            yield state_of(message, "generator")

    async def async_generator(messages: Sequence[Message]) -> AsyncIterator[str]:
        for message in messages:
            await asyncio.sleep(0)
            yield state_of(message, "async_generator")

    def iterator(messages: Sequence[Message]) -> Iterator[str]:
        return map(partial(state_of, group="iterator"), messages)

    for work in (coroutine, generator, async_generator, iterator):
        assert operator(work, group=work.__name__).execute(CONTEXT) == ["Inflight"] * 3


def test_r03_an_error_in_work_of_any_kind_fails_the_task(broker: Broker, consumer: Consumer) -> None:
    async def coroutine(messages: Sequence[Message]) -> None:
        raise ZeroDivisionError

    def generator(messages: Sequence[Message]) -> Iterator[int]:
        yield 1
        raise ZeroDivisionError

    def iterator(messages: Sequence[Message]) -> Iterator[object]:
        return filter(lambda _: 1 / 0, messages)

    for work in (coroutine, generator, iterator):
        with pytest.raises(ZeroDivisionError):
            operator(work, group=work.__name__).execute(CONTEXT)
    failed = {group.group: group.waiting_retry for group in broker.stats().topics[0].groups}
    assert failed == {"coroutine": 3, "g": 0, "generator": 3, "iterator": 3}


def test_the_function_gets_what_it_names_of_airflows_context(consumer: Consumer) -> None:
    def work(messages: Sequence[Message], region: str, ds: str, *, factor: int) -> str:
        return f"{len(messages)} {region} {ds} {factor}"

    work_on = operator(work, op_args=["north"], op_kwargs={"factor": 2})
    assert work_on.execute(a_try(1, ds="2026-01-05")) == "3 north 2026-01-05 2"


def test_x16_the_function_may_ack_in_the_transaction_of_its_work(broker: Broker, consumer: Consumer) -> None:
    def work(messages: Sequence[Message], consumer: Consumer) -> int:
        with closing(psycopg2.connect(broker.dsn)) as connection, connection:
            consumer.ack(messages, connection=connection)
        return len(messages)

    assert operator(work).execute(CONTEXT) == 3
    assert not consumer.receive()


# --- one poison message


def poison(message: Message) -> int:
    """Work that one message makes impossible."""
    if message.body == b"1":
        raise ValueError("1 is poison")
    return int(message.body)


def outcomes(broker: Broker) -> dict[bytes, tuple[str, str | None]]:
    """The state of each message and the reason of it, by body."""
    found = {}
    for message in broker.list_messages("orders", state="released").messages:
        (*_, last) = (entry for entry in broker.history(message.message_id) if entry.consumer_group == "g")
        stored = broker.find(message.message_id)
        assert stored is not None
        found[bytes(stored.body)] = (last.state, last.reason)
    return found


SET_ASIDE = {b"0": ("Acked", None), b"1": ("WaitingRetry", "ValueError: 1 is poison"), b"2": ("Acked", None)}


def test_x15_one_by_one_only_the_poison_is_set_aside(broker: Broker, consumer: Consumer) -> None:
    with pytest.raises(MessagesFailed, match=r"^1 message failed.*: ValueError: 1 is poison$"):
        operator(poison, one_by_one=True).execute(CONTEXT)
    assert outcomes(broker) == SET_ASIDE


def test_x15_a_function_may_name_the_failed_messages_of_a_batch(broker: Broker, consumer: Consumer) -> None:
    def work(messages: Sequence[Message]) -> None:
        raise MessagesFailed({messages[1]: ValueError("1 is poison")})

    with pytest.raises(MessagesFailed):
        operator(work).execute(CONTEXT)
    assert outcomes(broker) == SET_ASIDE


def test_x15_a_failed_message_outside_the_batch_acks_nothing(broker: Broker, consumer: Consumer) -> None:
    strangers: list[Message] = []

    def by_key(messages: Sequence[Message]) -> None:
        raise MessagesFailed({"1": "is poison"})  # type: ignore[dict-item]  # the mistake

    def of_another_batch(messages: Sequence[Message]) -> None:
        raise MessagesFailed(dict.fromkeys(strangers, "is poison"))

    with pytest.raises(InvalidArgument, match="failed names '1', a str: give the messages themselves"):
        operator(by_key).execute(CONTEXT)
    assert {state for state, _ in outcomes(broker).values()} == {"WaitingRetry"}
    broker.send("orders", b"3", delay_level=0)
    broker.send("orders", b"4", delay_level=0)
    strangers.extend(broker.consumer("orders", "g").receive(max_messages=1))
    with pytest.raises(InvalidArgument, match=r"MessagesFailed names message .* which is not of the batch"):
        operator(of_another_batch).execute(CONTEXT)
    assert {state for state, _ in outcomes(broker).values()} == {"WaitingRetry", "Inflight"}


def test_r03_a_message_that_fails_for_good_leaves_no_try(broker: Broker, consumer: Consumer) -> None:
    def work(message: Message) -> None:
        poison(message)
        if message.body == b"2":
            raise AirflowFailException("another try would not help")

    with pytest.raises(AirflowFailException, match="2 messages failed"):
        operator(work, one_by_one=True).execute(a_try(1, retries=5))
    assert sorted(outcomes(broker).values()) == [
        ("Acked", None),
        ("DLQ", "AirflowFailException: another try would not help"),
        ("WaitingRetry", "ValueError: 1 is poison"),
    ]


@pytest.mark.parametrize("way", [AirflowSkipException, "skip"])
def test_d06_one_by_one_a_message_is_skipped_on_purpose(
    broker: Broker, consumer: Consumer, way: str | type[Exception]
) -> None:
    def work(message: HandedMessage) -> str:
        if message.body == b"1":
            if way != "skip":
                raise AirflowSkipException("the order is paid")
            message.skip("the order is paid")
        return message.body.decode()

    assert operator(work, one_by_one=True).execute(a_try(1, retries=5)) == ["0", "2"]
    assert sorted(outcomes(broker).values()) == [
        ("Acked", None),
        ("Acked", None),
        ("Skipped", "the order is paid"),
    ]


@pytest.mark.parametrize("retries", [0, 1])
def test_r14_a_task_may_fail_for_dead_letters_alone(broker: Broker, consumer: Consumer, retries: int) -> None:
    at_once = RetryPolicy.intervals([timedelta(0)], max_retries=1)
    lenient = operator(poison, one_by_one=True, fail_on="dead_letter", retry=at_once, wait="PT30S")
    assert lenient.execute(a_try(1, retries=retries)) == [0, 2]
    with pytest.raises(MessagesFailed, match="1 message failed"):
        lenient.execute(a_try(1, retries=retries))
    assert outcomes(broker)[b"1"] == ("DLQ", "ValueError: 1 is poison")


def test_r12_one_by_one_a_function_has_a_message_retried(broker: Broker, consumer: Consumer) -> None:
    def work(message: HandedMessage) -> str:
        if message.body == b"1" and message.attempt == 1:
            message.retry(timedelta(hours=1), "busy")
        return message.body.decode()

    began_at = datetime.now(UTC)
    assert sorted(operator(work, one_by_one=True).execute(a_try(1, retries=1))) == ["0", "2"]
    assert sorted(outcomes(broker).values()) == [("Acked", None), ("Acked", None), ("WaitingRetry", "busy")]
    with consumer_at(broker, consumer, began_at + timedelta(minutes=59)) as early:
        assert not early.receive()
    with consumer_at(broker, consumer, began_at + timedelta(hours=2)) as late:
        assert [(message.body, message.attempt) for message in late.receive()] == [(b"1", 2)]


@pytest.mark.parametrize(("per_second", "one_by_one"), [(20, True), (0.001, True), (2.5, False)])
def test_the_function_gets_so_many_messages_in_a_second(
    broker: Broker, consumer: Consumer, monkeypatch: pytest.MonkeyPatch, per_second: float, one_by_one: bool
) -> None:
    """However long the function itself takes."""
    clock = Elapsed()
    monkeypatch.setattr(consume, "time", clock)
    broker.send_many("orders", [{"body": b"", "delay": timedelta(0)}] * 4)
    begun: list[tuple[float, int]] = []

    def work(given: HandedMessage | Sequence[Message]) -> None:
        begun.append((clock.monotonic(), 1 if isinstance(given, HandedMessage) else len(given)))
        clock.sleep(0.3 / per_second)

    pacing = {"drain": True, "drain_time": timedelta(days=1), "per_second": per_second}
    operator(work, one_by_one=one_by_one, **pacing).execute(CONTEXT)
    assert sum(count for _, count in begun) == 7
    assert max(count for _, count in begun) == (1 if one_by_one else 2)
    for (at, count), (then, _) in pairwise(begun):
        assert then - at == pytest.approx(count / per_second)


class Elapsed:
    """The module ``time`` for a program whose only time is what it sleeps."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


def test_messages_acked_by_the_function_are_not_announced_again(
    consumer: Consumer, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(message: Message, consumer: Consumer) -> None:
        consumer.ack(message)
        raise ZeroDivisionError

    with pytest.raises(MessagesFailed):
        operator(work, one_by_one=True).execute(CONTEXT)
    assert "those without an answer are delivered again when their lease ends" in capsys.readouterr().out


@pytest.mark.parametrize("retries", [0, 1])
def test_acked_messages_are_not_logged_as_kept_or_nacked(
    consumer: Consumer, capsys: pytest.CaptureFixture[str], retries: int
) -> None:
    def work(messages: Sequence[Message], consumer: Consumer) -> None:
        consumer.ack(messages)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        operator(work).execute(a_try(1, retries=retries))
    said = capsys.readouterr().out
    assert "Nacked 0 messages" in said
    assert "Kept" not in said


def test_r14_one_by_one_a_function_makes_a_message_a_dead_letter(broker: Broker, consumer: Consumer) -> None:
    def work(message: HandedMessage) -> None:
        if message.body == b"1":
            message.dead_letter("no such order")

    operator(work, one_by_one=True).execute(a_try(1, retries=5))
    assert sorted(outcomes(broker).values()) == [("Acked", None), ("Acked", None), ("DLQ", "no such order")]


def test_r03_an_error_overrides_an_earlier_answer(broker: Broker, consumer: Consumer) -> None:
    def work(message: HandedMessage) -> None:
        message.skip("the order is paid")
        poison(message)

    with pytest.raises(MessagesFailed):
        operator(work, one_by_one=True).execute(CONTEXT)
    assert sorted(state for state, _ in outcomes(broker).values()) == ["Skipped", "Skipped", "WaitingRetry"]


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (AirflowSkipException("all are paid"), ("Skipped", "all are paid")),
        (AirflowSkipException(), ("Skipped", "skipped")),
        (AirflowFailException("no such shop"), ("DLQ", "AirflowFailException: no such shop")),
    ],
    ids=["skip", "skip without a word", "fail"],
)
def test_d06_r14_a_batch_is_skipped_or_dead_as_airflow_means_it(
    broker: Broker, consumer: Consumer, error: Exception, found: tuple[str, str]
) -> None:
    def work(messages: Batch) -> None:
        raise error

    with pytest.raises(type(error)):
        operator(work).execute(a_try(1, retries=5))
    assert list(outcomes(broker).values()) == [found] * 3


def test_d06_r14_messages_of_a_batch_are_skipped_or_dead(broker: Broker, consumer: Consumer) -> None:
    def work(messages: Batch) -> None:
        raise MessagesFailed(
            {messages[0]: AirflowSkipException("paid"), messages[1]: AirflowFailException("unknown")}
        )

    with pytest.raises(MessagesFailed):
        operator(work).execute(a_try(1, retries=5))
    assert sorted(outcomes(broker).values()) == [
        ("Acked", None),
        ("DLQ", "AirflowFailException: unknown"),
        ("Skipped", "paid"),
    ]


def test_one_by_one_returns_what_each_message_came_to(consumer: Consumer) -> None:
    assert operator(lambda message: int(message.body) or None, one_by_one=True).execute(CONTEXT) == [1, 2]


def test_x09_one_by_one_each_message_is_acked_after_its_own_work(broker: Broker, consumer: Consumer) -> None:
    seen: list[list[str]] = []

    def work(message: Message) -> None:
        seen.append(sorted(state for state, _ in outcomes(broker).values()))

    operator(work, one_by_one=True).execute(CONTEXT)
    assert seen == [["Inflight"] * 3, ["Acked", "Inflight", "Inflight"], ["Acked", "Acked", "Inflight"]]


@pytest.fixture
def wide(broker: Broker, consumer: Consumer) -> Consumer:
    """A consumer of twelve ready messages in four queues, of which one receive makes four leases."""
    broker.create_topic("wide", queues=4)
    for number in range(12):
        broker.send("wide", str(number), delay_level=0)
    return broker.consumer("wide", "g")


def test_x11_an_expired_lease_leaves_other_queues_leases(
    broker: Broker, wide: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(message: Message) -> int:
        assert consume._held is not None
        if message.lease.queue not in seen:
            seen.add(message.lease.queue)
            wait_for_extensions(consume._held.keeper, 1)
        return message.lease.queue

    seen: set[int] = set()
    extend_often(monkeypatch)
    consume = operator(work, topic="wide", one_by_one=True, invisible=LEASE)
    queues = consume.execute(CONTEXT)
    assert (len(queues), len(seen)) == (12, 4)
    assert not wide.receive()


def until_two_leases_are_over(end: Callable[[], object]) -> Callable[[Message], None]:
    """Work that comes to an end when two leases of four are over."""
    queues: set[int] = set()

    def work(message: Message) -> None:
        queues.add(message.lease.queue)
        if len(queues) == 3:
            end()
            raise SystemExit("cut short")

    return work


def test_x09_a_killed_task_gives_back_unanswered_messages(broker: Broker, wide: Consumer) -> None:
    work = until_two_leases_are_over(lambda: None)
    with pytest.raises(SystemExit):
        operator(work, topic="wide", one_by_one=True).execute(CONTEXT)
    assert [message.attempt for message in wide.receive()] == [1] * 5
    (topic,) = (found for found in broker.stats().topics if found.topic == "wide")
    assert (topic.groups[0].inflight, topic.groups[0].waiting_retry) == (5, 1)


class TaskTimeout(BaseException):
    """As Airflow's own, which is no Exception either."""


def test_x15_each_message_of_a_killed_task_has_its_own_reason(broker: Broker, consumer: Consumer) -> None:
    def work(message: Message) -> None:
        if message.body == b"0":
            raise ZeroDivisionError("poison")
        raise TaskTimeout("too long")

    with pytest.raises(TaskTimeout):
        operator(work, one_by_one=True).execute(CONTEXT)
    assert outcomes(broker) == {
        b"0": ("WaitingRetry", "ZeroDivisionError: poison"),
        b"1": ("WaitingRetry", "TaskTimeout: too long"),
        b"2": (
            "WaitingRetry",
            "given back: the function did not get it before the task ended: TaskTimeout: too long",
        ),
    }
    assert [(message.body, message.attempt) for message in consumer.receive()] == [(b"2", 1)]


def test_r07_a_killed_task_counts_attempts_of_handed_messages(broker: Broker, consumer: Consumer) -> None:
    def work(message: Message) -> None:
        raise TaskTimeout("too long")

    broker.create_topic("steps", message_type="FIFO", queues=1)
    for body in ("a1", "a2", "b1", "b2"):
        broker.send("steps", body, delay_level=0, message_group=body[0])
    steps = broker.consumer("steps", "g", retry=RetryPolicy.ordered(timedelta(seconds=1), 0))
    with pytest.raises(TaskTimeout):
        operator(work, topic="steps", one_by_one=True).execute(CONTEXT)
    assert sorted((letter.body, letter.reason) for letter in broker.dead_letters("g", topic="steps")) == [
        (b"a1", "TaskTimeout: too long"),
    ]
    assert sorted((message.body, message.attempt) for message in steps.receive()) == [
        (b"a2", 1),
        (b"b1", 1),
        (b"b2", 1),
    ]


def test_x10_one_by_one_a_lost_lease_spares_the_other_answers(broker: Broker, wide: Consumer) -> None:
    def work(message: Message, consumer: Consumer) -> None:
        assert consume._held is not None
        leases = cast("Batch", consume._held.messages).leases
        consumer.nack([lease for lease in leases if lease.queue == message.lease.queue])

    consume = operator(work, topic="wide", one_by_one=True)
    with pytest.raises(LeaseLost):
        consume.execute(CONTEXT)
    (topic,) = (found for found in broker.stats().topics if found.topic == "wide")
    assert topic.groups[0].inflight == 0


def test_x09_one_by_one_a_kill_pulls_back_what_has_no_answer(broker: Broker, wide: Consumer) -> None:
    work = until_two_leases_are_over(lambda: killed.on_kill())
    killed = operator(work, topic="wide", one_by_one=True)
    with pytest.raises(SystemExit):
        killed.execute(CONTEXT)
    assert [message.attempt for message in wide.receive()] == [1] * 6


def test_r07_messages_after_a_failure_of_their_group_wait_for_it(broker: Broker, consumer: Consumer) -> None:
    broker.create_topic("steps", message_type="FIFO", queues=1)
    for group, step in (("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", 3)):
        broker.send("steps", f"{group}{step}", message_group=group)
    seen: list[str] = []

    def work(message: Message) -> None:
        seen.append(message.body.decode())
        if seen in (["a1"], ["a1", "b1", "b2", "a1", "a2"]):
            raise ValueError("not yet")

    retry = RetryPolicy.ordered(timedelta(milliseconds=10))
    steps = partial(operator, work, topic="steps", one_by_one=True, wait="PT10S", retry=retry)
    with pytest.raises(MessagesFailed):
        steps().execute(a_try(1, retries=1))
    assert seen == ["a1", "b1", "b2"]
    with pytest.raises(MessagesFailed):
        steps().execute(a_try(2, retries=1))
    assert seen == ["a1", "b1", "b2", "a1", "a2"]
    steps().execute(CONTEXT)
    assert seen == ["a1", "b1", "b2", "a1", "a2", "a2", "a3"]


# --- batch after batch


def test_a_task_takes_batch_after_batch_until_told_otherwise(consumer: Consumer) -> None:
    taking = ConsumeMessagesOperator(
        task_id="consume", topic="orders", group="g", python_callable=len, max_messages=2
    )
    assert taking.execute(CONTEXT) == [2, 1]


def test_a_drain_fails_with_the_failed_messages_of_all_batches(broker: Broker, consumer: Consumer) -> None:
    got: dict[bytes, Message] = {}

    def work(message: Message) -> None:
        got[message.body] = message
        if message.body == b"0":
            raise ValueError("not now")
        if message.body == b"2":
            raise AirflowFailException("hopeless")

    draining = operator(work, one_by_one=True, drain=True, max_messages=2)
    # What is kept for the next try is not left behind: a drain may go on for longer than that is kept.
    with pytest.raises(MessagesFailed, match=r"^1 message failed") as failed:
        draining.execute(a_try(1, retries=1))
    assert not isinstance(failed.value, AirflowFailException)
    assert list(got) == [b"0", b"1"]
    assert last_state(broker, got[b"0"]) == "Inflight"

    broker.send("orders", "3", delay_level=0)
    with pytest.raises(MessagesFailed, match=r"^2 messages failed") as failed:
        draining.execute(a_try(2, retries=1))
    # One of them fails the task without a further try.
    assert isinstance(failed.value, AirflowFailException)
    states = [last_state(broker, got[body]) for body in (b"0", b"1", b"2", b"3")]
    assert states == ["WaitingRetry", "Acked", "DLQ", "Acked"]


def test_a_drain_that_skips_a_batch_fails_for_an_earlier_one(broker: Broker, consumer: Consumer) -> None:
    def work(messages: Sequence[Message]) -> None:
        first = messages[0]
        if first.body != b"0":
            raise AirflowSkipException
        raise MessagesFailed({first: "poison"})

    with pytest.raises(MessagesFailed, match="poison"):
        operator(work, drain=True, max_messages=2).execute(CONTEXT)


def test_a_drain_ends_where_all_of_a_batch_have_failed(consumer: Consumer) -> None:
    def work(message: Message) -> None:
        raise ConnectionError("the shop is down")

    with pytest.raises(MessagesFailed, match=r"^2 messages failed"):
        operator(work, one_by_one=True, drain=True, max_messages=2).execute(CONTEXT)
    assert len(consumer.receive()) == 1


def test_a_drain_ends_after_its_number_of_messages(consumer: Consumer) -> None:
    assert operator(len, max_messages=2, drain=True, drain_messages=1).execute(CONTEXT) == [1]
    assert len(consumer.receive()) == 2


@pytest.mark.parametrize("linger", ["PT0S", "PT1H"])
def test_a_drain_begins_no_batch_after_its_time(consumer: Consumer, linger: str) -> None:
    taking = operator(len, max_messages=2, drain=True, drain_time=timedelta(0), linger=linger)
    assert taking.execute(CONTEXT) == [2]
    assert len(consumer.receive()) == 1


def test_a_drain_lingers_no_longer_than_its_time(consumer: Consumer) -> None:
    taking = operator(len, drain=True, drain_time=timedelta(milliseconds=300), linger="PT1H")
    assert taking.execute(CONTEXT) == [3]


def test_a_drain_lingers_for_what_comes_next(broker: Broker, consumer: Consumer) -> None:
    def work(messages: Sequence[Message]) -> int:
        if len(messages) == 3:
            broker.send("orders", b"3", delay=timedelta(milliseconds=300))
        return len(messages)

    assert operator(work, drain=True, linger="PT1H", drain_messages=4).execute(CONTEXT) == [3, 1]


# --- settings of the group


def test_r12_the_task_sets_how_its_group_retries(broker: Broker, consumer: Consumer) -> None:
    with pytest.raises(ZeroDivisionError):
        operator(fail, retry=RetryPolicy.unordered(max_retries=0)).execute(CONTEXT)
    assert [letter.reason for letter in broker.dead_letters("g")] == ["ZeroDivisionError: no orders"] * 3


@pytest.mark.usefixtures("consumer")
def test_d11_an_unknown_topic_names_the_operator_that_makes_it() -> None:
    with pytest.raises(UnknownTopic, match=r"there is no topic \"none\".* In a DAG, CreateTopicOperator\("):
        operator(len, topic="none").execute(CONTEXT)


def test_a_new_group_begins_where_it_is_told_to(consumer: Consumer) -> None:
    assert consumer.receive()
    assert operator(len, group="late", start="latest").execute(CONTEXT) is None


def test_x08_the_history_names_the_task_that_has_a_message(broker: Broker, consumer: Consumer) -> None:
    def work(messages: Sequence[Message]) -> tuple[str, ...]:
        (bell,) = broker.doorbells(["orders"], ["g"])
        return bell.holders

    assert operator(work).execute(a_try(task_id="consume")) == ("airflow:dag/run/consume/-1",)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_messages": 0}, "max_messages must be 1 to 10000; got 0"),
        ({"max_messages": 10_001}, "max_messages must be 1 to 10000; got 10001"),
        ({"group": "my group"}, '"my group" is not a group name'),
        ({"tags": "a b"}, "is not a tag expression"),
        ({"filter": "amount > 5"}, "the filter 'amount > 5' names no property"),
        ({"python_callable": "slow"}, "python_callable is 'slow', a str: give a function"),
        ({"invisible": "PT0.5S"}, "invisible must be 1 s or more; got 500 ms"),
        ({"invisible": 60}, "invisible is an int, not a span of time"),
        ({"wait": "PT31S"}, "wait must be 30 s or less; got 31 s"),
        ({"retry": 3}, "retry is an int: give a RetryPolicy"),
        ({"start": "earlyest"}, 'start must be "earliest", "latest" or an instant; got "earlyest"'),
        ({"start": 1_654_773_600}, "start 1654773600 is 1970-01-20 as Unix milliseconds"),
        (
            {"invisible": "{{ params.invisible }}"},
            "invisible of ConsumeMessagesOperator is not templated: give the value itself",
        ),
        ({"wait": "{{ params.wait }}"}, "wait of ConsumeMessagesOperator is not templated"),
        ({"drain": "{{ params.drain }}"}, "drain is '{{ params.drain }}', a str: give True or False"),
        ({"drain_messages": 0}, "drain_messages must be 1 or more; got 0"),
        ({"fail_on": "never", "one_by_one": True}, "fail_on 'never' is not known: give one of 'any'"),
        ({"fail_on": "dead_letter"}, "is for single messages: give one_by_one=True, too"),
        ({"per_second": 0}, "per_second must be 0.001 to 1000000 messages in a second; got 0"),
        ({"per_second": "{{ params.rate }}"}, "per_second of ConsumeMessagesOperator is not templated"),
        ({"drain_time": timedelta(seconds=-1)}, "drain_time must be 0 s or more; got -"),
        ({"linger": "PT1S"}, "linger is how long a drain waits for more messages: leave drain=False out"),
        (
            {"op_args": ["north"]},
            "len(obj, /) cannot be called with 2 arguments: too many positional arguments",
        ),
        (
            {"python_callable": lambda messages, region: None},
            "cannot be called with 1 arguments: missing a required argument: 'region'",
        ),
        (
            {"python_callable": lambda messages, *, ds: None, "op_kwargs": {"fctor": 2}},
            "cannot be called with 1 arguments and fctor by name: got an unexpected keyword argument 'fctor'",
        ),
        ({"python_callable": lambda: None}, "too many positional arguments"),
    ],
)
def test_a_mistake_is_refused_when_the_dag_is_read(arguments: dict[str, Any], said: str) -> None:
    operator(lambda messages, consumer, ti, **context: None)
    with pytest.raises(DueWheelError, match=re.escape(said)):
        operator(len, **arguments)
