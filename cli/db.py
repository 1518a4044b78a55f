"""`duewheel db`: the broker's schema in its database."""

from __future__ import annotations

import click

from duewheel.cli.answer import Answer, as_mapping
from duewheel.cli.broker_command import with_broker
from duewheel.cli.options import json_option
from duewheel.cli.progress import progress
from duewheel.store import Broker, BrokerMoved, BrokerNotUpgraded
from duewheel.store.database.schema import newest_revision
from duewheel.store.database.schema_script import schema_script
from duewheel.store.database.schema_state import SchemaState
from duewheel.store.values.numbers import counted


@click.group()
def db() -> None:
    """The broker's schema: upgrade, check, rebase, sql.

    \b
    duewheel db upgrade --dsn postgresql://app@db/shop
    """


@db.command()
@with_broker
def upgrade(broker: Broker, answer: Answer) -> None:
    """Make the schema, or bring it to this version; safe to run from many places at once.

    \b
    duewheel db upgrade
    """
    before = _state(broker)
    with progress("Upgrading", counts=False):
        state = broker.upgrade()
    if state == before:
        sentence, outcome = f"The schema was at revision {state.revision} already: unchanged.", "unchanged"
    else:
        sentence, outcome = f"The schema is upgraded to revision {state.revision}.", "upgraded"
    answer.done(sentence, outcome=outcome, **as_mapping(state))


def _state(broker: Broker) -> SchemaState | None:
    """Return the state of the schema, or None if this program needs another schema."""
    try:
        return broker.check()
    except (BrokerNotUpgraded, BrokerMoved):
        return None


@db.command()
@with_broker
def check(broker: Broker, answer: Answer) -> None:
    """Check that the database has the schema this version needs; exit status 1 if not.

    \b
    duewheel db check && duewheel stats
    """
    state = broker.check()
    answer.done(f"The database is ready for this version (revision {state.revision}).", **as_mapping(state))


@db.command()
@with_broker
def rebase(broker: Broker, answer: Answer) -> None:
    """Take over a broker after a logical dump and restore; until then every call is refused.

    Stop the old broker first. If the broker was not moved, this changes nothing, so a restore script may
    always call it. A standby that was promoted and a point-in-time recovery need no rebase.

    \b
    pg_restore --dbname=postgresql://app@new-host/shop shop.dump
    duewheel db rebase --dsn postgresql://app@new-host/shop
    """
    with progress("Rebasing", counts=False):
        done = broker.rebase()
    if done.rebased:
        sentence = (
            f"The broker is rebased: {counted(done.messages, 'message')} and {counted(done.ticks, 'tick')} "
            f"have new transaction ids, {counted(done.released_late, 'message')} released late."
        )
    else:
        sentence = "The broker belongs to this database cluster already: unchanged."
    answer.done(sentence, **as_mapping(done))


@db.command()
@json_option
def sql(as_json: bool) -> None:
    """Print the schema as a script for psql, for a database that has none.

    The login needs the right to create a schema, and to make roles if the broker's roles are missing. If
    the schema exists, the script changes nothing: upgrade it with `duewheel db upgrade`.

    \b
    duewheel db sql | psql --set ON_ERROR_STOP=1 postgresql://owner@db/shop
    """
    script = schema_script()
    Answer(as_json=as_json).done(script, revision=newest_revision(), script=script)
