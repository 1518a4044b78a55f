"""Receive a batch, work on it in Python, and ack it only after the work.

A thread keeps the lease on the batch alive while the function runs, however long it takes. When the function
returns, the batch is acked as a whole; when it raises, the task fails. While Airflow has tries left, the
messages are kept for the next try. After the last try they are nacked, and retried after their group's
interval. When the task is killed, it gives its lease back: the messages are ready again at once, for the
task's next try or for any other consumer of the group, and no attempt is counted.

An ``AirflowSkipException`` means that the work is left undone on purpose: the messages are acked, and their
history shows it. An ``AirflowFailException`` means that no retry would help: they are dead letters at once.

A run takes ready messages, batch after batch, up to a stated number of messages and for a stated time.
Airflow needs seconds to start the next run, a batch that is ready milliseconds.

With ``one_by_one``, the function gets one message at a time, and each is answered separately: a failed
message holds up no other. In the task's last try the drain continues after it, unless a whole batch has
failed. Messages that the function did not get before the task ended use up no attempt either.

A worker that dies suddenly stops extending the lease. The next try of the task takes the lease over; without
a next try, the lease ends. So each message is worked on at least once and never lost, and the function must
tolerate getting a message again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from duewheel.hooks.arguments.declared import (
    as_count,
    check_callable,
    check_choice,
    check_count,
    check_flags,
    check_not_given_later,
    check_span,
)
from duewheel.hooks.arguments.rendered import as_span
from duewheel.hooks.broker import DueWheelHook
from duewheel.operators.calling import call
from duewheel.operators.consuming import (
    NOT_BEGUN,
    ConsumingOperator,
    FailedForGood,
    Held,
    MessagesFailed,
    answer_to,
    held_count,
)
from duewheel.operators.handed_message import HandedMessage
from duewheel.store.consuming.lease_keeper import LeaseKeeper
from duewheel.store.consuming.lease_states import raise_if_lost
from duewheel.store.values.errors import DueWheelError, InvalidArgument
from duewheel.store.values.limits import LONGEST_WAIT, MOST_RECEIVED
from duewheel.store.values.numbers import as_rate, counted
from duewheel.store.values.reasons import as_reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow.sdk import Context

    from duewheel.store import Broker
    from duewheel.store.consuming.answering import Answered
    from duewheel.store.consuming.consumer import Consumer
    from duewheel.store.consuming.lease_states import LeaseState
    from duewheel.store.values.instants import Instant
    from duewheel.store.values.messages import Batch, Message
    from duewheel.store.values.retry_policy import RetryPolicy

__all__ = ["ConsumeMessagesOperator", "MessagesFailed"]

NACK_WAIT = timedelta(seconds=30)
"""How long a nack waits for open transactions that answer messages of the batch."""
LOGGED_MESSAGES = 5
"""The log names this many messages of a batch."""


class ConsumeMessagesOperator(ConsumingOperator):
    """Receive up to ``max_messages`` messages of a group and hand them to a Python function.

    Args:
        topic: the topic to read.
        group: the consumer group that reads; made when it does not exist yet, from the earliest message on.
        python_callable: called once with the batch, a sequence of ``Message``, and with ``op_args`` and
            ``op_kwargs``. It also gets the values of Airflow's context that its parameters name, and as
            ``consumer`` the group's :class:`~duewheel.store.consuming.consumer.Consumer`, to ack in the
            transaction of the work. It may be ``async``. If it yields values or returns an iterator, its
            result is the list of them. Not called when no message is ready.
        tags: only messages with one of these tags, as ``"a || b"``; ``*`` is all. Set if the group is new;
            None takes the tags of its subscription.
        filter: only messages with such properties, as ``$.region == "north" && $.amount > 100``.
        max_messages: how many messages to receive at most at once, up to 10 000.
        invisible: how long a lease lasts if the worker does not extend it, 1 s to 12 h.
        wait: how long to wait for the first message if none is ready, up to 30 s.
        op_kwargs: further arguments of the function, templated.
        skip_if_empty: whether to skip the task, and the tasks that depend on it, when no message is ready.
        duewheel_conn_id: the connection to the broker.
        one_by_one: whether to call the function with each message instead, and to answer each separately: a
            poison message is nacked with its own reason and the others are acked. In the end the task fails
            with ``MessagesFailed``. The message has three methods more: ``skip(reason)`` is done with it on
            purpose, ``retry(delay, reason)`` has it delivered again without failing the task, and
            ``dead_letter(reason)`` makes it a dead letter at once.
        drain: whether to continue, batch after batch, until no message is ready; False takes one batch. On
            by default: one batch is so small that the doorbell would start a run for each.
        linger: with ``drain``, how long to wait for more messages before ending.
        op_args: further arguments by position, after the messages; templated.
        retry: how the group retries, a ``RetryPolicy``; set for the whole group when the task runs.
        start: where a new group begins: ``earliest``, ``latest``, or an instant, as text in ISO 8601, too.
        drain_messages: with ``drain``, how many messages the task takes at most. The doorbell rings for the
            rest.
        drain_time: with ``drain``, for how long the task begins further batches, ``linger`` included.
        fail_on: with ``one_by_one``, ``dead_letter`` fails the task only if a failed message became a dead
            letter. Other failed messages are nacked at once, and the group retries them; Airflow's tries do
            not.
        per_second: how many messages this task's function gets in a second. Tasks that run at the same time
            have their own rates: for a rate of the group, let one task at a time consume. Batches are of
            a second's messages at most. None is no limit.
        durable_acks: False lets acks return before they are on disk: with ``one_by_one``, faster. A crash of
            the server then delivers the messages of about the last half second of acks again.

    Returns:
        The list of all results of the function that are not None, as the task's XCom; None when there is
        none. If the function gets batches and returns lists, these are joined. With ``drain=False`` and
        without ``one_by_one``, the function's result itself.

    Raises:
        InvalidArgument, InvalidTagExpression, InvalidFilter: an argument that the broker would refuse; raised
            when the DAG is read. Also for a task with ``retries`` and ``one_by_one`` or ``drain`` if other
            tasks are mapped over its result; raised when it runs, before it receives.
        LeaseLost: the lease ended before the work did; its messages are delivered again.
        MessagesFailed: with ``one_by_one``, some messages failed; see ``fail_on``.
        Exception: any error of the function. The batch is kept for the task's next try, or nacked.

    Example::

        def cancel(messages: Sequence[Message]) -> int:
            return cancel_orders([message.key for message in messages])

        ConsumeMessagesOperator(
            task_id="cancel_unpaid", topic="order-timeout", group="canceller", python_callable=cancel,
            max_messages=500
        )
    """

    ui_color = "#dfe9f5"
    offered = ("consumer",)

    def __init__(
        self,
        *,
        topic: str,
        group: str,
        python_callable: Callable[..., Any],
        tags: str | None = None,
        filter: str | None = None,  # noqa: A002 -- as the consumer's parameter
        max_messages: int | str = 32,
        invisible: timedelta | str = timedelta(seconds=60),
        wait: timedelta | str = timedelta(0),
        op_kwargs: Mapping[str, Any] | None = None,
        skip_if_empty: bool = False,
        duewheel_conn_id: str = DueWheelHook.default_conn_name,
        one_by_one: bool = False,
        drain: bool = True,
        linger: timedelta | str = timedelta(0),
        op_args: Sequence[Any] | None = None,
        retry: RetryPolicy | None = None,
        start: str | Instant = "earliest",
        drain_messages: int | str = 10_000,
        drain_time: timedelta | str = timedelta(minutes=10),
        fail_on: Literal["any", "dead_letter"] = "any",
        per_second: float | None = None,
        durable_acks: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            topic=topic,
            group=group,
            python_callable=python_callable,
            tags=tags,
            filter=filter,
            max_messages=max_messages,
            at_most=MOST_RECEIVED,
            invisible=invisible,
            op_args=op_args,
            op_kwargs=op_kwargs,
            skip_if_empty=skip_if_empty,
            retry=retry,
            start=start,
            duewheel_conn_id=duewheel_conn_id,
            durable_acks=durable_acks,
            **kwargs,
        )
        check_callable(python_callable)
        check_not_given_later(self, wait=wait, linger=linger)
        check_span(wait, "wait", at_least=timedelta(0), at_most=LONGEST_WAIT)
        check_span(linger, "linger", at_least=timedelta(0))
        check_flags(one_by_one=one_by_one, drain=drain)
        check_count(drain_messages, "drain_messages")
        check_not_given_later(self, drain_time=drain_time, fail_on=fail_on, per_second=per_second)
        as_rate(per_second)
        check_span(drain_time, "drain_time", at_least=timedelta(0))
        if as_span(linger, "linger") and not drain:
            raise InvalidArgument("linger is how long a drain waits for more messages: leave drain=False out")
        check_choice(fail_on, "fail_on", ("any", "dead_letter"))
        if fail_on != "any" and not one_by_one:
            raise InvalidArgument("fail_on='dead_letter' is for single messages: give one_by_one=True, too")
        self.wait = wait
        self.one_by_one = one_by_one
        self.drain = drain
        self.linger = linger
        self.drain_messages = drain_messages
        self.drain_time = drain_time
        self.fail_on = fail_on
        self.per_second = per_second
        if one_by_one or drain:
            # The task's result is a list, even if the annotation of the function is another type.
            self.multiple_outputs = False

    def execute(self, context: Context) -> Any:
        """Receive, call the function, ack; again if ``drain``."""
        self._maps = self._is_mapped_over(context)
        self._require_one_try()
        self._results: list[Any] = []
        self._result_bytes = 0
        self._done = 0
        result = None
        self._bound = _Bound(
            as_count(self.drain_messages, "drain_messages") if self.drain else self._count(),
            as_span(self.drain_time, "drain_time") or timedelta(0),
        )
        self._pace = _Pace(self.per_second)
        with self._hook().connected() as broker:
            consumer = self._consumer(broker, context)
            batch = self._first(broker, consumer, context)
            if not batch:
                self._nothing_ready()
                return self._no_result(context)
            failures: list[MessagesFailed] = []
            # Messages that a try took over have failed before.
            are_new = not self._may_have_leases(context)
            while batch:
                try:
                    result = self._work(broker, consumer, batch, context)
                except MessagesFailed as error:
                    failures.append(_without_frames(error))
                    # Messages that are kept for a next try would not outlast a drain. If a whole batch
                    # fails, further batches probably would, too.
                    if self._may_try_again(context) or (are_new and len(error.failed) == len(batch)):
                        break
                except AirflowSkipException:
                    if not failures:
                        raise
                if not self.drain or self._killed or not self._bound.leaves_room():
                    break
                are_new = True
                batch = self._next(consumer)
            if failures and self._fails_with(failure := _all_of(failures), broker):
                raise failure
        if not (self.one_by_one or self.drain):
            return result
        return self._results or self._no_result(context)

    def _fails_with(self, failure: MessagesFailed, broker: Broker) -> bool:
        """Whether the task fails because of these messages, or leaves them to the retries of their group."""
        if self.fail_on == "any" or any(self._is_dead(message, broker) for message in failure.failed):
            return True
        self.log.warning("The task succeeds although %s: group %s retries them", failure, self.group)
        return False

    def _is_dead(self, message: Message, broker: Broker) -> bool:
        states = [
            entry.state for entry in broker.history(message.message_id) if entry.consumer_group == self.group
        ]
        return states[-1:] == ["DLQ"]

    def _may_try_again(self, context: Mapping[str, Any]) -> bool:
        return self.fail_on == "any" and super()._may_try_again(context)

    def _no_result(self, context: Context) -> list[Any] | None:
        """The result of a task without messages, such that no tasks are mapped over it.

        An earlier try may have acked messages and lost its result, so that no task was mapped over them. So a
        later try returns None; if tasks are mapped over the result, Airflow then fails it.
        """
        return [] if self._maps and not self._may_have_leases(context) else None

    def _require_one_try(self) -> None:
        """Refuse retries if they would map tasks over only a part of the results.

        A try that fails has acked some messages, but Airflow drops its results; the next try has only the
        rest. The task's own setting counts, without the tries that Airflow adds when a user clears the task.
        """
        if (self.one_by_one or self.drain) and self.retries and self._maps:
            raise InvalidArgument(
                f"retries is {self.retries}, but other tasks are mapped over the result, and with one_by_one "
                "or drain a try that fails loses the results of what it has acked: set retries=0, give "
                "drain=False without one_by_one, or do the mapped work in the function"
            )

    def _require_room(self, results: Sequence[Any]) -> None:
        """Fail before the ack if these results would make the task's list too long."""
        if results and self._maps:
            self._require_mappable_length(len(self._results) + len(results))

    def _first(self, broker: Broker, consumer: Consumer, context: Context) -> Batch:
        """The messages left by the previous try, or else ready messages."""
        if self._may_have_leases(context):
            batch = broker.take_over(consumer, self._lease_span())
            if batch:
                self._log_batch("Took over", consumer, batch)
                return batch
        return self._receive(consumer, as_span(self.wait, "wait") or timedelta(0))

    def _next(self, consumer: Consumer) -> Batch:
        """The messages that are ready now, or become ready within the time to linger."""
        linger = as_span(self.linger, "linger") or timedelta(0)
        until = min(time.monotonic() + linger.total_seconds(), self._bound.until)
        while True:
            left = timedelta(seconds=max(0.0, until - time.monotonic()))
            batch = self._receive(consumer, min(left, LONGEST_WAIT))
            if batch or left <= LONGEST_WAIT or self._killed:
                return batch

    def _receive(self, consumer: Consumer, wait: timedelta) -> Batch:
        most = min(self._count(), self._bound.messages, self._pace.at_once)
        batch = consumer.receive(max_messages=most, invisible=self._lease_span(), wait=wait)
        if batch:
            self._log_batch("Received", consumer, batch)
        return batch

    def _log_acked(self, count: int) -> None:
        self.log.info("Acked %s of topic %s for group %s", counted(count, "message"), self.topic, self.group)

    def _log_batch(self, what: str, consumer: Consumer, batch: Batch) -> None:
        named = [_named(message) for message in batch[:LOGGED_MESSAGES]]
        self.log.info(
            "%s %s of topic %s for group %s, leased to %s until %s: %s%s",
            what,
            counted(len(batch), "message"),
            self.topic,
            self.group,
            consumer.name,
            batch.expires_at,
            ", ".join(named),
            ", ..." if len(batch) > len(named) else "",
        )

    def _work(self, broker: Broker, consumer: Consumer, batch: Batch, context: Context) -> Any:
        self._bound.messages -= len(batch)
        keeper = LeaseKeeper(consumer, batch, self._lease_span())
        held = self._held = Held(broker.dsn, batch, len(batch), keeper)
        apart = _Apart() if self.one_by_one else None
        try:
            with keeper:
                if apart is not None:
                    self._one_by_one(consumer, batch, context, held, apart)
                    return None
                return self._as_a_whole(consumer, batch, context, held)
        except MessagesFailed:
            # All answered or kept.
            raise
        except BaseException as error:
            keeper.stop()
            if not self._killed:
                nack: Callable[[], Sequence[LeaseState] | None]
                if apart is not None:
                    nack = partial(_nack_apart, consumer, batch, apart, error)
                elif (answer := answer_to(error)) == "nack":
                    nack = partial(_answer_held, consumer, batch, answer, as_reason(error))
                else:
                    decide = partial(_answer_held, consumer, batch, answer, _reason_for(answer, error))
                    nack = partial(self._persistently, decide)
                self._give_messages_back(consumer, batch, held.count, error, context, nack)
            raise
        finally:
            self._held = None

    def _call(self, consumer: Consumer, given: Any, context: Context) -> Any:
        assert self.python_callable is not None
        return call(
            self.python_callable,
            [given, *(self.op_args or ())],
            self.op_kwargs or {},
            {**context, "consumer": consumer},
        )

    def _as_a_whole(self, consumer: Consumer, batch: Batch, context: Context, held: Held) -> Any:
        self._pace.take(len(batch))
        held.keeper.raise_if_lost()
        try:
            result = self._call(consumer, batch, context)
        except MessagesFailed as error:
            failed = _of_batch(batch, error)
            held.keeper.stop()
            self._answer_apart(consumer, batch, failed, error, context)
            raise
        new = _listed(result)
        if self.drain:
            self._require_pushable(result)
            self._require_room(new)
        else:
            self._require_whole_result(result, context)
        # An extension at the time of the ack would find the lease gone and report it as lost.
        held.keeper.stop()
        self._persistently(lambda: consumer.ack(batch))
        self._done = (self._done or 0) + len(batch)
        self._results += new
        self._log_acked(len(batch))
        return result

    def _one_by_one(
        self, consumer: Consumer, batch: Batch, context: Context, held: Held, apart: _Apart
    ) -> None:
        acked = 0
        failed = apart.failed
        hopeless: dict[Message, BaseException | str] = {}
        counts = {"skip": 0, "nack": 0, "dead_letter": 0}
        stopped_groups: set[str | None] = set()
        for message in batch:
            if consumer.is_fifo and message.message_group in stopped_groups:
                # It is delivered after the failed message.
                continue
            self._pace.take(1)
            held.keeper.raise_if_lost()
            apart.current = message
            handed = HandedMessage(message)
            result = None
            try:
                result = self._call(consumer, handed, context)
                self._require_pushable(result)
            except AirflowSkipException as error:
                handed.skip(_reason_for("skip", error))
            except AirflowFailException as error:
                self.log.exception("Message %s failed for good", _named(message))
                handed.dead_letter(_reason_for("dead_letter", error))
                hopeless[message] = error
            except Exception as error:
                self.log.exception("Message %s failed", _named(message))
                failed[message] = error
                stopped_groups.add(message.message_group)
                continue
            if handed.answer != "ack":
                answer = getattr(consumer, handed.answer)
                if handed.answer == "nack":
                    answer = partial(answer, delay=handed.delay)
                    stopped_groups.add(message.message_group)
                held.count -= 1
                self._persistently(partial(answer, message, reason=handed.reason))
                apart.answered.add(message)
                counts[handed.answer] += 1
                continue
            new = [] if result is None else [result]
            self._require_room(new)
            held.count -= 1
            self._persistently(partial(consumer.ack, message))
            apart.answered.add(message)
            acked += 1
            self._done = (self._done or 0) + 1
            self._results += new
        held.keeper.stop()
        self.log.info(
            "Acked %d of %s of topic %s for group %s; skipped %d; to be retried %d; %s",
            acked,
            counted(len(batch), "message"),
            self.topic,
            self.group,
            counts["skip"],
            counts["nack"],
            counted(counts["dead_letter"], "dead letter"),
        )
        if failed or hopeless:
            set_aside = FailedForGood({**failed, **hopeless}) if hopeless else MessagesFailed(failed)
            self._answer_apart(consumer, list(failed), failed, set_aside, context)
            raise set_aside

    def _answer_apart(
        self,
        consumer: Consumer,
        messages: Sequence[Message],
        failed: Mapping[Message, BaseException | str],
        error: MessagesFailed,
        context: Context,
    ) -> None:
        """Ack the messages that succeeded, and answer the failed ones, each by its own reason."""
        done = [message for message in messages if message not in failed]
        if done:
            self._persistently(lambda: consumer.ack(done))
            self._log_acked(len(done))

        again: dict[Message, BaseException | str] = {}
        for message, why in failed.items():
            if (answer := answer_to(why)) == "nack":
                again[message] = why
            else:
                say = getattr(consumer, answer)
                self._persistently(partial(say, message, reason=_reason_for(answer, why)))

        def nack() -> None:
            for message, why in again.items():
                consumer.nack(message, reason=as_reason(why))

        if again:
            self._give_messages_back(consumer, list(again), len(again), error, context, nack)

    def _give_messages_back(
        self,
        consumer: Consumer,
        messages: Answered,
        count: int,
        cause: BaseException,
        context: Context,
        nack: Callable[[], Sequence[LeaseState] | None],
    ) -> None:
        def keep(invisible: timedelta) -> int:
            states = consumer.answer_held("extend", messages, invisible=invisible)
            raise_if_lost(states)
            return held_count(states, count)

        def nack_and_say() -> None:
            states = nack()
            answered = count if states is None else held_count(states, count)
            self.log.info(
                "%s %s of topic %s for group %s after %s: %s",
                _DONE_BY[answer_to(cause)],
                counted(answered, "message"),
                self.topic,
                self.group,
                type(cause).__name__,
                cause,
            )

        self._give_back(context, count, cause, keep, nack_and_say)


_DONE_BY = {"skip": "Skipped", "dead_letter": "Made dead letters of", "nack": "Nacked"}


class _Bound:
    """How much more a task may take: ``messages`` from now on, in batches that begin within ``time_left``."""

    def __init__(self, messages: int, time_left: timedelta) -> None:
        self.messages = messages
        self.until = time.monotonic() + time_left.total_seconds()

    def leaves_room(self) -> bool:
        return self.messages > 0 and time.monotonic() < self.until


class _Pace:
    """When the function may get messages, at so many in a second; None is at once."""

    def __init__(self, per_second: float | None) -> None:
        self._per_second = per_second
        self._next_at = time.monotonic()
        self.at_once = MOST_RECEIVED if per_second is None else max(1, int(per_second))
        """How many messages to receive at once at most, because they are held until their turn."""

    def take(self, count: int) -> None:
        """Wait for the turn of the next messages."""
        if self._per_second is not None:
            # This sleep is the pace; a keeper extends the lease meanwhile.
            time.sleep(max(0.0, self._next_at - time.monotonic()))
            self._next_at = max(self._next_at, time.monotonic()) + count / self._per_second


@dataclass
class _Apart:
    """The progress of a batch whose messages are answered one by one."""

    failed: dict[Message, BaseException | str] = field(default_factory=dict)
    answered: set[Message] = field(default_factory=set)
    current: Message | None = None
    """The message that the function got last."""


def _answer_held(consumer: Consumer, batch: Batch, action: str, reason: str | None) -> list[LeaseState]:
    """Answer the messages that the function has not answered, and return their previous states."""
    states = consumer.answer_held(action, batch, reason=reason, wait=NACK_WAIT)
    raise_if_lost(states)
    return states


def _reason_for(answer: str, error: BaseException | str) -> str | None:
    """The reason to store; a skip has the words of its author alone."""
    return as_reason(str(error)) or None if answer == "skip" else as_reason(error)


def _nack_apart(consumer: Consumer, batch: Batch, apart: _Apart, error: BaseException) -> None:
    """Nack each failed message with its own reason, the message being worked on with the error, and give back
    the rest, which the function never got.

    A lost lease does not keep the other messages from being answered.

    Raises:
        DueWheelError: some messages could not be answered; all others are.
    """
    failed = dict(apart.failed)
    if apart.current is not None and apart.current not in apart.answered:
        failed.setdefault(apart.current, error)
    refused: DueWheelError | None = None
    for message, why in failed.items():
        try:
            consumer.nack(message, reason=as_reason(why))
        except DueWheelError as again:
            refused = refused or again
    states = consumer.answer_held(
        "give_back", batch, reason=f"{NOT_BEGUN}: {as_reason(error)}", wait=NACK_WAIT
    )
    if refused is not None:
        raise refused
    raise_if_lost(states)


def _listed(result: Any) -> list[Any]:
    """A batch's part of a drain's result, whatever the batches: the items of a list, or else the result."""
    if isinstance(result, (list, tuple)):
        return list(result)
    return [] if result is None else [result]


def _without_frames(error: MessagesFailed) -> MessagesFailed:
    """The error, without the references that keep the messages of its batch in memory."""
    for one in (error, *error.failed.values()):
        if isinstance(one, BaseException):
            one.__traceback__ = one.__context__ = None
    return error


def _all_of(failures: Sequence[MessagesFailed]) -> MessagesFailed:
    first, *others = failures
    if not others:
        return first
    kind = FailedForGood if any(isinstance(one, FailedForGood) for one in failures) else MessagesFailed
    return kind({message: reason for one in failures for message, reason in one.failed.items()})


def _named(message: Message) -> str:
    return message.message_id if message.key is None else f"{message.message_id} (key {message.key})"


def _of_batch(batch: Batch, error: MessagesFailed) -> dict[Message, BaseException | str]:
    """The reasons of a ``MessagesFailed`` by the failed messages of the batch.

    Raises:
        InvalidArgument: a message is not of the batch, so it is unclear which work was done.
    """
    of_batch = {message.message_id: message for message in batch}
    strangers = [message.message_id for message in error.failed if message.message_id not in of_batch]
    if strangers:
        raise InvalidArgument(
            f"MessagesFailed names message {strangers[0]}, which is not of the batch: give messages that the "
            "function got"
        ) from error
    return {of_batch[message.message_id]: reason for message, reason in error.failed.items()}
