"""Airflow's parts, each in a session of its own, for tests that start, kill or stop one of them."""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

from duewheel.cli.demo.airflow_api import AirflowFailedError
from duewheel.cli.demo.airflow_standalone import PARTS, AirflowStandalone, Settings
from duewheel.cli.demo.processes import end_sessions

#: Their logs are read from files.
OPTIONS = {"scheduler": ["--skip-serve-logs"], "triggerer": ["--skip-serve-logs"]}


class Part(NamedTuple):
    """A part of Airflow, and its process."""

    name: str
    process: subprocess.Popen[bytes]


class AirflowParts(AirflowStandalone):
    """The parts of one Airflow as children of the test."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.started: list[Part] = []

    def start(self) -> None:
        """Make the metadata tables, and start all parts, the API server first because it takes longest."""
        command = [sys.executable, "-m", "airflow", "db", "migrate"]
        subprocess.run(command, env=self._environment, check=True, capture_output=True)
        self.settings.write_login()
        for part in PARTS:
            self.start_part(part)

    def start_part(self, name: str) -> Part:
        """Start a part, as the leader of a session."""
        with (self.settings.home / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "airflow", name, *OPTIONS.get(name, [])],
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started.append(Part(name, process))
        return self.started[-1]

    def check(self) -> None:
        """Raise AirflowFailedError if a part has ended."""
        for name, process in self.started:
            if process.poll() is not None:
                raise AirflowFailedError(f"Airflow's {name} ended; see the log in {self.settings.home}")

    def stop(self) -> None:
        """End the parts and whatever they started."""
        end_sessions(process.pid for _, process in self.started)
        for _, process in self.started:
            process.wait()
