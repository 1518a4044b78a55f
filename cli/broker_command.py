"""The common parts of every command that talks to a broker: `--dsn`, `--json`, and the broker itself."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from duewheel.cli.answer import Answer
from duewheel.cli.options import json_option
from duewheel.store import Broker


def data_folder() -> Path:
    """Return the folder of duewheel's own files for this user, such as the embedded broker."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "duewheel"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "duewheel"


@contextmanager
def open_broker(dsn: str | None) -> Iterator[Broker]:
    """Open the broker at `dsn`; without an address, the embedded broker of this user, which is set up if it
    is new."""
    if dsn:
        with Broker(dsn) as broker:
            yield broker
        return
    folder = data_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with Broker.embedded(folder / "broker") as broker:
        broker.upgrade()
        yield broker


def with_broker(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options `--dsn` and `--json`, and pass it an open broker and an `Answer`.

    Example::

        @topic.command("list")
        @with_broker
        def list_topics(broker: Broker, answer: Answer) -> None: ...
    """

    @click.option(
        "--dsn",
        envvar="DUEWHEEL_DSN",
        help="The broker's database, as a URI or libpq string. [env: DUEWHEEL_DSN; else an embedded one]",
    )
    @json_option
    @functools.wraps(command)
    def with_options(dsn: str | None, as_json: bool, **given: Any) -> None:
        with open_broker(dsn) as broker:
            command(broker, Answer(as_json=as_json), **given)

    return with_options
