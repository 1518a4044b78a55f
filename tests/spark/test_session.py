"""Sessions: one that somebody else has started is used and left running."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import pyspark
import pytest
from psycopg2.extensions import make_dsn
from pyspark.sql import SparkSession
from tests.spark.reading import GROUP, TOPIC, send

from duewheel.spark.consuming import consume
from duewheel.spark.session import PASSWORDS, register, spark_session
from duewheel.store.broker import Broker


def test_session_of_another_thread_is_left_running(spark: SparkSession) -> None:
    """Spark calls a session active only in the thread that made it."""

    def count() -> int:
        with spark_session("second", conf={"spark.sql.shuffle.partitions": "7"}) as second:
            return second.range(3).count()

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(count).result() == 3
    assert spark.range(5).count() == 5
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_a_session_registers_the_source_once(spark: SparkSession) -> None:
    """Spark warns when a data source replaces another of its name."""
    jvm: Any = spark._jvm
    log = jvm.java.io.StringWriter()
    log4j = jvm.org.apache.logging.log4j
    context = log4j.LogManager.getContext(False)
    root = context.getConfiguration().getRootLogger()
    layout = log4j.core.layout.PatternLayout.createDefaultLayout()
    name = "test_a_session_registers_the_source_once"
    appender = log4j.core.appender.WriterAppender.createAppender(layout, None, log, name, False, False)
    appender.start()
    root.addAppender(appender, log4j.Level.WARN, None)
    try:
        register(spark)
        register(spark)
    finally:
        root.removeAppender(name)
    assert log.toString() == ""


def test_each_session_of_a_context_has_the_source(orders: Broker, spark: SparkSession) -> None:
    """Whichever session is active: Spark refuses a data source that the active session has."""
    send(orders, range(3))
    register(spark)
    with consume(spark.newSession(), orders.dsn, TOPIC, GROUP) as batch:
        assert batch.messages.count() == 3

    another = spark.newSession()
    try:
        activate(another)
        with spark_session("used") as used:
            assert used is another
            assert used.read.format("duewheel").option("dsn", orders.dsn).load(TOPIC).count() == 3
    finally:
        activate(spark)


def activate(session: SparkSession) -> None:
    """Make a session the active one of this thread."""
    session.createDataFrame([(1,)], "number int")


def test_a_local_worker_begins_with_sparks_worker_loaded(spark: SparkSession) -> None:
    def main_module(_: int) -> str:
        return str(sys.modules["__main__"].__spec__)

    (found,) = spark.sparkContext.parallelize([0], 1).map(main_module).collect()
    assert "name='duewheel.spark.worker_daemon'" in found


def test_workers_of_a_local_session_load_the_installed_pyspark(spark: SparkSession) -> None:
    (found,) = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.modules["pyspark"].__file__).collect()
    assert found == pyspark.__file__
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_the_process_that_workers_are_forked_from_has_one_thread() -> None:
    """A thread that is there before a fork is not in the child, with whatever lock it holds."""
    program = (
        "import os, sys, duewheel.spark.worker_daemon; "
        "print(len(os.listdir('/proc/self/task')), 'pyarrow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "1 False\n"


PYTHON_OF_SPARK = """
import os, sys
from duewheel.spark.session import spark_session
from duewheel.spark.undocumented import WORKER_DAEMON

# The package is found by this process alone, as where spark-submit was given it as a zip.
os.environ["PYSPARK_PYTHON"] = sys.argv[1]
with spark_session("bare", master="local[1]") as spark:
    print(spark.conf.get(WORKER_DAEMON, None), spark.sparkContext.parallelize([7], 1).sum())
"""


@pytest.mark.long
def test_a_session_without_the_package_has_workers(tmp_path: Path) -> None:
    python = tmp_path / "bare"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", PYTHON_OF_SPARK, str(python)], check=True, capture_output=True, text=True
    )
    assert done.stdout == "None 7\n"


ENDED_EARLY = """
import sys
from duewheel.spark.session import spark_session

with spark_session("early", master="local[2]", conf={"spark.log.level": "OFF"}) as spark:
    options = {"dsn": sys.argv[1], "minPartitions": "4"}
    look = lambda: spark.read.format("duewheel").options(**options).load("orders")
    print(look().isEmpty(), look().limit(1).count())
"""


@pytest.mark.long
def test_a_look_that_ends_early_shows_no_broken_pipe(orders: Broker) -> None:
    """Each part has more to write than its first batch."""
    send(orders, range(2_000), body=b"x" * 10_000)
    done = subprocess.run(
        [sys.executable, "-c", ENDED_EARLY, orders.dsn], check=True, capture_output=True, text=True
    )
    assert done.stdout == "False 1\n"
    assert "Traceback" not in done.stderr


def test_a_query_with_a_long_text_after_a_password_runs(spark: SparkSession) -> None:
    text = "x" * 5_000
    assert spark.range(1).selectExpr(f"\"password = '{text}'\" as note").collect()[0].note.count("x") == 5_000


def test_long_text_after_a_password_is_no_error(spark: SparkSession) -> None:
    """Spark matches its pattern with every plan, also with those that have nothing of a broker."""
    java = spark._jvm.java.util.regex.Pattern.compile(PASSWORDS)  # type: ignore[union-attr]
    for opening, text, closing in product(
        ("password = '", r"password = \\'", "password = ", "://user:"),
        ("x" * 200_000, r"\'" * 100_000),
        ("'", '"', ""),
    ):
        assert java.matcher(opening + text + closing).find() == opening.startswith("password")


def test_passwords_are_wholly_left_out(spark: SparkSession) -> None:
    """In the text of a plan, and as a Connect server shows a request."""
    java = spark._jvm.java.util.regex.Pattern.compile(PASSWORDS)  # type: ignore[union-attr]
    for password in (
        *(
            "Aa1,TAIL",
            "Aa1)TAIL",
            "Aa1&TAIL",
            "Aa1]TAIL",
            "Aa1 TAIL",
            "Aa1' TAIL",
            r"Aa1\' TAIL",
            r"Aa1\TAIL",
        ),
        "it's, TAIL",
    ):
        dsn = make_dsn("", host="h", password=password, dbname="d")
        assert "TAIL" in dsn
        in_protobuf = dsn.replace("\\", r"\\").replace("'", r"\'").replace('"', r"\"")

        plan = java.matcher(f"[dsn={dsn}, topic=t]").replaceAll("***")
        request = java.matcher(f'value: "{in_protobuf}" more').replaceAll("***")

        for left_out in ("Aa1", "it", "TAIL"):
            assert left_out not in plan + request
        assert plan.startswith(("[dsn=host=h ***", "[dsn=***"))
        assert request.endswith('" more')
