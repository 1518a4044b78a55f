"""`duewheel watch`: a live view of topics, groups and wheels."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from duewheel.cli.answer import Answer, as_mapping, plain
from duewheel.cli.broker_command import with_broker
from duewheel.cli.consoles import console
from duewheel.cli.options import topic_option
from duewheel.cli.parameters import duration
from duewheel.cli.readable import on_one_line, text_of
from duewheel.cli.stats import GROUP_COLUMNS, TOPIC_COLUMNS, group_rows, topic_rows, topics_of
from duewheel.cli.stopping import stopped_by_signal
from duewheel.cli.tables import table
from duewheel.store import Broker, BrokerUnreachable
from duewheel.store.operations.overview import lateness, now, overdue_topics, turning_wheels
from duewheel.store.values.numbers import counted

# A message that waits longer than this after its instant was not merely between two ticks of a wheel.
_OVERDUE_AFTER = timedelta(seconds=5)
_LATENESS_OF = timedelta(minutes=10)
_TOPIC_COLUMNS = (*TOPIC_COLUMNS, "late_p99")


@click.command()
@topic_option("Only this topic.")
@click.option("--interval", type=duration, default="2s", show_default=True, help="How often to refresh.")
@with_broker
def watch(broker: Broker, answer: Answer, topic: str | None, interval: timedelta) -> None:
    """Show the present state of topics, consumer groups and wheels, until Ctrl-C.

    On a terminal the tables change in place. Elsewhere each refresh is printed below the one before; with
    --json each is a line.

    \b
    duewheel watch --interval 5s
    """
    stopping = stopped_by_signal()
    # The first query may fail, as in any command. If the broker goes away later, the view shows that and
    # asks again.
    seen = _seen(broker, topic)
    output = console()
    if answer.as_json or not output.is_terminal:
        _print(seen, answer)
        while not stopping.wait(interval.total_seconds()):
            _print(_seen(broker, topic), answer)
        return
    with Live(_frame(seen, output.width), console=output, auto_refresh=False) as live:
        live.refresh()
        while not stopping.wait(interval.total_seconds()):
            try:
                seen, away = _seen(broker, topic), ""
            except BrokerUnreachable as error:
                away = on_one_line(str(error))
            live.update(_frame(seen, output.width, away), refresh=True)


def _seen(broker: Broker, topic: str | None) -> dict[str, Any]:
    at = now(broker)
    late = {each.topic: each.p99 for each in lateness(broker, at - _LATENESS_OF)}
    topics = topics_of(broker.stats(), topic)
    return {
        "at": at,
        "wheels": turning_wheels(broker),
        "overdue": [
            one.topic for one in overdue_topics(broker, at - _OVERDUE_AFTER)[0] if topic in (None, one.topic)
        ],
        "topics": [as_mapping(found) | {"late_p99": late.get(found.topic)} for found in topics],
    }


def _print(seen: dict[str, Any], answer: Answer) -> None:
    if answer.as_json:
        click.echo(json.dumps(plain(seen), ensure_ascii=False))
        return
    click.echo(_heading(seen))
    answer.rows(topic_rows(seen["topics"]), columns=_TOPIC_COLUMNS, empty="There are no topics.")
    groups = group_rows(seen["topics"])
    if groups:
        answer.rows(groups, columns=GROUP_COLUMNS, empty="")


def _frame(seen: dict[str, Any], width: int, away: str = "") -> RenderableType:
    is_well = bool(seen["wheels"]) or not seen["overdue"]
    parts: list[RenderableType] = [Text(_heading(seen), style="" if is_well else "bold red"), ""]
    if away:
        parts = [Text(f"The numbers are out of date: {away}", style="bold red"), *parts]
    topics, groups = topic_rows(seen["topics"]), group_rows(seen["topics"])
    parts.append(table(topics, _TOPIC_COLUMNS, width=width) if topics else "There are no topics.")
    if groups:
        parts += ["", table(groups, GROUP_COLUMNS, width=width)]
    return Group(*parts)


def _heading(seen: dict[str, Any]) -> str:
    wheels, overdue = seen["wheels"], seen["overdue"]
    if wheels:
        names = ", ".join(sorted({wheel.name for wheel in wheels}))
        said = f"{counted(len(wheels), 'wheel')}: {names}."
    elif overdue:
        said = "No wheel turns, and messages are due: start Airflow's triggerer, or `duewheel wheel run`."
    else:
        said = "No wheel turns."
    if overdue:
        said += f" Overdue: {', '.join(overdue)}."
    return f"{text_of(seen['at'].replace(microsecond=0))}  {on_one_line(said)}"
