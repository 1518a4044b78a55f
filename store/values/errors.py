"""Every error of duewheel: one class for each state of the world a caller may have to handle.

The database decides. Its functions raise an SQLSTATE ``DWnnn`` with a message that says what happened, the
limit and what to do. :func:`from_database` turns it into the class that carries the same code here, so Python
and plain SQL report the same thing. Python itself raises only the errors that SQL cannot see: a naive
datetime, a NUL, a schema that does not exist. All classes are below :class:`DueWheelError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Self

if TYPE_CHECKING:
    import psycopg
    import psycopg2


class DueWheelError(Exception):
    """An operation that the broker refuses or cannot do. Nothing was written, except with the three classes
    that ``docs/reference/errors.md`` lists.

    ``index`` is the place of the offending message in a call that took several, else None.
    """

    sqlstate: ClassVar[str | None] = None

    def __init__(self, message: str, *, index: int | None = None) -> None:
        super().__init__(message if index is None else f"message {index}: {message}")
        self.index = index

    def at(self, index: int) -> Self:
        """The same error, with the place of its message in a call that took several."""
        return type(self)(str(self), index=index)


class UnknownTopic(DueWheelError):
    """No topic of this name exists; create it with ``create_topic`` or correct the name."""

    sqlstate = "DW001"


class TopicExists(DueWheelError):
    """The topic exists with other settings; change it with ``update_topic`` or use another name."""

    sqlstate = "DW002"


class WrongMessageType(DueWheelError):
    """The topic takes another type of message: delayed ones go to DELAY topics, the others do not."""

    sqlstate = "DW003"


class DelayOutOfRange(DueWheelError):
    """The delay is longer than the topic's maximum; shorten it, or raise ``max_delay`` of the topic."""

    sqlstate = "DW004"


class BodyTooLarge(DueWheelError):
    """The body is over 4 MiB; store it elsewhere and send its address."""

    sqlstate = "DW005"


class PropertiesTooLarge(DueWheelError):
    """The properties are over 16 KiB as JSON text; put large values into the body."""

    sqlstate = "DW006"


class InvalidKey(DueWheelError):
    """The key is empty or too long; a key has 1 to 255 characters."""

    sqlstate = "DW007"


class InvalidDelayLevel(DueWheelError):
    """The delay level is negative; 0 is no delay, levels above the last count as the last."""

    sqlstate = "DW008"


class InvalidTag(DueWheelError):
    """The tag is empty, too long, or holds a space or ``|``, which tag expressions use."""

    sqlstate = "DW009"


class InvalidArgument(DueWheelError):
    """A value that no call can take; the message names it, its limits and what to give instead."""

    sqlstate = "DW010"


class LeaseLost(DueWheelError):
    """The lease ended, or was answered, before this answer: another consumer may have the messages by now."""

    sqlstate = "DW011"


class AlreadyAnswered(LeaseLost):
    """Another transaction answered the lease: roll back, or the work would count twice."""

    sqlstate = "DW020"


class AlreadyReleased(DueWheelError):
    """The message has been released to consumers: too late to recall or reschedule it."""

    sqlstate = "DW012"


class UnknownMessage(DueWheelError):
    """No message has this id or key: it was never sent, was recalled, or is past retention."""

    sqlstate = "DW013"


class UnknownGroup(DueWheelError):
    """No consumer group of this name reads this topic, or it was deleted; create a consumer first."""

    sqlstate = "DW014"


class WrongIsolationLevel(DueWheelError):
    """Ticking and receiving need READ COMMITTED: an older snapshot misses messages released since."""

    sqlstate = "DW015"


class BrokerMoved(DueWheelError):
    """The database was restored into another cluster; run ``duewheel db rebase`` there once."""

    sqlstate = "DW016"


class NotAllowed(DueWheelError):
    """The login lacks the role for this call (duewheel_producer, duewheel_consumer, duewheel_answerer or
    duewheel_admin), or the database or the transaction is read-only."""

    sqlstate = "42501"


class GroupBusy(DueWheelError):
    """Another transaction uses or changes the group, the topic or the schedule and stays open, or a poll of
    the group took too long and was cancelled; try again later."""

    sqlstate = "DW017"


class TickInTransaction(DueWheelError):
    """A tick and a step of upkeep need their own transaction: call them outside of a transaction block."""

    sqlstate = "DW021"


class ClockSetBack(DueWheelError):
    """The database's clock was set back during a release. Nothing was released: run it again."""

    sqlstate = "DW023"


class StagingFailed(DueWheelError):
    """A job could not stage its messages, or a crash took them. Nothing was sent: run the job again."""

    sqlstate = "DW022"


class UnknownSchedule(DueWheelError):
    """No schedule of this name exists; create it, or correct the name."""

    sqlstate = "DW018"


class ScheduleExists(DueWheelError):
    """The schedule exists with other settings; delete it first, or use another name."""

    sqlstate = "DW019"


class BrokerNotUpgraded(DueWheelError):
    """The schema is missing, older than this program or half made; run ``duewheel db upgrade``.

    Or it is newer, and lacks something that this program uses; then upgrade the program.
    """


class BrokerUnreachable(DueWheelError):
    """The database cannot be reached, or the connection broke on the way.

    It is then unknown whether a statement that was being executed took effect. A send with
    ``idempotency_key`` can be repeated safely; received messages are delivered again when their lease ends.
    """


class InvalidInstant(DueWheelError):
    """Not an instant: a datetime without a time zone, a number out of range, or another type."""


class InvalidTagExpression(DueWheelError):
    """Not a tag expression: ``*`` for every message, or tags joined by ``||``."""


class InvalidFilter(DueWheelError):
    """Not a filter over properties (a jsonpath predicate); the message has the cause and the right form."""

    sqlstate = "DW024"


class UnreadableBody(DueWheelError, ValueError):
    """The body does not match its property ``content-type``, or is not JSON; ``body`` has its bytes."""


class InvalidSchedule(DueWheelError):
    """Not a cron expression, a time zone or an interval; the message names the right form."""


class ExtraMissing(DueWheelError):
    """The call needs a package that is not installed; the message says which extra has it."""


class NulInText(DueWheelError):
    """Text with a NUL character, which Postgres cannot store in text; only a body of bytes may hold one."""


#: The class for each SQLSTATE that the functions of the schema ``duewheel`` raise.
BY_SQLSTATE: dict[str, type[DueWheelError]] = {
    kind.sqlstate: kind
    for kind in (*DueWheelError.__subclasses__(), *LeaseLost.__subclasses__())
    if kind.sqlstate is not None and kind.sqlstate.startswith("DW")
}

# invalid_schema_name, undefined_table, undefined_function, undefined_object, undefined_column
_NOT_THERE = frozenset({"3F000", "42P01", "42883", "42704", "42703"})

# read_only_sql_transaction
_READ_ONLY = "25006"
# feature_not_supported: also a transaction that writes, on a standby
_NOT_SUPPORTED = "0A000"

#: How to make the schema fit: the end of each message about its revision.
UPGRADE = "run `duewheel db upgrade` (or call Broker.upgrade()) against this database, then try again"
#: The same if the schema is newer than the program.
UPGRADE_PROGRAM = "run `pip install --upgrade airflow-provider-duewheel`, then start this program again"


def from_database(error: psycopg2.Error | psycopg.Error) -> DueWheelError | None:
    """The duewheel error for a database error, or None if duewheel has no class for it.

    Args:
        error: what psycopg2 or psycopg 3 raised.

    Example:
        >>> import psycopg2
        >>> from_database(psycopg2.DataError("division by zero")) is None
        True
    """
    code = _sqlstate(error)
    if code is None:
        return None
    kind = BY_SQLSTATE.get(code)
    diagnostics = error.diag
    primary = diagnostics.message_primary or str(error)
    if kind is not None:
        parts = [primary, diagnostics.message_detail, diagnostics.message_hint]
        return kind(_sentences(parts))
    if code == NotAllowed.sqlstate and diagnostics.message_hint is not None:
        # Refused by one of our functions, whose hint has the cure; Postgres itself names only the object.
        return NotAllowed(_sentences([primary, diagnostics.message_hint]))
    if code == NotAllowed.sqlstate:
        return NotAllowed(
            f"this login may not do that ({primary}): it needs the role {role_needed(primary)}; let an "
            "administrator of the database grant it"
        )
    if is_read_only(error):
        return NotAllowed(
            f"the database is read-only here, as a standby or a transaction may be ({primary}): give the "
            "address of the primary, or several hosts and target_session_attrs=read-write, or a transaction "
            "that may write"
        )
    if code in _NOT_THERE and "duewheel" in primary:
        return BrokerNotUpgraded(
            f"the broker's schema is missing or older than this program ({primary}): {UPGRADE}"
        )
    return None


def _sqlstate(error: psycopg2.Error | psycopg.Error) -> str | None:
    """The SQLSTATE, which the two drivers name differently."""
    code: str | None = getattr(error, "pgcode", None) or getattr(error, "sqlstate", None)
    return code


def is_read_only(error: psycopg2.Error | psycopg.Error) -> bool:
    """Whether the database refused because nothing can be written here, as on a standby.

    Example:
        >>> import psycopg2
        >>> is_read_only(psycopg2.OperationalError("no route to host"))
        False
    """
    code = _sqlstate(error)
    return code == _READ_ONLY or (
        code == _NOT_SUPPORTED and "read-write mode" in (error.diag.message_primary or "")
    )


def said(error: Exception) -> str:
    """The driver's text in one line, each part once and without its advice.

    Example:
        >>> said(OSError("no route to host\\n\\tIs the server running?\\nno route to host\\n"))
        'no route to host'
    """
    lines = (line.rstrip() for line in str(error).splitlines() if not line.startswith("\t"))
    return "; ".join(dict.fromkeys(filter(None, lines)))


def role_needed(refusal: str) -> str:
    """The role that may do what the database refused.

    Args:
        refusal: the database's message, such as ``permission denied for function create_topic``.

    Example:
        >>> role_needed("permission denied for function create_topic")
        'duewheel_admin'
    """
    found = re.fullmatch(r"permission denied for (\w+) (\w+)", refusal)
    kind, name = found.groups() if found else ("", "")
    if kind == "schema":
        return (
            "duewheel_producer (sends), duewheel_consumer (receives), duewheel_answerer (answers runs that "
            "wait) or duewheel_admin (all of it, and more)"
        )
    if kind in ("function", "procedure"):
        # Read when a right is missing, so seldom.
        from duewheel.store import sql

        return f"duewheel_{sql.roles().get(name, 'admin')}"
    return "duewheel_consumer" if name in ("groups", "waiting") else "duewheel_admin"


def not_upgraded(found: str | None, wanted: str) -> BrokerNotUpgraded:
    """The error for a schema at revision ``found`` (None: no schema) if ``wanted`` is needed."""
    if found is not None and found > wanted:
        return BrokerNotUpgraded(
            f"the schema is at revision {found}, this program was made for revision {wanted}: "
            f"{UPGRADE_PROGRAM}"
        )
    state = (
        "there is no duewheel schema in this database"
        if found is None
        else f"the schema is at revision {found}"
    )
    return BrokerNotUpgraded(f"{state}, this program needs revision {wanted}: {UPGRADE}")


def _sentences(parts: Iterable[str | None]) -> str:
    """The database's error message and hint, each as a sentence."""
    return ". ".join(part for part in parts if part)
