"""The live view, on a terminal and elsewhere."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from duewheel.cli.demo.progress import Progress, View

VIEW = View("DAG pay_orders: running", placed=20, paid=10, waiting=12, due=3, cancelled=1)


def test_elsewhere_each_change_is_a_line_but_not_more_than_one_in_two_seconds() -> None:
    output = StringIO()
    with Progress(Console(file=output, width=200)) as progress:
        progress.show(VIEW)
        progress.show(VIEW)
        progress.show(View("DAG pay_orders: success"))
        progress.say("done")
    first, last = output.getvalue().splitlines()
    assert first.endswith(
        "placed    20  paid    10  waiting    12  due     3  cancelled     1  DAG pay_orders: running"
    )
    assert last.endswith("s  done")


def test_on_a_terminal_lines_change_in_place_and_go_away() -> None:
    output = StringIO()
    with Progress(Console(file=output, force_terminal=True, width=80)) as progress:
        progress.show(VIEW)
        progress.say("[said]")
    assert "DAG pay_orders: running" in output.getvalue()
    assert "cancelled" in output.getvalue()
    assert "[said]" in output.getvalue()
    assert output.getvalue().endswith("\x1b[1A\x1b[2K")
