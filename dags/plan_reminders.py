"""Plan a day of reminders in one Spark job: a million customers, each at a different instant.

Each night Spark computes the instant of the day's reminder for every customer, and writes all reminders as
messages: all or none, in one transaction. The job's `idempotencyKey` names the day, so a run that is
repeated, by Airflow or by hand, plans nothing twice. It returns the stored plan by hour; the page **Delays**
shows the same as a picture.

As in `remind_customers`, due messages start a DAG that handles them. One recall by key takes a customer who
acted first out of the plan.
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import CronTriggerTimetable, Param, dag, task

from duewheel.hooks.broker import DueWheelHook
from duewheel.operators.topic import CreateTopicOperator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "daily-reminders"
FIRST_HOUR, LAST_HOUR = 8, 20

CUSTOMERS = {"customers": Param(1_000_000, type="integer", minimum=1, description="How many customers.")}


def reminders(spark: SparkSession, day: date, customers: int) -> DataFrame:
    """The messages of a day; the range takes the place of your table of customers."""
    seconds = (LAST_HOUR - FIRST_HOUR) * 3600
    return spark.range(customers).selectExpr(
        "cast(id as string) as key",
        f"to_json(named_struct('customer', id, 'day', '{day}')) as body",
        f"timestamp'{day} {FIRST_HOUR:02}:00:00 UTC'"
        f" + make_dt_interval(0, 0, 0, pmod(xxhash64(id), {seconds})) as deliver_at",
    )


def plan_by_hour(spark: SparkSession, dsn: str, day: date) -> dict[str, int]:
    """How many messages each hour of the day has."""
    stored = spark.read.format("duewheel").options(
        dsn=dsn,
        columns="deliver_at",
        dueFrom=f"{day}T00:00:00+00:00",
        dueUntil=f"{day + timedelta(days=1)}T00:00:00+00:00",
    )
    hours = stored.load(TOPIC).selectExpr("date_format(date_trunc('hour', deliver_at), 'HH:mm') as hour")
    return {row["hour"]: row["count"] for row in hours.groupBy("hour").count().orderBy("hour").collect()}


@dag(
    schedule=CronTriggerTimetable("0 1 * * *", timezone="UTC"),
    is_paused_upon_creation=True,
    params=CUSTOMERS,
    tags=["duewheel", "example"],
    doc_md=__doc__,
)
def plan_reminders() -> None:
    @task
    def plan(**context: Any) -> dict[str, int]:
        # Imported here, so that the DAG file is read without Spark.
        from duewheel.spark import spark_session

        day = (context.get("logical_date") or context["dag_run"].run_after).date()
        dsn = DueWheelHook().resolve().dsn
        with spark_session("plan reminders", conf={"spark.sql.session.timeZone": "UTC"}) as spark:
            reminders(spark, day, context["params"]["customers"]).write.format("duewheel").options(
                dsn=dsn, topic=TOPIC, idempotencyKey=f"reminders of {day}"
            ).mode("append").save()
            return plan_by_hour(spark, dsn, day)

    CreateTopicOperator(task_id="create_topic", topic=TOPIC, max_delay=timedelta(days=2)) >> plan()


plan_reminders()
