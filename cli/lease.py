"""`duewheel lease`: list leases, and end the lease of a consumer that hangs."""

from __future__ import annotations

import click

from duewheel.cli.answer import Answer, as_mapping
from duewheel.cli.broker_command import with_broker
from duewheel.cli.options import group_option, limit_option, topic_option
from duewheel.store import Broker
from duewheel.store.values.numbers import counted

_COLUMNS = (
    "expires_at",
    "group",
    "topic",
    "queue",
    "consumer",
    "leased_at",
    "messages",
    "answered",
    "lease_id",
)


@click.group()
def lease() -> None:
    """Leases, the messages that consumers are working on: list, release.

    \b
    duewheel lease list --group cancel-unpaid-orders
    """


@lease.command("list")
@group_option("Only leases of this consumer group.")
@topic_option("Only leases of this topic.")
@limit_option(200)
@with_broker
def list_leases(
    broker: Broker, answer: Answer, group: str | None, topic: str | None, max_messages: int
) -> None:
    """List the leases that have not ended, the next to end first.

    \b
    duewheel lease list --group cancel-unpaid-orders --topic order-timeout
    """
    found = broker.leases(topic=topic, group=group, max_leases=max_messages)
    answer.rows(map(as_mapping, found), columns=_COLUMNS, empty="No consumer has leased messages.")


@lease.command()
@click.argument("lease_id")
@click.option("--reason", help="A text for the history of the messages.")
@with_broker
def release(broker: Broker, answer: Answer, lease_id: str, reason: str | None) -> None:
    """End lease LEASE_ID of a consumer that hangs: its messages are delivered again at once.

    It is as if the lease had expired: the attempt counts, and a late ack is refused. If the consumer still
    works, the work is done twice.

    \b
    duewheel lease release 1.2.0.7.1893456000000000 --reason "its machine is gone"
    """
    messages = broker.release_lease(lease_id, reason)
    if messages is None:
        answer.done("The lease had ended already: unchanged.", outcome="unchanged", messages=0)
        return
    said = f"The lease is released: {counted(messages, 'message')} sent on."
    answer.done(said, outcome="released", messages=messages)
