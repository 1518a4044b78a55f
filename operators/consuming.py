"""The common base of the consuming operators: the lease, the answers, the next try, the kill.

**Tries.** Airflow's tries and the group's retries both repeat failed work, so they take turns. While Airflow
has tries left, failed messages are kept: the lease is extended beyond Airflow's ``retry_delay``, and the next
try takes over the very same messages, even from a worker that was killed. When the last try has failed, the
messages are nacked and retried by their group: after its intervals, and in the end as dead letters. A try
never succeeds merely because the messages of the previous try are not ready yet.

The lease is held in the name of the task instance, which is the same over all tries. A try that takes over
gets new tokens, so a worker that was wrongly thought dead can no longer answer.

**The ack** is repeated while the database cannot be reached, as long as the lease may still hold. A result
that cannot become an XCom would make Airflow fail the task after the ack, so it is refused before the ack.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from airflow.sdk import BaseOperator, RetryAction
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.configuration import conf
from airflow.sdk.definitions.mappedoperator import is_mappable_value
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from airflow.sdk.execution_time.xcom import XCom

from duewheel.hooks.arguments.declared import (
    as_count,
    as_start,
    check_callable,
    check_count,
    check_flags,
    check_not_given_later,
    check_reading,
    check_span,
    is_given_later,
)
from duewheel.hooks.arguments.mapped import CheckedWhenMapped
from duewheel.hooks.arguments.rendered import as_span
from duewheel.hooks.broker import DueWheelHook
from duewheel.hooks.links import TopicLink
from duewheel.hooks.task_name import task_key
from duewheel.operators.calling import check_call
from duewheel.operators.lineage import ReadLineage
from duewheel.operators.outlets import annotate_outlets
from duewheel.store.consuming.lease_states import HELD, raise_if_lost
from duewheel.store.values.backoff import Backoff
from duewheel.store.values.errors import BrokerUnreachable, DueWheelError, InvalidArgument
from duewheel.store.values.kinds import a_kind
from duewheel.store.values.limits import LONGEST_INVISIBLE, SHORTEST_INVISIBLE
from duewheel.store.values.messages import Message
from duewheel.store.values.numbers import counted
from duewheel.store.values.reasons import as_reason
from duewheel.store.values.retry_policy import RetryPolicy

if TYPE_CHECKING:
    from airflow.sdk import Context, RetryDecision
    from airflow.sdk.bases.operatorlink import BaseOperatorLink

    from duewheel.store import Broker
    from duewheel.store.consuming.answering import Answered
    from duewheel.store.consuming.consumer import Consumer
    from duewheel.store.consuming.lease_keeper import LeaseKeeper
    from duewheel.store.consuming.lease_states import LeaseState
    from duewheel.store.values.instants import Instant

LATE_TRY = timedelta(minutes=2)
"""How much later than its ``retry_delay`` the next try may begin and still find its messages."""

PULL_BACK_SECONDS = 1.5
"""How long a killed task waits for open transactions that answer its messages."""

NOT_BEGUN = "the function did not get it before the task ended"
"""The reason noted for messages that are given back, before the error of the task."""

LARGE_RESULT_BYTES = 1_000_000
"""Results that are longer as JSON, all together, are stored with a warning."""

LONGEST_OUTPUT_NAME = 512
"""The longest key of an XCom that Airflow's database stores, in characters."""


Answer = TypeVar("Answer")


class MessagesFailed(AirflowException):
    """Some messages failed and the others did not.

    A function that handles a batch raises this error to have the failed messages nacked, or kept for the next
    try, and all others acked. The task fails with it, because not all of its work is done.

    Args:
        failed: the messages that failed, each with its reason: text, or the error.

    Raises:
        InvalidArgument: a name is not a message, but for example its key. The function then fails for the
            whole batch.

    Example::

        def charge(messages):
            failed = {}
            for message in messages:
                try:
                    charge_one(message)
                except CardDeclined as error:
                    failed[message] = error
            if failed:
                raise MessagesFailed(failed)
    """

    def __init__(self, failed: Mapping[Message, BaseException | str]) -> None:
        if not isinstance(failed, Mapping):
            raise InvalidArgument(f"failed is {a_kind(failed)}: give a mapping of messages to reasons")
        for message in failed:
            if not isinstance(message, Message):
                raise InvalidArgument(
                    f"failed names {message!r}, {a_kind(message)}: give the messages themselves, as "
                    "the function got them"
                )
        self.failed = dict(failed)
        super().__init__(self._said())

    def _said(self) -> str:
        if not self.failed:
            return "no message failed"
        message, reason = next(iter(self.failed.items()))
        return (
            f"{counted(len(self.failed), 'message')} failed, the first of them {message.message_id} "
            f"(key {message.key}): {as_reason(reason)}"
        )


class FailedForGood(MessagesFailed, AirflowFailException):
    """Some messages failed, one of them with ``AirflowFailException``: Airflow tries the task no more."""


def answer_to(error: BaseException | str) -> str:
    """The answer to messages whose work ended with this error, as the name of a method of ``Consumer``."""
    if isinstance(error, AirflowSkipException):
        return "skip"
    return "dead_letter" if isinstance(error, AirflowFailException) else "nack"


@dataclass
class Held:
    """The data with which a killed task gives its messages back over a separate connection."""

    dsn: str
    messages: Answered
    count: int
    keeper: LeaseKeeper


class ConsumingOperator(CheckedWhenMapped, ReadLineage, BaseOperator):
    """Base of the operators that receive messages, work on them, and ack them after the work.

    The arguments are those of :class:`~duewheel.operators.consume.ConsumeMessagesOperator`, and ``at_most``,
    the limit of ``max_messages`` if there is one. ``python_callable`` is None if a subclass defines its own
    work.
    """

    template_fields: Sequence[str] = (
        "topic",
        "group",
        "tags",
        "filter",
        "max_messages",
        "op_args",
        "op_kwargs",
        "duewheel_conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"op_args": "py", "op_kwargs": "py"}
    shallow_copy_attrs: Sequence[str] = ("python_callable",)
    operator_extra_links: tuple[BaseOperatorLink, ...] = (TopicLink(),)

    offered: ClassVar[Collection[str]] = ()
    """Names that the function may ask for, in addition to the names in Airflow's context."""

    def __init__(
        self,
        *,
        topic: str,
        group: str,
        python_callable: Callable[..., Any] | None,
        tags: str | None,
        filter: str | None,  # noqa: A002 -- as the consumer's parameter
        max_messages: int | str,
        invisible: timedelta | str,
        op_args: Sequence[Any] | None,
        op_kwargs: Mapping[str, Any] | None,
        skip_if_empty: bool,
        retry: RetryPolicy | None,
        start: str | Instant,
        duewheel_conn_id: str,
        durable_acks: bool = True,
        at_most: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_reading(topic, group, tags, filter)
        check_count(max_messages, "max_messages", at_most=at_most)
        check_span(invisible, "invisible", at_least=SHORTEST_INVISIBLE, at_most=LONGEST_INVISIBLE)
        check_not_given_later(self, invisible=invisible, start=start, retry=retry)
        check_flags(skip_if_empty=skip_if_empty, durable_acks=durable_acks)
        if retry is not None and not isinstance(retry, RetryPolicy):
            raise InvalidArgument(
                f"retry is {a_kind(retry)}: give a RetryPolicy of duewheel.store; Airflow's own policy "
                "is the argument retry_policy"
            )
        self.topic = topic
        self.group = group
        self.python_callable = python_callable
        self.tags = tags
        self.filter = filter
        self.max_messages = max_messages
        self.invisible = invisible
        # Rendering replaces them with the results of other tasks.
        self.op_args: Any = op_args if _is_of_a_task(op_args) else list(op_args or ())
        self.op_kwargs: Any = op_kwargs if _is_of_a_task(op_kwargs) else dict(op_kwargs or {})
        self.skip_if_empty = skip_if_empty
        self.retry = retry
        self.start = as_start(start)
        self.duewheel_conn_id = duewheel_conn_id
        self.durable_acks = durable_acks
        self._most = at_most
        self._held: Held | None = None
        self._killed = False
        self._result_bytes = 0
        if python_callable is not None:
            self._check_callable(python_callable)

    def _check_callable(self, function: Callable[..., Any]) -> None:
        check_callable(function)
        if _is_of_a_task(self.op_args) or _is_of_a_task(self.op_kwargs):
            return
        if not any(map(is_given_later, self.op_kwargs)):
            check_call(function, 1 + len(self.op_args), self.op_kwargs, self.offered)

    def _hook(self) -> DueWheelHook:
        return DueWheelHook(self.duewheel_conn_id)

    def _count(self) -> int:
        return as_count(self.max_messages, "max_messages", at_most=self._most)

    def _lease_span(self) -> timedelta:
        return as_span(self.invisible, "invisible") or timedelta(seconds=60)

    def _consumer(self, broker: Broker, context: Context) -> Consumer:
        """The group's consumer, in the name of the task instance if a task runs."""
        return broker.consumer(
            self.topic,
            self.group,
            tags=self.tags,
            filter=self.filter,
            start=self.start,
            name=task_key(context),
            retry=self.retry,
            durable_acks=self.durable_acks,
        )

    def _may_have_leases(self, context: Context) -> bool:
        """Whether a previous try may have left leases in the task instance's name."""
        task_instance = context.get("ti")
        return task_instance is not None and task_instance.try_number > 1

    def _nothing_ready(self) -> None:
        self.log.info("Nothing is ready on topic %s for group %s", self.topic, self.group)
        if self.skip_if_empty:
            raise AirflowSkipException(f"Nothing is ready on topic {self.topic} for group {self.group}.")

    def _require_pushable(self, result: object) -> None:
        """Fail before the ack if Airflow would refuse the result after it; warn if all results together are
        large.

        A custom XCom backend may store anything, so its results are not checked.
        """
        if result is not None and self.do_xcom_push and XCom.serialize_value is BaseXCom.serialize_value:
            # The result goes over HTTP as JSON, and Postgres stores it as jsonb.
            text = json.dumps(BaseXCom.serialize_value(result), ensure_ascii=False, allow_nan=False)
            before = self._result_bytes
            self._result_bytes += len(text.encode())
            if before <= LARGE_RESULT_BYTES < self._result_bytes:
                self.log.warning(
                    "The results have more than %s bytes as JSON, and Airflow stores them in its database as "
                    "one XCom. Return less, or set do_xcom_push=False if no task reads them.",
                    f"{LARGE_RESULT_BYTES:,}".replace(",", " "),
                )
            if "\\u0000" in text.replace("\\\\", ""):
                raise InvalidArgument(
                    "the function returned text with a NUL character, which Airflow's Postgres cannot store: "
                    "remove it"
                )

    def _require_whole_result(self, result: object, context: Mapping[str, Any]) -> None:
        """The same check for the whole result of the task: several outputs, or a result over which other
        tasks are mapped.

        Raises:
            InvalidArgument: the result does not fit its use in the DAG.
        """
        self._require_pushable(result)
        outputs = result if self.do_xcom_push else None
        if outputs is not None and self.multiple_outputs and not _is_of_several_outputs(outputs):
            raise InvalidArgument(
                f"the function returned {a_kind(outputs)}, but the task has multiple_outputs: "
                f"return a dictionary whose keys are text of 1 to {LONGEST_OUTPUT_NAME} characters, or set "
                "multiple_outputs=False"
            )
        if not self._is_mapped_over(context):
            return
        if not is_mappable_value(outputs):
            raise InvalidArgument(
                f"the function returned {a_kind(outputs)}, but other tasks are mapped over the "
                "result: return a list or a dictionary"
            )
        self._require_mappable_length(len(outputs))

    def _require_mappable_length(self, length: int) -> None:
        """Fail before the ack if Airflow would refuse to map tasks over this many results."""
        most = conf.getint("core", "max_map_length", fallback=1024)
        if length > most:
            raise InvalidArgument(
                f"the task has {length} results, but Airflow maps tasks over {most} at most: receive fewer "
                "messages, raise [core] max_map_length, or do the mapped work in the function"
            )

    def _is_mapped_over(self, context: Mapping[str, Any]) -> bool:
        """Whether other tasks are mapped over the result, which Airflow then requires."""
        task_instance = context.get("ti")
        if task_instance is None or task_instance.map_index >= 0 or self.get_dag() is None:
            return False
        return next(self.iter_mapped_dependants(), None) is not None

    def _persistently(self, answer: Callable[[], Answer]) -> Answer:
        """Answer, and repeat while the database is away, until the lease has certainly ended.

        Raises:
            LeaseLost: the lease ended in the meantime; its messages are delivered again.
            BrokerUnreachable: the database was away for as long as the lease lasts.
        """
        until = time.monotonic() + self._lease_span().total_seconds()
        backoff = Backoff()
        while True:
            try:
                return answer()
            except BrokerUnreachable as error:
                left_seconds = until - time.monotonic()
                if left_seconds <= 0 or self._killed:
                    raise
                self.log.warning("Could not answer, trying again for %.0f s: %s", left_seconds, error)
                # No signal reports that a database is back.
                threading.Event().wait(min(backoff.next_seconds(), left_seconds))

    def _give_back(
        self,
        context: Mapping[str, Any],
        count: int,
        cause: BaseException,
        keep: Callable[[timedelta], int],
        nack: Callable[[], None],
    ) -> None:
        """Keep failed messages for the next try, or nack them; ``cause`` stays the error that the task fails
        with.

        Args:
            context: Airflow's context of the task.
            count: how many messages failed.
            cause: the error that the task fails with.
            keep: extends their leases to last for a span from now, and returns how many messages it has kept.
            nack: nacks them.
        """
        kept_for = self._kept_for(context, cause)
        try:
            if kept_for is not None and (kept := keep(kept_for)):
                self.log.info(
                    "Kept %s of topic %s for group %s for the task's next try",
                    counted(kept, "message"),
                    self.topic,
                    self.group,
                )
                return
            nack()
        except DueWheelError as error:
            self.log.warning(
                "Could not give %s of topic %s back to group %s; those without an answer are delivered again "
                "when their lease ends: %s",
                counted(count, "message"),
                self.topic,
                self.group,
                error,
            )

    def _may_try_again(self, context: Mapping[str, Any]) -> bool:
        task_instance = context.get("ti")
        return task_instance is not None and task_instance.try_number <= task_instance.max_tries

    def _kept_for(self, context: Mapping[str, Any], cause: BaseException) -> timedelta | None:
        """How long to keep failed messages for the next try; None if there is none or it is too late."""
        if isinstance(cause, (AirflowFailException, AirflowSkipException)) or not self._may_try_again(
            context
        ):
            return None
        decision = self._retry_decision(context, cause)
        if decision is not None and decision.action is RetryAction.FAIL:
            return None
        delay = self._retry_seconds(context["ti"].try_number)
        if decision is not None and decision.action is RetryAction.RETRY and decision.retry_delay is not None:
            delay = _seconds(decision.retry_delay)
        longest = (LONGEST_INVISIBLE - LATE_TRY).total_seconds()
        return None if delay > longest else timedelta(seconds=delay) + LATE_TRY

    def _retry_decision(self, context: Mapping[str, Any], cause: BaseException) -> RetryDecision | None:
        """The decision of the task's ``retry_policy``, which Airflow also asks after the task has failed."""
        if self.retry_policy is None:
            return None
        task_instance = context["ti"]
        try:
            return self.retry_policy.evaluate(
                exception=cause,
                try_number=task_instance.try_number,
                max_tries=task_instance.max_tries,
                context=cast("Context", context),
            )
        except Exception:  # as Airflow does
            self.log.exception("The retry policy failed; the task's own retries count instead")
            return None

    def _retry_seconds(self, try_number: int) -> float:
        """The longest that Airflow waits before the next try by the task's own settings."""
        delay = _seconds(self.retry_delay)
        factor = float(self.retry_exponential_backoff)
        if factor not in (0.0, 1.0):
            # Airflow adds a random part of up to the same length.
            exponent = min(try_number - 1, 100)
            delay = 2 * max(1.0, math.ceil(delay * min(factor**exponent, 1e9)))
        if self.max_retry_delay is not None:
            delay = min(delay, _seconds(self.max_retry_delay))
        return delay

    def post_execute(self, context: Context, result: Any = None) -> None:
        """Add the numbers of consumed messages to the outlets' asset events."""
        super().post_execute(context, result)
        annotate_outlets(self, context, topic=self.topic, group=self.group, messages=self._done)

    def on_kill(self) -> None:
        """Give the lease back, so that the messages are ready again at once.

        Airflow may call this at any point of the task's work. So it uses a separate broker and shares no
        lock with that work.
        """
        self._killed = True
        held, self._held = self._held, None
        if held is not None:
            self._pull_back(held)

    def _pull_back(self, held: Held) -> None:
        from duewheel.store import Broker

        held.keeper.stop()
        try:
            # No listener, because nothing here may wait for long.
            with Broker(held.dsn, listen=False) as broker:
                consumer = broker.consumer(self.topic, self.group, tags=self.tags, filter=self.filter)
                states = consumer.answer_held(
                    "give_back",
                    held.messages,
                    reason="the task was killed",
                    wait=timedelta(seconds=PULL_BACK_SECONDS),
                )
            raise_if_lost(states)
        except DueWheelError as error:
            self.log.warning(
                "The lease on %s of topic %s for group %s could not be given back: %s",
                counted(held.count, "message"),
                self.topic,
                self.group,
                error,
            )
        else:
            self.log.info(
                "Gave the lease on %s of topic %s for group %s back",
                counted(held_count(states, held.count), "message"),
                self.topic,
                self.group,
            )


def held_count(states: Sequence[LeaseState], at_most: int) -> int:
    """How many messages of a batch an answer applied to. Others may have been answered before: one by one, by
    the function itself, or part by part on executors."""
    return min(at_most, sum(state.lease.count for state in states if state.state == HELD))


def _is_of_several_outputs(result: object) -> bool:
    return isinstance(result, Mapping) and all(
        isinstance(name, str) and 1 <= len(name) <= LONGEST_OUTPUT_NAME for name in result
    )


def _is_of_a_task(given: object) -> bool:
    """Whether all arguments together are the result of another task."""
    return given is not None and not isinstance(given, (Sequence, Mapping)) and is_given_later(given)


def _seconds(span: timedelta | float) -> float:
    return span.total_seconds() if isinstance(span, timedelta) else float(span)
