"""A Spark session for one piece of work: started on any master, and gone afterwards.

``master`` is what ``spark-submit --master`` takes (``local[2]``, ``spark://host:7077``, ``yarn``,
``k8s://...``), or ``sc://host:port`` for Spark Connect. A session started here needs a Java, and the Python
that its workers run; both are set in the environment before the JVM starts. A Connect client needs neither.

A local session listens on the loopback interface only and brings no web page up, unless the configuration
says otherwise. Its Python workers are forked from :mod:`duewheel.spark.worker_daemon`.

The JVM that PySpark starts ends when its standard input closes. The operating system closes it however this
process ends, so a killed process leaves no JVM and no Python workers behind.
"""

from __future__ import annotations

import logging
import os
import secrets
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial

from pyspark.sql import SparkSession

from duewheel.spark.data_source import DueWheelDataSource
from duewheel.spark.runtimes import local_python, spark_environment
from duewheel.spark.undocumented import WORKER_DAEMON, process_has_a_context

log = logging.getLogger(__name__)

CONNECT_SCHEME = "sc://"

LOCAL_CONF = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""The settings of a session with a local master; the given configuration overrides them."""

WATCH_SECONDS = 1.0
"""How often to check whether the lease is lost."""

REDACTION = "spark.sql.redaction.string.regex"
PASSWORDS = (
    r"://[^\s:/@]*:[^\s/@]+@"
    r"""|(?i:passwor[d])\s*=\s*(?:\\+'[^"\\]*+(?:\\.[^"\\]*+)*+|'[^'\\]*+(?:\\.[^'\\]*+)*+'|[^\s"]+)"""
)
"""The text that Spark leaves out of the plans that it shows: the passwords in addresses of databases.

A value in quotes ends at its closing quote, and any other at whitespace or ``"``. A Connect server shows
requests as protobuf text, where backslashes precede the quotes; there everything up to the closing ``"``
is left out.

No alternation is repeated: Java's engine would recurse at each character, and a plan with a
long text would end in a StackOverflowError. The pattern avoids the plain word, because a Connect server does
not reveal a setting whose value contains it.
"""


REGISTERED = "spark.duewheel.registered"
"""Set in a session that knows the data source; Spark copies both to the sessions that it clones."""


def register(spark: SparkSession) -> None:
    """Make ``spark.read.format("duewheel")`` known to a session, classic or Connect.

    A second call for the same session does nothing, because Spark warns of a data source that is replaced.

    Spark shows the options of a data source when a plan is an argument of a command, such as
    ``createOrReplaceTempView``, and on a Connect server. The session gets a pattern that leaves out
    passwords, unless it already has one (``spark.sql.redaction.string.regex``, or
    ``spark.redaction.string.regex``).

    Example::

        spark = SparkSession.builder.getOrCreate()
        register(spark)
        messages = spark.read.format("duewheel").option("dsn", dsn).load("order-timeout")
    """
    if spark.conf.get(REGISTERED, None) is not None:
        return
    if not any(_is_set(spark, name) for name in (REDACTION, "spark.redaction.string.regex")):
        spark.conf.set(REDACTION, PASSWORDS)
    # Spark refuses a source that the active session has, also for another session. A new thread has none.
    with ThreadPoolExecutor(1) as threads:
        threads.submit(spark.dataSource.register, DueWheelDataSource).result()
    spark.conf.set(REGISTERED, "true")


@contextmanager
def spark_session(
    app_name: str, *, master: str = "local[2]", conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Start a session that knows the data source ``duewheel``, and stop it at the end of the block.

    A process has one Spark context. A session that is already active is used as it is and left running, since
    it belongs to the code that started it; ``master`` and ``conf`` are then ignored.

    Args:
        app_name: the name shown by the cluster.
        master: where to run, as ``spark-submit`` takes it, or ``sc://host:port`` for Spark Connect.
        conf: settings of Spark, over the defaults of this module.

    Raises:
        JavaNotFound: the driver runs here, and no Java was found.

    Example::

        with spark_session("cancel unpaid", master="spark://spark:7077", conf={"spark.executor.memory": "2g"})
        as spark:
            spark.range(3).count()
    """
    active = running_session()
    if active is not None:
        log.info(
            "Using the Spark session that is active in this process; its master and settings stay as they are"
        )
        register(active)
        yield active
        return
    builder = SparkSession.builder.appName(app_name)
    if master.startswith(CONNECT_SCHEME):
        builder = builder.remote(master)
    else:
        os.environ.update(spark_environment())
        builder = builder.master(master)
    is_local = master.startswith("local")
    with _local_python() if is_local else nullcontext():
        defaults = {**LOCAL_CONF, **_worker_daemon(conf or {})} if is_local else {}
        settings = {**defaults, **(conf or {})}
        for name, value in settings.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
    try:
        register(spark)
        yield spark
    finally:
        spark.stop()


@contextmanager
def _local_python() -> Iterator[None]:
    """Set the Python of this machine while a local session begins, and not for a later cluster session."""
    python = os.environ["PYSPARK_PYTHON"]
    os.environ["PYSPARK_PYTHON"] = local_python()
    try:
        yield
    finally:
        os.environ["PYSPARK_PYTHON"] = python


def _worker_daemon(conf: Mapping[str, str]) -> dict[str, str]:
    """The setting of a local session by which its workers start with PySpark loaded.

    None where the Python that Spark starts may not find this package: it is another one, or ``spark-submit``
    has started the JVM, which then has another environment than this process.
    """
    if "spark.pyspark.python" in conf or "PYSPARK_GATEWAY_PORT" in os.environ:
        return {}
    program = [os.environ["PYSPARK_PYTHON"], "-c", "import duewheel.spark"]
    if subprocess.run(program, capture_output=True, check=False).returncode != 0:
        return {}
    return {WORKER_DAEMON: "duewheel.spark.worker_daemon"}


def running_session() -> SparkSession | None:
    """The session that is active in this thread, or else the one of another thread; None without one.

    Spark's active session belongs to one thread, but a process has one context. ``getOrCreate()`` would
    therefore find the session of another thread, and stopping it would end that thread's jobs.
    """
    active = SparkSession.getActiveSession()
    if active is not None or not process_has_a_context():
        return active
    return SparkSession.builder.getOrCreate()


def _is_set(spark: SparkSession, name: str) -> bool:
    """Whether a setting has a value, even one that Spark Connect does not reveal.

    ``conf.get`` of Connect gives its default for a value that has the word "password"; ``SET`` shows such a
    value redacted, and is a query.
    """
    if not is_connect(spark):
        return spark.conf.get(name, None) is not None
    ((_, value),) = spark.sql(f"SET {name}").collect()
    return str(value) != "<undefined>"


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is a client of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def ui_address(spark: SparkSession) -> str | None:
    """Where a session's page is; None where it has none, and of Spark Connect, whose page is the server's."""
    if is_connect(spark):
        return None
    return spark.sparkContext.uiWebUrl


@contextmanager
def jobs_of_block(spark: SparkSession) -> Iterator[Callable[[], object]]:
    """A call that ends the jobs this thread has started in the block, and no other jobs of the session."""
    tag = f"duewheel-{secrets.token_hex(8)}"
    if is_connect(spark):
        add, remove = spark.addTag, spark.removeTag
        end: Callable[[str], object] = spark.interruptTag
    else:
        # The session's own tags leave jobs of RDDs out.
        add, remove = spark.sparkContext.addJobTag, spark.sparkContext.removeJobTag
        end = spark.sparkContext.cancelJobsWithTag
    add(tag)
    try:
        yield partial(end, tag)
    finally:
        remove(tag)


@contextmanager
def ended_with_the_lease(is_lost: Callable[[], bool], end: Callable[[], object]) -> Iterator[None]:
    """End the work of the block once its lease is lost, again each second until the block is left.

    Args:
        is_lost: called in a separate thread until it returns true.
        end: ends what runs at that moment, such as the jobs of a session; the block may begin others.

    Example::

        with ended_with_the_lease(keeper.lost.is_set, partial(cancel_jobs, spark)):
            messages.count()
    """
    done = threading.Event()

    def watch() -> None:
        while not done.wait(WATCH_SECONDS):
            if is_lost():
                end()

    watcher = threading.Thread(target=watch, name="duewheel-lease-watcher", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def cancel_jobs(spark: SparkSession) -> None:
    """End all jobs of a session; a thread that waits for a result gets an error. May be called from any
    thread."""
    if is_connect(spark):
        spark.interruptAll()
    else:
        spark.sparkContext.cancelAllJobs()
