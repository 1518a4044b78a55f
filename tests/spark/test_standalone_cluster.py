"""A real standalone cluster: a master and two workers as processes of their own, on loopback."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from airflow.sdk import Context
from tests.airflow_runs import connection_json
from tests.spark.cluster import CONF, PAGE, SPARK_HOME, zip_of_the_package

import duewheel
from duewheel.operators.spark import SparkConsumeMessagesOperator
from duewheel.spark.runtimes import spark_environment
from duewheel.spark.session import LOCAL_CONF
from duewheel.store.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.long]

COUNT = 600


APPLICATION = """
import os, sys
from duewheel.spark import Batch, consume
from duewheel.store import Broker
from pyspark.sql.functions import udf

dsn, marks = sys.argv[1:]

def first_time(name):
    try:
        os.close(os.open(f"{marks}/{name}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True

def until(condition):
    import time
    while not condition():
        # What is waited for happens in other processes, on another "machine": a file is all they share.
        time.sleep(0.02)

def kill_executor():
    import psutil
    for process in psutil.Process().parents():
        if process.name() == "java":
            process.kill()
            break
    # This Python worker is ended with its executor.
    until(lambda: False)

def somebody_waits(connection):
    with connection.cursor() as cursor:
        # Within a transaction it is the same activity again and again.
        cursor.execute("select pg_stat_clear_snapshot()")
        cursor.execute(
            "select exists (select from pg_stat_activity"
            " where datname = current_database() and wait_event_type = 'Lock')"
        )
        return cursor.fetchone()[0]

def working(what):
    def work(connection, batches):
        from pyspark.taskcontext import TaskContext
        partition = TaskContext.get().partitionId()
        keys = [key for batch in batches for key in batch["key"].to_pylist()]
        with connection.cursor() as cursor:
            cursor.execute("insert into effect select %s, unnest(%s::text[])", (what, keys))
        if partition == 2 and first_time(f"{what}-worked"):
            if what == "killed":
                kill_executor()
            # Until Spark has started a copy, which waits at the fence.
            until(lambda: somebody_waits(connection))
    return work

def disturbing(what):
    def disturbed(key):
        # In the middle of a part that is written.
        if key == "500":
            if first_time(f"{what}-written"):
                if what == "killed":
                    kill_executor()
                until(lambda: os.path.exists(f"{marks}/{what}-copied"))
            elif what == "copied":
                first_time(f"{what}-copied")
        return key
    return udf(disturbed, "string", useArrow=False).asNondeterministic()

def run(what, spark, batch):
    assert batch.on(spark, ["key"]).foreach_partition(working(what)) == COUNT
    assert batch.outcome().acked == COUNT
    rows = spark.range(0, COUNT, 1, 4).selectExpr("cast(id as string) as body", "cast(id as string) as key")
    rows.withColumn("key", disturbing(what)("key")).write.format("duewheel").options(
        dsn=dsn, topic=f"written-{what}"
    ).mode("append").save()

with consume() as batch:
    spark = batch.spark
    assert spark.sparkContext.master.startswith("spark://")
    assert batch.messages.select("key").distinct().count() == COUNT
    run("copied", spark, batch)
    with consume(spark, dsn, "orders-killed", "canceller", max_messages=COUNT, columns=["key"]) as again:
        run("killed", spark, again)
""".replace("COUNT", str(COUNT))


def test_x16_cluster_works_and_sends_once(
    broker: Broker, master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An application that the operator runs there by the Spark connection; with slow tasks that Spark copies,
    then with executors that are killed in the middle of their tasks."""
    for what in ("copied", "killed"):
        broker.create_topic(f"orders-{what}")
        broker.create_topic(f"written-{what}", message_type="NORMAL")
        broker.send_many(
            f"orders-{what}",
            [{"body": b"", "key": str(number), "delay": timedelta(0)} for number in range(COUNT)],
        )
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute("create table effect (what text, key text)")

    marks = tmp_path / "marks"
    marks.mkdir()
    application = tmp_path / "cancel.py"
    application.write_text(APPLICATION)
    host, port = master.removeprefix("spark://").split(":")
    connection_to_spark = {"conn_type": "spark", "host": host, "port": int(port), "extra": json.dumps(CONF)}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection_to_spark))
    monkeypatch.setenv("AIRFLOW_CONN_DUEWHEEL_DEFAULT", connection_json(broker.dsn))
    operator = SparkConsumeMessagesOperator(
        task_id="cancel",
        topic="orders-copied",
        group="canceller",
        spark_conn_id="spark_default",
        application=str(application),
        application_args=[broker.dsn, str(marks)],
        partitions=4,
    )

    assert operator.execute(Context()) == COUNT
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", operator.spark_ui_address or "")
    assert {mark.name for mark in marks.iterdir()} == {
        *("copied-worked", "copied-written", "copied-copied", "killed-worked", "killed-written")
    }
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute("select what, count(*), count(distinct key) from effect group by 1 order by 1")
        assert cursor.fetchall() == [("copied", COUNT, COUNT), ("killed", COUNT, COUNT)]
        cursor.execute(
            "select t.name, count(*), count(distinct key) from duewheel.any_message m"
            " join duewheel.topic t using (topic_id) where t.name like 'written-%' group by 1 order by 1"
        )
        assert cursor.fetchall() == [("written-copied", COUNT, COUNT), ("written-killed", COUNT, COUNT)]


SHIPPED = """
import sys
import duewheel
from duewheel.spark import consume
from pyspark.sql import SparkSession

def work(connection, batches):
    import duewheel
    keys = [key for batch in batches for key in batch["key"].to_pylist()]
    with connection.cursor() as cursor:
        cursor.execute("insert into effect select %s, unnest(%s::text[])", (duewheel.__file__, keys))

spark = SparkSession.builder.getOrCreate()
with consume(spark, sys.argv[1], "orders", "canceller", max_messages=COUNT) as batch:
    batch.messages.selectExpr("body", "key").write.format("duewheel").options(
        dsn=sys.argv[1], topic="written"
    ).mode("append").save()
    batch.foreach_partition(work)
print(duewheel.__file__)
""".replace("COUNT", str(COUNT))


@pytest.fixture
def effects(broker: Broker) -> Broker:
    """A broker with messages to work on, a topic to write to, and a table for the effects."""
    broker.create_topic("orders")
    broker.create_topic("written", message_type="NORMAL")
    broker.send_many(
        "orders", [{"body": b"", "key": str(number), "delay": timedelta(0)} for number in range(COUNT)]
    )
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute("create table effect (package text, key text)")
    return broker


def submit_shipped(folder: Path, *arguments: str, **environment: str) -> str:
    """Run the application in a folder with these arguments of spark-submit, and return its output."""
    (folder / "shipped.py").write_text(SHIPPED)
    settings = [word for name, value in CONF.items() for word in ("--conf", f"{name}={value}")]
    done = subprocess.run(
        [str(SPARK_HOME / "bin" / "spark-submit"), *settings, *arguments],
        env={**os.environ, **spark_environment(), **environment},
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def packages_of_effects(broker: Broker) -> set[str]:
    """The files of the package that worked; each message was worked on, and written, once."""
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute("select count(*), count(distinct key), array_agg(distinct package) from effect")
        count, keys, packages = cursor.fetchone()
        assert (count, keys) == (COUNT, COUNT)
        cursor.execute(
            "select count(distinct key) from duewheel.any_message m"
            " join duewheel.topic t using (topic_id) where t.name = 'written'"
        )
        assert cursor.fetchall() == [(COUNT,)]
    return set(packages)


def test_cluster_runs_the_package_from_a_zip(effects: Broker, master: str, tmp_path: Path) -> None:
    """Driver, planning and executors, which the package is sent to by ``--py-files``."""
    shipped = ("--py-files", str(zip_of_the_package(tmp_path)), "shipped.py", effects.dsn)

    said = submit_shipped(tmp_path, "--master", master, *shipped)

    assert "duewheel.zip/duewheel/__init__.py" in said
    packages = packages_of_effects(effects)
    assert all(package.endswith("duewheel.zip/duewheel/__init__.py") for package in packages), packages


def test_cluster_runs_an_environment_from_an_archive(effects: Broker, master: str, tmp_path: Path) -> None:
    """The commands of docs/how-to/spark-cluster.md, with packages that are copied and not downloaded."""
    (commands,) = re.findall(r"^```\n(python -m venv.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    make, install, pack, submit = commands.replace("\\\n", "").splitlines()
    subprocess.run([sys.executable, *shlex.split(make)[1:], "--without-pip"], cwd=tmp_path, check=True)
    assert shlex.split(install)[0] == "environment/bin/pip"
    (into,) = (tmp_path / "environment" / "lib").glob("python*/site-packages")
    copy_packages(into, *shlex.split(install)[3:])
    # It is read once.
    subprocess.run(shlex.split(pack), cwd=tmp_path, env={**os.environ, "GZIP": "-1"}, check=True)

    setting, binary, *arguments = shlex.split(submit)
    assert binary == "$SPARK_HOME/bin/spark-submit"
    replaced = {"spark://10.0.0.1:7077": master, "cancel.py": "shipped.py"}
    name, _, python = setting.partition("=")
    said = submit_shipped(
        tmp_path,
        # The sources of this run, which the workers would pass on.
        *("--conf", "spark.executorEnv.PYTHONPATH="),
        *(replaced.get(argument, argument) for argument in arguments),
        effects.dsn,
        **{name: python, "PYSPARK_DRIVER_PYTHON": python, "PYTHONPATH": ""},
    )

    assert str(into / "duewheel" / "__init__.py") in said
    packages = packages_of_effects(effects)
    assert all("/worker-" in package and "/environment/lib/" in package for package in packages), packages


def copy_packages(into: Path, *requirements: str) -> None:
    """Copy what pip would install without dependencies; the package itself from its sources."""
    for requirement in requirements:
        if requirement.startswith("airflow-provider-duewheel"):
            source = Path(duewheel.__file__).parent
            shutil.copytree(source, into / "duewheel", ignore=shutil.ignore_patterns("node_modules"))
            continue
        for file in importlib.metadata.files(requirement) or []:
            if ".." not in file.parts and not {"tests", "include", "__pycache__"} & set(file.parts):
                (into / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file.locate(), into / file)


SHIPPING_CLIENT = """
import sys
from duewheel.spark import consume
from pyspark.sql import SparkSession

dsn, address, package = sys.argv[1:]

def work(connection, batches):
    import duewheel
    for batch in batches:
        with connection.cursor() as cursor:
            cursor.execute(
                "insert into shipped select %s, unnest(%s::text[])",
                (duewheel.__file__, batch["key"].to_pylist()),
            )

spark = SparkSession.builder.remote(address).getOrCreate()
spark.addArtifacts(package, pyfile=True)
with consume(spark, dsn, "orders", "canceller") as batch:
    print(batch.messages.count())
    batch.foreach_partition(work)
spark.stop()
"""


SERVER = """
import sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master(sys.argv[1])
for setting in sys.argv[2:]:
    name, _, value = setting.partition("=")
    builder = builder.config(name, value)
spark = builder.getOrCreate()
service = getattr(getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$"), "MODULE$")
print(service.localPort(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def connect_server_of_the_cluster(master: str) -> Iterator[str]:
    """The address of a server of Spark Connect whose Python workers have imported nothing of this package."""
    conf = {
        **LOCAL_CONF,
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
    }
    environment = {
        name: value for name, value in (os.environ | spark_environment()).items() if name != "PYTHONPATH"
    }
    settings = [f"{name}={value}" for name, value in conf.items()]
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, master, *settings],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        yield f"sc://127.0.0.1:{int(server.stdout.readline())}"
        server.communicate()


def test_client_of_connect_ships_the_package_as_an_artifact(
    broker: Broker, connect_server_of_the_cluster: str, tmp_path: Path
) -> None:
    broker.create_topic("orders")
    broker.send_many("orders", [{"body": b"", "key": str(n), "delay": timedelta(0)} for n in range(COUNT)])
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute("create table shipped (package text, key text)")

    arguments = [broker.dsn, connect_server_of_the_cluster, str(zip_of_the_package(tmp_path))]
    done = subprocess.run(
        [sys.executable, "-c", SHIPPING_CLIENT, *arguments], check=False, capture_output=True, text=True
    )

    assert (done.returncode, done.stdout) == (0, f"{COUNT}\n"), done.stderr
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute("select count(distinct key), min(package), max(package) from shipped")
        ((count, first, last),) = cursor.fetchall()
    assert count == COUNT
    assert first == last
    assert first.endswith("duewheel.zip/duewheel/__init__.py")
