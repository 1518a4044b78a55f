"""The reminder ladder, from the first reminder to the recall of the others."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from airflow.sdk import Context
from tests.airflow_runs import AirflowHome, connection_json

from duewheel.dags.remind_customers import LADDER_HOURS, TOPIC, end_reminders, remind_customers

if TYPE_CHECKING:
    from duewheel.store import Broker

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(1200)]


def test_x01_x02_a_customer_who_acts_after_the_first_reminder_gets_no_other(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow = AirflowHome(tmp_path, broker.dsn)
    (airflow.dags / "begin.py").write_text(
        "# Airflow\nfrom duewheel.dags.remind_customers import begin_reminders\n\ndag = begin_reminders()\n"
    )
    begun = airflow.run("begin")
    assert begun.state == "success", begun.log
    reminders = [found for each in begun.tasks["send"].xcom if (found := broker.find(each)) is not None]
    assert [(one.deliver_at - one.born_at) / timedelta(hours=1) for one in reminders] == list(LADDER_HOURS)

    monkeypatch.setenv("AIRFLOW_CONN_DUEWHEEL_DEFAULT", connection_json(broker.dsn))
    broker.reschedule(reminders[0].message_id, delay=timedelta(0))
    assert remind_customers().get_task("remind").execute(Context()) == ["4711 after 1 h"]
    recall = end_reminders().get_task("recall")
    recall.render_template_fields(Context(params={"customer": "4711"}))  # type: ignore[typeddict-item]  # a plain one does
    assert recall.execute(Context()) == "recalled"
    assert not broker.list_messages(TOPIC, state="waiting").messages
