"""`duewheel message send`: send one message, or the messages of a file."""

from __future__ import annotations

from typing import Any

import click

from duewheel.cli.answer import Answer, as_mapping
from duewheel.cli.broker_command import with_broker
from duewheel.cli.message_file import send_file
from duewheel.cli.options import at_option, delay_option, property_option, topic_option
from duewheel.cli.parameters import given_body
from duewheel.store import Broker
from duewheel.store.values.numbers import counted

# The outcomes of a send, except for a new waiting message.
_OTHERWISE = {
    "duplicate": "sent before",
    "kept": "not sent, because a message with the key is waiting",
    "replaced": "sent in place of a waiting message",
}


@click.command()
@click.argument("body", required=False)
@topic_option("The topic to send to.", required=True)
@click.option(
    "--file",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="Instead of BODY: send each line of this file, a JSON object; `-` is standard input.",
)
@delay_option
@at_option
@click.option("--delay-level", type=int, help="Deliver after this delay level, 1 is 1 s.")
@click.option("--key", help="Your own name for the message, to find and recall it by.")
@click.option("--tag", help="A word that consumers can filter by.")
@property_option
@click.option(
    "--message-group", help="Messages of one group share a queue; on a FIFO topic they keep their order."
)
@click.option(
    "--idempotency-key",
    help="A second send with this key sends nothing. With --file, it names the file: no line is sent twice.",
)
@click.option(
    "--on-conflict",
    type=click.Choice(["allow", "keep", "replace"]),
    default="allow",
    show_default=True,
    help="What to do if a message with this key is waiting.",
)
@with_broker
def send(
    broker: Broker,
    answer: Answer,
    topic: str,
    body: str | None,
    file: str | None,
    properties: tuple[tuple[str, str], ...],
    idempotency_key: str | None,
    **given: Any,
) -> None:
    """Send BODY; `-` reads the body from standard input.

    Each line of a --file is an object with `body` and any of `delay`, `deliver_at`, `delay_level`, `key`,
    `tag`, `properties`, `message_group`, `idempotency_key` and `on_conflict`; the options are the defaults
    for lines without these. The file is sent in portions of 1000 lines, each in a transaction. With
    --idempotency-key, the same command, run again, sends only the missing lines.

    \b
    duewheel message send '{"order": 42}' --topic order-timeout --delay 30m --key 42
    duewheel message send --file messages.jsonl --topic order-timeout --delay 30m --idempotency-key monday
    """
    if (body is None) == (file is None):
        raise click.UsageError("Give either BODY or --file.")
    given["properties"] = dict(properties) or None
    if file is not None:
        sent = send_file(broker, topic, file, given, idempotency_key)
        others = "".join(
            f"; {counted(sent.outcomes[outcome], 'message')} {said}"
            for outcome, said in _OTHERWISE.items()
            if sent.outcomes[outcome]
        )
        answer.done(
            f"{counted(sent.outcomes['sent'], 'message')} sent in "
            f"{counted(sent.transactions, 'transaction')}{others}.",
            transactions=sent.transactions,
            **sent.outcomes,
        )
        return
    receipt = broker.send(topic, given_body(body), idempotency_key=idempotency_key, **given)
    answer.record(as_mapping(receipt))
