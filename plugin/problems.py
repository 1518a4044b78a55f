"""What went wrong at a broker, in words that leak neither addresses nor SQL; the log has the rest."""

from __future__ import annotations

import logging
from typing import Final

import psycopg2
from psycopg2.errors import QueryCanceled

from duewheel.plugin.models import Problem
from duewheel.store import BrokerMoved, BrokerNotUpgraded, BrokerUnreachable, DueWheelError

log = logging.getLogger(__name__)

#: What the broker itself says is for people, except where it quotes the driver, and with it the address.
_UNAVAILABLE: Final[dict[type[DueWheelError], str]] = {
    BrokerUnreachable: "The broker's database does not answer. Look whether it runs and whether the Airflow "
    "connection has the right address; the API server's log says more.",
    BrokerNotUpgraded: "The broker's schema does not fit this version. Run `duewheel db upgrade` on it, or "
    "install the version of duewheel that it was upgraded to.",
    BrokerMoved: "The broker was restored into another database cluster. Run `duewheel db rebase` on it.",
}


def unavailable(error: Exception) -> Problem | None:
    """What to say of an error of the broker as a whole, and log it; None for one of what was asked."""
    for kind, words in _UNAVAILABLE.items():
        if isinstance(error, kind):
            log.warning("The page cannot use its broker: %s", error)
            return Problem(error=kind.__name__, detail=words)
    return None


def of_database(error: psycopg2.Error) -> Problem:
    """What to say of a statement that failed, and log it unless what was asked is the cause."""
    if isinstance(error, psycopg2.DataError):
        return Problem(
            error="InvalidValue", detail="A value is out of the range that the broker's database has."
        )
    log.error("A statement of the page failed", exc_info=error)
    if isinstance(error, QueryCanceled):
        return Problem(error="TookTooLong", detail="The broker did not answer within 5 s. Narrow the filter.")
    return Problem(
        error="DatabaseError", detail="The broker's database refused a statement; the log says which."
    )
