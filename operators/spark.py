"""Run a PySpark function over leased messages, and ack them only after the work.

The messages never pass through the Airflow worker: the worker takes a lease, Spark's executors read the
messages from Postgres in parallel, and the worker answers the lease. The lease is kept alive while the job
runs, however long it takes. When the function returns, the batch is acked as a whole; when it raises, the
task fails. While Airflow has tries left, the leases are kept for the next try; after the last try the batch
is nacked, and its messages are retried after their group's interval.

The function may ack the batch itself, inside the database transaction that holds the result of its work
(``batch.ack(connection)``): then work and ack are committed together or not at all, and the operator leaves
the batch alone. With ``batch.foreach_partition`` the executors work on parts of the batch and ack each part
in the transaction of its work. If the function raises after that, the messages that are not acked are nacked.

A killed task ends its Spark jobs and gives the lease back, so the messages are ready again at once. A worker
that dies suddenly stops extending; the lease ends, and so do the JVM and the Python workers of a
local Spark. So each message is worked on at least once and never lost. If the lease is lost during the work,
the jobs are ended, because another consumer may have the messages already.

With ``application`` the work is a separate program, run by ``spark-submit`` over the same leased batch. Its
exit code decides about the messages that it has not answered: 0 acks them, any other code gives them back.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from duewheel.hooks.arguments.declared import as_count, check_callable, check_count
from duewheel.hooks.broker import DueWheelHook
from duewheel.hooks.links import SparkUiLink, TopicLink
from duewheel.hooks.spark_connection import SparkPlace, spark_place
from duewheel.operators.calling import call
from duewheel.operators.consuming import NOT_BEGUN, ConsumingOperator, Held
from duewheel.store.values.errors import DueWheelError, InvalidArgument, LeaseLost
from duewheel.store.values.numbers import counted
from duewheel.store.values.reasons import as_reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow.sdk import Context
    from airflow.sdk.bases.operatorlink import BaseOperatorLink
    from pyspark.sql import SparkSession

    from duewheel.spark.batch import Batch
    from duewheel.spark.leasing import Partitioning
    from duewheel.spark.partition_work import Work
    from duewheel.spark.submission import Application, Submission, SubmittedBatch
    from duewheel.store.consuming.consumer import Consumer
    from duewheel.store.consuming.lease_keeper import LeaseKeeper
    from duewheel.store.values.instants import Instant
    from duewheel.store.values.retry_policy import RetryPolicy

CANCEL_SECONDS = 3.0
"""How long a killed task waits for Spark to accept the order to stop; Airflow gives a task 5 seconds in
all."""
DEFAULT_MASTER = "local[2]"


class SparkConsumeMessagesOperator(ConsumingOperator):
    """Lease messages of a group and run a PySpark function over them as a DataFrame.

    Args:
        topic: the topic to read.
        group: the consumer group that reads; made when it does not exist yet, from the earliest message on.
        python_callable: called with the :class:`~duewheel.spark.batch.Batch`, and with ``op_args`` and
            ``op_kwargs``; it also gets the values of Airflow's context that its parameters name. Not called
            when no message is ready. A subclass may define :meth:`handle` instead.
        foreach: a function for :meth:`Batch.foreach_partition <duewheel.spark.batch.Batch.foreach_partition>`
            in place of ``python_callable``: it works on each part on an executor, in the transaction of its
            ack.
        tags: only messages with one of these tags, as ``"a || b"``; ``*`` means all. Set if the group is new;
            None takes the tags of its subscription.
        filter: only messages with such properties, as ``$.region == "north" && $.amount > 100``.
        max_messages: how many messages to lease at most in one batch; no upper limit. The default is larger
            than that of :class:`~duewheel.operators.consume.ConsumeMessagesOperator`: starting Spark costs
            seconds, and the messages do not pass through this process.
        invisible: how long a lease lasts if the worker does not extend it, 1 s to 12 h.
        master: where Spark runs, as ``spark-submit --master`` takes it (``local[2]``, ``spark://host:7077``,
            ``yarn``, ``k8s://...``), or ``sc://host:port`` for Spark Connect. The broker's database has to be
            reachable from the executors, and this package installed there. Not together with
            ``spark_conn_id``.
        spark_conf: settings of the Spark session. Do not put a password there, nor into the extras of
            ``spark_conn_id``: Spark shows its settings, and ``ps`` shows those of an application.
        app_name: the name shown by the cluster; DAG and task when left out.
        partitions: the largest number of partitions of a batch.
        min_partitions: the smallest number, however few messages each partition has, for work that is slow
            for each message; with 1, a partition has 100 messages or more.
        max_bytes_per_partition: about how many bytes the bodies of a partition have at most, by the size of
            the first bodies; with large bodies there are more than ``partitions``. No limit when left
            out.
        drain: whether to continue, batch after batch in the same session, until no message is ready. Off by
            default: one batch of the default size is a whole job, whose result and duration the caller can
            foresee.
        op_kwargs: further arguments of the function, templated.
        skip_if_empty: whether to skip the task, and the tasks that depend on it, when no message is ready.
        duewheel_conn_id: the connection to the broker.
        op_args: further arguments by position, after the batch; templated.
        retry: how the group retries, a ``RetryPolicy``; set for the whole group when the task runs.
        start: where a new group begins: ``earliest``, ``latest``, or an instant, as text in ISO 8601, too.
        spark_conn_id: a connection of the Apache Spark provider, such as ``spark_default``. It gives the
            master, and as extras the queue and settings that begin with ``spark.``. ``spark_conf`` overrides
            these.
        application: a Python file that works on the batch instead of ``python_callable``, run by
            ``spark-submit``; it gets the batch from :func:`duewheel.spark.consume`. Its driver runs
            where the task runs (deploy mode client), its executors on the cluster.
        application_args: the arguments of ``application``.
        columns: names of the columns to read; other columns do not leave the database. All when left out.

    Returns:
        How many messages were handled, as the task's XCom; 0 when no message was ready.

    Raises:
        InvalidArgument: none of ``python_callable``, ``foreach``, ``application`` and a :meth:`handle` of a
            subclass is given, or more than one; the connection is not understood, or does not suit the
            program; the deploy mode is not client. Nothing was leased.
        ApplicationFailed: the application ended with an exit code other than 0.
        LeaseLost: the lease ended before the work did; its messages are delivered again.
        JavaNotFound: the driver runs here and finds no Java; nothing was leased.
        Exception: any error of the function. The batch is kept for the task's next try, or nacked.

    Example::

        def cancel_unpaid(connection, batches):
            for batch in batches:
                due = [int(key) for key in batch["key"].to_pylist()]
                with connection.cursor() as cursor:
                    cursor.execute("update orders ... where number = any (%s::bigint[])", (due,))

        SparkConsumeMessagesOperator(
            task_id="cancel_unpaid", topic="order-timeout", group="canceller", foreach=cancel_unpaid
        )
    """

    template_fields: Sequence[str] = (
        *ConsumingOperator.template_fields,
        "partitions",
        "min_partitions",
        "max_bytes_per_partition",
        "master",
        "spark_conf",
        "app_name",
        "spark_conn_id",
        "application",
        "application_args",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **ConsumingOperator.template_fields_renderers,
        "spark_conf": "json",
    }
    shallow_copy_attrs: Sequence[str] = ("python_callable", "foreach")
    operator_extra_links: tuple[BaseOperatorLink, ...] = (TopicLink(), SparkUiLink())
    ui_color = "#fbe5d6"

    def __init__(
        self,
        *,
        topic: str,
        group: str,
        python_callable: Callable[..., Any] | None = None,
        tags: str | None = None,
        filter: str | None = None,  # noqa: A002 -- as the consumer's parameter
        max_messages: int | str = 100_000,
        invisible: timedelta | str = timedelta(seconds=60),
        master: str = DEFAULT_MASTER,
        spark_conf: Mapping[str, str] | None = None,
        app_name: str | None = None,
        partitions: int | str = 4,
        min_partitions: int | str = 1,
        max_bytes_per_partition: int | str | None = None,
        drain: bool = False,
        op_kwargs: Mapping[str, Any] | None = None,
        skip_if_empty: bool = False,
        duewheel_conn_id: str = DueWheelHook.default_conn_name,
        op_args: Sequence[Any] | None = None,
        retry: RetryPolicy | None = None,
        start: str | Instant = "earliest",
        spark_conn_id: str | None = None,
        application: str | None = None,
        application_args: Sequence[Any] | None = None,
        foreach: Work | None = None,
        columns: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            topic=topic,
            group=group,
            python_callable=python_callable,
            tags=tags,
            filter=filter,
            max_messages=max_messages,
            invisible=invisible,
            op_args=op_args,
            op_kwargs=op_kwargs,
            skip_if_empty=skip_if_empty,
            retry=retry,
            start=start,
            duewheel_conn_id=duewheel_conn_id,
            **kwargs,
        )
        check_count(partitions, "partitions")
        check_count(min_partitions, "min_partitions")
        if max_bytes_per_partition is not None:
            check_count(max_bytes_per_partition, "max_bytes_per_partition")
        own = type(self).handle is not SparkConsumeMessagesOperator.handle
        if foreach is not None:
            check_callable(foreach, "foreach")
        ways = [python_callable, foreach, application, own or None]
        if len(ways) - ways.count(None) != 1:
            raise InvalidArgument(
                "the task runs one of python_callable, foreach, application and the handle() of a subclass: "
                f"give one instead of {len(ways) - ways.count(None)}"
            )
        if application is None and application_args:
            raise InvalidArgument(
                "application_args are for an application: give op_args or op_kwargs to a function"
            )
        if spark_conn_id is not None and master != DEFAULT_MASTER:
            raise InvalidArgument(
                f"the connection {spark_conn_id} gives the master: give master or spark_conn_id, not both"
            )
        self.master = master
        self.spark_conf = dict(spark_conf or {})
        self.app_name = app_name
        self.partitions = partitions
        self.min_partitions = min_partitions
        self.max_bytes_per_partition = max_bytes_per_partition
        self.drain = drain
        self.spark_conn_id = spark_conn_id
        self.application = application
        self.foreach = foreach
        self.columns = columns
        self.application_args = list(application_args or ())
        self.spark_ui_address: str | None = None
        self._submission: Submission | None = None
        self._batch: Batch | None = None
        self._begun = False
        self._spark: SparkSession | None = None
        self._context: Context | None = None

    def handle(self, batch: Batch) -> None:
        """Work on a batch by ``python_callable`` or ``foreach``. A subclass may define its own work here.

        Args:
            batch: the messages and their lease.
        """
        if self.foreach is not None:
            batch.foreach_partition(self.foreach)
        elif self.python_callable is not None:
            call(self.python_callable, [batch, *self.op_args], self.op_kwargs, self._context or {})

    def execute(self, context: Context) -> int:
        """Lease, start Spark if messages are ready, call the function and ack; repeat with ``drain``."""
        # Imported here so that parsing a DAG file with this operator does not need Spark.
        from duewheel.spark.batch import Batch

        invisible, partitioning = self._lease_span(), self._partitioning()
        self._context = context
        handled = 0
        with ExitStack() as stack:
            broker = stack.enter_context(self._hook().get_conn())
            place = self._place()
            application = self._application(place)
            self._check(place, application)
            consumer = self._consumer(broker, context)
            leases = broker.take_over_leases(consumer, invisible) if self._may_have_leases(context) else []
            while not self._killed:
                if leases:
                    batch = Batch.taken_over(broker, consumer, leases, invisible, partitioning)
                    leases = []
                else:
                    batch = Batch.take(
                        broker,
                        self.topic,
                        self.group,
                        tags=self.tags,
                        filter=self.filter,
                        max_messages=self._count(),
                        invisible=invisible,
                        partitions=partitioning.most,
                        min_partitions=partitioning.least,
                        max_bytes_per_partition=partitioning.most_bytes,
                        name=consumer.name,
                    )
                if not batch:
                    break
                self.log.info("Leased %d messages of topic %s", batch.count, self.topic)
                if application is None:
                    run = partial(self._call, stack, place, batch)
                else:
                    run = partial(self._submit, application, broker.dsn, consumer, batch)
                self._work(broker.dsn, batch, run)
                handled += batch.count
                if not self.drain:
                    break
        self._done = handled
        if not handled:
            self._nothing_ready()
        return handled

    def _submitted(self, dsn: str, consumer: Consumer, batch: Batch) -> SubmittedBatch:
        from duewheel.spark.submission import SubmittedBatch
        from duewheel.store.leases import to_json

        return SubmittedBatch(
            dsn,
            consumer.topic,
            consumer.group,
            consumer.name,
            to_json(batch.leases),
            self._lease_span().total_seconds(),
            batch.partitions,
            batch.min_partitions,
            self.columns,
        )

    def _partitioning(self) -> Partitioning:
        from duewheel.spark.leasing import Partitioning

        most_bytes = self.max_bytes_per_partition
        return Partitioning(
            as_count(self.partitions, "partitions"),
            as_count(self.min_partitions, "min_partitions"),
            None if most_bytes is None else as_count(most_bytes, "max_bytes_per_partition"),
        )

    def _place(self) -> SparkPlace:
        """Where Spark runs; the operator's settings override those of the connection."""
        place = SparkPlace(self.master) if self.spark_conn_id is None else spark_place(self.spark_conn_id)
        return replace(place, conf={**place.conf, **self.spark_conf})

    def _application(self, place: SparkPlace) -> Application | None:
        if self.application is None:
            return None
        from duewheel.spark.submission import Application

        return Application(
            self.application,
            [str(argument) for argument in self.application_args],
            self._app_name(),
            place.master,
            place.binary,
            place.conf,
        )

    def _check(self, place: SparkPlace, application: Application | None) -> None:
        """Check before anything is leased: a missing or wrong setting must not count as a failure of
        messages."""
        from duewheel.spark.runtimes import find_java
        from duewheel.spark.session import CONNECT_SCHEME

        for mode in (place.deploy_mode, place.conf.get("spark.submit.deployMode")):
            if mode not in (None, "client"):
                raise InvalidArgument(
                    f"the driver is to run in deploy mode {mode} (extra deploy-mode, or setting "
                    "spark.submit.deployMode), in which its outcome cannot be proved: give deploy mode "
                    "client, in which the driver runs where the task runs and its executors on the cluster"
                )
        if application is not None:
            application.check()
            return
        if not place.master.startswith(CONNECT_SCHEME):
            find_java()

    def _app_name(self) -> str:
        return self.app_name or f"{self.dag_id}.{self.task_id}"

    def _session(self, stack: ExitStack, place: SparkPlace) -> SparkSession:
        """The session of this run, started with the first batch."""
        from duewheel.spark.session import spark_session, ui_address

        if self._spark is None:
            stack.callback(self._forget_session)
            self._spark = stack.enter_context(
                spark_session(self._app_name(), master=place.master, conf=place.conf)
            )
            self._keep_ui_address(ui_address(self._spark))
        return self._spark

    def _forget_session(self) -> None:
        self._spark = None

    def _keep_ui_address(self, address: str | None) -> None:
        """Store the address for the link now, because Airflow asks for links only when the task has ended."""
        self.spark_ui_address = address
        task_instance = (self._context or {}).get("ti")
        if address is None or task_instance is None:
            return
        try:
            task_instance.xcom_push(key=SparkUiLink().xcom_key, value=address)
        except Exception as error:  # noqa: BLE001 - the work continues without the link
            self.log.warning("The task will not link to Spark's page at %s: %s", address, error)

    def _call(self, stack: ExitStack, place: SparkPlace, batch: Batch, keeper: LeaseKeeper) -> None:
        from duewheel.spark.session import cancel_jobs, ended_with_the_lease

        spark = self._session(stack, place)
        with ended_with_the_lease(keeper.lost.is_set, partial(cancel_jobs, spark)):
            self._begun = True
            self.handle(batch.on(spark, self.columns))

    def _submit(
        self, application: Application, dsn: str, consumer: Consumer, batch: Batch, keeper: LeaseKeeper
    ) -> None:
        from duewheel.spark.session import ended_with_the_lease
        from duewheel.spark.submission import ApplicationFailed, Submission

        # The program watches its leases itself, and knows which of them it has given back.
        batch.let_others_reject()
        self._submission = submission = Submission(application, self._submitted(dsn, consumer, batch))
        try:
            with ended_with_the_lease(keeper.lost.is_set, partial(submission.end, CANCEL_SECONDS)):
                self._begun = True
                submission.run(self.log.info, self._keep_ui_address)
        except ApplicationFailed:
            # Messages that it answered before it failed are not given back.
            with suppress(DueWheelError):
                outcome = batch.outcome()
                batch.note_answered(all_of_it=not (outcome.unanswered or outcome.lost))
            raise
        finally:
            self._submission = None

    def _work(self, dsn: str, batch: Batch, run: Callable[[LeaseKeeper], None]) -> None:
        self._begun = False
        with batch.kept_alive() as keeper:
            self._batch = batch
            self._held = Held(dsn, batch.leases, batch.count, keeper)
            try:
                run(keeper)
            except BaseException as error:
                self._held = None
                keeper.stop()
                if keeper.error is not None:
                    raise keeper.error from error
                if not self._killed:
                    self._give_back(
                        self._context or {},
                        batch.count,
                        error,
                        partial(_keep_unanswered, batch),
                        partial(self._nack, batch, error),
                    )
                raise
            self._held = None
        if self.application is not None:
            self._persistently(partial(self._ack_rest, batch))
        elif batch.answered:
            self.log.info("The function answered its %s itself", counted(batch.count, "message"))
        else:
            self._persistently(partial(self._ack, batch))

    def _ack(self, batch: Batch) -> None:
        # The function may have rejected some.
        unanswered = batch.outcome().unanswered
        batch.ack()
        self.log.info("Acked %s", counted(unanswered, "message"))

    def _ack_rest(self, batch: Batch) -> None:
        acked = batch.ack_unanswered()
        self.log.info(
            "Acked %s; the application had answered %d", counted(acked, "message"), batch.count - acked
        )

    def _nack(self, batch: Batch, cause: BaseException) -> None:
        """Give the batch back after ``cause``, which stays the error the task fails with."""
        if batch.in_open_transaction():
            self.log.warning(
                "The function failed with its transaction open; "
                "its %d messages are delivered again when their lease ends",
                batch.count,
            )
            return
        acked = batch.answered
        try:
            if self._begun:
                batch.nack(reason=as_reason(cause))
            else:
                batch.give_back(reason=f"{NOT_BEGUN}: {as_reason(cause)}")
        except LeaseLost as error:
            if acked:
                self.log.info("The function had acked its %d messages before it failed", batch.count)
                return
            self.log.warning("Could not nack all of %d messages: %s", batch.count, error)
        outcome = batch.outcome()
        self.log.info(
            "After %s: of %d messages, %d had been acked, %d given back, %d are unanswered, %d were lost",
            type(cause).__name__,
            batch.count,
            outcome.acked,
            outcome.given_back,
            outcome.unanswered,
            outcome.lost,
        )

    def on_kill(self) -> None:
        """End the Spark jobs and give the lease back, so that the messages are ready again at once.

        Airflow may call this at any point of the task's work. So it talks to Spark and to the broker over
        separate connections and shares no lock with that work.
        """
        # Imported here: see execute.
        from duewheel.spark.session import cancel_jobs

        self._killed = True
        # Taken first, because the work drops it when its jobs end.
        held, self._held = self._held, None
        batch = self._batch
        spark = self._spark
        if spark is not None:
            canceller = threading.Thread(
                target=cancel_jobs, args=[spark], name="duewheel-cancel", daemon=True
            )
            canceller.start()
            canceller.join(CANCEL_SECONDS)
        submission = self._submission
        if submission is not None:
            submission.end(CANCEL_SECONDS)
        if held is not None and batch is not None and not batch.answered:
            self._pull_back(held)


def _keep_unanswered(batch: Batch, invisible: timedelta) -> int:
    """Extend unanswered leases to last for ``invisible``; returns 0 if an answer is on its way or was
    given."""
    return 0 if batch.answered or batch.in_open_transaction() else batch.keep(invisible)
