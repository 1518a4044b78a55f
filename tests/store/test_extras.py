"""What a program reads that misses an extra, and what goes on without it."""

from __future__ import annotations

import logging
import sys
from datetime import timedelta

import pytest
from tests.clock import Clock

from duewheel.store import Broker, ExtraMissing
from duewheel.store.values.extras import extra


def test_a_missing_package_is_an_error_with_its_install_command() -> None:
    with pytest.raises(ExtraMissing) as caught, extra("cli", "the command line"):
        import no_such_package.part  # type: ignore[import-not-found]  # noqa: F401
    assert str(caught.value) == (
        "the command line needs the Python package no_such_package, which is not installed: "
        'run pip install "airflow-provider-duewheel[cli]"'
    )
    # A module of ours that is missing is no missing extra.
    with pytest.raises(ModuleNotFoundError, match=r"duewheel\.store\.no_such_module"), extra("cli", "it"):
        import duewheel.store.no_such_module  # type: ignore[import-not-found]  # noqa: F401


def test_without_cron_a_program_sends_schedules_by_interval(
    timed_broker: Broker, clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed_broker.create_topic("files")
    timed_broker.create_schedule("cron", "files", b"", cron="* * * * *")
    timed_broker.create_schedule("interval", "files", b"", every=timedelta(minutes=1))
    clock.advance(timedelta(minutes=2))
    monkeypatch.setitem(sys.modules, "croniter", None)
    with caplog.at_level(logging.WARNING):
        assert timed_broker.advance_schedules() > 0
    (record,) = caplog.records
    assert record.getMessage() == (
        "Schedule cron cannot be sent; it is tried again: a cron expression needs the Python package "
        'croniter, which is not installed: run pip install "airflow-provider-duewheel[schedules]"'
    )
