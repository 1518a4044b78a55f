"""`duewheel db`: the broker's schema in its database."""

from __future__ import annotations

import click

from duewheel.cli.answer import Answer, as_mapping, counted
from duewheel.cli.broker_command import with_broker
from duewheel.cli.parameters import size
from duewheel.store import Broker


@click.group()
def db() -> None:
    """The broker's schema: upgrade, check, rebase, settings.

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
    state = broker.upgrade()
    answer.done(f"The schema is at revision {state.revision}.", **as_mapping(state))


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
    """Take over a broker that came here by a logical dump and restore; until then every call is refused.

    Stop the old broker first. Where nothing was moved it changes nothing, so a restore script may always call
    it. A standby that was promoted and a point-in-time recovery need no rebase.

    \b
    pg_restore --dbname=postgresql://app@new-host/shop shop.dump
    duewheel db rebase --dsn postgresql://app@new-host/shop
    """
    done = broker.rebase()
    if done.rebased:
        sentence = (
            f"The broker is at home here: {counted(done.messages, 'message')} and "
            f"{counted(done.ticks, 'tick')} stamped anew, "
            f"{counted(done.released_late, 'message')} released late."
        )
    else:
        sentence = "The broker was at home here already: nothing to do."
    answer.done(sentence, **as_mapping(done))


@db.command()
@click.option(
    "--retention-bytes",
    type=size,
    help="Above this size of all messages the oldest go before their retention ends; 0: no limit (D09).",
)
@click.option(
    "--when-full",
    type=click.Choice(["drop_unread", "keep_unread"]),
    help="Whether messages that a group has not read go too then.",
)
@with_broker
def settings(broker: Broker, answer: Answer, retention_bytes: int | None, when_full: str | None) -> None:
    """Show the settings of the whole broker, after changing those that are given.

    \b
    duewheel db settings --retention-bytes 20GiB --when-full keep_unread
    """
    if retention_bytes is not None or when_full is not None:
        broker.update_settings(retention_bytes=retention_bytes, when_full=when_full)
    answer.record(as_mapping(broker.settings()))
