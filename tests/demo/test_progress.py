"""The live view, on a terminal and elsewhere."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from duewheel.cli.demo.progress import Progress, View

VIEW = View("DAG pay_orders: running", placed=20, paid=10, waiting=12, due=3, cancelled=1)


def test_elsewhere_each_change_is_a_line_but_not_more_than_one_in_two_seconds() -> None:
    output = StringIO()
    now = [100.0]
    with Progress(Console(file=output, width=200), clock=lambda: now[0]) as progress:
        for now[0] in (100.0, 103.0):
            progress.show(VIEW)
        for now[0] in (103.0, 105.0, 106.9, 107.0):
            progress.show(View("DAG pay_orders: success", placed=int(now[0])))
        progress.say("done")
    running = "placed    20  paid    10  waiting    12  due     3  cancelled     1  DAG pay_orders: running"
    numbers = "paid     0  waiting     0  due     0  cancelled     0"
    assert output.getvalue().splitlines() == [
        f"   0.0 s  {running}",
        f"   3.0 s  placed   103  {numbers}  DAG pay_orders: success",
        f"   5.0 s  placed   105  {numbers}  DAG pay_orders: success",
        f"   7.0 s  placed   107  {numbers}  DAG pay_orders: success",
        "   7.0 s  done",
    ]


def test_on_a_terminal_lines_change_in_place_and_go_away() -> None:
    output = StringIO()
    with Progress(Console(file=output, force_terminal=True, width=80)) as progress:
        progress.show(VIEW)
        progress.say("[said]")
    assert "DAG pay_orders: running" in output.getvalue()
    assert "cancelled" in output.getvalue()
    assert "[said]" in output.getvalue()
    assert output.getvalue().endswith("\x1b[1A\x1b[2K")
