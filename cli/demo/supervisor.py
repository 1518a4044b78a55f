"""The process that supervises a demo: it starts all parts and ends them all, even if the command is killed.

The command in the terminal may be interrupted or killed at any moment; the supervisor, in a session of its
own, then still brings Airflow, its tasks, Spark and Postgres down. It ends

- on SIGTERM (from `demo down`, or from the command that started it),
- when its standard input ends, if it was started with `--attached`: the command's end of that pipe closes
  even when the command is killed with SIGKILL,
- when a component of Airflow ends by itself: the note then names the component and its log.

Run as `python -m duewheel.cli.demo.supervisor DIRECTORY [--attached]`.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import duewheel.dags
from duewheel.cli.demo.airflow_standalone import (
    USER,
    AirflowFailedError,
    AirflowStandalone,
    Settings,
)
from duewheel.cli.demo.workplace import Note, Workplace, own_note
from duewheel.cli.stopping import stopped_by_signal
from duewheel.store import Broker, DueWheelError, EmbeddedPostgres

BROKER_DATABASE = "duewheel"
METADATA_DATABASE = "airflow"
_POLL_SECONDS = 0.2


class Supervisor:
    """Keeps one demo up until it is told to stop.

    Args:
        workplace: the demo's folder.
        stopping: set from outside when the demo is to end.
    """

    def __init__(self, workplace: Workplace, stopping: threading.Event) -> None:
        self._workplace = workplace
        self._stopping = stopping
        self._note = own_note()

    def run(self) -> int:
        """Bring the demo up, wait, take it down; return the exit status."""
        self._say()
        with ExitStack() as everything:
            try:
                self._bring_up(everything)
            except (AirflowFailedError, DueWheelError) as failure:
                self._say(failure=str(failure), is_up=False)
                return 1
            self._say(step="stopping", is_up=False)
        self._workplace.remove_note()
        return 0

    def _bring_up(self, everything: ExitStack) -> None:
        with self._step("Postgres and the broker"):
            postgres = everything.enter_context(EmbeddedPostgres(self._workplace.postgres))
            dsn = postgres.ensure_database(BROKER_DATABASE)
            with Broker(dsn) as broker:
                broker.upgrade()
        settings = Settings(
            home=self._workplace.airflow_home,
            database_dsn=postgres.ensure_database(METADATA_DATABASE),
            dags_folder=Path(duewheel.dags.__path__[0]).resolve(),
            broker_dsn=dsn,
        )
        airflow = everything.enter_context(AirflowStandalone(settings))
        self._say(dsn=dsn, url=settings.url, user=USER, password=settings.password)
        with self._step("Airflow's tables"):
            airflow.migrate(self._stopping)
        if self._stopping.is_set():
            return
        with self._step("Airflow"):
            airflow.start()
            self._say(sessions=airflow.sessions)
            while (missing := airflow.unhealthy()) and not self._stopping.wait(_POLL_SECONDS):
                airflow.check()
                self._say(step=f"waiting for Airflow: {', '.join(missing)}")
        self._say(step="up", is_up=not self._stopping.is_set())
        while not self._stopping.wait(_POLL_SECONDS):
            airflow.check()

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        self._say(step=f"starting {name}")
        started_at = time.monotonic()
        yield
        self._say(seconds=self._note.seconds | {name: time.monotonic() - started_at})

    def _say(self, **changes: object) -> None:
        note: Note = replace(self._note, **changes)  # type: ignore[arg-type]  # names are checked by replace
        if note != self._note or self._workplace.read_note() is None:
            self._workplace.write_note(note)
        self._note = note


def _stop_at_end_of_input(stopping: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    stopping.set()


def main() -> int:
    """Keep the demo of the folder given on the command line."""
    parser = argparse.ArgumentParser(prog="duewheel.cli.demo.supervisor")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--attached", action="store_true")
    arguments = parser.parse_args()
    # A second signal must not leave behind what the first one is ending.
    stopping = stopped_by_signal(second_ends=False)
    if arguments.attached:
        threading.Thread(target=_stop_at_end_of_input, args=(stopping,), daemon=True).start()
    return Supervisor(Workplace(arguments.directory), stopping).run()


if __name__ == "__main__":
    sys.exit(main())
