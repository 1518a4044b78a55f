"""`duewheel schedule`: messages that are sent again and again, by cron or at an interval (D18)."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta

import click

from duewheel.cli.answer import Answer, as_mapping
from duewheel.cli.broker_command import with_broker
from duewheel.cli.parameters import duration, instant, name_and_value
from duewheel.cli.readable import text_of
from duewheel.store import Broker

_COLUMNS = ("name", "topic", "cron", "every", "timezone", "next_at", "last_at", "paused", "misfire")


@click.group()
def schedule() -> None:
    """Schedules: add, list, remove, pause, resume.

    \b
    duewheel schedule add clean-up files '{}' --cron '0 5 * * *' --timezone Europe/Berlin
    """


@schedule.command()
@click.argument("name")
@click.argument("topic")
@click.argument("body")
@click.option("--cron", help="Five fields: minute, hour, day of the month, month, day of the week.")
@click.option("--every", type=duration, help="Or an interval: 2m.")
@click.option("--timezone", default="UTC", show_default=True, help="Of the cron fields: Europe/Berlin.")
@click.option(
    "--start-at", type=instant, help="Nothing is sent for before this instant; intervals count from it."
)
@click.option(
    "--misfire",
    type=click.Choice(["once", "skip", "all"]),
    default="once",
    show_default=True,
    help="What becomes of occurrences missed while no wheel ran: the last one is sent, none, or all.",
)
@click.option("--key", help="The key of its messages.")
@click.option("--tag", help="The tag of its messages.")
@click.option(
    "--property", "properties", type=name_and_value, multiple=True, metavar="NAME=VALUE", help="A property."
)
@with_broker
def add(
    broker: Broker,
    answer: Answer,
    name: str,
    topic: str,
    body: str,
    cron: str | None,
    every: timedelta | None,
    timezone: str,
    start_at: datetime | None,
    misfire: str,
    key: str | None,
    tag: str | None,
    properties: tuple[tuple[str, str], ...],
) -> None:
    """Send BODY to TOPIC again and again, under the name NAME; `-` reads the body from standard input (D18).

    The same again changes nothing; other settings under a name that is taken are refused.

    \b
    duewheel schedule add clean-up files '{}' --cron '0 5 * * *' --timezone Europe/Berlin
    duewheel schedule add push updates '{}' --every 2m
    """
    if (cron is None) == (every is None):
        raise click.UsageError("Give either --cron or --every.")
    broker.add_schedule(
        name,
        topic,
        sys.stdin.buffer.read() if body == "-" else body,
        cron=cron,
        every=every,
        timezone=timezone,
        start_at=start_at,
        misfire=misfire,
        key=key,
        tag=tag,
        properties=dict(properties) or None,
    )
    (added,) = (schedule for schedule in broker.schedules() if schedule.name == name)
    answer.done(f"Schedule {name} sends next at {text_of(added.next_at)}.", **as_mapping(added))


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
def remove(broker: Broker, answer: Answer, name: str) -> None:
    """Remove schedule NAME; what it sent ahead is taken back, what is out stays.

    \b
    duewheel schedule remove clean-up
    """
    broker.remove_schedule(name)
    answer.done(f"Schedule {name} is removed.", name=name)


@schedule.command()
@click.argument("name")
@with_broker
def pause(broker: Broker, answer: Answer, name: str) -> None:
    """Let schedule NAME send nothing until it is resumed; what it sent ahead is taken back.

    \b
    duewheel schedule pause clean-up
    """
    broker.pause_schedule(name)
    answer.done(f"Schedule {name} is paused.", name=name)


@schedule.command()
@click.argument("name")
@with_broker
def resume(broker: Broker, answer: Answer, name: str) -> None:
    """Let schedule NAME go on from now; what fell into the pause is not made up for.

    \b
    duewheel schedule resume clean-up
    """
    broker.resume_schedule(name)
    answer.done(f"Schedule {name} is resumed.", name=name)
