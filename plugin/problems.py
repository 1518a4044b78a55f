"""Errors of a broker in texts without addresses or SQL; the log has the details."""

from __future__ import annotations

import logging
from typing import Final

import psycopg2
from psycopg2.errors import LockNotAvailable, QueryCanceled

from duewheel.plugin.models import Problem
from duewheel.store import BrokerMoved, BrokerNotUpgraded, BrokerUnreachable, DueWheelError
from duewheel.store.values.errors import UPGRADE, UPGRADE_PROGRAM

log = logging.getLogger(__name__)

#: The broker's own messages are written for people, except those that quote the driver, and so the address.
_UNAVAILABLE: Final[dict[type[DueWheelError], str]] = {
    BrokerUnreachable: "The broker's database does not answer. Check that it runs and that the Airflow "
    "connection has the right address; the API server's log has the details.",
    BrokerNotUpgraded: "",
    BrokerMoved: "The broker was restored into another database cluster. Run `duewheel db rebase` on it.",
}

#: By the end of the error's message.
_CURES: Final = {
    UPGRADE: "Run `duewheel db upgrade` on it.",
    UPGRADE_PROGRAM: "Run `pip install --upgrade airflow-provider-duewheel` on Airflow's API server, "
    "and restart it.",
}


def unavailable(error: Exception) -> Problem | None:
    """Log an error of the broker as a whole and return its description; None if the request is the cause."""
    for kind, words in _UNAVAILABLE.items():
        if isinstance(error, kind):
            log.warning("The page cannot use its broker: %s", error)
            return Problem(error=kind.__name__, detail=words or _misfit(error))
    return None


def _misfit(error: Exception) -> str:
    """The revisions of the schema and of this program, and the command that makes them fit."""
    said = str(error)
    end = UPGRADE_PROGRAM if said.endswith(UPGRADE_PROGRAM) else UPGRADE
    state = said.removesuffix(f": {end}")
    return f"{state[:1].upper()}{state[1:]}. {_CURES[end]}"


def of_database(error: psycopg2.Error) -> Problem:
    """Return the description of a failed statement, and log it unless the request is the cause."""
    if isinstance(error, psycopg2.DataError):
        return Problem(error="InvalidValue", detail="A value is out of the range of the broker's database.")
    if isinstance(error, LockNotAvailable):
        log.warning("A statement of the page waited for a lock", exc_info=error)
        return Problem(
            error="Locked",
            detail="Another session holds a lock on a table that this needs, as a restore or an alter table "
            "does. The page asks again every 10 s.",
        )
    log.error("A statement of the page failed", exc_info=error)
    if isinstance(error, QueryCanceled):
        return Problem(
            error="TookTooLong",
            detail="The broker did not answer within 5 s. Try again, or narrow the filter.",
        )
    return Problem(
        error="DatabaseError", detail="The broker's database refused a statement; the log shows which."
    )
