"""`duewheel message`: send, receive, find, recall and answer messages."""

from __future__ import annotations

import click

from duewheel.cli.message_answer import answer_run
from duewheel.cli.message_lookup import find, history, list_messages
from duewheel.cli.message_recall import recall, recall_many, reschedule
from duewheel.cli.message_receive import receive
from duewheel.cli.message_send import send


@click.group()
def message() -> None:
    """Messages: send, receive, find, list, history, recall, recall-many, reschedule, answer.

    \b
    duewheel message send '{"order": 42}' --topic order-timeout --delay 30m --key 42
    """


for command in (answer_run, find, history, list_messages, recall, recall_many, receive, reschedule, send):
    message.add_command(command)
