"""`duewheel wheel run`: the timing wheel outside Airflow."""

from __future__ import annotations

import click

from duewheel.cli.answer import Answer
from duewheel.cli.broker_command import with_broker
from duewheel.cli.stopping import stopped_by_signal
from duewheel.store import Broker


@click.group()
def wheel() -> None:
    """The timing wheel: run.

    \b
    duewheel wheel run --dsn postgresql://app@db/shop
    """


@wheel.command()
@with_broker
def run(broker: Broker, answer: Answer) -> None:
    """Release messages at their instant until Ctrl-C or SIGTERM.

    Airflow's triggerer runs a wheel of its own as soon as a DAG watches a topic. Without any wheel no message
    is lost, but messages are released only when a consumer receives.

    \b
    duewheel wheel run
    """
    stopping = stopped_by_signal()
    click.echo("The wheel is turning. Ctrl-C ends it.", err=True)
    broker.wheel().run(stopping)
    answer.done("The wheel has stopped.", stopped=True)
