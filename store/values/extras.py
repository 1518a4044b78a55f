"""The error that a caller gets when a package is missing that only an extra of this distribution installs.

Without extras, an installation sends, receives, recalls and turns the wheel. The packages that other calls
need are imported by these calls, inside a block of :func:`extra`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from duewheel.store.values.errors import ExtraMissing


@contextmanager
def extra(name: str, purpose: str) -> Iterator[None]:
    """Run a block that imports the packages of an extra.

    Args:
        name: the extra, as pyproject.toml calls it.
        purpose: the subject of the sentence, such as ``a cron expression``.

    Raises:
        ExtraMissing: one of the packages is not installed.

    Example:
        >>> with extra("schedules", "a cron expression"):
        ...     from croniter import croniter
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("duewheel"):
            raise
        raise missing(name, purpose, error.name) from error


def missing(name: str, purpose: str, package: str) -> ExtraMissing:
    """The error that names the missing package and the command that installs it; arguments as above."""
    return ExtraMissing(
        f"{purpose} needs the Python package {package}, which is not installed: run "
        f'pip install "airflow-provider-duewheel[{name}]"'
    )
