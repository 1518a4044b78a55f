"""`duewheel schedule`: messages sent repeatedly, by cron or at an interval."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from duewheel.cli.answer import Answer, as_mapping
from duewheel.cli.broker_command import with_broker
from duewheel.cli.options import property_option, topic_option
from duewheel.cli.parameters import duration, given_body, instant
from duewheel.cli.readable import text_of
from duewheel.store import Broker, Schedule, UnknownSchedule

_COLUMNS = ("name", "topic", "cron", "every", "timezone", "next_at", "last_at", "paused", "misfire")


@click.group()
def schedule() -> None:
    """Schedules: create, list, delete, pause, resume.

    \b
    duewheel schedule create clean-up '{}' --topic files --cron '0 5 * * *' --timezone Europe/Berlin
    """


@schedule.command()
@click.argument("name")
@click.argument("body")
@topic_option("The topic to send to.", required=True)
@click.option("--cron", help="Five fields: minute, hour, day of the month, month, day of the week.")
@click.option("--every", type=duration, help="Or an interval: 2m.")
@click.option(
    "--timezone", default="UTC", show_default=True, help="The time zone of the cron fields: Europe/Berlin."
)
@click.option(
    "--start-at", type=instant, help="No occurrence is before this instant; intervals count from it."
)
@click.option(
    "--misfire",
    type=click.Choice(["once", "skip", "all"]),
    default="once",
    show_default=True,
    help="Which occurrences missed while no wheel ran are sent: the last one, none, or all.",
)
@click.option("--key", help="The key of the messages.")
@click.option("--tag", help="The tag of the messages.")
@property_option
@with_broker
def create(
    broker: Broker,
    answer: Answer,
    name: str,
    body: str,
    topic: str,
    cron: str | None,
    every: timedelta | None,
    properties: tuple[tuple[str, str], ...],
    **settings: Any,
) -> None:
    """Send BODY repeatedly, as schedule NAME; `-` reads the body from standard input.

    Creating the same schedule again changes nothing; other settings for the name of an existing schedule are
    refused.

    \b
    duewheel schedule create clean-up '{}' --topic files --cron '0 5 * * *' --timezone Europe/Berlin
    duewheel schedule create push '{}' --topic updates --every 2m
    """
    if (cron is None) == (every is None):
        raise click.UsageError("Give either --cron or --every.")
    is_new = _found(broker, name) is None
    broker.create_schedule(
        name,
        topic,
        given_body(body),
        cron=cron,
        every=every,
        properties=dict(properties) or None,
        **settings,
    )
    created = _found(broker, name)
    if created is None:
        raise UnknownSchedule(
            f"schedule {name!r} was deleted at the same time: create it again if you want it"
        )
    said = f"is created: it sends next at {text_of(created.next_at)}."
    if not is_new:
        said = f"exists already, with these settings: unchanged. It sends next at {text_of(created.next_at)}."
    answer.done(
        f"Schedule {name} {said}", outcome="created" if is_new else "unchanged", **as_mapping(created)
    )


@schedule.command("list")
@with_broker
def list_schedules(broker: Broker, answer: Answer) -> None:
    """List the schedules and when each sends next.

    \b
    duewheel schedule list
    """
    answer.rows(map(as_mapping, broker.schedules()), columns=_COLUMNS, empty="There are no schedules.")


@schedule.command()
@click.argument("name")
@with_broker
def delete(broker: Broker, answer: Answer, name: str) -> None:
    """Delete schedule NAME; messages that it sent ahead are recalled, released ones stay.

    \b
    duewheel schedule delete clean-up
    """
    broker.delete_schedule(name)
    answer.done(f"Schedule {name} is deleted.", outcome="deleted", name=name)


@schedule.command()
@click.argument("name")
@with_broker
def pause(broker: Broker, answer: Answer, name: str) -> None:
    """Pause schedule NAME until it is resumed; messages that it sent ahead are recalled.

    \b
    duewheel schedule pause clean-up
    """
    before = _found(broker, name)
    broker.pause_schedule(name)
    if before is not None and before.paused:
        answer.done(f"Schedule {name} was paused already: unchanged.", outcome="unchanged", name=name)
    else:
        answer.done(f"Schedule {name} is paused.", outcome="paused", name=name)


@schedule.command()
@click.argument("name")
@with_broker
def resume(broker: Broker, answer: Answer, name: str) -> None:
    """Resume schedule NAME from now; occurrences during the pause are not sent.

    \b
    duewheel schedule resume clean-up
    """
    before = _found(broker, name)
    broker.resume_schedule(name)
    if before is not None and not before.paused:
        answer.done(f"Schedule {name} was not paused: unchanged.", outcome="unchanged", name=name)
    else:
        answer.done(f"Schedule {name} is resumed.", outcome="resumed", name=name)


def _found(broker: Broker, name: str) -> Schedule | None:
    return next((found for found in broker.schedules() if found.name == name), None)
