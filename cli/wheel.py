"""`duewheel wheel run`: the timing wheel outside Airflow."""

from __future__ import annotations

import threading
from contextlib import suppress

import click

from duewheel.cli.answer import Answer
from duewheel.cli.broker_command import with_broker
from duewheel.cli.statsd import address, keep_sending
from duewheel.cli.stopping import stopped_by_signal
from duewheel.store import Broker
from duewheel.store.values.errors import BrokerMoved, BrokerNotUpgraded, BrokerUnreachable, NotAllowed


@click.group()
def wheel() -> None:
    """The timing wheel: run.

    \b
    duewheel wheel run --dsn postgresql://app@db/shop
    """


@wheel.command()
@click.option(
    "--statsd",
    metavar="HOST:PORT",
    envvar="DUEWHEEL_STATSD",
    callback=lambda _context, _parameter, given: given and address(given),
    help="Send the metrics that Airflow's triggerer sends to this StatsD server, once a minute.",
)
@with_broker
def run(broker: Broker, answer: Answer, statsd: tuple[str, int] | None) -> None:
    """Release messages at their instant until Ctrl-C or SIGTERM.

    Airflow's triggerer runs its own wheel as soon as a DAG watches a topic. Without any wheel no message
    is lost, but messages are released only when a consumer receives.

    \b
    duewheel wheel run
    duewheel wheel run --statsd statsd-exporter:9125
    """
    _check_right(broker)
    stopping = stopped_by_signal()
    click.echo("The wheel is turning. Ctrl-C ends it.", err=True)
    if statsd is None:
        broker.wheel().run(stopping)
    else:
        sender = threading.Thread(
            target=keep_sending, args=(broker, statsd, stopping), name="duewheel metrics"
        )
        sender.start()
        try:
            broker.wheel().run(stopping)
        finally:
            stopping.set()
            sender.join()
    answer.done("The wheel has stopped.", stopped=True)


def _check_right(broker: Broker) -> None:
    """Refuse a login that may not turn a wheel before the start: a running wheel would only try again."""
    with suppress(BrokerUnreachable, BrokerNotUpgraded, BrokerMoved):
        if not broker.may_turn_wheel():
            raise NotAllowed(
                "this login may not turn a wheel: it needs the role duewheel_admin; let an administrator of"
                " the database grant it"
            )
