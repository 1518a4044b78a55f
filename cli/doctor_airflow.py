"""The checks of Airflow: its triggerer, and the topics and groups that its DAGs name.

They read Airflow's metadata database: the DAGs as the DAG processor has stored them, and the heartbeats of
the triggerers. Airflow makes its files when it is imported first, so nothing is imported on a machine on
which it is not set up.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from duewheel.cli.doctor_findings import Finding
from duewheel.cli.refusals import one_line
from duewheel.store import DueWheelError

if TYPE_CHECKING:
    from airflow.sdk import Connection as SdkConnection
    from sqlalchemy.orm import Session

_DEFAULT_CONNECTION = "duewheel_default"
#: The operator that makes the topic that it names.
_MAKES_TOPIC = "CreateTopicOperator"
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Use:
    """A topic or a group that a DAG names, without templates.

    Attributes:
        dag: the DAG's id.
        connection: the id of the connection to the broker.
        topic: the topic's name.
        group: the consumer group's name; None if it only sends or moves.
        makes_topic: whether the DAG has a task that makes the topic.
    """

    dag: str
    connection: str
    topic: str
    group: str | None
    makes_topic: bool


def airflow_findings() -> Iterator[Finding]:
    """All checks of Airflow, or one finding with the reason why they are left out."""
    if find_spec("airflow") is None:
        yield Finding("airflow", "ok", "left out because Airflow is not installed here")
        return
    if not _is_set_up():
        yield Finding(
            "airflow",
            "ok",
            "left out because Airflow is not set up here",
            "If it is elsewhere than in ~/airflow, set AIRFLOW_HOME.",
        )
        return
    from airflow.utils.session import create_session
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with create_session() as session:
            triggerer = _triggerer(session)
            uses = list(_uses(session))
    except SQLAlchemyError as error:
        yield Finding(
            "airflow",
            "warning",
            f"left out because Airflow's database cannot be read: {one_line(str(error))}",
            "Correct `[database] sql_alchemy_conn`, or run this on the machine of the scheduler.",
        )
        return
    yield triggerer
    yield from _dags(uses)


def _is_set_up() -> bool:
    return (
        "AIRFLOW_HOME" in os.environ
        or "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN" in os.environ
        or (Path.home() / "airflow" / "airflow.cfg").exists()
    )


def _triggerer(session: Session) -> Finding:
    from airflow.jobs.job import most_recent_job

    job = most_recent_job("TriggererJob", session=session)
    if job is None:
        return Finding(
            "triggerer", "error", "none has ever run", "Start one: `airflow triggerer`. Watchers run in it."
        )
    heartbeat = f"its last heartbeat was at {job.latest_heartbeat:%Y-%m-%d %H:%M:%S} UTC"
    if not job.is_alive():
        return Finding(
            "triggerer",
            "error",
            f"none is alive; the last one ran on {job.hostname}, {heartbeat}",
            "Start one: `airflow triggerer`. Watchers run in it.",
        )
    return Finding("triggerer", "ok", f"alive on {job.hostname}, {heartbeat}")


def _uses(session: Session) -> Iterator[Use]:
    from airflow.models.dag import DagModel
    from airflow.models.serialized_dag import SerializedDagModel
    from sqlalchemy import select

    dag_ids = list(session.scalars(select(DagModel.dag_id).where(~DagModel.is_stale)))
    for stored in SerializedDagModel.get_latest_serialized_dags(dag_ids=dag_ids, session=session):
        yield from uses_of(stored.dag_id, stored.data or {})


def uses_of(dag: str, stored: Mapping[str, Any]) -> list[Use]:
    """The topics and groups that a DAG names, as Airflow stores it.

    Args:
        dag: the DAG's id.
        stored: its document in the table ``serialized_dag``.
    """
    named = list(_parts(stored))
    made = {fields.get("topic") for kind, fields in named if kind == _MAKES_TOPIC}
    return [
        Use(
            dag,
            fields.get("duewheel_conn_id") or _DEFAULT_CONNECTION,
            fields["topic"],
            fields["group"] if _is_name(fields.get("group")) else None,
            fields["topic"] in made,
        )
        for _, fields in named
        if _is_name(fields.get("topic")) and "{" not in str(fields.get("duewheel_conn_id"))
    ]


def _parts(stored: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The operators and the triggers of this package: the name of the class, and the arguments."""
    if isinstance(stored, Mapping):
        if str(stored.get("_task_module")).startswith("duewheel."):
            yield str(stored.get("task_type")), {**stored, **stored.get("partial_kwargs", {})}
        elif str(stored.get("classpath")).startswith("duewheel.") and isinstance(stored.get("kwargs"), dict):
            yield str(stored["classpath"]), stored["kwargs"].get("__var", stored["kwargs"])
        for part in stored.values():
            yield from _parts(part)
    elif isinstance(stored, list):
        for part in stored:
            yield from _parts(part)


def _is_name(given: object) -> bool:
    return isinstance(given, str) and "{" not in given


def _dags(uses: Iterable[Use]) -> Iterator[Finding]:
    by_connection: defaultdict[str, list[Use]] = defaultdict(list)
    for use in uses:
        by_connection[use.connection].append(use)
    if not by_connection:
        yield Finding("dags", "ok", "no DAG names a topic")
    for connection, used in sorted(by_connection.items()):
        yield from _connection(connection, used)


def _connection(connection: str, used: list[Use]) -> Iterator[Finding]:
    from airflow.models import Connection
    from airflow.sdk.exceptions import AirflowNotFoundException

    from duewheel.hooks.broker import address_of

    check = f"dags ({connection})"
    try:
        # Both of Airflow's connection classes have the attributes that are read here.
        found = cast("SdkConnection", Connection.get_connection_from_secrets(connection))
        with address_of(found).open() as broker:
            topics = {topic.topic for topic in broker.stats().topics}
            groups = {group.group for group in broker.groups()}
    except (DueWheelError, AirflowNotFoundException) as error:
        yield Finding(
            check,
            "error",
            f"the broker of {_dags_of(used)} cannot be asked: {one_line(str(error))}",
            f"Correct the connection {connection} in Airflow, or the DAG that names it.",
        )
        return
    wrong = False
    for topic in sorted({use.topic for use in used} - topics):
        wrong = True
        naming = [use for use in used if use.topic == topic]
        makers = [use for use in naming if use.makes_topic]
        yield Finding(
            check,
            "warning" if makers else "error",
            f"topic {topic!r}, which {_dags_of(naming)} names, does not exist",
            f"Run {_dags_of(makers)}, which makes it."
            if makers
            else f"Correct the name, or run `duewheel topic create {topic}`.",
        )
    for group in sorted({use.group for use in used if use.group is not None} - groups):
        wrong = True
        naming = [use for use in used if use.group == group]
        yield Finding(
            check,
            "warning",
            f"group {group!r}, which {_dags_of(naming)} names, does not exist yet",
            "Its first consumer makes it: unpause the DAG, or correct the name.",
        )
    if not wrong:
        yield Finding(check, "ok", f"the topics and groups that {_dags_of(used)} name are there")


def _dags_of(uses: Iterable[Use]) -> str:
    dags = sorted({use.dag for use in uses})
    named = ", ".join(dags[:_NAMED])
    return f"DAG {named}" if len(dags) <= _NAMED else f"DAG {named} and {len(dags) - _NAMED} more"
