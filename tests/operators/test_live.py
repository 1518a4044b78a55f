"""Airflow with all its parts: what only a scheduler, triggerers and workers of their own can show.

The parts are killed, stopped and restarted while messages come due. Each time nothing is lost, and nothing is
handled twice but after its lease was given back.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from tests.conftest import temporary_server
from tests.console import Shell, blocks, section
from tests.operators.live_airflow import LiveAirflow
from tests.pages import examples
from tests.waiting import wheels_listening

from duewheel.cli.demo.airflow_standalone import Settings
from duewheel.cli.demo.processes import session_members
from duewheel.store import Broker, EmbeddedPostgres, NewMessage
from duewheel.store.database import migration

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(1200)]

DAGS = Path(__file__).parent / "live_dags.py"
DAG_IDS = (
    *("killed_live", "side_by_side", "refused", "counted", "held"),
    *("pay_order_first", "cancel_unpaid_orders"),
)
TOPICS = ("killed", "wide", "counted", "held", "first-timeouts")
ROOT = Path(__file__).parents[2]
FIRST_STEPS = (ROOT / "docs" / "how-to" / "first-steps.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
#: A topic of the README's own, which nobody has made, and a timeout that ends soon.
README_HERE = {"order-timeout": "readme-timeout", "timedelta(seconds=5)": "timedelta(seconds=1)"}


def until(happened: Callable[[], object], airflow: LiveAirflow) -> None:
    """Return when ``happened()`` is true, while no part of Airflow ends."""

    def goes_on() -> object:
        happens = happened()
        if not happens:
            airflow.check()
        return happens

    airflow.until(goes_on, f"{happened.__name__} to come true")


@pytest.fixture(scope="module")
def pipes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tasks find the pipes over which they are told to go on."""
    return tmp_path_factory.mktemp("pipes")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """The broker's Postgres, which may be restarted, as the session's may not."""
    with temporary_server("duewheel-live-") as server:
        yield server


@pytest.fixture(scope="module")
def broker(server: EmbeddedPostgres) -> Iterator[Broker]:
    """The broker of the DAGs."""
    dsn = server.ensure_database("shop")
    migration.upgrade(dsn)
    with Broker(dsn) as broker:
        for topic in TOPICS:
            broker.create_topic(topic)
        broker.consumer("wide", "everyone", mode="broadcasting", name="one")
        yield broker


@pytest.fixture(scope="module")
def metadata() -> Iterator[EmbeddedPostgres]:
    """Airflow's own Postgres, which may be restarted as well."""
    with temporary_server("duewheel-metadata-") as server:
        yield server


@pytest.fixture(scope="module")
def airflow(
    broker: Broker, pipes: Path, metadata: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveAirflow]:
    """All parts of Airflow, which know the DAGs."""
    home = tmp_path_factory.mktemp("airflow")
    (home / "dags").mkdir()
    shutil.copy(DAGS, home / "dags")
    (first_dags,) = examples(FIRST_STEPS, "python")
    (home / "dags" / "first_steps.py").write_text(first_dags)
    (readme_dags, *_) = examples(README, "python")
    for stands, here in README_HERE.items():
        assert stands in readme_dags
        readme_dags = readme_dags.replace(stands, here)
    (home / "dags" / "readme.py").write_text(readme_dags)
    database = metadata.ensure_database("airflow_live")
    with LiveAirflow(Settings(home, database, home / "dags", broker.dsn), pipes) as live:
        live.bring_up(DAG_IDS)
        live.know_triggerer()
        yield live


@pytest.fixture(scope="module")
def second_triggerer(airflow: LiveAirflow) -> None:
    """A further triggerer, which takes over from the first."""
    airflow.add_triggerer()


def runs(airflow: LiveAirflow, dag_id: str) -> dict[str, int]:
    """How many runs of the DAG are in each state."""
    return airflow.api.run_states(dag_id, since="2000-01-01T00:00:00Z")


def states(broker: Broker, message_id: str, group: str = "g") -> list[str]:
    """The outcome of a message for a group."""
    return [entry.state for entry in broker.history(message_id) if entry.consumer_group == group]


def begin(airflow: LiveAirflow, dag_id: str) -> None:
    """Start a run as a user does."""
    airflow.api.start_run(dag_id, {})


@pytest.mark.long
def test_x09_a_lost_worker_hands_its_messages_to_the_next_try(airflow: LiveAirflow, broker: Broker) -> None:
    sent = broker.send("killed", b"x", delay=timedelta(milliseconds=200), key="4711")
    until(lambda: runs(airflow, "killed_live").get("success"), airflow)
    # One lease, one attempt: the second try took it over and did not wait for its end.
    assert states(broker, sent.message_id) == ["Inflight", "Acked"]
    assert runs(airflow, "killed_live") == {"success": 1}


@pytest.mark.long
def test_a_group_has_as_many_runs_as_its_dag_allows(
    airflow: LiveAirflow, broker: Broker, pipes: Path
) -> None:
    keys = [str(number) for number in range(3)]
    for key in keys:
        os.mkfifo(pipes / f"go_{key}")
        broker.send("wide", b"x", delay=timedelta(milliseconds=200), key=key)

    def all_are_held() -> bool:
        (bell,) = broker.doorbells(["wide"], ["g"])
        return len(bell.holders) == len(keys)

    until(all_are_held, airflow)
    for key in keys:
        (pipes / f"go_{key}").write_text("go")
    until(lambda: runs(airflow, "side_by_side").get("success", 0) >= len(keys), airflow)
    # A group that the broker refuses has silenced nobody, and started nothing.
    assert runs(airflow, "refused") == {}


@pytest.mark.long
def test_the_readmes_dags_run_on_a_broker_without_their_topic(airflow: LiveAirflow, broker: Broker) -> None:
    assert README_HERE["order-timeout"] not in {topic.name for topic in broker.topics()}
    begin(airflow, "place_order")
    until(lambda: runs(airflow, "cancel_unpaid_orders").get("success"), airflow)
    (message,) = broker.find_key(README_HERE["order-timeout"], "4711")
    assert states(broker, message.message_id, "canceller") == ["Inflight", "Acked"]


def test_the_first_steps_cancel_one_order_and_pay_another(airflow: LiveAirflow, broker: Broker) -> None:
    """Before them, tests/test_first_steps.py makes ready what `broker` has here."""
    environment = {**airflow.settings.environment(), "DUEWHEEL_DSN": broker.dsn}
    # The reader has a connection in Airflow's database instead.
    del environment["AIRFLOW_CONN_DUEWHEEL_DEFAULT"]
    shell = Shell(environment)
    shell.run_all(section(FIRST_STEPS, "Add the connection"))
    start, *look = blocks(section(FIRST_STEPS, "Place an order and do not pay"))
    shell.run_all(start)
    until(lambda: runs(airflow, "cancel_order_first").get("success"), airflow)
    for block in look:
        shell.run_all(block)
    (log,) = airflow.settings.home.glob("logs/dag_id=cancel_order_first/**/*.log")
    assert "cancelled: order 4712" in log.read_text()

    place, pay, *look = blocks(section(FIRST_STEPS, "Place an order and pay it"))
    shell.run_all(place)
    until(lambda: runs(airflow, "place_order_first") == {"success": 2}, airflow)
    shell.run_all(pay)
    until(lambda: runs(airflow, "pay_order_first").get("success"), airflow)
    for block in look:
        shell.run_all(block)


#: The asset that starts the DAG ``counted``.
COUNTED = "due_counted_g"


def has_ended(airflow: LiveAirflow, triggerer: int) -> bool:
    """Whether no process of the triggerer is left."""
    return not airflow.processes(triggerer)


def send_spread(broker: Broker, name: str, count: int, seconds: float) -> list[str]:
    """Send messages that come due one after the other, and return their keys."""
    keys = [f"{name}-{number}" for number in range(count)]
    broker.send_many(
        "counted",
        [
            NewMessage(body=b"x", key=key, delay=timedelta(seconds=0.5 + seconds * number / count))
            for number, key in enumerate(keys)
        ],
    )
    return keys


def waiting(broker: Broker) -> int:
    """How many messages of the topic ``counted`` were not released yet."""
    return next(found.waiting for found in broker.stats().topics if found.topic == "counted")


def counted(airflow: LiveAirflow, name: str) -> Counter[str]:
    """How often each message of that name was handled."""
    return Counter(one.key for one in airflow.given("counted") if one.key.startswith(f"{name}-"))


def until_counted(airflow: LiveAirflow, name: str, sent: list[str]) -> None:
    """Wait until each message was handled, and all runs are over: each was handled once."""
    airflow.until(lambda: len(counted(airflow, name)) == len(sent), "all messages to be handled")
    airflow.until(lambda: airflow.is_idle("counted"), "the runs to end")
    assert counted(airflow, name) == Counter(sent)


def events(airflow: LiveAirflow) -> int:
    """How often the doorbell of ``counted`` rang."""
    ((count,),) = airflow.ask(
        "select count(*) from asset_event join asset on asset.id = asset_id where asset.name = %s", COUNTED
    )
    return int(count)


@pytest.mark.long
@pytest.mark.usefixtures("second_triggerer")
def test_x14_a_triggerer_that_was_stopped_doubles_nothing(airflow: LiveAirflow, broker: Broker) -> None:
    stopped = airflow.until_active(COUNTED)
    processes = airflow.processes(stopped)
    for process in processes:
        process.suspend()
    try:
        airflow.until_active(COUNTED, after=stopped)
        # The one that stands has not hung up.
        airflow.until(lambda: wheels_listening(broker.dsn) >= 2, "two live streams")
        sent = send_spread(broker, "stopped", 100, seconds=2)
    finally:
        for process in processes:
            process.resume()
    until_counted(airflow, "stopped", sent)


@pytest.mark.long
@pytest.mark.usefixtures("second_triggerer")
def test_x14_killed_triggerers_lose_and_double_nothing(airflow: LiveAirflow, broker: Broker) -> None:
    for name, whole in (("first", True), ("second", False)):
        sent = send_spread(broker, name, 500, seconds=3)
        airflow.until(lambda: waiting(broker) <= 250, "half of the releases")
        killed = airflow.until_active(COUNTED)
        # The second time as when memory runs out: whoever is left of it ends by itself.
        for process in airflow.processes(killed) if whole else [airflow.leader(killed)]:
            process.kill()
        if whole:
            airflow.add_triggerer()
        airflow.until_active(COUNTED, after=killed)
        until_counted(airflow, name, sent)
        airflow.until(partial(has_ended, airflow, killed), "what was killed to be gone")


@pytest.mark.long
@pytest.mark.usefixtures("second_triggerer")
def test_x14_a_triggerer_killed_after_its_event_loses_nothing(airflow: LiveAirflow, broker: Broker) -> None:
    (scheduler,) = (part for part in airflow.at_work() if part.name == "scheduler")
    standing = session_members([scheduler.process.pid])
    killed = airflow.until_active(COUNTED)
    before = events(airflow)
    for process in standing:
        process.suspend()
    try:
        sent = send_spread(broker, "between", 100, seconds=1)
        airflow.until(lambda: events(airflow) > before, "an event that no run answers yet")
        for process in airflow.processes(killed):
            process.kill()
    finally:
        for process in standing:
            process.resume()
    airflow.add_triggerer()
    airflow.until_active(COUNTED, after=killed)
    until_counted(airflow, "between", sent)
    airflow.until(partial(has_ended, airflow, killed), "what was killed to be gone")


@pytest.mark.long
def test_an_event_during_a_pause_starts_a_run_afterwards(airflow: LiveAirflow, broker: Broker) -> None:
    """With its file touched all the time, and more events than runs."""
    file = airflow.settings.dags_folder / DAGS.name
    watchers: set[tuple[int]] = set()

    def until_while_touched(happened: Callable[[], object], what: str) -> None:
        def happened_meanwhile() -> object:
            file.touch()
            watchers.update(
                airflow.ask(
                    "select trigger_id from asset_watcher join asset on asset.id = asset_id"
                    " where asset.name = %s",
                    COUNTED,
                )
            )
            return happened()

        airflow.until(happened_meanwhile, what)

    before = events(airflow)
    airflow.call("PATCH", "dags/counted", {"is_paused": True})
    sent = send_spread(broker, "paused", 10, seconds=1)
    airflow.until(lambda: events(airflow) > before, "a ring that no run answers")
    file.touch()
    airflow.until(lambda: airflow.active(COUNTED) is None, "the watcher to be gone")
    assert not counted(airflow, "paused")
    airflow.call("PATCH", "dags/counted", {"is_paused": False})
    for number in range(3):
        sent += send_spread(broker, f"paused-{number}", 10, seconds=1)
        until_while_touched(lambda: waiting(broker) == 0, "the releases")
    until_while_touched(lambda: len(counted(airflow, "paused")) == len(sent), "all messages to be handled")
    until_counted(airflow, "paused", sent)
    # Parsed again and again, the watcher stays the one that it is.
    assert len(watchers) == 1


def hold(airflow: LiveAirflow, broker: Broker, pipes: Path, key: str) -> tuple[Path, str, str]:
    """Send a message that its task holds; return the task's pipe, the message's id and the run."""
    pipe = pipes / f"hold_{key}"
    os.mkfifo(pipe)
    sent = broker.send("held", b"x", key=key, delay=timedelta(milliseconds=100))
    airflow.until(lambda: runs_of(airflow, key), "a task to hold the message")
    return pipe, sent.message_id, runs_of(airflow, key)[0]


def runs_of(airflow: LiveAirflow, key: str) -> list[str]:
    """The runs that were given the message."""
    return [one.run for one in airflow.given("held") if one.key == key]


@pytest.mark.long
def test_x09_a_cleared_or_failed_run_gives_its_messages_back(
    airflow: LiveAirflow, broker: Broker, pipes: Path
) -> None:
    given_back = ["Inflight", "WaitingRetry", "Ready", "Inflight", "Acked"]

    pipe, message_id, run = hold(airflow, broker, pipes, "cleared")
    pipe.unlink()
    airflow.change_run("POST", "held", run, "/clear", {"dry_run": False, "only_failed": False})
    airflow.until(lambda: len(runs_of(airflow, "cleared")) == 2, "the next try")
    airflow.until(lambda: airflow.is_idle("held"), "the runs to end")
    assert runs_of(airflow, "cleared") == [run, run]
    assert states(broker, message_id) == given_back

    pipe, message_id, run = hold(airflow, broker, pipes, "failed")
    pipe.unlink()
    airflow.change_run("PATCH", "held", run, "", {"state": "failed"})
    airflow.until(lambda: len(runs_of(airflow, "failed")) == 2, "the next run")
    airflow.until(lambda: airflow.is_idle("held"), "the runs to end")
    assert len(set(runs_of(airflow, "failed"))) == 2
    assert states(broker, message_id) == given_back


def restart(airflow: LiveAirflow, server: EmbeddedPostgres) -> None:
    """Stop a server as an upgrade of it does, which ends all sessions, and start it."""
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGINT)
    airflow.until(lambda: server.pid != pid, "Postgres to stop")
    server.start()


@pytest.mark.long
def test_x14_a_broker_restart_keeps_lease_and_wheel(
    airflow: LiveAirflow, broker: Broker, pipes: Path, server: EmbeddedPostgres
) -> None:
    pipe, message_id, _ = hold(airflow, broker, pipes, "restarted")
    restart(airflow, server)
    pipe.write_text("go")
    airflow.until(lambda: airflow.is_idle("held"), "the run to end")
    assert states(broker, message_id) == ["Inflight", "Acked"]
    broker.send("held", b"x", key="later", delay=timedelta(milliseconds=100))
    airflow.until(lambda: runs_of(airflow, "later"), "a run for what came later")
    airflow.until(lambda: airflow.is_idle("held"), "the run to end")


@pytest.mark.long
def test_x14_a_restart_of_airflows_database_loses_nothing(
    airflow: LiveAirflow, broker: Broker, metadata: EmbeddedPostgres
) -> None:
    parts = airflow.at_work()
    sent = send_spread(broker, "metadata", 300, seconds=3)
    airflow.until(lambda: waiting(broker) <= 150, "half of the releases")
    restart(airflow, metadata)

    def all_are_acked() -> bool:
        # The scheduler and the DAG processor end by it.
        parts[:] = airflow.start_again(parts)
        (bell,) = broker.doorbells(["counted"], ["g"])
        return waiting(broker) == 0 and bell.ready == 0 and not bell.inflight

    airflow.until(all_are_acked, "all messages to be handled")
    given = counted(airflow, "metadata")
    assert given.keys() == set(sent)
    page = broker.list_messages("counted", state="all", key_prefix="metadata-", max_messages=1_000)
    for message in page.messages:
        became = states(broker, message.message_id)
        assert became[-1] == "Acked"
        assert message.key is not None
        # Twice only where a lease ended first, as that of a task does that ends with its scheduler.
        assert given[message.key] <= became.count("Inflight")
