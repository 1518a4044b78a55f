"""Looking up messages and their histories; read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duewheel.store.database.connected import Connected
from duewheel.store.values.bodies import check_text
from duewheel.store.values.instants import Instant, to_datetime
from duewheel.store.values.numbers import whole_number
from duewheel.store.values.records import columns, records

if TYPE_CHECKING:
    from duewheel.store.operations.statistics import Stats
    from duewheel.store.values.stored_messages import HistoryEntry, MessagePage, StoredMessage


class Lookups(Connected):
    """Looking messages up, and counting them."""

    def find(self, message_id: str) -> StoredMessage | None:
        """A message by its id, or None if it is not kept.

        Raises:
            InvalidArgument: not a message id.
        """
        from duewheel.store.values.stored_messages import STORED_COLUMNS, stored

        check_text(message_id, "message_id")
        rows = self._database.read(f"select {STORED_COLUMNS} from duewheel.find(%s)", (message_id,))
        return next(iter(stored(rows)), None)

    def find_key(self, topic: str, key: str) -> list[StoredMessage]:
        """The messages with a key that are still kept, in order of delivery.

        Raises:
            UnknownTopic: no topic has this name.
        """
        from duewheel.store.values.stored_messages import STORED_COLUMNS, stored

        check_text(topic, "topic")
        check_text(key, "key")
        found = f"select {STORED_COLUMNS} from duewheel.find_key(%s, %s)"
        return stored(self._database.read(found, (topic, key)))

    def list_messages(
        self,
        topic: str | None = None,
        *,
        state: str = "waiting",
        due_from: Instant | None = None,
        due_until: Instant | None = None,
        key_prefix: str | None = None,
        tag: str | None = None,
        after: str | None = None,
        max_messages: int = 100,
    ) -> MessagePage:
        """A page of messages without their bodies, as cheap with ten million waiting messages as with ten.

        Args:
            topic: the topic; None is all topics, by name.
            state: "waiting", "released", "recalled", "moved" or "all". A moved message is listed at each of
                its former instants, and in its present state at its present instant.
            due_from, due_until: due in this window of time; due_until is exclusive.
            key_prefix: the beginning of the key; the list is then in the order of the keys.
            after: ``next`` of the previous page; None is the first page.
            max_messages: at most so many, 1 to 1 000.
                A page reads 10 000 messages at most, so a page of a rare tag may hold few messages, or none,
                and still have a ``next``.

        Returns:
            The messages, and the value to give as ``after`` for the next page.

        Raises:
            UnknownTopic: no topic has this name.
            UnknownMessage: the message to continue after is gone.
            InvalidArgument, InvalidKey, InvalidTag, InvalidInstant: a parameter is wrong.

        Example::

            page = broker.list_messages("orders.timeout", key_prefix="customer-7/")
            while page.next:
                page = broker.list_messages("orders.timeout", key_prefix="customer-7/", after=page.next)
        """
        from duewheel.store.values.stored_messages import ListedMessage, MessagePage

        for value, name in ((topic, "topic"), (key_prefix, "key_prefix"), (tag, "tag"), (after, "after")):
            check_text(value, name, optional=True)
        check_text(state, "state")
        whole_number(max_messages, "max_messages", 1_000, "ask for further pages")
        selected = columns(ListedMessage, topic="topic_name", tag="tag_name")
        rows = self._database.read(
            f"select {selected}, listed from duewheel.list_messages(%s, %s, %s, %s, %s, %s, %s, %s)",
            (
                topic,
                state,
                None if due_from is None else to_datetime(due_from, "due_from"),
                None if due_until is None else to_datetime(due_until, "due_until"),
                key_prefix,
                tag,
                after,
                max_messages,
            ),
        )
        listed = [row[:-1] for row in rows if row[-1]]
        # More may follow a full page, or a page that ends with rows that do not match.
        has_more = len(listed) == max_messages or len(listed) < len(rows)
        return MessagePage(tuple(records(ListedMessage, listed)), rows[-1][1] if has_more else None)

    def history(self, message_id: str) -> list[HistoryEntry]:
        """The history of a message: one entry for each state and group, by time.

        The list is empty if the message is not kept.

        Raises:
            InvalidArgument: not a message id.
        """
        from duewheel.store.values.stored_messages import HistoryEntry

        check_text(message_id, "message_id")
        statement = f"select {columns(HistoryEntry)} from duewheel.history(%s, %s)"
        return records(HistoryEntry, self._database.read(statement, (message_id, self._database.now())))

    def stats(self) -> Stats:
        """Numbers about all topics and groups; as cheap with ten million waiting messages as with ten."""
        from duewheel.store.operations import statistics

        return statistics.stats(self._database)
