"""What a page shows at a glance is what is there, and says where it stopped short (X08)."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg2
import pytest
from psycopg2.extensions import make_dsn
from tests.acting import AT_ONCE, HOUR, MINUTE, SECOND
from tests.busy_brokers import LEASES, build_groups
from tests.clock import Clock
from tests.waiting import ask, connected

from duewheel.store import Broker, InvalidArgument, RetryPolicy, UnknownGroup, UnknownTopic
from duewheel.store.operations import overview, statistics
from duewheel.store.operations.dead_letter_pages import (
    dead_letter_page,
    dead_letter_reasons,
    listed_dead_letters,
)
from duewheel.store.values.dead_letters import DeadLetterFilter


def test_x08_due_messages_are_counted_by_topic_and_step(broker: Broker) -> None:
    for topic in ("a", "b"):
        broker.create_topic(topic, queues=3)
    start = overview.now(broker) + 10 * MINUTE
    ids = [
        broker.send("a", b"", deliver_at=start + second * SECOND).message_id for second in (0, 1, 1, 59, 60)
    ]
    broker.send("b", b"", deliver_at=start + 30 * SECOND)
    broker.recall(ids[1])
    due = overview.due_histogram(broker, start, SECOND, 60)
    assert due.counted_steps == due.steps
    assert [(one.topic, one.step, one.messages, one.exact) for one in due.due] == [
        ("a", 0, 1, True),
        ("a", 1, 1, True),
        ("a", 59, 1, True),
        ("b", 30, 1, True),
    ]
    only = overview.due_histogram(broker, start, MINUTE, 2, "a")
    assert [(one.step, one.messages) for one in only.due] == [(0, 3), (1, 1)]
    with pytest.raises(UnknownTopic):
        overview.due_histogram(broker, start, MINUTE, 2, "nope")
    with pytest.raises(InvalidArgument):
        overview.due_histogram(broker, start, MINUTE, 0)


def test_x08_a_chart_without_time_has_the_burst_from_a_sample(broker: Broker, dsn: str) -> None:
    """The last topic by name has the burst."""
    from_at = overview.now(broker) + HOUR
    for number in range(40):
        broker.create_topic(f"t{number:02d}", queues=1)
        instants = [from_at + (n % 60) * MINUTE for n in range(600)]
        broker.send_many(f"t{number:02d}", [{"body": b"", "deliver_at": at} for at in instants])
    broker.create_topic("vouchers")
    broker.send_many("vouchers", [{"body": b"", "deliver_at": from_at + 7 * MINUTE}] * 20_000)
    broker.send("vouchers", b"", deliver_at=from_at + 8 * MINUTE)
    with connected(dsn) as connection:
        ask(connection, "analyze duewheel.message; select 1")
    due = overview.due_histogram(broker, from_at, MINUTE, 60, None, 1)
    by_step: dict[int, int] = {}
    for one in due.due:
        by_step[one.step] = by_step.get(one.step, 0) + one.messages
    assert sum(by_step.values()) == pytest.approx(44_001, rel=0.1)
    assert max(by_step, key=lambda step: by_step[step]) == 7
    assert by_step[7] == pytest.approx(20_400, rel=0.3)
    # A topic may lie beside the pages of the sample, and then the chart says that it may miss one.
    shown = {one.topic for one in due.due}
    assert "vouchers" in shown
    assert len(shown) == 41 or due.counted_steps == 0
    # With time, they are counted.
    whole = overview.due_histogram(broker, from_at, MINUTE, 60, None, 10_000)
    assert whole.counted_steps == 60
    assert sum(one.messages for one in whole.due if one.topic != "vouchers") == 40 * 600


def test_x08_a_chart_that_may_miss_a_topic_says_so(broker: Broker, dsn: str) -> None:
    for number in range(50):
        broker.create_topic(f"t{number}", queues=1)
        broker.send(f"t{number}", b"", delay=5 * MINUTE)
    with connected(dsn) as connection:
        rows = ask(
            connection,
            "select topic_name from duewheel.due_histogram(clock_timestamp(), '1 min', 60, max_ms => 1)",
        )
    # Few messages are all in the sample, but that is not known.
    assert len({name for (name,) in rows} - {None}) == 50
    assert rows[-1][0] is None


def test_x08_a_histogram_of_one_topic_uses_a_sample(broker: Broker, dsn: str) -> None:
    from_at = overview.now(broker)
    broker.create_topic("a", queues=1)
    # Each minute has more than are counted in one statement; all wait still when they are counted.
    instants = [from_at + n % 50 * MINUTE + 59 * SECOND for n in range(5_000)]
    ids = broker.send_many("a", [{"body": b"", "deliver_at": instant} for instant in instants])
    # Half of the last minute is recalled.
    for sent in ids[49:2_500:50]:
        broker.recall(sent.message_id)
    with connected(dsn) as other:
        # The planner's estimates of a table that was never analyzed are too wild to compare.
        ask(other, "analyze duewheel.message")
    hurried = overview.due_histogram(broker, from_at, MINUTE, 60, "a", 1)
    assert (hurried.counted_steps, [one.step for one in hurried.due]) == (60, list(range(50)))
    assert sum(one.messages for one in hurried.due) == pytest.approx(4_950, rel=0.05)
    assert hurried.due[49].messages == pytest.approx(50, rel=0.1)
    whole = overview.due_histogram(broker, from_at, MINUTE, 60, "a", 5_000)
    assert whole.counted_steps == 60
    assert len(whole.due) == 50


def test_x08_a_page_of_groups_reads_on_past_topics_without_one(broker: Broker) -> None:
    for number in range(9):
        broker.create_topic(f"t{number}", message_type="NORMAL", queues=1)
        if number in (4, 6, 7):
            broker.consumer(f"t{number}", "g")

    def page(after: str | None, max_ms: int) -> tuple[list[str], str | None]:
        groups, last = statistics.group_page(broker, after, 2, max_ms)
        return [one.topic for one in groups], last

    assert page(None, 10_000) == (["t4", "t6", "t7"], "t7")
    assert page("t7", 10_000) == ([], None)
    # Without time it is one portion of topics.
    assert page(None, 0) == ([], "t1")


def test_x08_the_neediest_groups_are_those_of_all_topics(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "_TOPICS_AT_ONCE", 2)
    for number in range(7):
        broker.create_topic(f"t{number}", message_type="NORMAL", queues=1)
        consumer = broker.consumer(f"t{number}", "g", retry=RetryPolicy(0, (MINUTE,)))
        broker.send_many(f"t{number}", [{"body": b""}] * 20)
        (consumer.nack if number > 4 else consumer.ack)(consumer.receive(max_messages=number + 1))

    def names(groups: list[statistics.GroupNumbers]) -> list[str]:
        return [one.topic for one in groups]

    groups, last = statistics.all_group_numbers(broker, 10_000)
    assert last is None
    assert names(statistics.by_dead_letters(groups)) == ["t6", "t5", "t0", "t1", "t2", "t3", "t4"]
    assert names(statistics.by_lag(groups)) == ["t0", "t1", "t2", "t3", "t4", "t5", "t6"]
    assert names(statistics.group_numbers(broker, ["t5", "t0", "t5"])) == ["t0", "t5"]
    groups, last = statistics.all_group_numbers(broker, 0)
    assert (names(groups), last) == (["t0", "t1"], "t1")
    # A list of groups has their present numbers. A group that was deleted since is left out.
    consumer = broker.consumer("t0", "g")
    consumer.ack(consumer.receive(max_messages=4))
    consumer.receive(max_messages=5)
    broker.delete_topic("t1")
    counted = statistics.counted_groups(broker, groups, 10_000)
    assert [(one.topic, one.ready, one.inflight) for one in counted] == [("t0", 10, 5)]
    assert statistics.counted_groups(broker, groups, 0) == groups


def test_x08_what_waits_is_added_up_over_all_topics(broker: Broker) -> None:
    now_at = overview.now(broker)
    assert overview.waiting_messages(broker, now_at, 1_000) == (0, True)
    for number in range(5):
        broker.create_topic(f"t{number}")
        broker.send_many(f"t{number}", [{"body": b"", "delay": MINUTE}] * 10)
    assert overview.waiting_messages(broker, now_at, 10_000) == (50, True)
    broker.send_many("t4", [{"body": b"", "delay": MINUTE}] * 10_000)
    waiting, exact = overview.waiting_messages(broker, now_at, 10_000)
    assert waiting > 10_000
    assert not exact


@pytest.mark.slow
def test_x08_estimates_are_right_without_analyze(broker: Broker, dsn: str) -> None:
    broker.create_topic("t", max_delay=timedelta(days=60))
    broker.create_topic("other")
    now_at = overview.now(broker)
    # Most of them in the slots, the others where no slot is made yet.
    for delay, number in ((HOUR, 30_000), (timedelta(days=50), 10_000)):
        broker.send_many("t", [{"body": b"", "delay": delay}] * number)
    broker.send_many("other", [{"body": b"", "delay": 3 * HOUR}] * 10_000)

    def due(topic: str | None, from_at: datetime, step: timedelta) -> int:
        ((found),) = overview.due_histogram(broker, from_at, step, 1, topic, 10_000).due
        assert not found.exact
        return found.messages

    def waiting() -> int:
        return overview.waiting_messages(broker, now_at, 10_000)[0]

    assert 20_000 < due("t", now_at, 2 * HOUR) < 40_000
    assert 7_000 < due("t", now_at + timedelta(days=49), timedelta(days=2)) < 13_000
    assert 40_000 < waiting() < 60_000
    # What was known is no more, once a table has grown.
    with connected(dsn) as connection:
        ask(connection, "analyze duewheel.message, duewheel.far_message")
    broker.send_many("other", [{"body": b"", "delay": 5 * HOUR}] * 60_000)
    assert 40_000 < due("other", now_at + 4 * HOUR, 2 * HOUR) < 80_000
    assert 80_000 < waiting() < 140_000


def test_x08_a_watcher_is_told_of_its_topic_and_group_alone(broker: Broker) -> None:
    broker.create_topic("t")
    broker.consumer("t", "everybody", mode="BROADCASTING", name="one")
    broker.consumer("t", "resting")
    broker.pause_group("resting", topic="t")
    watched = [("t", "resting"), ("t", "everybody"), ("t", "new"), ("mistyped", "resting"), ("%DLQ%", "new")]
    told = overview.watched_groups(broker, watched)
    assert [(one.topic, one.group) for one in told] == watched
    assert [one.is_there for one in told] == [True, True, True, False, False]
    assert [one.is_broadcasting for one in told] == [False, True, False, False, False]
    assert [one.paused_at is not None for one in told] == [True, False, False, False, False]
    assert {one.group for one in broker.groups()} == {"everybody", "resting"}


def test_x08_what_became_of_leases_is_counted_by_step(broker: Broker) -> None:
    broker.create_topic("t", message_type="NORMAL", queues=1)
    broker.send_many("t", [{"body": b"", "key": str(n)} for n in range(7)])
    consumer = broker.consumer("t", "g", name="me", retry=RetryPolicy(3, (MINUTE,)))
    begins_at = overview.now(broker) - MINUTE
    first = consumer.receive(max_messages=4)
    consumer.ack(first[:2])
    consumer.nack(first[2:3])
    rest = consumer.receive(max_messages=10)
    consumer.ack(rest)
    flow = overview.flow_histogram(broker, begins_at, 10 * MINUTE, 1)
    assert [(one.received, one.acked, one.failed) for one in flow] == [(7, 5, 1)]
    broker.create_topic("other")
    for topic, steps in (("t", flow), ("other", [])):
        assert overview.flow_histogram(broker, begins_at, 10 * MINUTE, 1, topic) == steps
    (lease,), has_more = overview.running_leases(broker)
    assert not has_more
    assert (lease.group, lease.topic, lease.consumer) == ("g", "t", "me")
    assert (lease.messages, lease.answered) == (4, 3)
    (retry,) = overview.waiting_retries(broker, "g", "t")
    assert (retry.message_id, retry.key, retry.attempt) == (first[2].message_id, first[2].key, 2)
    assert retry.deliver_at > overview.now(broker)
    # Who mistypes a name learns it, and does not read that nothing is there.
    for look in (overview.waiting_retries, overview.running_leases):
        with pytest.raises(UnknownGroup):
            look(broker, group="nope")
        with pytest.raises(UnknownTopic):
            look(broker, topic="nope")
    with pytest.raises(UnknownTopic):
        dead_letter_page(broker, DeadLetterFilter("g", "nope"))
    with pytest.raises(UnknownTopic):
        overview.flow_histogram(broker, begins_at, MINUTE, 1, "nope")


def test_x08_lateness_is_that_of_the_first_message_of_a_tick(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t")
    start = clock()
    timed_broker.send("t", b"", delay=10 * SECOND)
    clock.advance(13 * SECOND)
    timed_broker.tick("t")
    (late,) = overview.lateness(timed_broker, start)
    assert (late.topic, late.ticks, late.p50, late.p99) == ("t", 1, 3 * SECOND, 3 * SECOND)
    assert not late.by_wheel


def test_x08_numbers_come_by_pages(broker: Broker) -> None:
    for number in range(5):
        broker.create_topic(f"t{number}")
        broker.consumer(f"t{number}", "g")
    first = statistics.topic_page(broker, None, 3)
    rest = statistics.topic_page(broker, first[-1].topic, 3)
    assert [one.topic for one in (*first, *rest)] == [f"t{n}" for n in range(5)]
    groups = statistics.group_numbers(broker, [one.topic for one in first])
    assert [one.topic for one in groups] == ["t0", "t1", "t2"]
    with pytest.raises(InvalidArgument):
        statistics.topic_page(broker, None, 1_001)


def test_x08_dead_letters_are_found_by_the_prefix_of_their_key(broker: Broker) -> None:
    broker.create_topic("t", message_type="NORMAL", queues=1)
    broker.send_many("t", [{"body": b"x", "key": key} for key in ("a%1", "a%2", "ab1")])
    broker.send("t", b"without a key")
    consumer = broker.consumer("t", "g", retry=RetryPolicy(0, (MINUTE,)))
    consumer.nack(consumer.receive(max_messages=4))
    listed, after = listed_dead_letters(broker, DeadLetterFilter("g", key_prefix="a%"))
    exported, _ = dead_letter_page(broker, DeadLetterFilter("g", key_prefix="a%"))
    assert [one.key for one in listed] == [one.key for one in exported] == ["a%1", "a%2"]
    assert after is None
    assert {(one.topic, one.attempt, one.redriven_at) for one in listed} == {("t", 1, None)}
    assert listed[0].dead_at <= datetime.now(UTC) + MINUTE


def test_x08_overdue_topics_are_listed(timed_broker: Broker, clock: Clock) -> None:
    with timed_broker.connection() as connection:
        ask(connection, "select duewheel.create_topic('t' || n) from generate_series(100, 350) n")
    late = [
        timed_broker.send(topic, b"", delay=delay) for topic, delay in (("t350", MINUTE), ("t340", SECOND))
    ]
    back = timed_broker.send("t345", b"", delay=MINUTE)
    timed_broker.recall(back.message_id)
    assert overview.overdue_topics(timed_broker, clock()) == ([], False)
    clock.advance(HOUR)
    # The one that waits longest first; a message that was recalled is not waited for.
    overdue, has_more = overview.overdue_topics(timed_broker, clock())
    assert [one.topic for one in overdue] == ["t340", "t350"]
    assert not has_more
    assert overdue[0].due_at < clock() - 30 * MINUTE
    timed_broker.consumer("t340", "g").receive()
    assert [one.topic for one in overview.overdue_topics(timed_broker, clock())[0]] == ["t350"]
    assert late[0].deliver_at > late[1].deliver_at


def test_x08_running_leases_are_those_of_a_group_or_topic(broker: Broker) -> None:
    for topic, group in (("a", "g"), ("a", "h"), ("b", "g")):
        broker.create_topic(topic, message_type="NORMAL")
        consumer = broker.consumer(topic, group)
        broker.send(topic, b"")
        assert consumer.receive()

    def found(group: str | None = None, topic: str | None = None) -> list[tuple[str, str]]:
        leases, _ = overview.running_leases(broker, group=group, topic=topic)
        return sorted({(one.topic, one.group) for one in leases})

    assert found() == [("a", "g"), ("a", "h"), ("b", "g")]
    assert found(group="g") == [("a", "g"), ("b", "g")]
    assert found(group="g", topic="b") == [("b", "g")]


def test_x31_a_list_names_the_message_that_replaced_one(broker: Broker) -> None:
    broker.create_topic("t")
    old = broker.send("t", b"", delay=HOUR, key="k")
    new = broker.send("t", b"", delay=HOUR, key="k", on_conflict="replace")
    found = {one.message_id: one for one in broker.list_messages("t", state="all").messages}
    assert (found[old.message_id].recalled, found[old.message_id].replaced_by) == (True, new.message_id)
    assert found[new.message_id].replaced_by is None


@pytest.mark.owner
def test_x31_an_open_lease_is_found_behind_answered_ones(broker: Broker) -> None:
    """The 6 720 answered leases of other groups end first."""
    build_groups(broker, 20)
    answer_all = (
        "insert into duewheel.lease_event (topic_id, group_id, queue, n, kind, at)"
        " select topic_id, group_id, queue, n, 'acked', now() from duewheel.lease where n % 2 = 0"
    )
    with broker.connection() as connection:
        ask(connection, LEASES)
        ask(connection, f"{answer_all} returning n")
    broker.create_topic("t", message_type="NORMAL")
    broker.send("t", b"")
    assert broker.consumer("t", "g").receive(1, 2 * HOUR)
    for of in ((None, None), ("g", None), (None, "t")):
        (lease,), has_more = overview.running_leases(broker, 200, *of)
        assert (lease.topic, lease.group, has_more) == ("t", "g", False)
    with connected(broker.dsn, autocommit=False) as connection:
        ask(connection, "set local track_functions = 'all'; select 1")
        ask(connection, "select from duewheel.running_leases()")
        # Only the open lease is asked for its end.
        calls = "select calls from pg_stat_xact_user_functions where funcname = 'lease_end'"
        assert ask(connection, calls) == [(1,)]


@pytest.mark.parametrize(
    ("most", "looked_at", "has_more"), [(3, 4, False), (2, 4, True), (3, 3, True)], ids=str
)
def test_x31_running_leases_report_that_there_are_more(
    broker: Broker, most: int, looked_at: int, has_more: bool
) -> None:
    broker.create_topic("t", message_type="NORMAL", queues=1)
    broker.send_many("t", [{"body": b""}] * 3)
    consumer = broker.consumer("t", "g")
    for _ in range(3):
        assert consumer.receive(1)
    with broker.connection() as connection:
        call = "select consumer_group from duewheel.running_leases(null, %s, %s)"
        found = [group for (group,) in ask(connection, call, most, looked_at)]
    assert found == ["g"] * min(most, 3) + [None] * has_more
    leases, more = overview.running_leases(broker, most)
    assert (len(leases), more) == (most, most < 3)


def test_x31_overdue_topics_report_that_there_are_more(timed_broker: Broker, clock: Clock) -> None:
    with timed_broker.connection() as connection:
        ask(connection, "select duewheel.create_topic('t' || n) from generate_series(100, 300) n")
    for number in range(100, 301):
        timed_broker.send(f"t{number}", b"", delay=SECOND if number < 300 else HOUR)
    clock.advance(MINUTE)
    topics, has_more = overview.overdue_topics(timed_broker, clock())
    assert (len(topics), has_more) == (200, False)
    clock.advance(HOUR)
    topics, has_more = overview.overdue_topics(timed_broker, clock())
    assert (len(topics), has_more) == (200, True)


def test_r14_pages_of_dead_letters_keep_to_their_size(broker: Broker) -> None:
    for topic in ("a", "b"):
        broker.create_topic(topic, message_type="NORMAL", queues=1)
        broker.send_many(topic, [{"body": bytes([n]) * 1_000, "key": f"{topic}{n}"} for n in range(5)])
        consumer = broker.consumer(topic, "g", retry=RetryPolicy(0, (MINUTE,)))
        consumer.nack(consumer.receive(max_messages=5))
    broker.redrive("g", topic="a", key_prefix="a0")
    pages, after = [], None
    while True:
        letters, after = dead_letter_page(broker, DeadLetterFilter("g", redriven=False), after, 3)
        if after is None:
            break
        pages.append([one.key for one in letters])
        assert all(one.body == bytes([int(one.key[1])]) * 1_000 for one in letters if one.key)
    assert pages == [["a1", "a2", "a3"], ["a4", "b0", "b1"], ["b2", "b3", "b4"]]
    with broker.connection() as connection:
        for max_bytes, count in ((1, 1), (2_999, 2), (3_000, 3)):
            asked = "select 1 from duewheel.dead_letter_page('g', 'b', max_bytes => %s)"
            assert len(ask(connection, asked, max_bytes)) == count


def test_r14_dead_letters_are_found_by_a_rare_reason(broker: Broker) -> None:
    for topic in ("a", "b"):
        broker.create_topic(topic, message_type="NORMAL", queues=1)
        broker.send_many(topic, [{"body": b"", "key": f"{topic}{n}"} for n in range(9)])
        consumer = broker.consumer(topic, "g", retry=RetryPolicy(0, (MINUTE,)))
        for message in consumer.receive(max_messages=9):
            rare = str(message.key)[1:] in "58"
            consumer.nack([message], reason="HTTP 503: 100%" if rare else "HTTP 404")

    def keys(max_messages: int) -> list[list[str | None]]:
        pages, after = [], None
        while True:
            found, after = listed_dead_letters(
                broker, DeadLetterFilter("g", reason_contains="503: 100%"), after, max_messages
            )
            pages.append([one.key for one in found])
            if after is None:
                return pages

    assert keys(10) == [["a5", "a8", "b5", "b8"]]
    assert keys(2) == [["a5", "a8"], ["b5", "b8"], []]
    assert dead_letter_page(broker, DeadLetterFilter("g", reason_contains="404 ")) == (
        [],
        None,
    )
    with broker.connection() as connection:
        asked = """select key, place from duewheel.dead_letter_page(
                       'g', after => %s, max_looked_at => 7, reason_contains => '503')"""
        looks: list[list[str | None]] = []
        place: str | None = None
        while rows := ask(connection, asked, place):
            looks.append([key for key, _ in rows])
            place = json.dumps(rows[-1][1])
    # Each look ends after so many dead letters, whether they match or not.
    assert looks == [["a5", None], ["a8", None], ["b5", "b8"]]


def test_r14_dead_letters_are_listed_by_time_and_reason(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", message_type="NORMAL", queues=1)
    consumer = timed_broker.consumer("t", "g", retry=RetryPolicy(0, (MINUTE,)))
    died_at = []
    for key, reason in (("a", "HTTP 503"), ("b", "poison"), ("c", "HTTP 404"), ("d", None)):
        timed_broker.send("t", b"", key=key)
        consumer.nack(consumer.receive(), reason=reason)
        died_at.append(clock())
        clock.advance(MINUTE)

    def keys(**criteria: Any) -> str:
        which = DeadLetterFilter("g", **criteria)
        listed, _ = listed_dead_letters(timed_broker, which)
        exported, _ = dead_letter_page(timed_broker, which)
        assert [one.key for one in listed] == [one.key for one in exported]
        assert timed_broker.redrive("g", dry_run=True, **criteria).matched == len(listed)
        return "".join(str(one.key) for one in listed)

    assert keys(reason_lacks="HTTP") == "bd"
    assert keys(reason_lacks="503", reason_contains="HTTP") == "c"
    assert keys(dead_from=died_at[1], dead_until=died_at[3]) == "bc"
    within, _ = dead_letter_reasons(timed_broker, "g", "t", died_at[1], died_at[3])
    assert [one.reason for one in within] == ["HTTP 404", "poison"]
    # A page goes on within the window.
    which = DeadLetterFilter("g", dead_from=died_at[1])
    (first,), after = listed_dead_letters(timed_broker, which, None, 1)
    (second,), _ = listed_dead_letters(timed_broker, which, after, 1)
    assert (first.key, second.key) == ("b", "c")


def test_x08_the_lateness_of_a_day_is_told_by_hour(timed_broker: Broker, clock: Clock) -> None:
    for topic in ("a", "b"):
        timed_broker.create_topic(topic, queues=1)
    begins_at = clock()
    for topic, hours, late in (("a", 0, SECOND), ("a", 2, MINUTE), ("b", 2, 2 * SECOND)):
        timed_broker.send(topic, b"", deliver_at=begins_at + hours * HOUR + MINUTE)
        clock.set(begins_at + hours * HOUR + MINUTE + late)
        timed_broker.tick(topic)
        clock.set(begins_at)
    found, hours = overview.lateness_by_hour(timed_broker, begins_at, 3, 10_000)
    assert hours == 3
    assert {(one.topic, one.hour): one.p99 for one in found} == {
        ("a", 0): SECOND,
        ("a", 2): MINUTE,
        ("b", 2): 2 * SECOND,
    }
    # An hour that counts has all of its topics, however short the time is.
    for max_ms in (1, 2, 4, 8, 16, 32, 1_000):
        found, hours = overview.lateness_by_hour(timed_broker, begins_at, 3, max_ms)
        assert hours == 0 or {one.topic for one in found if one.hour == 2} == {"a", "b"}
    # Where there is no time, fewer hours are looked at.
    assert overview.lateness_by_hour(timed_broker, begins_at, 10_000, 1)[1] < 10_000


def test_x08_messages_are_found_by_sender_and_receiver(broker: Broker, dsn: str) -> None:
    broker.create_topic("t", message_type="NORMAL", queues=1)
    for key, idempotency_key in (("a", "me"), ("b", "me/0"), ("c", "me/12"), ("d", "else"), ("e", "me/x")):
        broker.send("t", b"", key=key, tag="x", idempotency_key=idempotency_key)
    began_at = overview.now(broker)
    for name, count in (("else", 1), ("me", 2), ("else", 1), ("me", 1)):
        consumer = broker.consumer("t", "g", name=name, retry=RetryPolicy(1, (AT_ONCE,)))
        batch = consumer.receive(max_messages=count)
        consumer.ack(batch[:-1])
        (consumer.nack if batch[-1].key == "e" else consumer.ack)(batch[-1:])
    ended_at = overview.now(broker)
    (retried,) = broker.consumer("t", "g", name="me").receive()

    def found(*between: datetime) -> list[tuple[str | None, int]]:
        looked = overview.messages_by_name(broker, "me", "t", "g", *between)
        assert [(one.key, one.tag) for one in looked if one.leased_at is None] == [
            ("a", "x"),
            ("b", "x"),
            ("c", "x"),
        ]
        return [(one.key, one.attempt) for one in looked if one.leased_at is not None]

    assert found() == [("b", 1), ("c", 1), ("e", 1), ("e", 2)]
    assert found(began_at, ended_at) == [("b", 1), ("c", 1), ("e", 1)]
    assert found(began_at - HOUR, began_at) == []
    # A retry has the id that the message was sent with.
    assert overview.messages_by_name(broker, "me", "t", "g")[-1].message_id == retried.message_id
    assert [one.key for one in overview.messages_by_name(broker, "me", "t")] == ["a", "b", "c"]
    with pytest.raises(UnknownGroup):
        overview.messages_by_name(broker, "me", "t", "nope")


@pytest.mark.owner
def test_x08_the_lease_after_an_instant_is_found_despite_gaps(broker: Broker) -> None:
    broker.create_topic("t", message_type="NORMAL", queues=1)
    broker.send_many("t", [{"body": b""}] * 12)
    consumer = broker.consumer("t", "g")
    for _ in range(12):
        consumer.receive(max_messages=1)
    with broker.connection() as connection:
        where = "queue = 0 and topic_id = (select topic_id from duewheel.topic where name = 't')"
        ask(connection, f"delete from duewheel.lease where {where} and n in (2, 3, 7) returning n")
        found = ask(
            connection,
            f"""select l.n, duewheel.first_reaching(
                           l.group_id, l.topic_id, l.queue, -1, null, null, null, l.leased_at),
                       duewheel.first_reaching(
                           l.group_id, l.topic_id, l.queue, -1, null, null, null,
                           l.leased_at - interval '1 microsecond')
                from duewheel.lease l where {where} order by l.n""",
        )
    numbers = [n for n, _, _ in found]
    assert [after for _, after, _ in found] == [*numbers[1:], None]
    assert [at for _, _, at in found] == numbers


def test_x08_wheels_are_the_sessions_that_announce_one_by_name(broker: Broker, dsn: str) -> None:
    assert overview.turning_wheels(broker) == []

    def turning(name: str) -> AbstractContextManager[psycopg2.extensions.connection]:
        return connected(make_dsn(dsn, application_name=name))

    with (
        turning("duewheel wheel on a:1") as first,
        turning("duewheel wheel on a:1"),
        turning("duewheel wheel on b:2"),
        turning("duewheel wheel"),
        turning("duewheel wheel listening"),
    ):
        ask(first, "select 1")
        wheels = overview.turning_wheels(broker)
    assert [(one.name, one.connections) for one in wheels] == [("a:1", 2), ("b:2", 1)]
    assert all(one.started_at is not None for one in wheels)


def test_x19_a_lookup_has_limits_for_every_login(broker: Broker) -> None:
    broker.create_topic("t")
    broker.consumer("t", "g")
    with connected(broker.dsn) as connection:
        for call in (
            "flow_histogram(now(), '1 s', 20000000)",
            "flow_histogram(now(), '1 s', 60, null)",
            "flow_histogram(now(), '1 s', 60, 1000, null)",
            "overdue_topics(now(), null)",
            "release_lateness(now(), null)",
            "release_lateness(now(), 50, null)",
            "dead_letter_page('g', max_messages => null)",
            "dead_letter_page('g', max_bytes => null)",
            "dead_letter_page('g', max_looked_at => null)",
            "messages_by_name('me', 't', max_messages => null)",
            "messages_by_name('me', 't', max_leases => null)",
            "releases_between(now(), now(), null)",
            "releases_between(now(), now(), 100, 10001)",
            "expired_between(now(), now(), 0)",
            "group_stats(max_leases => null)",
            "count_rewound('g', 't', now(), max_counted => null)",
            "claim_report(null)",
        ):
            with pytest.raises(psycopg2.Error) as error:
                ask(connection, f"select * from duewheel.{call}")
            assert error.value.pgcode == "DW010", call
