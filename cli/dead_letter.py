"""`duewheel dead-letter`: messages that failed for the last time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from duewheel.cli.answer import Answer, as_mapping, end_with_nothing
from duewheel.cli.broker_command import with_broker
from duewheel.cli.options import dry_run_option, group_option, limit_option, topic_option, yes_option
from duewheel.cli.parameters import instant
from duewheel.cli.progress import progress
from duewheel.store import Broker
from duewheel.store.operations.dead_letters import redrive_portions
from duewheel.store.values.bulk_results import Redriven
from duewheel.store.values.numbers import counted

_COLUMNS = ("dead_at", "message_id", "topic", "key", "attempt", "redriven_at", "kept_until", "reason", "body")
_REDRIVEN = {None: None, "open": False, "redriven": True}


@click.group("dead-letter")
def dead_letter() -> None:
    """Dead letters: list, redrive, discard.

    \b
    duewheel dead-letter list --group cancel-unpaid-orders
    """


@dead_letter.command("list")
@group_option("The consumer group.", required=True)
@topic_option("Only dead letters of this topic.")
@limit_option(100)
@click.option("--open", "which", flag_value="open", help="Only dead letters that were not redriven.")
@click.option("--redriven", "which", flag_value="redriven", help="Only dead letters that were redriven.")
@with_broker
def list_dead_letters(
    broker: Broker, answer: Answer, group: str, topic: str | None, max_messages: int, which: str | None
) -> None:
    """List the dead letters of a consumer group, of each topic the oldest first.

    \b
    duewheel dead-letter list --group cancel-unpaid-orders --topic order-timeout --open
    """
    letters = broker.dead_letters(group, topic=topic, max_messages=max_messages, redriven=_REDRIVEN[which])
    answer.rows(
        (as_mapping(letter) for letter in letters),
        columns=_COLUMNS,
        empty=f"{group} has no such dead letters." if topic or which else f"{group} has no dead letters.",
    )


def _which(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        limit_option(),
        click.option("--dead-until", type=instant, help="Only messages that died before this instant."),
        click.option("--dead-from", type=instant, help="Only messages that died at this instant or later."),
        click.option("--reason", help="Only dead letters with exactly this reason."),
        click.option("--reason-contains", help="Only dead letters whose reason contains this text."),
        click.option("--reason-lacks", help="Only dead letters whose reason does not contain this text."),
        click.option("--key-prefix", help="Only dead letters whose key begins with this."),
        click.option("--tag", help="Only dead letters with this tag."),
        topic_option("Only dead letters of this topic."),
        group_option("The consumer group.", required=True),
        click.argument("message_ids", nargs=-1, metavar="[MESSAGE_ID]..."),
    ):
        command = option(command)
    return command


@dead_letter.command()
@_which
@click.option(
    "--per-second", type=click.FloatRange(min=0, min_open=True), help="At most this many per second."
)
@dry_run_option
@with_broker
def redrive(
    broker: Broker,
    answer: Answer,
    message_ids: tuple[str, ...],
    group: str,
    topic: str | None,
    dry_run: bool,
    **criteria: Any,
) -> None:
    """Send dead letters to their consumer group again: all, some by MESSAGE_ID, or all that match.

    The oldest are sent first. Each is redriven once, however often the command is run or interrupted. Status
    3 if none matches.

    \b
    duewheel dead-letter redrive --group cancel-orders --reason-contains timeout --per-second 50 --dry-run
    """
    matched = redriven = 0
    with progress("Redriving", len(message_ids) or None) as advance:
        for portion, _ in redrive_portions(
            broker, group, topic, message_ids=message_ids or None, dry_run=dry_run, **criteria
        ):
            matched += portion.matched
            redriven += portion.redriven
            advance(portion.matched)
    if dry_run:
        sentence = f"{counted(matched, 'dead letter')} would be redriven."
    else:
        sentence = f"{counted(redriven, 'dead letter')} redriven."
    answer.done(sentence, **as_mapping(Redriven(matched, redriven)))
    if not matched:
        end_with_nothing()


@dead_letter.command()
@_which
@dry_run_option
@yes_option
@with_broker
def discard(
    broker: Broker,
    answer: Answer,
    message_ids: tuple[str, ...],
    group: str,
    topic: str | None,
    dry_run: bool,
    yes: bool,
    **criteria: Any,
) -> None:
    """Discard dead letters: all, some by MESSAGE_ID, or all that match. They are never redriven.

    Their history is kept until their retention ends. Status 3 if none matches.

    \b
    duewheel dead-letter discard --group cancel-unpaid-orders --reason "no such order" --yes
    """

    def discarded(*, dry_run: bool) -> int:
        found = broker.discard_dead_letters(
            group, topic=topic, message_ids=message_ids or None, dry_run=dry_run, **criteria
        )
        return found.matched if dry_run else found.discarded

    if not (yes or dry_run):
        found = counted(discarded(dry_run=True), "dead letter")
        click.confirm(f"Discard {found} of consumer group {group}?", abort=True, err=True)
    number = discarded(dry_run=dry_run)
    words = "would be discarded" if dry_run else "discarded"
    answer.done(f"{counted(number, 'dead letter')} {words}.", discarded=number)
    if not number:
        end_with_nothing()
