"""The console script `duewheel`, and `python -m duewheel.cli`."""

from __future__ import annotations

import sys

from duewheel.store.values.errors import ExtraMissing
from duewheel.store.values.extras import extra


def run(name: str = "duewheel") -> None:
    """Run the command line, or say how to install it.

    Args:
        name: what the user typed to start it; stands in the help.
    """
    try:
        with extra("cli", "the command line"):
            # The commands import rich when they answer; a missing one shows before they have done anything.
            import rich  # noqa: F401

            from duewheel.cli.main import main
    except ExtraMissing as missing:
        sys.exit(f"Error: {missing}")
    main(prog_name=name)


if __name__ == "__main__":
    run("python -m duewheel.cli")
