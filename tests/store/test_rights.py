"""Rights: what the broker's four roles may do, and nobody else."""

from __future__ import annotations

import contextlib
import logging
import queue
import re
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2.extensions import make_dsn, parse_dsn
from tests.acting import AT_ONCE, MILLISECOND
from tests.conftest import execute
from tests.logged import logged
from tests.logins import ROLES, login
from tests.waiting import PATIENCE_SECONDS, ask, beside, connected, until

import duewheel.store
from duewheel.store import (
    AlreadyReleased,
    Broker,
    EmbeddedPostgres,
    InvalidTag,
    NotAllowed,
    RecallOutcome,
    SendOutcome,
    sql,
)
from duewheel.store.database import migration
from duewheel.store.values.errors import role_needed
from duewheel.store.values.retry_policy import RetryPolicy

NUMBERS = count(1)
LATER = timedelta(minutes=10)


@pytest.fixture
def owner(dsn: str) -> Iterator[Broker]:
    """The broker of the schema's owner, with a topic."""
    with Broker(dsn) as broker:
        broker.create_topic("t", queues=2, granularity=MILLISECOND)
        yield broker


@pytest.fixture
def producer(owner: Broker) -> Iterator[Broker]:
    with Broker(login(owner.dsn, "duewheel_producer")) as broker:
        yield broker


@pytest.fixture
def consumer_login(owner: Broker) -> Iterator[Broker]:
    with Broker(login(owner.dsn, "duewheel_consumer")) as broker:
        yield broker


@pytest.fixture
def admin(owner: Broker) -> Iterator[Broker]:
    with Broker(login(owner.dsn, "duewheel_admin")) as broker:
        yield broker


# --- the producer


def test_a_producer_sends_and_takes_back(producer: Broker, owner: Broker) -> None:
    kept = producer.send("t", {"a": 1}, delay=LATER, key="k", tag="x", properties={"p": 1}, message_group="g")
    assert owner.find(kept.message_id) is not None
    again = producer.send("t", b"1", delay=LATER, idempotency_key="i")
    assert producer.send("t", b"2", delay=LATER, idempotency_key="i").message_id == again.message_id
    for conflict, outcome in (("keep", SendOutcome.KEPT), ("replace", SendOutcome.REPLACED)):
        assert producer.send("t", b"3", delay=LATER, key="k", on_conflict=conflict).outcome is outcome
    moved = producer.reschedule(again.message_id, delay=2 * LATER)
    assert producer.recall(moved.message_id).outcome is RecallOutcome.RECALLED
    assert producer.recall_key("t", "k").outcome is RecallOutcome.RECALLED
    assert [topic.name for topic in producer.topics()] == ["t"]
    waiting = producer.send("t", b"6", delay=LATER, key="many")
    (moved,) = producer.reschedule_key("t", "many", delay=2 * LATER)
    assert moved.message_id != waiting.message_id
    assert producer.recall_many("t", key_prefix="man", dry_run=True).matched == 1
    assert producer.recall_many("t", key_prefix="man").recalled == 1
    # The next day's slot is not there yet: the function makes it, with its owner's rights.
    owner.create_topic("far", max_delay=timedelta(days=100))
    assert producer.send("far", b"5", delay=timedelta(days=90)).outcome is SendOutcome.SENT
    # So does the check of a recall at COMMIT.
    too_late = producer.send("t", b"2", delay=AT_ONCE)
    in_time = producer.send("t", b"1", delay=LATER)
    with connected(producer.dsn, autocommit=False) as connection:
        producer.recall(in_time.message_id, connection=connection)
        connection.commit()
        producer.recall(too_late.message_id, connection=connection)
        until(lambda: owner.tick("t"), "the message to be released")
        with pytest.raises(psycopg2.Error) as caught:
            connection.commit()
    assert caught.value.pgcode == AlreadyReleased.sqlstate
    assert owner.find(in_time.message_id).recalled  # type: ignore[union-attr]


def test_a_producer_sends_many_without_a_right_to_the_table(
    producer: Broker, owner: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duewheel.store.operations.sending._CHUNK_MESSAGES", 7)
    messages: list[dict[str, Any]] = [
        {
            "body": bytes([n]),
            "delay": AT_ONCE if n % 2 else timedelta(milliseconds=n),
            "key": f"key {n}",
            "tag": "tag" if n % 3 else None,
            "properties": {"n": n} if n % 5 else None,
            "message_group": "g" if n % 4 == 0 else None,
        }
        for n in range(31)
    ]
    receipts = producer.send_many("t", messages)
    assert len({receipt.message_id for receipt in receipts}) == 31
    for message, receipt in zip(messages, receipts, strict=True):
        stored = owner.find(receipt.message_id)
        assert stored is not None
        assert (stored.body, stored.key, stored.tag) == (message["body"], message["key"], message["tag"])
        assert stored.properties == (message["properties"] or {})
        assert stored.deliver_at == receipt.deliver_at
    assert producer.send_many("t", []) == []
    # A wrong one is named and nothing is sent; nor by a transaction of the caller that is rolled back.
    with connected(producer.dsn, autocommit=False) as connection:
        producer.send_many("t", messages, connection=connection)
        connection.rollback()
        for wrong in (0, 6, 7, 30):
            some = [*messages[:wrong], {**messages[wrong], "tag": "no tag"}, *messages[wrong + 1 :]]
            for given in (None, connection):
                with pytest.raises(InvalidTag, match=f"message {wrong}: ") as caught:
                    producer.send_many("t", some, connection=given)
                assert caught.value.index == wrong
                connection.rollback()
    assert execute(owner.dsn, "select count(*) from duewheel.any_message") == [(31,)]


PRODUCER_MAY_NOT: dict[str, tuple[Callable[[Broker], object], str]] = {
    "find": (lambda b: b.find("0" * 44), "duewheel_consumer"),
    "find_key": (lambda b: b.find_key("t", "k"), "duewheel_consumer"),
    "history": (lambda b: b.history("0" * 44), "duewheel_consumer"),
    "dead_letters": (lambda b: b.dead_letters("g"), "duewheel_consumer"),
    "consumer": (lambda b: b.consumer("t", "g"), "duewheel_consumer"),
    "doorbells": (lambda b: b.doorbells(["t"], ["g"]), "duewheel_consumer"),
    "stats": (lambda b: b.stats(), "duewheel_consumer"),
    "create_topic": (lambda b: b.create_topic("u"), "duewheel_admin"),
    "update_topic": (lambda b: b.update_topic("t", retention=LATER), "duewheel_admin"),
    "delete_topic": (lambda b: b.delete_topic("t"), "duewheel_admin"),
    "delete_group": (lambda b: b.delete_group("g"), "duewheel_admin"),
    "tick": (lambda b: b.tick("t"), "duewheel_consumer"),
    "groups": (lambda b: b.groups(), "duewheel_consumer"),
    "redrive": (lambda b: b.redrive("g"), "duewheel_admin"),
    "create_schedule": (lambda b: b.create_schedule("s", "t", b"", every=LATER), "duewheel_admin"),
    "delete_schedule": (lambda b: b.delete_schedule("s"), "duewheel_admin"),
    "update_settings": (lambda b: b.update_settings(when_full="keep_unread"), "duewheel_admin"),
    "maintain": (lambda b: b.maintain(), "duewheel_admin"),
    "rebase": (lambda b: b.rebase(), "duewheel_admin"),
    "upgrade": (lambda b: b.upgrade(), "upgrade"),
}


def test_what_a_role_may_not_do_says_which_role_may(
    producer: Broker, consumer_login: Broker, owner: Broker
) -> None:
    for broker, forbidden in ((producer, PRODUCER_MAY_NOT), (consumer_login, CONSUMER_MAY_NOT)):
        for call, role in forbidden.values():
            with pytest.raises(NotAllowed, match=role):
                call(broker)
    with Broker(login(owner.dsn, None)) as nobody:
        for call in (lambda b: b.send("t", b"", delay=AT_ONCE), lambda b: b.topics(), lambda b: b.stats()):
            with pytest.raises(NotAllowed, match=r"duewheel_producer .*duewheel_consumer .*duewheel_admin"):
                call(nobody)


def test_a_producer_reads_no_message(producer: Broker, owner: Broker) -> None:
    owner.consumer("t", "g")
    producer.send("t", b"secret", delay=AT_ONCE, key="k")
    owner.tick("t")
    relations = execute(
        owner.dsn,
        "select relname from pg_class"
        " where relnamespace = 'duewheel'::regnamespace and relkind in ('r', 'p', 'v')",
    )
    readable = set()
    with connected(producer.dsn) as connection:
        for (name,) in relations:
            with contextlib.suppress(psycopg2.errors.InsufficientPrivilege):
                ask(connection, f"select * from duewheel.{name}")
                readable.add(name)
        assert readable == {"alembic_version", "broker", "topics"}
        for statement in (
            "select * from duewheel.receive('t', 'g')",
            "select * from duewheel.receive_batch(1, 1, 1, '1 min', 'x', 0, true)",
            "select * from duewheel.lease_rows(1, 1, 0, 1)",
            "select * from duewheel.describe_messages(1, null, null, null, 'k')",
            "copy duewheel.message to stdout",
            "copy duewheel.message from stdin",
            "insert into duewheel.message select",
            "update duewheel.topic set max_delay = '1 s'",
            "delete from duewheel.recall",
            "create table duewheel.mine ()",
            "create function duewheel.mine() returns int return 1",
            "alter function duewheel.upkeep_step(jsonb, integer, timestamptz) owner to current_user",
            "drop schema duewheel cascade",
        ):
            with pytest.raises(psycopg2.errors.InsufficientPrivilege):
                ask(connection, statement)


# --- the consumer


def test_a_consumer_receives_answers_and_looks_up(consumer_login: Broker, owner: Broker) -> None:
    ids = [owner.send("t", f"{n}", delay=AT_ONCE, key=f"k{n}").message_id for n in range(4)]
    owner.tick("t")
    consumer = consumer_login.consumer("t", "g", retry=RetryPolicy.unordered(max_retries=3))
    messages = {message.message_id: message for message in (*consumer.receive(), *consumer.receive())}
    assert set(messages) == set(ids)
    consumer.change_invisible_duration(messages.values(), LATER)
    consumer.nack(messages[ids[0]], AT_ONCE, reason="again")
    with connected(consumer_login.dsn, autocommit=False) as connection:
        consumer.ack(messages[ids[1]], connection=connection)
        connection.commit()
    consumer.ack([messages[ids[2]], messages[ids[3]]])
    retried = consumer.receive(wait=timedelta(seconds=5))
    assert [(message.message_id, message.attempt) for message in retried] == [(ids[0], 2)]
    assert consumer_login.find(ids[0]).body == b"0"  # type: ignore[union-attr]
    assert len(consumer_login.find_key("t", "k1")) == 1
    assert consumer_login.history(ids[1])[-1].state == "Acked"
    assert consumer_login.dead_letters("g") == []
    assert consumer_login.stats().topics[0].groups[0].inflight == 1
    assert [bell.inflight for bell in consumer_login.doorbells(["t"], ["g"])] == [True]
    assert [group.group for group in consumer_login.groups()] == ["g"]
    every = consumer_login.consumer("t", "all", mode="broadcasting", name="one")
    assert len([*every.receive(), *every.receive()]) == 4
    owner.create_topic("ordered", message_type="FIFO", queues=1)
    owner.send_many("ordered", [{"body": f"{n}", "message_group": "a"} for n in range(3)])
    called: queue.Queue[bytes] = queue.Queue()

    def listener(message: duewheel.store.Message) -> str:
        called.put(message.body)
        return "success"

    with consumer_login.push_consumer("ordered", "g", listener, retry=RetryPolicy.ordered()):
        assert [called.get(timeout=PATIENCE_SECONDS) for _ in range(3)] == [b"0", b"1", b"2"]
    # An administrator alone puts it back.
    for start in ("earliest", "latest"):
        with pytest.raises(NotAllowed, match="duewheel_admin"):
            consumer_login.rewind("t", "g", start)
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            execute(consumer_login.dsn, f"select * from duewheel.rewind('t', 'g', start => '{start}')")
    with pytest.raises(psycopg2.errors.InsufficientPrivilege):
        execute(consumer_login.dsn, "select * from duewheel.redrive('g')")
    consumer.ack(retried)
    assert not consumer.receive()


CONSUMER_MAY_NOT: dict[str, tuple[Callable[[Broker], object], str]] = {
    "send": (lambda b: b.send("t", b"", delay=AT_ONCE), "duewheel_producer"),
    "send_many": (lambda b: b.send_many("t", [{"body": b"", "delay": AT_ONCE}]), "duewheel_producer"),
    "recall": (lambda b: b.recall("0" * 44), "duewheel_producer"),
    "recall_key": (lambda b: b.recall_key("t", "k"), "duewheel_producer"),
    "recall_many": (lambda b: b.recall_many("t", tag="x"), "duewheel_producer"),
    "reschedule_key": (lambda b: b.reschedule_key("t", "k", delay=AT_ONCE), "duewheel_producer"),
    "reschedule": (lambda b: b.reschedule("0" * 44, delay=AT_ONCE), "duewheel_producer"),
    **{
        name: PRODUCER_MAY_NOT[name]
        for name in (
            *("create_topic", "update_topic", "delete_topic", "delete_group", "maintain"),
            *("redrive", "create_schedule", "delete_schedule", "update_settings", "rebase", "upgrade"),
        )
    },
}


# --- the administrator, and nobody


def test_an_administrator_does_everything_and_turns_the_wheel(admin: Broker) -> None:
    admin.create_topic("mine", granularity=timedelta(milliseconds=1))
    admin.update_topic("mine", retention=timedelta(days=1))
    admin.maintain()
    assert not admin.rebase().rebased
    consumer = admin.consumer("mine", "g")
    released, stop = threading.Event(), threading.Event()
    with beside() as start:
        wheel = start(lambda: admin.wheel(on_released=lambda _: released.set()).run(stop))
        admin.send_many("mine", [{"body": b"1", "delay": timedelta(milliseconds=300)}] * 3)
        assert released.wait(PATIENCE_SECONDS)
        stop.set()
        wheel.result()
    batch = [*consumer.receive(), *consumer.receive()]
    assert len(batch) == 3
    consumer.ack(batch)
    admin.rewind("mine", "g", "earliest")
    assert len([*consumer.receive(), *consumer.receive()]) == 3
    assert admin.redrive("g").matched == 0
    admin.create_schedule("daily", "mine", b"1", every=timedelta(days=1))
    admin.pause_schedule("daily")
    admin.resume_schedule("daily")
    assert [schedule.name for schedule in admin.schedules()] == ["daily"]
    admin.delete_schedule("daily")
    admin.update_settings(when_full="keep_unread")
    assert admin.settings().when_full == "keep_unread"
    admin.delete_group("g")
    admin.delete_topic("mine")
    assert execute(admin.dsn, "select count(*) from duewheel.any_message") == [(3,)]
    with pytest.raises(psycopg2.errors.InsufficientPrivilege):
        execute(admin.dsn, "update duewheel.message set tag = 'x'")


def test_the_wheel_of_another_role_says_what_it_lacks(consumer_login: Broker) -> None:
    stop = threading.Event()
    with (
        logged("duewheel.store.wheel", "it needs the role duewheel_admin") as refusal,
        beside() as start,
    ):
        start(lambda: consumer_login.wheel(listen=False).run(stop))
        refusal.wait()
        stop.set()


# --- the functions themselves


def functions(dsn: str) -> list[tuple[str, str, bool, list[str], bool, list[str]]]:
    """Name, signature, security definer, settings, executable by all, roles."""
    return execute(  # type: ignore[return-value]
        dsn,
        """
        select p.proname::text, p.oid::regprocedure::text, p.prosecdef, coalesce(p.proconfig, '{}'),
            p.proacl is null or exists (select from aclexplode(p.proacl) a where a.grantee = 0),
            array(select r.rolname::text from pg_roles r
                  where r.rolname like 'duewheel%%' and r.rolname not like '%%login'
                    and has_function_privilege(r.oid, p.oid, 'execute') order by 1)
        from pg_proc p where p.pronamespace = 'duewheel'::regnamespace order by 2
        """.replace("%%", "%"),
    )


def test_functions_of_a_role_have_their_own_search_path(dsn: str) -> None:
    login(dsn, None)
    plain = {name for (name,) in execute(dsn, "select unnest(duewheel.plain_functions())")}
    kinds = "select proname from pg_proc where prokind = 'p' and pronamespace = 'duewheel'::regnamespace"
    procedures = {name for (name,) in execute(dsn, kinds)}
    listed: dict[str, set[str]] = {}
    for name, role in execute(dsn, "select * from duewheel.entry_points()"):
        listed.setdefault(str(name), set()).add(str(role))
    found = functions(dsn)
    assert set(listed) <= {name for name, *_ in found}, "a listed function is not there"
    for name, signature, definer, settings, by_all, roles in found:
        assert not by_all, f"{signature} can be executed by everybody"
        if name in plain:
            assert (definer, roles) == (False, sorted(ROLES)), signature
        elif name in listed:
            # A procedure that commits runs with the rights of the caller.
            assert definer is (name not in procedures), signature
            assert ("search_path=pg_catalog, pg_temp" in settings) is (name not in procedures), signature
            # An administrator is a member of both others.
            assert set(roles) == listed[name] | {"duewheel_admin"}, signature
        else:
            assert roles == [], f"{signature} has no line with its role"
    triggers = execute(
        dsn,
        "select p.oid::regprocedure::text, p.prosecdef, p.proconfig from pg_proc p"
        " where p.pronamespace = 'duewheel'::regnamespace and p.prorettype = 'trigger'::regtype",
    )
    assert triggers
    for signature, definer, settings in triggers:
        assert definer, signature
        assert "search_path=pg_catalog, pg_temp" in settings, signature


def test_every_function_that_python_calls_belongs_to_a_role(dsn: str) -> None:
    known = {name for name, *_ in functions(dsn)}
    granted = {str(name) for (name,) in execute(dsn, "select function_name from duewheel.entry_points()")}
    granted |= {str(name) for (name,) in execute(dsn, "select unnest(duewheel.plain_functions())")}
    package = Path(duewheel.store.__path__[0]).resolve().parent
    called = set()
    for folder in ("store", "spark", "triggers", "hooks", "operators", "sensors", "cli", "plugin"):
        for path in (package / folder).rglob("*"):
            if (
                path.suffix not in (".py", ".sql")
                or "migrations" in path.parts
                or sql.FOLDER.resolve() in path.parents
            ):
                continue
            if path.name != "migration.py":
                called |= set(re.findall(r"\bduewheel\.(\w+)\(", path.read_text()))
    assert len(called & known) > 20
    assert called & known <= granted


def test_functions_name_what_they_use_in_full(dsn: str) -> None:
    """A name without its schema would be looked up where a caller can put something else."""
    sources = execute(
        dsn,
        "select p.oid::regprocedure::text, p.prosrc from pg_proc p join pg_language l on l.oid = p.prolang"
        " where p.pronamespace = 'duewheel'::regnamespace and l.lanname = 'plpgsql'",
    )
    names = sorted({name for name, *_ in functions(dsn)})
    relations = [
        str(name)
        for (name,) in execute(
            dsn,
            "select relname from pg_class where relnamespace = 'duewheel'::regnamespace"
            " and relkind in ('r', 'p', 'v', 'S') and not relispartition",
        )
    ]
    call = re.compile(rf"(?<![\w.%\"])({'|'.join(names)})\s*\(")
    use = re.compile(rf"\b(?:from|join|update|insert into|table|only)\s+({'|'.join(relations)})\b(?!\s*\()")
    for signature, source in sources:
        code = re.sub(r"--.*", "", str(source))
        # Advice in messages and hints is for people.
        code = re.sub(r"(message|hint) = (format\()?('[^']*'\s*)+", "", code)
        assert not call.findall(code), signature
        assert not use.findall(code), signature


def test_every_refusal_names_a_role() -> None:
    for refusal, role in (
        ("permission denied for function send", "duewheel_producer"),
        ("permission denied for function receive_batch", "duewheel_consumer"),
        ("permission denied for function not_for_anybody", "duewheel_admin"),
        ("permission denied for view waiting", "duewheel_consumer"),
        ("permission denied for table message", "duewheel_admin"),
        ("must be owner of table message", "duewheel_admin"),
    ):
        assert role_needed(refusal) == role
    assert "duewheel_producer" in role_needed("permission denied for schema duewheel")


def test_a_view_that_may_be_read_can_be_read(owner: Broker) -> None:
    """A view calls functions with its reader's rights, who needs a right to those too."""
    owner.consumer("t", "g")
    owner.send("t", b"1", delay=LATER)
    views = (
        "select relname from pg_class where relnamespace = 'duewheel'::regnamespace and relkind = 'v'"
        " and has_table_privilege(oid, 'select')"
    )
    for role in ROLES:
        with connected(login(owner.dsn, role)) as connection:
            readable = ask(connection, views)
            assert readable
            for (view,) in readable:
                assert ask(connection, f"select * from duewheel.{view}")


# --- upgrading


@pytest.fixture
def without_roles(other_postgres: EmbeddedPostgres) -> Iterator[str]:
    """A database in a cluster without the four roles, owned by a user who may not make any."""
    superuser = other_postgres.dsn()
    name = f"owned_{next(NUMBERS)}"
    hidden = [
        role
        for (role,) in execute(
            superuser, "select rolname from pg_roles where rolname = any (%s)", list(ROLES)
        )
    ]
    for role in hidden:
        execute(superuser, f"alter role {role} rename to hidden_{role}")
    execute(superuser, f"create role {name} login password 'owner'")
    execute(superuser, f"create database {name} owner {name}")
    yield make_dsn(other_postgres.dsn(name), user=name, password="owner")
    execute(superuser, f"drop database {name} with (force)")
    for role in ROLES:
        execute(superuser, f"drop role if exists {role}")
    for role in hidden:
        execute(superuser, f"alter role hidden_{role} rename to {role}")
    execute(superuser, f"drop role {name}")


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was warned of; migrations also tell what they do, where something has asked all loggers to."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_an_upgrade_succeeds_without_the_right_to_make_roles(
    without_roles: str, other_postgres: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="duewheel.store.database.migration"):
        migration.upgrade(without_roles)
    (warning,) = warnings_in(caplog)
    statements = re.findall(r"(?:create role|grant) [^;]*?(?= and then upgrade|;)", warning)
    assert len(statements) == 7
    with Broker(without_roles) as broker:
        broker.create_topic("t")
        broker.send_many("t", [{"body": b"1", "delay": AT_ONCE}])
        assert len(broker.consumer("t", "g").receive()) == 1
    # The function list stays closed to everybody else.
    assert not any(by_all for *_, by_all, _ in functions(without_roles))
    # What the warning says helps.
    for statement in statements:
        execute(other_postgres.dsn(), statement)
    caplog.clear()
    migration.upgrade(without_roles)
    assert not warnings_in(caplog)
    name = without_roles.split("dbname=")[1].split()[0]
    with Broker(login(other_postgres.dsn(name), "duewheel_producer")) as producer:
        producer.send("t", b"2", delay=AT_ONCE)
    execute(other_postgres.dsn(name), "drop role duewheel_producer_login")


def test_an_upgrade_by_a_user_with_createrole_makes_the_roles(
    without_roles: str, other_postgres: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    name = without_roles.split("dbname=")[1].split()[0]
    execute(other_postgres.dsn(), f"alter role {name} createrole")
    migration.upgrade(without_roles)
    assert not warnings_in(caplog)
    assert execute(without_roles, "select duewheel.rights_are_granted()") == [(True,)]
    # Nothing is done again where all is as it should be.
    written = "select xmin::text from pg_proc where proname = 'upkeep_step'"
    before = execute(without_roles, written)
    migration.upgrade(without_roles)
    assert execute(without_roles, written) == before


def test_after_an_uninstall_nothing_is_left(without_roles: str, other_postgres: EmbeddedPostgres) -> None:
    dsn = make_dsn(other_postgres.dsn(), dbname=parse_dsn(without_roles)["dbname"])
    with Broker(dsn) as broker:
        broker.upgrade()
        broker.create_topic("t")
        broker.send("t", b"x", delay=LATER)
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "production.md").read_text(encoding="utf-8")
    uninstalling = re.findall(r"^    (drop .*;)$", page, re.MULTILINE)
    assert len(uninstalling) == 2
    for statement in uninstalling:
        execute(dsn, statement)
    assert execute(dsn, "select nspname from pg_namespace where nspname ~ 'duewheel'") == []
    assert execute(dsn, "select rolname from pg_roles where rolname = any (%s)", list(ROLES)) == []
    # And it can come back.
    with Broker(dsn) as broker:
        assert broker.upgrade() == broker.check()
        assert broker.topics() == []


def test_an_upgrade_mends_the_rights_of_the_roles(owner: Broker, consumer_login: Broker) -> None:
    """Those that a restore lost come back, and those of another version go."""
    dsn = owner.dsn
    login(dsn, None)
    before = functions(dsn)
    execute(dsn, "revoke usage on schema duewheel from duewheel_consumer")
    others = "duewheel.upkeep_step(jsonb, integer, timestamptz), duewheel.make_slots_ahead(timestamptz)"
    execute(dsn, f"grant execute on function {others} to duewheel_consumer, public")
    execute(dsn, "grant execute on function duewheel.settings(timestamptz) to nobody_login")
    execute(dsn, "grant select, insert on duewheel.waiting, duewheel.message to duewheel_producer")
    migration.upgrade(dsn)
    # To replace a function takes away that it runs with its owner's rights.
    execute(dsn, "update duewheel.broker set functions_checksum = 'of another version'")
    migration.upgrade(dsn)
    assert functions(dsn) == before
    for relation in ("waiting", "message"):
        for right in ("select", "insert"):
            question = f"select has_table_privilege('duewheel_producer', 'duewheel.{relation}', '{right}')"
            assert execute(dsn, question) == [(False,)]
    waiting = "select has_table_privilege('duewheel_consumer', 'duewheel.waiting', 'select')"
    # What an administrator gave a login beside the roles is theirs.
    kept = "select has_function_privilege('nobody_login', 'duewheel.settings(timestamptz)', 'execute')"
    assert execute(dsn, waiting) == execute(dsn, kept) == [(True,)]
    owner.send("t", b"1", delay=AT_ONCE)
    owner.tick("t")
    assert len(consumer_login.consumer("t", "g").receive()) == 1


@pytest.mark.parametrize("message_type", ["NORMAL", "FIFO"])
def test_a_login_that_may_read_tables_runs_the_query_of_a_lease(dsn: str, message_type: str) -> None:
    """As a Spark job does."""
    with Broker(dsn) as broker:
        broker.create_topic("t", message_type=message_type)
        broker.send("t", b"1", message_group="a" if message_type == "FIFO" else None)
        (message,) = broker.consumer("t", "g").receive(wait=timedelta(seconds=30))
    lease = message.lease
    named = (lease.group_id, lease.topic_id, lease.queue, lease.n)
    with connected(login(dsn, "duewheel_admin")) as connection:
        ((query,),) = ask(connection, "select duewheel.lease_query(%s, %s, %s, %s)", *named)
        assert len(ask(connection, query)) == 1
