"""Answering a run that waits on the command line."""

from __future__ import annotations

import pytest
from tests.acting import HOUR, send
from tests.cli.conftest import Run

from duewheel.store import Broker


@pytest.fixture
def waiting(broker: Broker) -> str:
    """The id of a message that waits on `t` under the key `k`."""
    broker.create_topic("t")
    return broker.send("t", b"", delay=HOUR, key="k").message_id


def test_x26_the_first_answer_counts(run: Run, broker: Broker, waiting: str) -> None:
    answer = "message answer --topic t --key k --property by=ann"
    assert run(answer, '{"approved": true}').stdout == "answered\n"
    wait = broker.find_wait(waiting)
    assert (wait.body, wait.properties) == ({"approved": True}, {"by": "ann"})
    again = run(answer)
    assert (again.stdout, again.exit_code) == ("already_answered\n", 3)
    send(broker, "", key="out")
    broker.tick("t")
    assert run("message answer --topic t --key out").stdout == "too_late\n"
    assert run("message answer --topic t --key none").stdout == "not_found\n"
    early = run("message answer 1 --topic t --key none --early")
    assert (early.stdout, early.exit_code) == ("early\n", 0)
    assert broker.find_wait(broker.begin_wait("t", "none", HOUR).message_id).body == 1


@pytest.mark.usefixtures("waiting")
def test_an_answer_is_json(run: Run) -> None:
    refused = run("message answer yes --topic t --key k")
    assert refused.exit_code == 2
    assert "give JSON" in refused.stderr
