"""Wait for an answer, or for a timeout, whichever is first.

The task sends a message, which is its timeout, and waits in the triggerer, without a worker or a consumer
group. An answer recalls that message, and the answer's COMMIT decides which of the two was first. The task
reads that decision from the broker; Airflow's clocks decide nothing.

The message carries an idempotency key, so a retried task waits for the same answer until the same instant. A
cleared task waits again: Airflow then raises ``max_tries``, which is part of the key. Its new message
replaces the message of the previous wait, if that still waits.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.bases.branch import BranchMixIn
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from duewheel.hooks.arguments.declared import check_choice, check_key, check_message, check_span, check_topic
from duewheel.hooks.arguments.mapped import CheckedWhenMapped
from duewheel.hooks.arguments.rendered import as_body, as_span
from duewheel.hooks.broker import DueWheelHook
from duewheel.hooks.links import MessageLink, TopicLink
from duewheel.hooks.task_name import task_key, tries_before_clear
from duewheel.operators.calling import call
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.messages import SendOutcome, Wait, WaitOutcome
from duewheel.triggers.answer import AnswerTrigger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow.sdk import Context

ON_TIMEOUT = ("return", "fail", "skip")
"""What a timeout does to the task."""

KEY = "{{ dag.dag_id }}/{{ run_id }}/{{ ti.task_id }}/{{ ti.map_index }}"
"""The key under which a task waits unless it is given one."""


class WaitForAnswerOperator(CheckedWhenMapped, BaseOperator):
    """Wait until a program answers, or until the timeout.

    A key names one wait: another task that waits under the same key takes it over, and this one ends as
    recalled. An answer that was given early under the key, before the task ran, ends the wait at once. It
    is used for one wait: a task that is cleared waits for another answer.

    Args:
        topic: the topic of the wait, of type DELAY. It has to exist (see ``CreateTopicOperator``).
        timeout: the longest wait, by the database's clock. Text may be an ISO 8601 duration or ``H:MM:SS``.
        key: the name by which the run is answered, 1 to 255 characters.
        body: the body of the message that is the timeout; the page shows it.
        on_timeout: what a timeout does: ``return`` returns the outcome, ``fail`` fails the task without
            retries, ``skip`` skips it.
        duewheel_conn_id: the connection to the broker.

    Returns:
        A dictionary, as the task's XCom: ``outcome`` is ``answered``, ``timed_out`` or ``recalled``;
        ``answer`` is the body of the answer, or None; ``message_id`` names the message.

    Raises:
        UnknownTopic, WrongMessageType, DelayOutOfRange, InvalidKey, ...: the errors of ``Broker.send``.
        AirflowFailException: the timeout passed and ``on_timeout`` is ``fail``; or the message is no longer
            kept, so the outcome is not known.
        AirflowSkipException: the timeout passed and ``on_timeout`` is ``skip``; or the wait was recalled and
            ``on_timeout`` is not ``return``.

    Example::

        WaitForAnswerOperator(
            task_id="approval", topic="approvals", key="order-{{ params.order_id }}", timeout="PT2H"
        )
    """

    template_fields: Sequence[str] = ("topic", "key", "timeout", "body", "duewheel_conn_id")
    ui_color = "#dfe9f5"
    operator_extra_links = (MessageLink(), TopicLink())

    #: The message that the task links to, once it is sent.
    linked_message_id: str | None = None

    def __init__(
        self,
        *,
        topic: str,
        timeout: timedelta | str,
        key: str = KEY,
        body: Any = None,
        on_timeout: str = "return",
        duewheel_conn_id: str = DueWheelHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_topic(topic)
        check_message(body=body)
        check_span(timeout, "timeout", at_least=timedelta(0))
        check_key(key)
        check_choice(on_timeout, "on_timeout", ON_TIMEOUT)
        self.topic = topic
        self.timeout = timeout
        self.key = key
        self.body = body
        self.on_timeout = on_timeout
        self.duewheel_conn_id = duewheel_conn_id

    def execute(self, context: Context) -> Any:
        """Send the timeout and wait in the triggerer."""
        timeout = as_span(self.timeout, "timeout")
        if timeout is None:
            raise InvalidArgument("timeout is empty: give a span of time, such as PT2H")
        with DueWheelHook(self.duewheel_conn_id).connected() as broker:
            receipt = broker.begin_wait(
                self.topic,
                self.key,
                timeout,
                as_body(self.body),
                idempotency_key=self._idempotency_key(context),
            )
            if not timeout:
                # No answer can be in time. In a test whose clock is stopped, no wheel would release it.
                broker.tick(self.topic)
        if receipt.outcome is SendOutcome.DUPLICATE:
            self.log.info("An earlier try has sent message %s; the wait continues", receipt.message_id)
        else:
            self.log.info(
                "Waiting for an answer to key %r on topic %s until %s, as message %s",
                self.key,
                self.topic,
                receipt.deliver_at.isoformat(),
                receipt.message_id,
            )
        # The key may have been answered early.
        return self._end_or_defer(context, receipt.message_id)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Return the outcome after a wake-up."""
        return self._end_or_defer(context, event["message_id"])

    def ended(self, context: Context, result: dict[str, Any]) -> None:
        """Called when the wait has ended and the task will succeed; a subclass chooses its branch here."""

    def _idempotency_key(self, context: Context) -> str | None:
        """The same for all tries of the task, and a new one after it was cleared."""
        name = task_key(context)
        if name is None:
            return None
        return f"{name}/wait/{tries_before_clear(context, self.retries)}"

    def _end_or_defer(self, context: Context, message_id: str) -> Any:
        self.linked_message_id = message_id
        with DueWheelHook(self.duewheel_conn_id).connected() as broker:
            wait = broker.find_wait(message_id)
        if wait.outcome is WaitOutcome.WAITING:
            return self.defer(
                trigger=AnswerTrigger(message_id, self.topic, self.duewheel_conn_id),
                method_name="execute_complete",
            )
        self.log.info("Key %r on topic %s: %s", self.key, self.topic, wait.outcome)
        self._fail_or_skip(wait, message_id)
        result = {"outcome": wait.outcome.value, "answer": wait.body, "message_id": message_id}
        self.ended(context, result)
        return result

    def _fail_or_skip(self, wait: Wait, message_id: str) -> None:
        if wait.outcome is WaitOutcome.NOT_FOUND:
            raise AirflowFailException(
                f"Whether key {self.key!r} was answered is no longer known: message {message_id} on topic "
                f"{self.topic} is past retention, or the topic was deleted. Clear the task to wait "
                "again, and give the topic a retention longer than Airflow may be away for."
            )
        if wait.outcome is WaitOutcome.TIMED_OUT and self.on_timeout == "fail":
            raise AirflowFailException(
                f"No answer to key {self.key!r} on topic {self.topic} within {self.timeout}."
            )
        if wait.outcome is not WaitOutcome.ANSWERED and self.on_timeout != "return":
            raise AirflowSkipException(f"No answer to key {self.key!r} on topic {self.topic}: {wait.outcome}")


class WaitForAnswerBranchOperator(WaitForAnswerOperator, BranchMixIn):
    """Wait as :class:`WaitForAnswerOperator` does, and continue with one branch or another.

    After a recall, all tasks directly after this one are skipped.

    Args:
        if_answered: the ids of the tasks or task groups to continue with after an answer: one, a list, or a
            function of the answer's body that returns one or a list. The function also gets the values of
            Airflow's context that its parameters name.
        if_timed_out: the ids to continue with after the timeout.
        kwargs: the arguments of ``WaitForAnswerOperator``, but for ``on_timeout``.

    Example::

        WaitForAnswerBranchOperator(
            task_id="approval",
            topic="approvals",
            timeout="PT2H",
            if_answered=lambda answer: "ship" if answer["approved"] else "refuse",
            if_timed_out="escalate",
        )
    """

    inherits_from_skipmixin = True

    def __init__(
        self,
        *,
        if_answered: str | list[str] | Callable[..., str | list[str]],
        if_timed_out: str | list[str],
        **kwargs: Any,
    ) -> None:
        if "on_timeout" in kwargs:
            raise InvalidArgument("on_timeout is not an argument here: if_timed_out names the tasks")
        super().__init__(**kwargs)
        self.if_answered = if_answered
        self.if_timed_out = if_timed_out

    def ended(self, context: Context, result: dict[str, Any]) -> None:
        """Push the result and skip the branches that are not chosen."""
        # Skipping ends the task, so it returns nothing.
        if self.do_xcom_push:
            context["ti"].xcom_push(key=BaseXCom.XCOM_RETURN_KEY, value=result)
        chosen: str | list[str] | None = None
        if result["outcome"] == WaitOutcome.TIMED_OUT:
            chosen = self.if_timed_out
        elif result["outcome"] == WaitOutcome.ANSWERED:
            chosen = (
                call(self.if_answered, [result["answer"]], {}, context)
                if callable(self.if_answered)
                else self.if_answered
            )
        self.do_branch(context, chosen)
