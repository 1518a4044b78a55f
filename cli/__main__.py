"""The console script `duewheel`, and `python -m duewheel.cli`."""

from __future__ import annotations

import sys

from duewheel.store.values.errors import ExtraMissing
from duewheel.store.values.extras import extra


def run(name: str = "duewheel") -> None:
    """Run the command line, or report how to install it.

    Args:
        name: the command that the user typed, for the help.
    """
    try:
        with extra("cli", "the command line"):
            # The commands import rich only to answer; a missing rich is reported before they do anything.
            import rich  # noqa: F401

            from duewheel.cli.main import main
    except ExtraMissing as missing:
        sys.exit(f"Error: {missing}")
    main(prog_name=name)


if __name__ == "__main__":
    run("python -m duewheel.cli")
