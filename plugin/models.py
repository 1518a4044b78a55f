"""What the page's API takes and answers. Instants are ISO 8601 in UTC.

The types of the page's sources are made from these.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

#: How many messages one request acts on.
MOST_AT_ONCE = 200

MessageId = Annotated[str, Field(pattern="^[0-9a-f]{44}$")]
Text = Annotated[str, Field(min_length=1, max_length=255)]


class Model(BaseModel):
    """An answer; made from the store's objects by their attributes."""

    model_config = ConfigDict(from_attributes=True)


class Question(BaseModel):
    """A request; what it does not know is refused."""

    model_config = ConfigDict(extra="forbid")


class BrokerChoice(Model):
    """A broker that the user may see, and what else the user may do there."""

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


class DueStep(Model):
    """The messages of a topic that are due within one step of time."""

    topic: str
    step: int
    messages: int
    exact: bool


class DueHistogram(Model):
    """What is due when."""

    from_at: datetime
    step_seconds: float
    steps: int
    due: list[DueStep]
    complete: bool


class FlowStep(Model):
    """What all groups did within one step of time."""

    step: int
    received: int
    acked: int
    failed: int


class Lateness(Model):
    """How late the newest ticks of a topic were."""

    topic: str
    ticks: int
    p50_seconds: float
    p99_seconds: float
    newest_at: datetime
    by_wheel: bool


class Wheel(Model):
    """A wheel; one without a name stands for all that its login has on its machine."""

    name: str | None
    login: str
    client_address: str | None
    connections: int
    started_at: datetime | None
    active_at: datetime | None


class Topic(Model):
    """A topic's numbers."""

    topic: str
    message_type: str
    waiting: int
    waiting_is_exact: bool
    next_due_at: datetime | None
    released_to: datetime | None
    stragglers: int


class Group(Model):
    """A group's numbers on a topic."""

    group: str
    topic: str
    ready: int
    oldest_deliver_at: datetime | None
    inflight: int
    waiting_retry: int
    dead: int


class Overview(Model):
    """The first view. ``overdue``: topics where something is due for 5 s and not released."""

    now_at: datetime
    due: DueHistogram
    past: DueHistogram
    flow: list[FlowStep]
    lateness: list[Lateness]
    wheels: list[Wheel]
    overdue: list[str]
    groups: list[Group]
    more_groups: bool


class Topics(Model):
    """A page of topics; ``next`` is what the next one comes after."""

    topics: list[Topic]
    next: str | None


class Groups(Model):
    """The groups of a page of topics."""

    groups: list[Group]
    next: str | None


class Lease(Model):
    """Messages in the hands of a consumer."""

    group: str
    topic: str
    queue: int
    consumer: str | None
    leased_at: datetime
    expires_at: datetime
    messages: int
    answered: int
    is_retry: bool


class Leases(Model):
    """The leases that run, those that end first at the top."""

    now_at: datetime
    leases: list[Lease]


class Retry(Model):
    """A message that waits for its next attempt."""

    group: str
    topic: str
    message_id: str
    key: str | None
    tag: str | None
    attempt: int
    deliver_at: datetime
    reason: str | None


class Retries(Model):
    """What waits for its next attempt, the next one first."""

    retries: list[Retry]


class DeadLetter(Model):
    """A dead letter without its body."""

    topic: str
    message_id: str
    key: str | None
    tag: str | None
    born_at: datetime
    dead_at: datetime
    attempt: int
    reason: str | None
    redriven_at: datetime | None


class DeadLetters(Model):
    """The oldest dead letters of a group."""

    dead_letters: list[DeadLetter]


class Schedule(Model):
    """A schedule and what comes next."""

    name: str
    topic: str
    cron: str | None
    every_seconds: float | None
    timezone: str
    misfire: str
    next_at: datetime | None
    last_at: datetime | None
    paused_at: datetime | None


class Schedules(Model):
    """All schedules, by name."""

    schedules: list[Schedule]


class ListedMessage(Model):
    """A message in a list."""

    topic: str
    message_id: str
    key: str | None
    tag: str | None
    born_at: datetime
    deliver_at: datetime
    released: bool
    recalled: bool


class Messages(Model):
    """A page of messages; there may be fewer than asked for, or none, before the end."""

    now_at: datetime
    messages: list[ListedMessage]
    next: str | None


class HistoryEntry(Model):
    """One state of a message."""

    consumer_group: str | None
    state: str
    at: datetime | None
    until_at: datetime | None
    attempt: int | None
    consumer: str | None
    reason: str | None


class Body(Model):
    """A body for people: as text where it is one, else as hexadecimal; the beginning of a long one."""

    kind: Literal["json", "text", "hex"]
    text: str
    size_bytes: int
    shown_bytes: int


class OneMessage(Model):
    """A message with all that happened to it."""

    now_at: datetime
    topic: str
    message_id: str
    key: str | None
    tag: str | None
    message_group: str | None
    properties: dict[str, object]
    born_at: datetime
    asked_at: datetime | None
    deliver_at: datetime
    released: bool
    recalled: bool
    body: Body | None
    history: list[HistoryEntry]


class TaskMessage(Model):
    """A message that a task instance sent, or received where it has a ``leased_at``."""

    message_id: str
    key: str | None
    tag: str | None
    born_at: datetime
    deliver_at: datetime
    attempt: int
    leased_at: datetime | None


class TaskMessages(Model):
    """What a task instance sent and received; at most 200 of each."""

    now_at: datetime
    messages: list[TaskMessage]


class SomeMessages(Question):
    """The messages that a request is about."""

    message_ids: list[MessageId] = Field(min_length=1, max_length=MOST_AT_ONCE)


class NewInstant(SomeMessages):
    """Where to move messages: one of the two. A delay of 0 delivers now."""

    deliver_at: AwareDatetime | None = None
    delay_seconds: float | None = Field(default=None, ge=0, le=3660 * 86_400)

    @model_validator(mode="after")
    def _one_of_both(self) -> NewInstant:
        if (self.deliver_at is None) == (self.delay_seconds is None):
            raise ValueError("give one of deliver_at and delay_seconds")
        return self


class Outcome(Model):
    """What became of one message: ``recalled``, ``rescheduled``, ``already_released``, ``not_found`` or
    ``refused``."""

    message_id: str
    outcome: str
    detail: str | None = None
    new_message_id: str | None = None
    deliver_at: datetime | None = None


class Outcomes(Model):
    """What became of each message, in the order of the request."""

    outcomes: list[Outcome]


class Matching(Question):
    """All waiting messages of a topic that meet each criterion given."""

    topic: Text
    tag: Text | None = None
    key_prefix: Text | None = None
    due_from: AwareDatetime | None = None
    due_until: AwareDatetime | None = None
    dry_run: bool = True


class Matched(Model):
    """How many matched, were taken back, and for how many it was too late."""

    matched: int
    recalled: int
    already_released: int


class Redrive(Question):
    """Which dead letters to send again: those of the ids, or all that meet each criterion."""

    group: Text
    topic: Text | None = None
    message_ids: list[MessageId] | None = Field(default=None, min_length=1, max_length=MOST_AT_ONCE)
    tag: Text | None = None
    key_prefix: Text | None = None
    reason_contains: Text | None = None
    max_messages: int | None = Field(default=None, ge=1, le=10_000)
    dry_run: bool = True


class Redriven(Model):
    """How many matched, and how many were sent again."""

    matched: int
    redriven: int


class Rewind(Question):
    """Where to set a group back to: an instant, ``earliest`` or ``latest``."""

    group: Text
    topic: Text
    to: AwareDatetime | Literal["earliest", "latest"]


class Rewound(Model):
    """What a rewind did."""

    leases_ended: int
    messages_returned: int
    retries_taken_back: int


class ScheduleName(Question):
    """The schedule that a request is about."""

    name: Text


class Done(Model):
    """It was done."""

    done: Literal[True] = True
