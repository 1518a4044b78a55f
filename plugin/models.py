"""The requests and answers of the page's API. Instants are ISO 8601 in UTC.

An answer that needs no more than the store returns is one of the store's own dataclasses. The types in the
page's sources are generated from all of them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from duewheel.store.operations import dead_letter_pages, overview, statistics
from duewheel.store.operations.dead_letters import CHUNK
from duewheel.store.values.messages import OutOfRange
from duewheel.store.values.stored_messages import HistoryEntry, ListedMessage

#: How many messages one request may act on.
MOST_AT_ONCE = 200
#: The end of a portion of a bulk recall, of a bulk reschedule and of a redrive, in the store's form.
_INSTANT = r'"([0-9T:.+-]{19,40}|-?infinity)"'
_PLACE = (
    rf'"at": {_INSTANT}, "hi": {_INSTANT}, "seq": [0-9]{{1,19}}, "slot": {_INSTANT}, '
    r'"queue": [0-9]{1,5}'
)
_PLACE_IN_RECALL = rf"^\{{{_PLACE}\}}$"
_PLACE_IN_MOVE = rf'^\{{{_PLACE}, "before": [0-9]{{1,19}}\}}$'
_PLACE_IN_REDRIVE = (
    rf'^\{{"at": {_INSTANT}, "seq": [0-9]{{1,19}}, "topic": [0-9]{{1,9}}, "before": [0-9]{{1,19}}\}}$'
)

MessageId = Annotated[str, Field(pattern="^[0-9a-f]{44}$")]
Text = Annotated[str, Field(min_length=1, max_length=255)]


class Model(BaseModel):
    """An answer."""


class Question(BaseModel):
    """A request; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class BrokerChoice(Model):
    """A broker that the user may see, and the user's other rights there."""

    connection_id: str
    may_read_bodies: bool
    may_act: bool


class BrokerChoices(Model):
    """The brokers to choose from."""

    brokers: list[BrokerChoice]
    version: str


class Problem(Model):
    """Why a request was not carried out: the error's name and a sentence for people."""

    error: str
    detail: str


class Axis(Model):
    """The numbers of messages by the instant they are due. The first ``past_steps`` end before now, and
    ``past_messages`` of the step after them are due before now. Of ``topics`` that have messages,
    ``counted_topics`` were counted. The largest topics have their own steps; the topic "" is the sum of all
    others. If it is not ``complete``, there was no time for topics with few messages."""

    from_at: datetime
    step_seconds: float
    steps: int
    past_steps: int
    past_messages: int
    past_messages_is_exact: bool
    due: list[overview.DueStep]
    topics: int
    counted_topics: int
    complete: bool


class TopicLateness(Model):
    """How late the newest ticks of a topic were."""

    topic: str
    ticks: int
    p50_seconds: float
    p99_seconds: float
    newest_at: datetime
    by_wheel: bool


class Shared(Model):
    """An answer that all users share; it is computed again after ``shared_seconds``, of which
    ``next_in_seconds`` are left. ``age_seconds``: the time since it was computed."""

    # Set once the cost of the answer is known.
    shared_seconds: float = 0.0
    next_in_seconds: float = 0.0
    age_seconds: float = 0.0


#: Each is the kind of an alert rule in docs/how-to/alert-rules.yml.
FaultKind = Literal[
    "abandoned",
    "dead_letters",
    "dropped_soon",
    "lags",
    "leases_expire",
    "takes_nothing",
    "upkeep_held_up",
    "upkeep_overdue",
]


class Fault(Model):
    """A fault of a group or of upkeep; of each kind the worst six, the worst first. ``others``: how many
    groups have it less badly. ``number``: of messages, dead letters or leases."""

    kind: FaultKind
    group: str | None
    topic: str | None
    number: int | None
    since_at: datetime | None
    others: int


class AllGroups(Shared):
    """The numbers of the groups on all topics. ``groups_to``: the last topic, by name, for which there was
    time; null if there was time for all, and the empty string if for none. ``faults``: of groups and
    of upkeep; null: they were not read in time."""

    now_at: datetime
    groups: list[statistics.GroupNumbers]
    groups_to: str | None
    faults: list[Fault] | None


class Pulse(Shared):
    """The state of a broker in a few numbers. ``overdue``: topics with messages that have been due for 5 s
    without a release; ``overdue_messages``: how many, of the first five. ``lag``: the group whose oldest
    ready message is the oldest of all groups that are not paused. ``late``: the topic that was released
    latest in the last 5 minutes, of all topics if ``late_has_all``. ``faults``, ``dead``, ``lag`` and
    ``groups_to`` are of ``groups_at``; null: the numbers of the groups were not read in time."""

    now_at: datetime
    wheels: list[overview.TurningWheel]
    overdue: list[overview.OverdueTopic]
    overdue_has_more: bool
    overdue_messages: list[overview.DueStep]
    waiting: int
    waiting_is_exact: bool
    groups_at: datetime | None
    groups_to: str | None
    faults: list[Fault] | None
    dead: int | None
    lag: statistics.GroupNumbers | None
    late: TopicLateness | None
    late_has_all: bool


class Overview(Shared):
    """The first view. ``flow``: of the axis, if its steps are of a minute or less. ``held_up_by``: the
    sessions that have held upkeep up for an hour. ``missing``: which of ``flow`` and ``lateness`` was not
    read in time, or not for all topics."""

    now_at: datetime
    axis: Axis
    flow: list[overview.FlowStep]
    lateness: list[TopicLateness]
    held_up_by: list[statistics.UpkeepHolder]
    missing: list[Literal["flow", "lateness"]]


class TopicDay(Model):
    """How late the newest releases of a topic were in each hour of a day; null if nothing was released."""

    topic: str
    p99_seconds: list[float | None]


class DayLateness(Shared):
    """The lateness of the last day by hour, the latest topic first. ``looked_at_hours``: how many hours, the
    newest, there was time for."""

    from_at: datetime
    hours: int
    looked_at_hours: int
    topics: list[TopicDay]


class Watcher(Model):
    """A watcher of an asset that starts DAGs. ``triggerer``: the machine of the triggerer that has it.
    ``rang_at``: Airflow's last event of it. ``problem``: why it cannot ring now, and what to do."""

    dags: list[str]
    asset: str
    name: str
    connection_id: str
    topic: str
    group: str
    triggerer: str | None
    rang_at: datetime | None
    problem: str | None


class Watchers(Model):
    """The watchers of all DAGs; ``more``: there are further ones."""

    now_at: datetime
    watchers: list[Watcher]
    more: bool


class WaitingConsumers(Model):
    """The consumers that wait for messages, at most 200; ``more``: there are further ones."""

    now_at: datetime
    consumers: list[overview.WaitingConsumer]
    more: bool


class Topics(Model):
    """A page of topics; ``next`` is the ``after`` of the next page."""

    now_at: datetime
    topics: list[statistics.TopicNumbers]
    next: str | None


class TopicSettings(Model):
    """The settings of a topic."""

    queues: int
    max_delay_seconds: float
    out_of_range: OutOfRange
    granularity_seconds: float
    retention_seconds: float
    dead_letter_retention_seconds: float
    delay_levels_seconds: list[float]
    created_at: datetime


class OneTopic(Model):
    """A topic with its settings and its numbers."""

    now_at: datetime
    numbers: statistics.TopicNumbers
    settings: TopicSettings


class Groups(Model):
    """The groups of a page of topics, or the neediest of all topics; ``progress``: how far those have read.
    ``groups_to``: the last topic, by name, for which there was time."""

    now_at: datetime
    groups: list[statistics.GroupNumbers]
    progress: list[statistics.GroupProgress]
    next: str | None
    groups_to: str | None


class Names(Shared):
    """The first thousand topics and groups by name, to complete what a user types."""

    topics: list[str]
    groups: list[str]


class Leases(Model):
    """The open leases, the next to end first; ``more``: there may be further ones."""

    now_at: datetime
    leases: list[overview.RunningLease]
    more: bool


class Retries(Model):
    """Messages that wait for their next attempt, the next one first."""

    retries: list[overview.WaitingRetry]


class DeadLetters(Model):
    """A page of a group's dead letters. A page before the end may have fewer than asked for, or none."""

    now_at: datetime
    dead_letters: list[dead_letter_pages.ListedDeadLetter]
    next: str | None


class DeadLetterReasons(Model):
    """The reasons of a group's open dead letters, the most frequent first. If it is ``complete``, it counts
    all that died before ``now_at``; otherwise there may be more."""

    now_at: datetime
    reasons: list[dead_letter_pages.DeadLetterReason]
    complete: bool


class Schedule(Model):
    """A schedule and its next occurrence."""

    name: str
    topic: str
    cron: str | None
    every_seconds: float | None
    timezone: str
    misfire: str
    next_at: datetime | None
    last_at: datetime | None
    paused_at: datetime | None


class WaitingRun(Model):
    """A task instance that waits for an answer under a key, and times out at ``deliver_at``. ``task`` is its
    name."""

    task: str
    topic: str
    key: str | None
    message_id: str
    born_at: datetime
    deliver_at: datetime


class WaitingRuns(Model):
    """The task instances that wait for an answer, at most 200; ``more``: there may be further ones."""

    now_at: datetime
    runs: list[WaitingRun]
    more: bool


class EarlyAnswer(Model):
    """An answer that no run has taken yet; ``answer`` is null for users who may not read bodies."""

    topic: str
    key: str
    answer: Any
    until_at: datetime


class EarlyAnswers(Model):
    """The early answers, at most 200; ``more``: there are further ones; ``may_read``: contents are here."""

    now_at: datetime
    answers: list[EarlyAnswer]
    more: bool
    may_read: bool


class Schedules(Model):
    """All schedules, by name."""

    now_at: datetime
    schedules: list[Schedule]


class Messages(Model):
    """A page of messages. A page before the end may have fewer than asked for, or none."""

    now_at: datetime
    messages: list[ListedMessage]
    next: str | None


class Count(Model):
    """The number of all rows of a list that has pages; if it is not exact, there are more."""

    messages: int
    exact: bool


class DeadLetterCount(Count):
    """How many dead letters there are. All that died before ``now_at`` are among them."""

    now_at: datetime


class Body(Model):
    """A body as people read it: text if it is text, else hexadecimal; only the beginning of a long one."""

    kind: Literal["json", "text", "hex"]
    text: str
    size_bytes: int
    shown_bytes: int


class OneMessage(Model):
    """A message with its history; ``sent_by_task`` is the name of a task instance. ``edited_to``: by group,
    the message that replaced its dead letter. ``awaits_answer``: it is the timeout of a run that waits for
    an answer to its key."""

    now_at: datetime
    topic: str
    message_id: str
    key: str | None
    tag: str | None
    message_group: str | None
    properties: dict[str, object]
    sent_by_task: str | None
    awaits_answer: bool
    born_at: datetime
    asked_at: datetime | None
    deliver_at: datetime
    released: bool
    recalled: bool
    moved_from: str | None
    replaced_by: str | None
    body: Body | None
    history: list[HistoryEntry]
    edited_to: dict[str, str]


class Action(Model):
    """An action of a user on a message."""

    at: datetime
    user: str
    action: str


class Actions(Model):
    """The users who acted on a message from the page; none if the user may not read Airflow's audit log."""

    actions: list[Action]
    may_read: bool


class RecentAction(Model):
    """What another user has just done: ``discard``, ``redrive``, ``recall_matching`` and so on."""

    at: datetime
    action: str


class RecentActions(Model):
    """What other users have just done; at most 1 000 actions on the whole broker are searched."""

    actions: list[RecentAction]


class TaskMessages(Model):
    """The messages that a task instance sent and received; at most 200 of each."""

    now_at: datetime
    messages: list[overview.NamedMessage]


class Acted(Model):
    """The answer to an act. ``pulse``: the numbers of the broker after it; null after a dry run, before the
    last portion, and if they could not be read."""

    pulse: Pulse | None = None


class SomeMessages(Question):
    """The messages that a request acts on."""

    message_ids: list[MessageId] = Field(min_length=1, max_length=MOST_AT_ONCE)


class Answer(Question):
    """An answer to the run that waits under the key of a message; ``body`` is JSON text."""

    message_id: MessageId
    body: Annotated[str, Field(max_length=64 * 1024)]


class EarlyAnswerName(Question):
    """The early answer that a request withdraws."""

    topic: Text
    key: Text


class Withdrawn(Acted):
    """Whether there was an early answer; a run may have taken it."""

    withdrawn: bool


class SomeRetries(SomeMessages):
    """Messages that wait for their next attempt in a group."""

    group: Text


class NewInstant(Question):
    """The new delivery time of messages: one of the two fields. A delay of 0 delivers now."""

    deliver_at: AwareDatetime | None = None
    delay_seconds: float | None = Field(default=None, ge=0, le=3660 * 86_400)

    @model_validator(mode="after")
    def _one_of_both(self) -> NewInstant:
        if (self.deliver_at is None) == (self.delay_seconds is None):
            raise ValueError("give one of deliver_at and delay_seconds")
        return self


class MoveSome(SomeMessages, NewInstant):
    """The messages to move, and their new delivery time."""


class Outcome(Model):
    """The outcome for one message: ``recalled``, ``rescheduled``, ``replaced``, ``already_released``,
    ``not_found`` or ``refused``; of a retry ``due_now`` or ``not_waiting``; of an answer ``answered``,
    ``too_late``, ``already_answered``, ``recalled`` or ``not_found``. If the broker failed partway,
    ``unknown`` for one message and ``not_tried`` for the rest. ``new_message_id``: if it differs, the id that
    the message has now, or the id of the message that replaced it."""

    message_id: str
    outcome: str
    detail: str | None = None
    new_message_id: str | None = None
    deliver_at: datetime | None = None


class Outcomes(Acted):
    """The outcome for each message, in the order of the request."""

    outcomes: list[Outcome]


class Answered(Acted, Outcome):
    """The outcome of an answer to a run that waits."""


class Matching(Question):
    """All waiting messages of a topic that meet every given criterion, or a count of them."""

    topic: Text
    tag: Text | None = None
    key_prefix: Text | None = None
    due_from: AwareDatetime | None = None
    due_until: AwareDatetime | None = None
    dry_run: bool = True


class RecallMatching(Matching):
    """The messages to recall."""

    #: The end of the previous portion, from its answer.
    after: Annotated[str, Field(pattern=_PLACE_IN_RECALL)] | None = None


class MoveMatching(Matching, NewInstant):
    """The messages to move, and their new delivery time. The request for the next portion gives the instant
    that the answer for the first has."""

    #: The end of the previous portion, from its answer.
    after: Annotated[str, Field(pattern=_PLACE_IN_MOVE)] | None = None


class MovedPortion(Acted):
    """The result of one portion of a bulk reschedule: how many of its messages were moved to ``deliver_at``.
    The others were released, recalled or moved meanwhile. ``next`` is null at the end."""

    matched: int
    moved: int
    deliver_at: datetime
    next: str | None


class RecalledPortion(Acted):
    """The result of one portion of a bulk recall. The request for the next portion repeats this ``due_from``
    and passes on ``next``, which is null at the end."""

    matched: int
    recalled: int
    already_released: int
    due_from: datetime | None
    next: str | None


class SomeDeadLetters(Question):
    """The dead letters to act on: by their ids, or all that meet every criterion."""

    group: Text
    topic: Text | None = None
    message_ids: list[MessageId] | None = Field(default=None, min_length=1, max_length=MOST_AT_ONCE)
    tag: Text | None = None
    key_prefix: Text | None = None
    reason_contains: Text | None = None
    reason_lacks: Text | None = None
    dead_from: AwareDatetime | None = None
    dead_until: AwareDatetime | None = None
    reason: Annotated[str, Field(min_length=1, max_length=100_000)] | None = None
    #: How many one portion has at most.
    max_messages: int | None = Field(default=None, ge=1, le=CHUNK)
    #: The end of the previous portion, from its answer.
    after: Annotated[str, Field(pattern=_PLACE_IN_REDRIVE)] | None = None
    dry_run: bool = True


class DeadLetterPortion(Acted):
    """The result of one portion of a redrive or a discard: how many of the matching dead letters were done.
    Other requests did the rest meanwhile. ``next`` is null at the end."""

    matched: int
    done: int
    next: str | None


class EditedDeadLetter(Question):
    """A dead letter to send again as a new message with another body and other properties."""

    group: Text
    message_id: MessageId
    body: Annotated[str, Field(max_length=4 * 1024 * 1024)]
    properties: dict[str, Any]


class Sent(Acted):
    """The id of a message; ``is_new``: this request has sent it, and not an earlier one."""

    message_id: str
    is_new: bool


class Rewind(Question):
    """The place to set a group back to: an instant, ``earliest`` or ``latest``."""

    group: Text
    topic: Text
    to: AwareDatetime | Literal["earliest", "latest"]


class Rewound(Acted):
    """The result of a rewind, as :class:`duewheel.store.values.bulk_results.Rewound` has it."""

    leases_ended: int
    messages_returned: int
    retries_recalled: int


class GroupName(Question):
    """The group that a request acts on, on one topic."""

    group: Text
    topic: Text


class LeaseName(Question):
    """The lease that a request ends. Its group and topic are for the audit log."""

    group: Text
    topic: Text
    lease_id: Annotated[str, Field(pattern=r"^[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,4}\.[0-9]{1,18}\.[0-9]{1,18}$")]


class Released(Acted):
    """How many messages of a lease are ready again or are dead letters; null if the lease had ended."""

    messages: int | None


class ScheduleName(Question):
    """The schedule that a request acts on."""

    name: Text


class Done(Acted):
    """The request was carried out."""

    done: Literal[True] = True
