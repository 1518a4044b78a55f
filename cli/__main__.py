"""`python -m duewheel.cli`."""

from __future__ import annotations

from duewheel.cli.main import main

main(prog_name="python -m duewheel.cli")
