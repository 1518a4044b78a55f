"""The folder of one demo with all its files, and the note that lets commands find a running one.

    DIRECTORY/demo.json     who keeps the demo up, where it can be reached, what it is doing
    DIRECTORY/run.json      what the steps place, pay, watch and verify tell each other
    DIRECTORY/supervisor.log    output of the supervisor
    DIRECTORY/postgres/     the embedded Postgres: broker, orders and Airflow's metadata
    DIRECTORY/airflow/      AIRFLOW_HOME, with one log per component and the task logs

`demo.json` is replaced in one step, so a reader sees the old note or the new one, never half of one. A note
whose supervisor is dead (compared by process id *and* start time: ids are used again) is a note left by a
crash.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Note:
    """The content of `demo.json`.

    `step` is the supervisor's present step, in words; `is_up` turns true when all of Airflow is healthy;
    `failure` is the reason why the supervisor gave up. `sessions` are Airflow's components: the id of each
    one's session (its process id) and when it started.
    """

    supervisor_pid: int
    supervisor_started_at: float
    step: str = "starting"
    is_up: bool = False
    failure: str | None = None
    dsn: str = ""
    url: str = ""
    user: str = ""
    password: str = ""
    sessions: dict[str, tuple[int, float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Workplace:
    """The paths of one demo folder, and its note."""

    directory: Path

    @property
    def postgres(self) -> Path:
        return self.directory / "postgres"

    @property
    def airflow_home(self) -> Path:
        return self.directory / "airflow"

    @property
    def supervisor_log(self) -> Path:
        return self.directory / "supervisor.log"

    @property
    def run(self) -> Path:
        return self.directory / "run.json"

    @property
    def _note_path(self) -> Path:
        return self.directory / "demo.json"

    def make(self) -> None:
        """Make the folder; its path has to be open for the user that Postgres runs as."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.airflow_home.mkdir(exist_ok=True)

    def write_note(self, note: Note) -> None:
        temporary = self._note_path.with_suffix(".new")
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps(asdict(note), indent=2) + "\n", encoding="utf-8")
        temporary.replace(self._note_path)

    def read_note(self) -> Note | None:
        """Return the note, or None when there is none."""
        try:
            text = self._note_path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        return Note(**json.loads(text))

    def remove_note(self) -> None:
        self._note_path.unlink(missing_ok=True)


def own_note() -> Note:
    """Return a first note for the calling process as supervisor."""
    process = psutil.Process(os.getpid())
    return Note(supervisor_pid=process.pid, supervisor_started_at=process.create_time())


def supervisor_of(note: Note) -> psutil.Process | None:
    """Return the supervisor named by `note` if it is alive."""
    try:
        process = psutil.Process(note.supervisor_pid)
        alive = (
            process.create_time() == note.supervisor_started_at and process.status() != psutil.STATUS_ZOMBIE
        )
    except psutil.NoSuchProcess:
        return None
    return process if alive else None
