"""The routes that show: each takes the right to see, and changes nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query
from pydantic import AwareDatetime

from duewheel import __version__
from duewheel.hooks.task_broker import SENT_BY_TASK
from duewheel.hooks.task_name import task_name
from duewheel.plugin import first_view, models
from duewheel.plugin.bodies import readable
from duewheel.plugin.brokers import BrokerBusy, brokers
from duewheel.plugin.edited import edited_to
from duewheel.plugin.rights import Seeing, may_act, may_read_bodies, may_see
from duewheel.plugin.shared_answers import SHARED_SECONDS, SharedAnswers
from duewheel.plugin.time_axis import SPANS
from duewheel.plugin.told_acts import tell_of_act
from duewheel.store import UnknownMessage, UnknownTopic
from duewheel.store.operations import dead_letter_pages, overview, statistics
from duewheel.store.operations.topics import find_topic
from duewheel.store.values.dead_letters import DeadLetterFilter

router = APIRouter(prefix="/api")

#: The end of a page of dead letters, in the store's form.
_PLACE: Final = r'^\{"at": "[0-9T:.+-]{19,40}", "seq": [0-9]{1,19}, "topic": [0-9]{1,9}\}$'
#: How long to search for a page of messages or dead letters.
_LONGEST_LOOK_SECONDS: Final = 1.0
#: The form of ``task_address``. Any other value of the property was set by the sender.
_TASK_NAME: Final = re.compile(r"airflow:[\w.~:+-]{1,250}/[\w.~:+-]{1,250}/[\w.~:+-]{1,250}/-?\d{1,9}")
#: How long the numbers of groups may take for a list that is sorted by need.
_LIST_MS: Final = 3_000
#: The groups of such a list are chosen by numbers of this age at most.
_NEW_SECONDS: Final = 10.0
#: How long it may take to count the messages of the groups in a list.
_COUNT_MS: Final = 1_000
#: How long the tiles wait for their turn to read the numbers of the groups.
_GROUPS_TURN_SECONDS: Final = 1.0
#: The lateness of whole hours.
_LONGEST_DAY_SECONDS: Final = 300.0

OptionalText = Annotated[str | None, Query(min_length=1, max_length=255)]

#: The longest id that Airflow allows.
TaskText = Annotated[str, Query(min_length=1, max_length=250)]


_shared = SharedAnswers()


def acted_on(connection_id: str) -> None:
    """Compute again what an act on a broker may have changed, in each process of the API server."""
    _shared.forget(connection_id)
    tell_of_act(connection_id)


def _all_groups(connection_id: str) -> models.AllGroups | None:
    """The numbers of all groups: the newest known ones if others are being read for too long."""
    try:
        return _shared.answer(
            connection_id,
            (),
            models.AllGroups,
            first_view.groups_of,
            # The first view asks for its axis at the same time.
            use="groups",
            turn_seconds=_GROUPS_TURN_SECONDS,
            is_read=lambda found: found.groups_to != "" and found.faults is not None,
        )
    except BrokerBusy:
        return _shared.newest(connection_id, (), models.AllGroups)


def pulse_of(connection_id: str) -> models.Pulse:
    """The state of a broker in a few numbers, none from before an act that has been answered."""
    groups = _all_groups(connection_id)
    return _shared.answer(
        connection_id,
        (),
        models.Pulse,
        lambda broker: first_view.pulse_of(broker, groups),
        # These cost milliseconds, and the groups are kept separately.
        longest_seconds=SHARED_SECONDS,
        use="lists",
    )


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
    span: Annotated[str, Query(pattern=f"^({'|'.join(SPANS)})$")] = "1h",
    topic: OptionalText = None,
    from_at: AwareDatetime | None = None,
    until_at: AwareDatetime | None = None,
) -> models.Overview:
    """The messages before and after now, or between two instants, and the lateness of the last hour."""
    return _shared.answer(
        connection_id,
        (span, topic, from_at, until_at),
        models.Overview,
        lambda broker: first_view.overview_of(broker, span, topic, from_at, until_at),
    )


@router.get("/brokers/{connection_id}/lateness")
def show_lateness(connection_id: str, _: Seeing) -> models.DayLateness:
    """How late each topic was released in each hour of the last day, the latest topic first."""
    return _shared.answer(
        connection_id, (), models.DayLateness, first_view.day_lateness_of, _LONGEST_DAY_SECONDS
    )


@router.get("/brokers/{connection_id}/pulse")
def show_pulse(connection_id: str, _: Seeing) -> models.Pulse:
    """The state of a broker in a few numbers, the most urgent first."""
    return pulse_of(connection_id)


@router.get("/brokers/{connection_id}/names")
def list_names(connection_id: str, _: Seeing) -> models.Names:
    """The names of topics and groups."""
    return _shared.answer(connection_id, (), models.Names, first_view.names_of)


@router.get("/brokers/{connection_id}/waiting-consumers")
def list_waiting_consumers(connection_id: str, _: Seeing) -> models.WaitingConsumers:
    """The consumers that wait for messages, by topic and group."""
    with brokers.lend(connection_id) as broker:
        consumers, more = overview.waiting_consumers(broker)
        return models.WaitingConsumers(now_at=overview.now(broker), consumers=consumers, more=more)


@router.get("/brokers/{connection_id}/topics")
def list_topics(
    connection_id: str,
    _: Seeing,
    name_contains: OptionalText = None,
    after: OptionalText = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> models.Topics:
    """A page of topics with their numbers, by name."""
    with brokers.lend(connection_id, "numbers") as broker:
        now_at = overview.now(broker)
        if name_contains is not None:
            named, following = statistics.topics_named(broker, name_contains, after, limit)
            return models.Topics(now_at=now_at, topics=named, next=following)
        found = statistics.topic_page(broker, after, limit)
    return models.Topics(
        now_at=now_at,
        topics=found,
        next=found[-1].topic if len(found) == limit else None,
    )


@router.get("/brokers/{connection_id}/topics/one")
def show_topic(
    connection_id: str, _: Seeing, topic: Annotated[str, Query(min_length=1, max_length=255)]
) -> models.OneTopic:
    """A topic with its settings and its numbers."""
    with brokers.lend(connection_id, "numbers") as broker:
        now_at = overview.now(broker)
        numbers = statistics.topic_numbers(broker, topic)
        found = find_topic(broker, topic)
    if found is None:
        raise UnknownTopic(f'the topic "{topic}" was deleted meanwhile')
    return models.OneTopic(
        now_at=now_at,
        numbers=numbers,
        settings=models.TopicSettings(
            queues=found.queues,
            max_delay_seconds=found.max_delay.total_seconds(),
            out_of_range=found.out_of_range,
            granularity_seconds=found.granularity.total_seconds(),
            retention_seconds=found.retention.total_seconds(),
            dead_letter_retention_seconds=found.dead_letter_retention.total_seconds(),
            delay_levels_seconds=[level.total_seconds() for level in found.delay_levels],
            created_at=found.created_at,
        ),
    )


@router.get("/brokers/{connection_id}/groups")
def list_groups(
    connection_id: str,
    _: Seeing,
    group: OptionalText = None,
    topic: OptionalText = None,
    after: OptionalText = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    sort: Annotated[str, Query(pattern="^(topic|lag|dead)$")] = "topic",
) -> models.Groups:
    """A page of the groups by topic, with their numbers; or the first that lag most, or have the most dead
    letters, of all topics. A filter by group or topic has all that match."""
    every = None
    if sort != "topic" and group is None and topic is None:
        # The strip of each view asks for the same numbers. They choose the groups, which are counted again.
        every = _all_groups(connection_id)
    with brokers.lend(connection_id, "numbers") as broker:
        now_at = overview.now(broker)
        following = groups_to = None
        if group is not None or topic is not None:
            found, groups_to = statistics.matching_groups(broker, group, topic, _LIST_MS)
        elif sort != "topic":
            if every is not None and every.groups_to is None and every.age_seconds <= _NEW_SECONDS:
                groups = every.groups
            else:
                groups, groups_to = statistics.all_group_numbers(broker, _LIST_MS)
            sort_by = statistics.by_lag if sort == "lag" else statistics.by_dead_letters
            found = sort_by(statistics.counted_groups(broker, sort_by(groups)[:limit], _COUNT_MS))
        else:
            found, following = statistics.group_page(broker, after, limit, _COUNT_MS)
        progress = statistics.group_progress(broker, sorted({one.topic for one in found}))
    return models.Groups(now_at=now_at, groups=found, progress=progress, next=following, groups_to=groups_to)


@router.get("/brokers/{connection_id}/leases")
def list_leases(
    connection_id: str, _: Seeing, group: OptionalText = None, topic: OptionalText = None
) -> models.Leases:
    """The next 200 open leases to end."""
    with brokers.lend(connection_id, "numbers") as broker:
        leases, more = overview.running_leases(broker, 200, group, topic)
        return models.Leases(now_at=overview.now(broker), leases=leases, more=more)


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
            found, after = dead_letter_pages.listed_dead_letters(broker, which, after, 200)
            # If the oldest were all sent again, a single lookup sees none of the open ones.
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
    """The reasons of a group's open dead letters, the most frequent first."""
    with brokers.lend(connection_id, "numbers") as broker:
        # Before the list: an action on letters that died by then reaches no more than the list has.
        now_at = overview.now(broker)
        found, complete = dead_letter_pages.dead_letter_reasons(broker, group, topic, dead_from, dead_until)
    return models.DeadLetterReasons(now_at=now_at, reasons=found, complete=complete)


@router.get("/brokers/{connection_id}/schedules")
def list_schedules(connection_id: str, _: Seeing) -> models.Schedules:
    """All schedules with their next occurrences."""
    with brokers.lend(connection_id) as broker:
        found = broker.schedules()
        now_at = overview.now(broker)
    return models.Schedules(
        now_at=now_at,
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
        ],
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
    ends_at = time.monotonic() + _LONGEST_LOOK_SECONDS
    with brokers.lend(connection_id) as broker:
        while True:
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
            after = page.next
            # A single lookup may see only messages that do not match.
            if page.messages or after is None or time.monotonic() >= ends_at:
                break
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
        history = broker.history(message_id)
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
            awaits_answer=found.key is not None and found.properties.get("awaits_answer") is True,
            born_at=found.born_at,
            asked_at=found.asked_at,
            deliver_at=found.deliver_at,
            released=found.released,
            recalled=found.recalled,
            moved_from=found.moved_from,
            replaced_by=found.replaced_by,
            body=readable(found.body) if may_read_bodies(user, connection_id) else None,
            history=history,
            edited_to=edited_to(broker, found.topic, found.message_id, history),
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
    """The task instance that sent a message; its name is known in Airflow and not a secret of the sender."""
    name = properties.get(SENT_BY_TASK)
    return name if isinstance(name, str) and _TASK_NAME.fullmatch(name) else None
