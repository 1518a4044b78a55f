"""The numbers of a broker over StatsD, for a wheel outside Airflow: as Airflow's triggerer sends them."""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

import click
import psycopg2
from psycopg2.extensions import parse_dsn

from duewheel.store import Broker, DueWheelError
from duewheel.store.metrics.metering import Measured, measured

log = logging.getLogger(__name__)

EVERY: Final = timedelta(minutes=1)
_SEPARATOR: Final = re.compile(r"[,=:|\s]")
_LETTER: Final = {"gauge": "g", "count": "c", "timing": "ms"}


def line(one: Measured, connection: str) -> str:
    """One number as StatsD takes it, with tags in InfluxDB's form.

    Example:
        >>> line(Measured("gauge", "ready", 3, {"topic": "t"}), "shop")
        'airflow.duewheel.ready,connection=shop,topic=t:3|g'
    """
    named = {"connection": connection, **one.tags}
    tags = ",".join(f"{name}={_SEPARATOR.sub('_', value)}" for name, value in named.items())
    value = one.value / timedelta(milliseconds=1) if isinstance(one.value, timedelta) else one.value
    return f"airflow.duewheel.{one.name},{tags}:{value}|{_LETTER[one.kind]}"


def address(text: str) -> tuple[str, int]:
    """HOST:PORT.

    Raises:
        click.BadParameter: it is something else.
    """
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 65_536):
        raise click.BadParameter(f"{text!r} is not HOST:PORT, such as statsd-exporter:9125")
    return host, int(port)


def keep_sending(broker: Broker, to: tuple[str, int], stopping: threading.Event) -> None:
    """Send the numbers once a minute until stopped; a minute in which that fails is logged and left out."""
    connection = parse_dsn(broker.dsn).get("dbname", "duewheel")

    def send(numbers: Iterable[Measured]) -> None:
        try:
            family, kind, _, _, server = socket.getaddrinfo(*to, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as sending:
                for one in numbers:
                    sending.sendto(line(one, connection).encode(), server)
        except (DueWheelError, psycopg2.Error, OSError) as error:
            log.warning("The metrics failed this time: %s", error)

    while True:
        send(measured(broker, EVERY, turns=True))
        if stopping.wait(EVERY.total_seconds()):
            break
    send([Measured("gauge", "wheel.turning", 0, {})])
