"""The watchers of all DAGs, as Airflow has stored them, each with what keeps it from ringing.

A watcher that cannot work starts no runs, so its DAG looks idle. Its connection may be unknown, so no broker
can report it. Airflow's database has the watchers, their triggerers, and the newest events. Whether a watcher
can ring is determined at each request, over the page's own sessions, by the answers that the triggerer would
get: nothing is subscribed or released.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import psycopg2
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.jobs.job import Job
from airflow.models import Trigger
from airflow.models.asset import AssetEvent, AssetModel, AssetWatcherModel, DagScheduleAssetReference
from fastapi import APIRouter
from psycopg2.errors import QueryCanceled
from sqlalchemy import select
from sqlalchemy.orm import Session

from duewheel.plugin import models
from duewheel.plugin.brokers import BrokerBusy, UnknownBroker, brokers
from duewheel.plugin.problems import of_database, unavailable
from duewheel.plugin.rights import Seeing, may_see
from duewheel.store import Broker, DueWheelError
from duewheel.store.operations import overview

router = APIRouter(prefix="/api")

#: So many watchers are listed, by the names of their assets.
_MOST: Final = 500
#: So many of an asset's newest events are searched for the last ring of its watchers.
_NEWEST_EVENTS: Final = 50
_NOT_ASKED: Final = "The page could not ask the broker in time, so this is not known. Refresh."
_NO_TRIGGERER: Final = "No triggerer has it: start `airflow triggerer`, or wait until one takes it over."

#: A topic and a group.
_Watched = tuple[str, str]


@dataclass(frozen=True)
class _Stored:
    """A watcher in Airflow's database."""

    asset_id: int
    asset: str
    name: str
    connection_id: str
    watched: _Watched
    triggerer: str | None
    """The machine of the triggerer that has it, if that is alive."""


@router.get("/watchers")
def list_watchers(user: Seeing, session: SessionDep) -> models.Watchers:
    """The watchers of all DAGs whose brokers the user may see, watchers that cannot ring first."""
    found = list(_stored(session))
    visible = {one for one in {each.connection_id for each in found[:_MOST]} if may_see(user, one)}
    shown = [one for one in found[:_MOST] if one.connection_id in visible]
    dags = _dags(session, shown)
    rang_at = [_rang_at(session, one) for one in shown]
    # The brokers may take long to answer; no transaction of Airflow's database waits for them.
    session.commit()
    problems = {
        connection_id: _problems(
            connection_id, {one.watched for one in shown if one.connection_id == connection_id}
        )
        for connection_id in visible
    }
    watchers = [
        models.Watcher(
            dags=dags.get(one.asset_id, []),
            asset=one.asset,
            name=one.name,
            connection_id=one.connection_id,
            topic=one.watched[0],
            group=one.watched[1],
            triggerer=one.triggerer,
            rang_at=rang,
            problem=problems[one.connection_id].get(one.watched)
            or (_NO_TRIGGERER if one.triggerer is None else None),
        )
        for one, rang in zip(shown, rang_at, strict=True)
    ]
    watchers.sort(key=lambda one: (one.problem is None, one.dags, one.asset, one.name))
    return models.Watchers(now_at=datetime.now(UTC), watchers=watchers, more=len(found) > _MOST)


def _stored(session: Session) -> Iterator[_Stored]:
    asked = (
        select(AssetWatcherModel, AssetModel.name, Trigger, Job)
        .join(AssetModel, AssetModel.id == AssetWatcherModel.asset_id)
        .join(Trigger, Trigger.id == AssetWatcherModel.trigger_id)
        .outerjoin(Job, Job.id == Trigger.triggerer_id)
        .where(Trigger.classpath.startswith("duewheel."))
        .order_by(AssetModel.name, AssetWatcherModel.name)
        .limit(_MOST + 1)
    )
    for watcher, asset, trigger, job in session.execute(asked):
        arguments = trigger.kwargs
        yield _Stored(
            watcher.asset_id,
            asset,
            watcher.name,
            arguments["duewheel_conn_id"],
            (arguments["topic"], arguments["group"]),
            _machine(job),
        )


def _machine(job: Job | None) -> str | None:
    """The machine of a triggerer, if it lives."""
    return job.hostname if job is not None and job.is_alive() else None


def _dags(session: Session, watchers: Iterable[_Stored]) -> Mapping[int, list[str]]:
    """By asset, the DAGs that it starts."""
    asked = select(DagScheduleAssetReference.asset_id, DagScheduleAssetReference.dag_id).where(
        DagScheduleAssetReference.asset_id.in_({one.asset_id for one in watchers})
    )
    dags: dict[int, list[str]] = {}
    for asset_id, dag_id in session.execute(asked.order_by(DagScheduleAssetReference.dag_id)):
        dags.setdefault(asset_id, []).append(dag_id)
    return dags


def _rang_at(session: Session, watcher: _Stored) -> datetime | None:
    """When Airflow last got an event of the watcher."""
    events = session.execute(
        select(AssetEvent.timestamp, AssetEvent.extra)
        .where(AssetEvent.asset_id == watcher.asset_id)
        .order_by(AssetEvent.timestamp.desc())
        .limit(_NEWEST_EVENTS)
    )
    for at, extra in events:
        payload: Any = (extra or {}).get("payload")
        if isinstance(payload, dict) and (payload.get("topic"), payload.get("group")) == watcher.watched:
            rang_at: datetime = at
            return rang_at
    return None


def _problems(connection_id: str, watched: Iterable[_Watched]) -> dict[_Watched, str]:
    """The reasons why watched groups of a connection cannot ring, in texts without addresses."""
    try:
        with brokers.lend(connection_id) as broker:
            return dict(_problems_of(broker, watched))
    except UnknownBroker:
        said = (
            f"No Airflow connection of type duewheel has the id {connection_id}: make it, or correct "
            "duewheel_conn_id in the DAG."
        )
    except (BrokerBusy, QueryCanceled):
        said = _NOT_ASKED
    except DueWheelError as error:
        problem = unavailable(error)
        said = str(error) if problem is None else problem.detail
    except psycopg2.Error as error:
        said = of_database(error).detail
    return dict.fromkeys(watched, said)


def _problems_of(broker: Broker, watched: Iterable[_Watched]) -> Iterator[tuple[_Watched, str]]:
    for one in overview.watched_groups(broker, watched):
        if not one.is_there:
            said = f"There is no topic {one.topic}: correct the name in the DAG, or create the topic."
        elif one.is_broadcasting:
            said = (
                f"Group {one.group} is broadcasting, so its instances share no messages: watch another group."
            )
        elif one.paused_at is not None:
            said = f"Group {one.group} is paused on this topic: resume it in the view Groups."
        else:
            continue
        yield (one.topic, one.group), said
