"""`duewheel message answer`: answer a run that waits."""

from __future__ import annotations

import json

import click

from duewheel.cli.answer import Answer, end_with_nothing
from duewheel.cli.broker_command import with_broker
from duewheel.cli.options import property_option, topic_option
from duewheel.cli.parameters import given_body
from duewheel.store import AnswerOutcome, Broker


@click.command("answer")
@click.argument("body", default="null")
@topic_option("The topic on which the run waits.", required=True)
@click.option("--key", required=True, help="The key under which it waits.")
@property_option
@click.option("--early", is_flag=True, help="Keep the answer for a run that does not wait yet.")
@with_broker
def answer_run(
    broker: Broker,
    answer: Answer,
    body: str,
    topic: str,
    key: str,
    properties: tuple[tuple[str, str], ...],
    early: bool,
) -> None:
    """Answer the run that waits under a key with BODY, which is JSON; `-` reads it from standard input.

    The reply is final: `answered` (the run continues with this answer), `too_late` (it timed out),
    `already_answered`, `recalled`, `not_found`, or with --early `early` (the next run that waits under
    the key continues with this answer). Status 3 unless it is `answered` or `early`.

    \b
    duewheel message answer '{"approved": true}' --topic approvals --key order-42 --property by=ann
    """
    try:
        said = json.loads(given_body(body) or "")
    except ValueError as error:
        raise click.BadParameter(f"{error}: give JSON, such as '\"yes\"'", param_hint="BODY") from error
    receipt = broker.answer_key(topic, key, said, properties=dict(properties) or None, early=early)
    answer.done(receipt.outcome.value, outcome=receipt.outcome, message_id=receipt.message_id)
    if receipt.outcome not in (AnswerOutcome.ANSWERED, AnswerOutcome.EARLY):
        end_with_nothing()
