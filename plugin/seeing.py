"""The routes that show: each takes the right to see, and changes nothing."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, TypeVar
from weakref import WeakKeyDictionary

from fastapi import APIRouter, Depends, Query
from pydantic import AwareDatetime

from duewheel import __version__
from duewheel.hooks.task_broker import SENT_BY_TASK
from duewheel.hooks.task_name import task_name
from duewheel.plugin import models
from duewheel.plugin.bodies import readable
from duewheel.plugin.brokers import Brokers
from duewheel.plugin.rights import Seeing, may_act, may_read_bodies, may_see
from duewheel.store import Broker, UnknownMessage
from duewheel.store.operations import overview
from duewheel.store.values.dead_letters import DeadLetterFilter

router = APIRouter(prefix="/api")
brokers = Brokers()

#: The spans of the chart of due messages: the length of a step, and the number of steps.
SPANS: Final = {
    "minute": (timedelta(seconds=1), 60),
    "hour": (timedelta(minutes=1), 60),
    "days": (timedelta(hours=1), 72),
}
#: The end of a page of dead letters, in the store's form.
_PLACE: Final = r'^\{"at": "[0-9T:.+-]{19,40}", "seq": [0-9]{1,19}, "topic": [0-9]{1,9}\}$'
#: How long a page of dead letters is looked for.
_LONGEST_LOOK_SECONDS: Final = 1.0
#: The form of ``task_address``. Any other value of the property is the sender's own.
_TASK_NAME: Final = re.compile(r"airflow:[\w.~:+-]{1,250}/[\w.~:+-]{1,250}/[\w.~:+-]{1,250}/-?\d{1,9}")
_HOUR: Final = timedelta(hours=1)
_MINUTE: Final = timedelta(minutes=1)
#: The hours of the last day, the one that has begun among them.
_HOURS: Final = 24
_RECENTLY: Final = timedelta(minutes=5)
#: A topic whose next message is due for longer than this is not being released.
_LONG_DUE: Final = timedelta(seconds=5)
#: The messages of so many of these topics are counted, each for so long.
_COUNTED_OVERDUE: Final = 5
_OVERDUE_MS: Final = 10
#: The number of groups that the first view shows, and that a list of the neediest has.
_FIRST_GROUPS: Final = 10
_NEEDIEST: Final = 200
#: How long the view of all topics may take, of which the messages due ahead get what the others leave; how
#: long those that came due and those of groups may be counted, and what waits. One topic gets what it needs.
_VIEW_MS: Final = 230
_LEAST_DUE_MS: Final = 50
_PAST_MS: Final = 100
_GROUPS_MS: Final = 100
_WAITING_MS: Final = 50
_ONE_TOPIC_MS: Final = 3_000
#: All requests within this time get the same answer. One that costs more is kept until computing it takes
#: 0.2 per cent of a core, as an open page asks for three of them again and again, but no longer than 90 s.
_SHARED_SECONDS: Final = 2.0
_COST_FACTOR: Final = 500
_COSTS: Final = 3
_LONGEST_SHARED_SECONDS: Final = 90.0
#: The lateness of whole hours.
_LONGEST_DAY_SECONDS: Final = 300.0

OptionalText = Annotated[str | None, Query(min_length=1, max_length=255)]

#: The longest id that Airflow allows.
TaskText = Annotated[str, Query(min_length=1, max_length=250)]


_Answer = TypeVar("_Answer", bound=models.Shared)
_Part = TypeVar("_Part")


@dataclass(frozen=True)
class _Kept:
    answer: models.Shared
    until: float
    costs: tuple[float, ...]


class _Shared:
    """The newest answers to a question that many users ask, or one user asks repeatedly.

    The longer an answer takes to compute, the longer it is kept, so that all computing takes a small share of
    a core. The middle one of the last three costs counts, since a single slow one may be an accident, and a
    single quick one may have found what another answer had just read.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: dict[tuple[Any, ...], _Kept] = {}

    def get(self, key: tuple[Any, ...]) -> models.Shared | None:
        with self._lock:
            kept = self._answers.get(key)
        left_seconds = 0.0 if kept is None else kept.until - time.monotonic()
        if kept is None or left_seconds <= 0:
            return None
        return kept.answer.model_copy(update={"next_in_seconds": left_seconds})

    def put(
        self,
        key: tuple[Any, ...],
        answer: models.Shared,
        cost_seconds: float,
        longest_seconds: float = _LONGEST_SHARED_SECONDS,
    ) -> None:
        now = time.monotonic()
        with self._lock:
            before = self._answers.get(key)
            costs = (*(before.costs if before else ()), cost_seconds)[-_COSTS:]
            share = sorted(costs)[_COSTS // 2] * _COST_FACTOR if len(costs) == _COSTS else 0.0
            answer.shared_seconds = min(longest_seconds, max(_SHARED_SECONDS, share))
            answer.next_in_seconds = answer.shared_seconds
            until = now + answer.shared_seconds
            self._answers = {
                known: one
                for known, one in self._answers.items()
                if now < one.until + _LONGEST_SHARED_SECONDS and known != key
            } | {key: _Kept(answer, until, costs)}

    def forget(self, connection_id: str) -> None:
        """Work out anew what is asked next about a broker; what it has cost is still known.

        No act changes how late releases were, and looking at a day again costs the most.
        """
        now = time.monotonic()
        with self._lock:
            self._answers = {
                key: replace(kept, until=min(kept.until, now))
                if key[1] == connection_id and key[0] is not models.DayLateness
                else kept
                for key, kept in self._answers.items()
            }

    def answer(
        self,
        connection_id: str,
        key: tuple[Any, ...],
        kind: type[_Answer],
        compute: Callable[[Broker], _Answer],
        longest_seconds: float = _LONGEST_SHARED_SECONDS,
    ) -> _Answer:
        """The newest answer to a question about a broker, or a new one."""
        key = (kind, connection_id, *key)
        known = self.get(key)
        if isinstance(known, kind):
            return known
        with brokers.lend(connection_id) as broker:
            # Another request may have computed the answer while this one waited for its turn.
            known = self.get(key)
            if isinstance(known, kind):
                return known
            began = time.monotonic()
            answer = compute(broker)
            self.put(key, answer, time.monotonic() - began, longest_seconds)
        return answer


_shared = _Shared()


def acted_on(connection_id: str) -> None:
    """Somebody has acted on a broker, and looks at what came of it."""
    _shared.forget(connection_id)
    _parts.clear()


@router.get("/brokers")
def list_brokers(user: Seeing) -> models.BrokerChoices:
    """The brokers that the user may see."""
    return models.BrokerChoices(
        brokers=[
            models.BrokerChoice(
                connection_id=one,
                may_read_bodies=may_read_bodies(user, one),
                may_act=may_act(user, one),
            )
            for one in brokers.connection_ids()
            if may_see(user, one)
        ],
        version=__version__,
    )


@router.get("/brokers/{connection_id}")
def show_broker(connection_id: str, user: Seeing) -> models.BrokerChoice:
    """The user's rights on one broker, listed or not."""
    brokers.require(connection_id)
    return models.BrokerChoice(
        connection_id=connection_id,
        may_read_bodies=may_read_bodies(user, connection_id),
        may_act=may_act(user, connection_id),
    )


@router.get("/brokers/{connection_id}/overview")
def show_overview(
    connection_id: str,
    _: Seeing,
    span: Annotated[str, Query(pattern="^(minute|hour|days)$")] = "hour",
    topic: OptionalText = None,
    due_from: AwareDatetime | None = None,
) -> models.Overview:
    """The messages due ahead, or from an instant on, those released in the last hour and their lateness, the
    wheels that turn, and the state of the groups."""
    return _shared.answer(
        connection_id,
        (span, topic, due_from),
        models.Overview,
        lambda broker: _overview(broker, span, topic, due_from),
    )


@router.get("/brokers/{connection_id}/lateness")
def show_lateness(connection_id: str, _: Seeing) -> models.DayLateness:
    """How late each topic was released in each hour of the last day, the latest topic first."""
    return _shared.answer(connection_id, (), models.DayLateness, _day_lateness, _LONGEST_DAY_SECONDS)


@router.get("/brokers/{connection_id}/pulse")
def show_pulse(connection_id: str, _: Seeing) -> models.Pulse:
    """The state of a broker in one line: what has to be seen first when something is wrong."""
    return _shared.answer(connection_id, (), models.Pulse, _pulse)


@router.get("/brokers/{connection_id}/names")
def list_names(connection_id: str, _: Seeing) -> models.Names:
    """The names of topics and groups."""
    return _shared.answer(connection_id, (), models.Names, _names)


@router.get("/brokers/{connection_id}/waiting-consumers")
def list_waiting_consumers(connection_id: str, _: Seeing) -> models.WaitingConsumers:
    """The consumers that are there and wait for messages, by topic and group."""
    with brokers.lend(connection_id) as broker:
        return models.WaitingConsumers(
            now_at=overview.now(broker), consumers=overview.waiting_consumers(broker)
        )


@router.get("/brokers/{connection_id}/topics")
def list_topics(
    connection_id: str,
    _: Seeing,
    after: OptionalText = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> models.Topics:
    """A page of topics with their numbers, by name."""
    with brokers.lend(connection_id) as broker:
        now_at = overview.now(broker)
        found = overview.topic_page(broker, after, limit)
    return models.Topics(
        now_at=now_at,
        topics=found,
        next=found[-1].topic if len(found) == limit else None,
    )


@router.get("/brokers/{connection_id}/groups")
def list_groups(
    connection_id: str,
    _: Seeing,
    after: OptionalText = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    sort: Annotated[str, Query(pattern="^(topic|lag|dead)$")] = "topic",
) -> models.Groups:
    """The groups that read a page of topics, with their numbers; or of all topics the 200 that lag most, or
    have the most dead letters."""
    with brokers.lend(connection_id) as broker:
        now_at = overview.now(broker)
        if sort != "topic":
            found, groups_to = overview.all_group_numbers(broker, _ONE_TOPIC_MS)
            sort_by = overview.by_lag if sort == "lag" else overview.by_dead_letters
            neediest = sort_by(found)[:_NEEDIEST]
            return models.Groups(
                now_at=now_at,
                groups=neediest,
                progress=overview.group_progress(broker, sorted({one.topic for one in neediest})),
                next=None,
                groups_to=groups_to,
            )
        names = overview.topic_names(broker, after, limit)
        found = overview.group_numbers(broker, after, names[-1]) if names else []
        progress = overview.group_progress(broker, names)
    return models.Groups(
        now_at=now_at,
        groups=found,
        progress=progress,
        next=names[-1] if len(names) == limit else None,
        groups_to=None,
    )


@router.get("/brokers/{connection_id}/leases")
def list_leases(
    connection_id: str, _: Seeing, group: OptionalText = None, topic: OptionalText = None
) -> models.Leases:
    """The 200 open leases that end first."""
    with brokers.lend(connection_id) as broker:
        return models.Leases(
            now_at=overview.now(broker),
            leases=overview.running_leases(broker, 200, group, topic),
        )


@router.get("/brokers/{connection_id}/retries")
def list_retries(
    connection_id: str, _: Seeing, group: OptionalText = None, topic: OptionalText = None
) -> models.Retries:
    """The next 200 messages that wait for another attempt."""
    with brokers.lend(connection_id) as broker:
        found = overview.waiting_retries(broker, group, topic, 200)
    return models.Retries(retries=found)


def _dead_letters(
    group: Annotated[str, Query(min_length=1, max_length=255)],
    topic: OptionalText = None,
    redriven: bool | None = None,
    key_prefix: OptionalText = None,
    reason_contains: OptionalText = None,
    reason_lacks: OptionalText = None,
    dead_from: AwareDatetime | None = None,
    dead_until: AwareDatetime | None = None,
) -> DeadLetterFilter:
    return DeadLetterFilter(
        group, topic, redriven, key_prefix, reason_contains, reason_lacks, dead_from, dead_until
    )


#: The filter of a route on dead letters, in its query.
WhichDeadLetters = Annotated[DeadLetterFilter, Depends(_dead_letters)]


@router.get("/brokers/{connection_id}/dead-letters")
def list_dead_letters(
    connection_id: str,
    _: Seeing,
    which: WhichDeadLetters,
    after: Annotated[str | None, Query(pattern=_PLACE)] = None,
) -> models.DeadLetters:
    """A page of a group's dead letters, by topic and the oldest first."""
    ends_at = time.monotonic() + _LONGEST_LOOK_SECONDS
    with brokers.lend(connection_id) as broker:
        while True:
            found, after = overview.listed_dead_letters(broker, which, after, 200)
            # Where the oldest were all sent again, a single look sees none of the open ones.
            if found or after is None or time.monotonic() >= ends_at:
                break
        now_at = overview.now(broker)
    return models.DeadLetters(now_at=now_at, dead_letters=found, next=after)


@router.get("/brokers/{connection_id}/dead-letter-reasons")
def list_dead_letter_reasons(
    connection_id: str,
    _: Seeing,
    group: Annotated[str, Query(min_length=1, max_length=255)],
    topic: OptionalText = None,
    dead_from: AwareDatetime | None = None,
    dead_until: AwareDatetime | None = None,
) -> models.DeadLetterReasons:
    """The reasons of a group's open dead letters, the commonest first."""
    with brokers.lend(connection_id) as broker:
        # Before the list: an action on what had died by then reaches no more than the list has.
        now_at = overview.now(broker)
        found, complete = overview.dead_letter_reasons(broker, group, topic, dead_from, dead_until)
    return models.DeadLetterReasons(now_at=now_at, reasons=found, complete=complete)


@router.get("/brokers/{connection_id}/schedules")
def list_schedules(connection_id: str, _: Seeing) -> models.Schedules:
    """All schedules with their next occurrences."""
    with brokers.lend(connection_id) as broker:
        found = broker.schedules()
    return models.Schedules(
        schedules=[
            models.Schedule(
                name=one.name,
                topic=one.topic,
                cron=one.cron,
                every_seconds=None if one.every is None else one.every.total_seconds(),
                timezone=one.timezone,
                misfire=str(one.misfire),
                next_at=one.next_at,
                last_at=one.last_at,
                paused_at=one.paused_at,
            )
            for one in found
        ]
    )


@router.get("/brokers/{connection_id}/messages")
def list_messages(
    connection_id: str,
    _: Seeing,
    topic: OptionalText = None,
    state: Annotated[str, Query(pattern="^(waiting|released|recalled|moved|all)$")] = "waiting",
    key_prefix: OptionalText = None,
    tag: OptionalText = None,
    due_from: AwareDatetime | None = None,
    due_until: AwareDatetime | None = None,
    after: Annotated[str | None, Query(pattern="^[0-9a-f]{44}$")] = None,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 50,
) -> models.Messages:
    """A page of messages in the order of topic and instant, or with a key prefix of topic and key."""
    with brokers.lend(connection_id) as broker:
        page = broker.list_messages(
            topic,
            state=state,
            due_from=due_from,
            due_until=due_until,
            key_prefix=key_prefix,
            tag=tag,
            after=after,
            max_messages=limit,
        )
        return models.Messages(
            now_at=overview.now(broker),
            messages=list(page.messages),
            next=page.next,
        )


@router.get("/brokers/{connection_id}/messages/{message_id}")
def show_message(connection_id: str, message_id: str, user: Seeing) -> models.OneMessage:
    """One message with its history, and with its body for users who may read bodies."""
    with brokers.lend(connection_id) as broker:
        found = broker.find(message_id)
        if found is None:
            raise UnknownMessage("No message has this id, or its retention has ended.")
        return models.OneMessage(
            now_at=overview.now(broker),
            topic=found.topic,
            message_id=found.message_id,
            key=found.key,
            tag=found.tag,
            message_group=found.message_group,
            # Properties are as private as the body.
            properties=found.properties if may_read_bodies(user, connection_id) else {},
            sent_by_task=_task_in(found.properties),
            born_at=found.born_at,
            asked_at=found.asked_at,
            deliver_at=found.deliver_at,
            released=found.released,
            recalled=found.recalled,
            moved_from=found.moved_from,
            replaced_by=found.replaced_by,
            body=readable(found.body) if may_read_bodies(user, connection_id) else None,
            history=broker.history(message_id),
        )


@router.get("/brokers/{connection_id}/task-messages")
def list_task_messages(
    connection_id: str,
    _: Seeing,
    dag_id: TaskText,
    run_id: TaskText,
    task_id: TaskText,
    topic: Annotated[str, Query(min_length=1, max_length=255)],
    map_index: int = -1,
    group: OptionalText = None,
    since_at: AwareDatetime | None = None,
    until_at: AwareDatetime | None = None,
) -> models.TaskMessages:
    """The messages that a task instance sent and received on a topic, by its name."""
    name = task_name(dag_id, run_id, task_id, map_index)
    with brokers.lend(connection_id) as broker:
        found = overview.messages_by_name(broker, name, topic, group, since_at, until_at)
        return models.TaskMessages(now_at=overview.now(broker), messages=found)


def _task_in(properties: Mapping[str, object]) -> str | None:
    """The task instance that sent a message; its name is known in Airflow and no secret of the sender."""
    name = properties.get(SENT_BY_TASK)
    return name if isinstance(name, str) and _TASK_NAME.fullmatch(name) else None


#: What the strip and the overview both tell of all topics, by broker: a page asks for both at once.
_parts: WeakKeyDictionary[Broker, dict[Callable[[Broker], Any], tuple[float, Any]]] = WeakKeyDictionary()


def _part(broker: Broker, read: Callable[[Broker], _Part]) -> _Part:
    """What was read of a broker just now, or is read of it."""
    kept = _parts.setdefault(broker, {})
    until, part = kept.get(read, (0.0, None))
    if until < time.monotonic():
        part = read(broker)
        kept[read] = (time.monotonic() + _SHARED_SECONDS, part)
    known: _Part = part
    return known


def _all_groups(broker: Broker) -> tuple[list[overview.GroupNumbers], str | None]:
    return overview.all_group_numbers(broker, _GROUPS_MS)


def _overdue(broker: Broker) -> list[overview.OverdueTopic]:
    return overview.overdue_topics(broker, overview.now(broker) - _LONG_DUE)


def _overview(broker: Broker, span: str, topic: str | None, due_from: datetime | None) -> models.Overview:
    began = time.monotonic()
    now_at = overview.now(broker)
    step, steps = SPANS[span]
    past_from = _whole_minute(now_at) - _HOUR + _MINUTE
    if topic is None:
        groups, groups_to = _part(broker, _all_groups)
    else:
        groups, groups_to = overview.topic_group_numbers(broker, topic), None
    groups = overview.by_need(groups)[:_FIRST_GROUPS]
    overdue = _part(broker, _overdue)
    past_ms = _PAST_MS if topic is None else _ONE_TOPIC_MS // 2
    return models.Overview(
        now_at=now_at,
        past=_histogram(overview.due_histogram(broker, past_from, _MINUTE, 60, topic, past_ms)),
        flow=overview.flow_histogram(broker, past_from, _MINUTE, 60, topic),
        lateness=[
            _lateness(one) for one in overview.lateness(broker, now_at - _HOUR) if topic in (None, one.topic)
        ],
        wheels=overview.turning_wheels(broker),
        overdue=overdue,
        overdue_messages=[
            one for late in overdue[:_COUNTED_OVERDUE] for one in _overdue_messages(broker, late, now_at)
        ],
        held_up_by=overview.upkeep_holders(broker),
        groups=groups,
        progress=overview.group_progress(broker, sorted({one.topic for one in groups})),
        groups_to=groups_to,
        # Last, as it gets the time that is left.
        due=_histogram(
            overview.due_histogram(
                broker,
                due_from or now_at,
                step,
                steps,
                topic,
                _ONE_TOPIC_MS // 2
                if topic is not None
                else max(_LEAST_DUE_MS, _VIEW_MS - int((time.monotonic() - began) * 1_000)),
            )
        ),
    )


def _overdue_messages(
    broker: Broker, late: overview.OverdueTopic, now_at: datetime
) -> tuple[overview.DueStep, ...]:
    span = now_at - late.due_at
    return overview.due_histogram(broker, late.due_at, span, 1, late.topic, _OVERDUE_MS).due


def _pulse(broker: Broker) -> models.Pulse:
    now_at = overview.now(broker)
    groups, _ = _part(broker, _all_groups)
    overdue = _part(broker, _overdue)
    behind = [one for one in groups if one.paused_at is None and one.oldest_deliver_at is not None]
    late = [_lateness(one) for one in overview.lateness(broker, now_at - _RECENTLY)]
    due_since = overdue[0].due_at if overdue else now_at
    waiting, waiting_is_exact = overview.waiting_messages(broker, due_since, _WAITING_MS)
    return models.Pulse(
        now_at=now_at,
        wheels=overview.turning_wheels(broker),
        overdue=overdue,
        waiting=waiting,
        waiting_is_exact=waiting_is_exact,
        dead=sum(one.dead for one in groups),
        lag=min(behind, key=lambda one: one.oldest_deliver_at or now_at, default=None),
        late=max(late, key=lambda one: one.p99_seconds, default=None),
    )


def _day_lateness(broker: Broker) -> models.DayLateness:
    from_at = overview.now(broker).replace(minute=0, second=0, microsecond=0) - (_HOURS - 1) * _HOUR
    found, hours = overview.lateness_by_hour(broker, from_at, _HOURS)
    topics: dict[str, dict[int, float]] = {}
    for one in found:
        topics.setdefault(one.topic, {})[one.hour] = one.p99.total_seconds()
    return models.DayLateness(
        from_at=from_at,
        hours=_HOURS,
        looked_at_hours=hours,
        topics=[
            models.TopicDay(topic=topic, p99_seconds=[by_hour.get(hour) for hour in range(_HOURS)])
            for topic, by_hour in sorted(topics.items(), key=lambda one: (-max(one[1].values()), one[0]))
        ],
    )


def _names(broker: Broker) -> models.Names:
    topics, groups = overview.names(broker)
    return models.Names(topics=topics, groups=groups)


def _lateness(found: overview.TopicLateness) -> models.TopicLateness:
    return models.TopicLateness(
        topic=found.topic,
        ticks=found.ticks,
        p50_seconds=found.p50.total_seconds(),
        p99_seconds=found.p99.total_seconds(),
        newest_at=found.newest_at,
        by_wheel=found.by_wheel,
    )


def _histogram(found: overview.DueHistogram) -> models.DueHistogram:
    return models.DueHistogram(
        from_at=found.from_at,
        step_seconds=found.step.total_seconds(),
        steps=found.steps,
        due=list(found.due),
        counted_steps=found.counted_steps,
    )


def _whole_minute(at: datetime) -> datetime:
    return at.replace(second=0, microsecond=0)
