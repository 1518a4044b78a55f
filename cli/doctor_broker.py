"""The checks of a broker: its database, the login, the wheel, upkeep, and the server's clock, notifications
and settings.

Each check asks what the other commands and the page ask, so that all have the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta

import psycopg2

from duewheel.cli.answer import as_mapping
from duewheel.cli.doctor_findings import Finding
from duewheel.cli.refusals import explained, one_line
from duewheel.store import Broker, BrokerUnreachable, DueWheelError, NotAllowed
from duewheel.store.database.connections import fetch
from duewheel.store.operations.overview import now, overdue_topics, turning_wheels
from duewheel.store.values.numbers import counted
from duewheel.store.wheel.upkeep import held_up_by

#: A wheel does upkeep once an hour; this much later it was missed.
_UPKEEP_AFTER = timedelta(hours=2)
#: A message that waits longer than this after its instant was not merely between two ticks.
_OVERDUE_AFTER = timedelta(seconds=5)
#: Postgres itself warns in its log from here on.
_QUEUE_HALF_FULL = 0.5
#: Programs that compute instants from a clock so far off send messages noticeably early or late.
_CLOCK_OFF = timedelta(seconds=1)

_SERVER = """
select session_user, current_database(), current_setting('server_version'), pg_is_in_recovery(),
       pg_backend_pid()
"""

# The roles that the login has, the roles that exist, and whether it owns the schema.
_ROLES = """
select array_agg(r.rolname order by r.rolname) filter (where pg_has_role(session_user, r.oid, 'usage')),
       count(*),
       (select pg_has_role(session_user, n.nspowner, 'usage') from pg_namespace n
        where n.nspname = 'duewheel')
from pg_roles r
where r.rolname in ('duewheel_answerer', 'duewheel_producer', 'duewheel_consumer', 'duewheel_admin')
"""
_ROLE_COUNT = 4

_SETTINGS = "select name, setting from pg_settings where name = any(%s)"
#: What each setting should be, and the harm if it is not.
_SAFE_SETTINGS: dict[str, tuple[str, str]] = {
    "fsync": ("on", "a crash of the machine can destroy the database"),
    "full_page_writes": ("on", "a crash of the machine can destroy pages of the database"),
    "synchronous_commit": ("on local remote_write remote_apply", "a crash can lose messages that were sent"),
    "autovacuum": ("on", "tables grow, and estimates become wrong"),
    "track_activities": ("on", "the activity of a session that holds up upkeep is not visible"),
}


def broker_findings(broker: Broker) -> Iterator[Finding]:
    """All checks of a broker. If it cannot be reached, or has another schema, the others are left out."""
    try:
        with broker.connection() as connection:
            ((login, database, version, is_standby, pid),) = fetch(connection, _SERVER, ())
            is_pooled = pid != connection.info.backend_pid
    except BrokerUnreachable as error:
        yield Finding(
            "connection", "error", one_line(str(error)), "Correct the address, or start the server."
        )
        return
    except NotAllowed as error:
        yield Finding("rights", "error", one_line(str(error)), "Do as it says, and run this again.")
        return
    except DueWheelError as error:
        yield Finding("schema", "error", one_line(str(error)), "Run `duewheel db upgrade` as its owner.")
        return
    said = f"Postgres {version} answers, database {database}, login {login}"
    if is_standby:
        yield Finding(
            "connection",
            "error",
            f"{said}; it is a standby, which sends and receives nothing",
            "Give the address of the primary, or several hosts and target_session_attrs=read-write.",
        )
    elif is_pooled:
        yield Finding(
            "connection",
            "warning",
            f"{said}, through a pooler",
            "If it shares sessions, as PgBouncer by transaction does, give programs listen=False, "
            "Airflow's connection the extra listen=false, and wheels the database's own address.",
        )
    else:
        yield Finding("connection", "ok", said)
    checks: dict[str, Callable[[Broker], Finding]] = {
        "schema": _schema,
        "rights": _rights,
        "wheel": _wheel,
        "upkeep": _upkeep,
        "clock": _clock,
        "notifications": _notifications,
        "settings": _settings,
    }
    for name, check in checks.items():
        try:
            yield check(broker)
        except NotAllowed as error:
            yield Finding(
                name, "warning", f"left out: {one_line(str(error))}", "Ask as a login with that role."
            )
        except DueWheelError as error:
            yield Finding(name, "error", one_line(str(error)), "Do as it says, and run this again.")
        except psycopg2.Error as error:
            yield Finding(name, "error", explained(error), "Correct that, and run this again.")


def _schema(broker: Broker) -> Finding:
    return Finding("schema", "ok", f"at revision {broker.check().revision}, as this program needs")


def _rights(broker: Broker) -> Finding:
    with broker.connection() as connection:
        ((roles, role_count, is_owner),) = fetch(connection, _ROLES, ())
    if is_owner and role_count < _ROLE_COUNT:
        return Finding(
            "rights",
            "warning",
            "the login owns the schema, but the roles for other logins are not all there",
            "Run `duewheel db upgrade` as the owner: it names the statements that make them.",
        )
    if is_owner:
        return Finding("rights", "ok", "the login owns the schema and may do everything")
    if not roles:
        return Finding(
            "rights",
            "error",
            "the login has none of the broker's roles",
            "Let an administrator of the database grant it duewheel_producer (sends), duewheel_consumer "
            "(receives), duewheel_answerer (answers runs that wait) or duewheel_admin (all of it, and more).",
        )
    return Finding("rights", "ok", f"the login has {', '.join(roles)}")


def _wheel(broker: Broker) -> Finding:
    wheels = turning_wheels(broker)
    overdue = [each.topic for each in overdue_topics(broker, now(broker) - _OVERDUE_AFTER)[0]]
    start = "Start Airflow's triggerer with a DAG that has a watcher, or run `duewheel wheel run`."
    if overdue:
        said = f"messages that are due were not released on {', '.join(overdue[:5])}"
        return Finding(
            "wheel",
            "error",
            f"{said}{' and others' if len(overdue) > 5 else ''}; {counted(len(wheels), 'wheel')} connected",
            "Look at the log of the wheel, and run `duewheel watch`." if wheels else start,
        )
    if not wheels:
        return Finding("wheel", "warning", "no wheel turns: only consumers release messages", start)
    first = wheels[0]
    since = "" if first.started_at is None else f" since {first.started_at:%Y-%m-%d %H:%M:%S} UTC"
    more = f", and {counted(len(wheels) - 1, 'more wheel')}" if len(wheels) > 1 else ""
    return Finding("wheel", "ok", f"turns on {first.name}{since}{more}")


def _upkeep(broker: Broker) -> Finding:
    upkeep = broker.stats().upkeep
    done = f"last done {upkeep.maintained_at:%Y-%m-%d %H:%M:%S} UTC"
    left = (
        f"{counted(upkeep.slots_to_seal, 'slot')} to seal, {upkeep.slots_past_retention} past retention, "
        f"{counted(upkeep.messages_to_settle, 'message')} to settle"
    )
    if upkeep.held_up_by:
        holders = "; ".join(held_up_by(as_mapping(holder)) for holder in upkeep.held_up_by)
        return Finding("upkeep", "warning", f"{done}; {left}", f"{holders[0].upper()}{holders[1:]}.")
    if now(broker) - upkeep.maintained_at > _UPKEEP_AFTER:
        return Finding(
            "upkeep",
            "warning",
            f"{done}, the limit is two hours ago; {left}",
            "A wheel does it once an hour: let one turn under a login with the role duewheel_admin.",
        )
    return Finding("upkeep", "ok", f"{done}; {left}")


def _clock(broker: Broker) -> Finding:
    before = datetime.now(UTC)
    server = now(broker)
    return clock_finding(before, server, datetime.now(UTC))


def clock_finding(before: datetime, server: datetime, after: datetime) -> Finding:
    """Compare the server's clock with this machine's.

    Args:
        before, after: this machine's instants just before the server was asked and when it had answered.
        server: the server's instant between them.
    """
    ahead, behind = server - after, before - server
    off = max(ahead, behind)
    if off <= _CLOCK_OFF:
        return Finding("clock", "ok", "the server's clock and the clock here agree within a second")
    direction = "ahead of" if ahead > behind else "behind"
    return Finding(
        "clock",
        "warning",
        f"the server's clock is {off.total_seconds():.1f} s {direction} the clock here, the limit is 1 s",
        "Synchronize both by NTP. Until then give delays and no instants: delays count by the "
        "server's clock.",
    )


def _notifications(broker: Broker) -> Finding:
    with broker.connection() as connection:
        ((usage,),) = fetch(connection, "select pg_notification_queue_usage()", ())
    return notifications_finding(usage)


def notifications_finding(usage: float) -> Finding:
    """Report how full the queue of the server's notifications is.

    Args:
        usage: from 0 to 1.
    """
    said = f"the server's queue of notifications is {usage:.0%} full"
    if usage < _QUEUE_HALF_FULL:
        return Finding("notifications", "ok", said)
    return Finding(
        "notifications",
        "warning",
        f"{said}; from 90% on wheels and consumers are not notified, and poll",
        "A session of any database listens, and stays in a transaction. The server's log names its pid in a "
        "warning: end it by `select pg_terminate_backend(pid)`.",
    )


def _settings(broker: Broker) -> Finding:
    with broker.connection() as connection:
        found: Mapping[str, str] = dict(fetch(connection, _SETTINGS, (list(_SAFE_SETTINGS),)))
    wrong = [
        f"{name} is {found[name]}: {consequence}"
        for name, (right, consequence) in _SAFE_SETTINGS.items()
        if found[name] not in right.split()
    ]
    if not wrong:
        return Finding("settings", "ok", f"{', '.join(_SAFE_SETTINGS)} are as they should be")
    return Finding(
        "settings",
        "warning",
        "; ".join(wrong),
        "Turn them on, by `alter system` or in the settings of the login or the database, except on a "
        "server whose messages may be lost.",
    )
