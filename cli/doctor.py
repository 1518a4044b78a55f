"""`duewheel doctor`: whether everything that delivers messages works, and how to repair what does not."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import click

from duewheel.cli.answer import Answer
from duewheel.cli.broker_command import with_broker
from duewheel.cli.doctor_airflow import airflow_findings
from duewheel.cli.doctor_broker import broker_findings
from duewheel.cli.doctor_findings import Finding
from duewheel.store import Broker

_COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


@click.command()
@with_broker
def doctor(broker: Broker, answer: Answer) -> None:
    """Check the broker and, if it is set up here, Airflow; exit status 1 if there is an error.

    A line for each check: the connection, the schema, the rights of the login, the wheel, upkeep, and the
    clock, the notifications and the settings of the server; then Airflow's triggerer, and the topics and
    groups that its DAGs name. A warning or an error has advice. Nothing is changed.

    \b
    duewheel doctor
    """
    findings = [*broker_findings(broker), *airflow_findings()]
    is_healthy = all(finding.status != "error" for finding in findings)
    if answer.as_json:
        answer.record({"healthy": is_healthy, "checks": findings})
    else:
        _tell(findings)
    if not is_healthy:
        sys.exit(1)


def _tell(findings: Iterable[Finding]) -> None:
    for finding in findings:
        status = click.style(f"{finding.status:7}", fg=_COLOURS[finding.status])
        click.echo(f"{status}  {finding.check}: {finding.says}")
        if finding.advice:
            click.echo(f"{'':9}{finding.advice}")
