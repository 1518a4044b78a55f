"""Numbers that cost much are shared, none is from before an act, and no list waits for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from tests.airflow_runs import connection_json
from tests.waiting import ask, connected

from duewheel.store.broker import Broker

pytestmark = [
    pytest.mark.airflow,
    # Importing Airflow's API warns of a library's future.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]


@pytest.mark.parametrize(
    ("costs", "shared_seconds"),
    [
        ((0.001, 0.001, 0.001), 2),
        # The first ones say nothing: what is cold is slow.
        ((5.0,), 2),
        ((5.0, 5.0), 2),
        # A single slow one is an accident; a single quick one found what another answer had read.
        ((5.0, 0.16, 0.1), 80),
        ((0.001, 0.2, 0.01, 0.1), 50),
        ((5.0, 5.0, 5.0), 90),
    ],
)
def test_x08_an_expensive_overview_is_computed_less_often(
    costs: tuple[float, ...], shared_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from duewheel.plugin import models, shared_answers

    now = [1_000.0]
    monkeypatch.setattr(shared_answers.time, "monotonic", lambda: now[0])
    shared = shared_answers.SharedAnswers()
    key = ("broker", "hour", None)
    answer = models.Names(topics=["t"], groups=[])
    for cost in costs:
        assert shared.get(key) is None
        shared.put(key, answer, cost)
        now[0] += 60
    # The page tells of which instant it is, and when it looks again.
    assert answer.shared_seconds == pytest.approx(shared_seconds)
    now[0] += shared_seconds - 60.1
    kept = shared.get(key)
    assert isinstance(kept, models.Names)
    assert kept.topics == ["t"]
    # The page asks again when there is something new.
    assert kept.next_in_seconds == pytest.approx(0.1)
    assert shared.get(("another", "hour", None)) is None
    now[0] += 0.2
    assert shared.get(key) is None


def test_x08_what_is_asked_after_an_act_is_worked_out_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    from duewheel.plugin import models, shared_answers

    monkeypatch.setattr(shared_answers.time, "monotonic", lambda: 1_000.0)
    shared = shared_answers.SharedAnswers()
    for broker in ("one", "another"):
        shared.put((models.Names, broker), models.Names(topics=["t"], groups=[]), 5.0)
    shared.forget("one")
    assert shared.get((models.Names, "one")) is None
    assert shared.get((models.Names, "another")) is not None
    # No act changes how late releases were.
    day = models.DayLateness(from_at=datetime.now(UTC), hours=24, looked_at_hours=24, topics=[])
    shared.put((models.DayLateness, "one"), day, 5.0)
    shared.forget("one")
    assert shared.get((models.DayLateness, "one")) is not None


@pytest.fixture
def page_of(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The id of a connection to the test's broker; requests wait for their turn only for a moment."""
    from duewheel.plugin import brokers, seeing

    monkeypatch.setenv("AIRFLOW_CONN_PAGE_OF", connection_json(dsn))
    monkeypatch.setattr(brokers, "TURN_TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr(seeing, "_GROUPS_TURN_SECONDS", 0.01)
    with closing(brokers.brokers):
        yield "page_of"


def test_x31_an_answer_begun_before_an_act_is_not_kept_after_it(page_of: str) -> None:
    from duewheel.plugin import models, shared_answers

    shared = shared_answers.SharedAnswers()

    def begun_before(_: Broker) -> models.Names:
        shared.forget(page_of)
        return models.Names(topics=["before"], groups=[])

    assert shared.answer(page_of, (), models.Names, begun_before).topics == ["before"]
    assert shared.newest(page_of, (), models.Names) is None
    after = models.Names(topics=["after"], groups=[])
    assert shared.answer(page_of, (), models.Names, lambda _: after).topics == ["after"]
    assert shared.newest(page_of, (), models.Names) is not None


def test_x31_what_was_not_read_in_time_is_asked_again_soon(
    page_of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from duewheel.plugin import models, shared_answers

    # Every answer costs much.
    monkeypatch.setattr(shared_answers, "_COST_FACTOR", 1e12)
    shared = shared_answers.SharedAnswers()

    def kept_seconds(topics: list[str]) -> float:
        answer = models.Names(topics=topics, groups=[])
        for _ in range(3):
            shared.forget(page_of)
            shared.answer(
                page_of, (), models.Names, lambda _: answer, is_read=lambda found: bool(found.topics)
            )
        return answer.shared_seconds

    assert kept_seconds(["t"]) == 90
    assert kept_seconds([]) == 10


def test_x08_strip_and_lists_do_not_wait_for_the_groups_numbers(broker: Broker, page_of: str) -> None:
    from duewheel.plugin import brokers, seeing

    broker.create_topic("t")
    sent = broker.send("t", b"", delay=timedelta(hours=1))
    user = None  # The routes' own dependency has admitted it.
    lend = brokers.brokers.lend
    with lend(page_of, "numbers"), lend(page_of, "groups"):
        with pytest.raises(brokers.BrokerBusy):
            seeing.list_groups(page_of, user)
        assert [one.message_id for one in seeing.list_messages(page_of, user).messages] == [sent.message_id]
        assert seeing.list_schedules(page_of, user).schedules == []
        pulse = seeing.show_pulse(page_of, user)
        assert (pulse.waiting, pulse.dead, pulse.groups_at) == (1, None, None)
    seeing.acted_on(page_of)
    # The time axis is computed meanwhile.
    with lend(page_of, "numbers"):
        assert seeing.show_pulse(page_of, user).dead == 0
    # What is known stays, with its instant.
    with lend(page_of, "groups"):
        assert seeing.show_pulse(page_of, user).groups_at is not None


def test_x08_numbers_that_are_not_read_in_time_are_named(
    broker: Broker, dsn: str, page_of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock on the leases makes these numbers slow, as a busy machine does."""
    from duewheel.plugin import first_view, seeing
    from duewheel.store.operations import statistics

    monkeypatch.setattr(statistics, "_STATEMENT_MS", 50)
    monkeypatch.setattr(first_view, "_PART_MS", 50)
    broker.create_topic("t")
    broker.consumer("t", "g")
    with connected(dsn, autocommit=False) as connection:
        ask(connection, "lock table duewheel.lease in access exclusive mode; select 1")
        pulse = seeing.show_pulse(page_of, None)
        assert (pulse.dead, pulse.groups_at) == (None, None)
        assert seeing.show_overview(page_of, None).missing == ["flow"]
        connection.rollback()
    seeing.acted_on(page_of)
    assert seeing.show_overview(page_of, None).missing == []
    pulse = seeing.show_pulse(page_of, None)
    assert (pulse.dead, pulse.groups_to, pulse.faults) == (0, None, [])


def test_x08_the_next_answer_knows_an_act_of_another_process(dsn: str) -> None:
    from duewheel.plugin.told_acts import heard_of_act

    with Broker(dsn) as one, connected(dsn) as another:
        assert heard_of_act(one), "a session that begins may have missed one"
        assert not heard_of_act(one)
        for _ in range(2):
            ask(another, "select pg_notify('duewheel_page', '')")
            assert heard_of_act(one)
            # The pool may have taken another session after it, which is a new one.
            while heard_of_act(one):
                pass
    with Broker(dsn, listen=False) as behind_a_pooler:
        assert heard_of_act(behind_a_pooler)
        assert heard_of_act(behind_a_pooler)
