"""An application file, run by ``spark-submit`` over a leased batch.

The application gets its batch from a file that only this user may read. The file holds the leases and the
broker's address with the password, which is thus in no argument, no environment variable and no setting
of Spark. The variable :data:`BATCH_VARIABLE` names the file, and :func:`duewheel.spark.consume` reads it.

The driver runs here, in deploy mode client: then the exit code of ``spark-submit`` is that of the
application. With a driver on the cluster, ``spark-submit`` knows the outcome only from the output, and with
some settings it does not even wait for it.

The program, with the JVM and Python that it starts, is one process group and is ended as one.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from duewheel.spark.runtimes import spark_environment
from duewheel.spark.session import CONNECT_SCHEME, LOCAL_CONF
from duewheel.store.values.errors import DueWheelError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

BATCH_VARIABLE = "DUEWHEEL_BATCH"
"""The environment variable that holds the path of the batch file."""
BATCH_FILE = "duewheel-batch.json"
"""The name of the batch file."""

LAST_LINES = 20
"""The error of a failed application shows this many of the last lines of its output."""

_UI_ADDRESS = re.compile(r"(?:Spark UI|tracking URL): (https?://\S+)")
_SECRETS = (
    # A quoted value may hold spaces; one whose quote is not closed goes to the end of the line.
    re.compile(
        r"""(?i)((?:password|secret|token)\S*?\s*[=:]\s*)"""
        r"""(?:(?P<quote>\\?["']).*?(?:(?<!\\)(?P=quote)|$)|(?:\\.|\S)+)"""
    ),
    # postgresql://user:password@host, but not http://host:4040/name@host.
    re.compile(r"(://[^\s:/@]*:)(?!\d+/)\S+(?=@)"),
)


GRACE_SECONDS = 1.0
"""How long the output is still read after the program has ended: processes that it leaves behind may hold the
pipe open for ever."""
LOOK_SECONDS = 0.5
"""How often to check whether a silent program has ended."""


class ApplicationFailed(DueWheelError):
    """An application ended with an exit code other than 0."""


@dataclass(frozen=True)
class SubmittedBatch:
    """The facts that an application has to know of its batch.

    Attributes:
        dsn: the broker's address.
        topic, group, name: those of the consumer that leased the batch.
        leases: its leases, as JSON text.
        invisible_seconds: how long each lease lasts unless extended.
        partitions: the largest number of partitions.
        min_partitions: the smallest one.
        columns: the columns to read; None is all.
    """

    dsn: str = field(repr=False)
    topic: str
    group: str
    name: str | None
    leases: str
    invisible_seconds: float
    partitions: int
    min_partitions: int
    columns: Sequence[str] | None = None


@dataclass(frozen=True)
class Application:
    """An application file and how to run it.

    Attributes:
        path: the file; a path without a scheme is one on this machine.
        arguments: its arguments.
        name: the name shown by the cluster.
        master: as ``spark-submit --master`` takes it.
        binary: the program that submits, looked up on ``PATH``; None is the ``spark-submit`` of ``pyspark``.
        conf: settings of Spark.
    """

    path: str
    arguments: Sequence[str]
    name: str
    master: str
    binary: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Refuse an application that cannot run, before anything is leased.

        Raises:
            InvalidArgument: the reason, in one line.
            JavaNotFound: no Java was found here; ``spark-submit`` always needs one.
        """
        if self.master.startswith(CONNECT_SCHEME):
            raise InvalidArgument(
                "an application is run by spark-submit, which starts a driver and takes no sc:// address: "
                "give another master, or a python_callable, which runs through Spark Connect"
            )
        if not self.path.endswith(".py"):
            raise InvalidArgument(f"application is {self.path!r}: give a Python file, NAME.py")
        if "://" not in self.path and not Path(self.path).is_file():
            raise InvalidArgument(f"application {self.path} is no file on this machine: correct the path")
        self._program()
        spark_environment()

    def command(self) -> list[str]:
        """The command line to run."""
        conf = {
            "spark.ui.showConsoleProgress": "false",
            **(LOCAL_CONF if self.master.startswith("local") else {}),
            **self.conf,
        }
        settings = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
        return [
            self._program(),
            # The flag overrides Spark's own configuration files and the environment.
            *("--master", self.master, "--deploy-mode", "client", "--name", self.name, *settings),
            self.path,
            *self.arguments,
        ]

    def _program(self) -> str:
        home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
        if self.binary is None:
            return str(Path(home) / "bin" / "spark-submit")
        found = shutil.which(self.binary)
        if found is None:
            raise InvalidArgument(
                f"no {self.binary} was found on PATH: install Spark's programs on this machine, or leave the "
                "connection's spark-binary out to use the one of pyspark"
            )
        return found


class Submission:
    """One run of an application, over a batch.

    Attributes:
        ui_address: the address of Spark's page, once the application has written it; None before.
    """

    def __init__(self, application: Application, batch: SubmittedBatch) -> None:
        self._application = application
        self._batch = batch
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ended = False
        self.ui_address: str | None = None

    def run(
        self, log: Callable[[str], object], when_ui_is_known: Callable[[str], object] = lambda _: None
    ) -> None:
        """Run the application to its end.

        Args:
            log: called with each line that the application writes.
            when_ui_is_known: called with the address of Spark's page.

        Raises:
            ApplicationFailed: the application ended with an exit code other than 0.
            JavaNotFound: no Java was found here.
        """
        last: deque[str] = deque(maxlen=LAST_LINES)
        with tempfile.TemporaryDirectory(prefix="duewheel-batch-") as folder:
            path = Path(folder) / BATCH_FILE
            path.touch(mode=0o600)
            path.write_text(json.dumps(asdict(self._batch)))
            if self._was_ended():
                raise ApplicationFailed(f"{self._application.path} was ended before it began")
            with subprocess.Popen(
                self._application.command(),
                env={**os.environ, **spark_environment(), BATCH_VARIABLE: str(path)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as process:
                self._process = process
                if self._was_ended():
                    # :meth:`end` was called between the check above and now.
                    self.end(0)
                try:
                    for read in _lines(process):
                        line = _without_secrets(read.rstrip())
                        last.append(line)
                        log(line)
                        ui = _UI_ADDRESS.search(line)
                        if ui and ui.group(1) != self.ui_address:
                            self.ui_address = ui.group(1)
                            when_ui_is_known(self.ui_address)
                except BaseException:
                    # A kill arrives as an exception, too: the program must not outlive its task.
                    self.end(0)
                    raise
        if process.returncode:
            said = "\n".join(last)
            raise ApplicationFailed(
                f"{self._application.path} ended with exit code {process.returncode}. The last lines it "
                f"wrote:\n{said}"
            )

    def end(self, patience_seconds: float) -> None:
        """End the program and what it has started; ask first, and insist after ``patience_seconds``.

        May be called from another thread, or from a signal's handler.
        """
        self._is_ended = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        try:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            pass
        except ProcessLookupError:
            return
        # The JVM waits for its Python process, which could ignore the signal and outlive the JVM.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def _was_ended(self) -> bool:
        return self._is_ended


def _without_secrets(line: str) -> str:
    for secret in _SECRETS:
        line = secret.sub(r"\1******", line)
    return line


def _lines(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """The lines that a program writes, until it has ended."""
    assert process.stdout is not None
    output = process.stdout.fileno()
    # poll() and not select(), which cannot watch descriptors above 1023.
    poller = select.poll()
    poller.register(output, select.POLLIN)
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
    rest = ""
    ends_at: float | None = None
    while True:
        if ends_at is None and process.poll() is not None:
            ends_at = time.monotonic() + GRACE_SECONDS
        wait_seconds = LOOK_SECONDS if ends_at is None else ends_at - time.monotonic()
        if wait_seconds <= 0:
            break
        if not poller.poll(wait_seconds * 1_000):
            continue
        read = os.read(output, io.DEFAULT_BUFFER_SIZE * 8)
        if not read:
            break
        *lines, rest = (rest + decoder.decode(read)).split("\n")
        yield from lines
    rest += decoder.decode(b"", final=True)
    if rest:
        yield rest
