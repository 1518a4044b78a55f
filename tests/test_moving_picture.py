"""docs/two-orders.svg moves: in a terminal one order is paid and another is cancelled, as psql prints it.

DUEWHEEL_WRITE_PICTURES=1 writes it anew.
"""

from __future__ import annotations

import os
import subprocess
from html import escape
from pathlib import Path

from tests.servers import programs

PICTURE = Path(__file__).parents[1] / "docs" / "two-orders.svg"
TABLE = "create table orders (number bigint, state text); select duewheel.create_topic('order-timeout')"
SCRIPT = """\
-- Two orders are placed, each with a timeout.
insert into orders values (4711), (4712);
select from duewheel.send('order-timeout', '{}', key => '4711', delay => '30 minutes');
select from duewheel.send('order-timeout', '{}', key => '4712', delay => '2 seconds');
-- Order 4711 is paid.
update orders set state = 'paid' where number = 4711;
select outcome from duewheel.recall_key('order-timeout', '4711');
-- Two seconds later the timeout of order 4712 is due.
\\! sleep 2.5
call duewheel.tick('order-timeout');
update orders set state = 'cancelled'
    from duewheel.receive('order-timeout', 'canceller') due where number = due.key::bigint;
select * from orders order by number;
"""
STYLE = "text {font: 14px monospace; white-space: pre; animation: 16s step-end infinite}"
STILL = "@media (prefers-reduced-motion) {text {animation: none}}"


def drawn(lines: list[str]) -> str:
    """Draw lines that appear one after another, for three quarters of the time."""
    rules, texts = [STYLE], []
    for number, line in enumerate(lines):
        rules.append(
            f"@keyframes l{number} {{0% {{opacity: 0}} {75 * number // len(lines)}% {{opacity: 1}}}}"
        )
        is_typed = line in SCRIPT.splitlines()
        colour = "#8fa3bf" if line[:3] == "-- " else "#ffffff" if is_typed else "#7fdc9a"
        place = f'x="16" y="{32 + 20 * number}" fill="{colour}" style="animation-name: l{number}"'
        texts.append(f"<text {place}>{escape(line)}</text>")
    parts = [
        "<style>",
        *rules,
        STILL,
        "</style>",
        '<rect width="100%" height="100%" fill="#1b2230"/>',
        *texts,
    ]
    size = f'viewBox="0 0 820 {40 + 20 * len(lines)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n' + "\n".join(parts) + "\n</svg>\n"


def test_the_moving_picture_is_what_psql_prints(dsn: str) -> None:
    psql = [str(programs() / "psql"), "--no-psqlrc", "--echo-all", "--pset=footer=off", dsn]
    subprocess.run([*psql, "--command", TABLE], check=True)
    done = subprocess.run(psql, input=SCRIPT, capture_output=True, text=True, check=True)
    picture = drawn([line for line in done.stdout.splitlines() if line.strip(" -") and line[0] != "\\"])
    if "DUEWHEEL_WRITE_PICTURES" in os.environ:
        PICTURE.write_text(picture, encoding="utf-8")
    assert picture == PICTURE.read_text(encoding="utf-8")
