"""The broker as Python programs see it: one object, one database, every operation a method.

The methods document their promises; the module behind each method documents how it keeps them. Many threads
may use one object at once. An object costs nothing until its first call, which also checks once that the
schema exists and that the logs belong to this database cluster.

The modules behind the methods are imported on first use. A task of Airflow is a process of its own, and one
that receives would wait 20 ms for the imports of everything else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from duewheel.store import operations
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.consuming.signals import Signals
from duewheel.store.database import schema
from duewheel.store.database.connections import Database, DriverConnection
from duewheel.store.values.bodies import check_text
from duewheel.store.values.extras import extra
from duewheel.store.values.instants import Instant
from duewheel.store.values.leases import Lease
from duewheel.store.values.messages import (
    Batch,
    ConsumeMode,
    MessageType,
    NewMessage,
    OnConflict,
    OutOfRange,
    RecallOutcome,
    SendReceipt,
)
from duewheel.store.values.tags import EVERY

if TYPE_CHECKING:
    from duewheel.store.consuming.doorbells import Doorbell
    from duewheel.store.consuming.push_consumer import Listener, PushConsumer
    from duewheel.store.database.connections import CallerConnection
    from duewheel.store.database.rebasing import Rebased
    from duewheel.store.database.schema_state import SchemaState
    from duewheel.store.operations.dead_letters import DeadLetter, Redriven
    from duewheel.store.operations.groups import Group, Rewound
    from duewheel.store.operations.lookups import HistoryEntry, MessagePage, StoredMessage
    from duewheel.store.operations.overview import Stats
    from duewheel.store.operations.recalling import BulkRecall
    from duewheel.store.operations.schedules import Misfire, Schedule
    from duewheel.store.operations.settings import Settings, WhenFull
    from duewheel.store.operations.topics import Topic
    from duewheel.store.values.retry_policy import RetryPolicy
    from duewheel.store.wheel.runner import WheelRunner
    from duewheel.store.wheel.upkeep import Maintenance

log = logging.getLogger(__name__)

_MINUTE = timedelta(minutes=1)


class Broker:
    """A broker in a Postgres database.

    Args:
        dsn: libpq string or URL, also SQLAlchemy's ``postgresql+psycopg2://``.
        clock: gives the instant that every call takes for now, for tests; None is the database's clock.
        listen: whether waiting consumers and the wheel use LISTEN; false behind a pooler that shares
            sessions, such as PgBouncer by transaction.

    Raises:
        InvalidArgument: the dsn cannot be read. The first call shows whether the database can be used: it
            raises BrokerUnreachable, BrokerNotUpgraded or BrokerMoved.

    Example::

        with Broker("postgresql://shop@localhost/shop") as broker:
            broker.create_topic("orders.timeout")
            broker.send("orders.timeout", {"order": 4711}, delay=timedelta(minutes=30), key="4711")
    """

    def __init__(self, dsn: str, *, clock: Callable[[], datetime] | None = None, listen: bool = True) -> None:
        self._database = Database(dsn, clock=clock, on_first_connection=schema.verify, prepare=listen)
        self._signals = Signals(self._database.dsn, listen=listen)
        self._listen = listen

    @classmethod
    @contextmanager
    def embedded(cls, directory: str | Path) -> Iterator[Self]:
        """A broker in a Postgres of its own, started from a directory and upgraded.

        The server is shared by all processes that open the same directory and ends with the last of them.
        Needs the extra ``embedded``.

        Args:
            directory: where the database lives; made if missing.

        Example::

            with Broker.embedded("var/duewheel") as broker:
                print(broker.dsn)
        """
        from duewheel.embedded.postgres import EmbeddedPostgres

        with EmbeddedPostgres(Path(directory)) as server, cls(server.ensure_database("duewheel")) as broker:
            broker.upgrade()
            yield broker

    @property
    def dsn(self) -> str:
        """The database's address as libpq takes it, password included."""
        return self._database.dsn

    def now(self) -> datetime | None:
        """The instant of the injected clock in UTC, or None where the database's own clock counts."""
        return self._database.now()

    def close(self) -> None:
        """Close the idle connections; a connection in use is closed when its call is done."""
        self._signals.close()
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def connection(self) -> AbstractContextManager[DriverConnection]:
        """An autocommit psycopg2 connection of the broker's pool, for the length of a ``with`` block.

        A transaction that is open at its end is rolled back.
        """
        return self._database.lend()

    # --- the schema

    def upgrade(self) -> SchemaState:
        """Make the schema, or bring it to this program's revision; any number of processes may do it at once.

        Raises:
            BrokerUnreachable: the server does not answer.
            ExtraMissing: the extra ``upgrade`` is not installed.
        """
        with extra("upgrade", "Broker.upgrade()"):
            from duewheel.store.database import migration

        return migration.upgrade(self.dsn)

    def check(self) -> SchemaState:
        """Say what the database has, if this program can work with it.

        Raises:
            BrokerNotUpgraded: the schema is missing or old, or its functions are not this program's.
            BrokerMoved: the database was restored into another cluster.
        """
        from duewheel.store.database import schema_state

        return schema_state.check(self.dsn)

    def rebase(self) -> Rebased:
        """Take over a broker that came with a logical dump and restore, so that it can go on in this cluster.

        Until then every call is refused with BrokerMoved. Afterwards each waiting message comes exactly once,
        and acked messages do not come again. Leases and receipt handles stay valid: a leased message comes
        again when its lease ends, unless it is answered before. The dump does not hold what the broker did
        after it was taken. Where the broker was not moved nothing changes, so a restore script may always
        call this. One transaction rewrites all message rows and keeps other callers out: about 10 s per
        million messages and, until vacuum has run, twice the space.

        A promoted standby and a point-in-time recovery are the same cluster and need no rebase.

        Returns:
            The numbers of what it rewrote.

        Raises:
            BrokerNotUpgraded: the schema is missing or older than this program.
            BrokerUnreachable: the server does not answer.

        Example::

            with Broker("postgresql://shop@new-host/shop") as broker:
                broker.rebase()
        """
        from duewheel.store.database import rebasing

        return rebasing.rebase(self.dsn)

    # --- topics

    def create_topic(
        self,
        name: str,
        *,
        message_type: MessageType | str = MessageType.DELAY,
        queues: int = 4,
        max_delay: timedelta = timedelta(hours=24),
        out_of_range: OutOfRange | str = OutOfRange.REJECT,
        granularity: timedelta | None = None,
        retention: timedelta = timedelta(hours=72),
        delay_levels: Sequence[timedelta] | None = None,
    ) -> None:
        """Make a topic; the same topic with the same settings may be made again.

        Args:
            name: 1 to 127 letters, digits, dots, hyphens and underscores.
            message_type: DELAY, NORMAL or FIFO. Cannot be changed later.
            queues: how many consumers of one group read in parallel, 1 to 64. Cannot be changed later.
            max_delay: the longest delay, up to 3660 days.
            out_of_range: the treatment of a longer delay: "reject" refuses it, "deliver" delivers at once.
            granularity: the shortest time between two ticks (releases) of a busy topic, 1 ms to 1 h. None is
                15 ms for a new topic, and the present value for an existing one.
            retention: how long a message is kept, counted from its delivery.
            delay_levels: the delay of level 1, of level 2 and so on, 1 to 64 of them, each up to 3660 days;
                None is RocketMQ's eighteen, 1 s to 2 h. A level over ``max_delay`` is out of range when a
                message asks for it.

        Raises:
            TopicExists: there is one with other settings.
            InvalidArgument: a setting out of its limits.

        Example::

            broker.create_topic("orders.timeout", message_type="DELAY", max_delay=timedelta(days=7))
        """
        operations.topics.create_topic(
            self._database,
            name,
            message_type=message_type,
            queues=queues,
            max_delay=max_delay,
            out_of_range=out_of_range,
            granularity=granularity,
            retention=retention,
            delay_levels=delay_levels,
        )

    def update_topic(
        self,
        name: str,
        *,
        max_delay: timedelta | None = None,
        out_of_range: OutOfRange | str | None = None,
        granularity: timedelta | None = None,
        retention: timedelta | None = None,
        delay_levels: Sequence[timedelta] | None = None,
    ) -> None:
        """Change settings of a topic; settings that are not given stay.

        Args:
            name: the topic.
            max_delay, out_of_range, granularity, retention, delay_levels: as for :meth:`create_topic`;
                waiting messages keep their instants.

        Raises:
            UnknownTopic: there is none of this name.
            InvalidArgument: a setting out of its limits.
        """
        operations.topics.update_topic(
            self._database,
            name,
            max_delay=max_delay,
            out_of_range=out_of_range,
            granularity=granularity,
            retention=retention,
            delay_levels=delay_levels,
        )

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its messages and the subscriptions to it.

        Raises:
            UnknownTopic: there is none of this name.
        """
        operations.topics.delete_topic(self._database, name)

    def topics(self) -> list[Topic]:
        """All topics with their settings, by name."""
        return operations.topics.topics(self._database)

    # --- sending

    def send(
        self,
        topic: str,
        body: object,
        *,
        delay: timedelta | None = None,
        deliver_at: Instant | None = None,
        delay_level: int | None = None,
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, Any] | None = None,
        message_group: str | None = None,
        idempotency_key: str | None = None,
        on_conflict: OnConflict | str = OnConflict.ALLOW,
        connection: CallerConnection | None = None,
    ) -> SendReceipt:
        """Send one message; to a DELAY topic with one of ``delay``, ``deliver_at`` and ``delay_level``.

        Args:
            topic: the topic.
            body: bytes, a str (sent as UTF-8) or a JSON-able value; at most 4 MiB.
            delay: how long from now, by the database's clock.
            deliver_at: the instant: an aware datetime, a pendulum instant, or an int of Unix milliseconds.
                One in the past is delivered at once.
            delay_level: 1 to 18 for 1 s to 2 h, or one of the topic's own ``delay_levels``; 0 is no delay, a
                level above the last counts as the last.
            key: the sender's own name for the message, 1 to 255 characters, to find and recall it by.
            tag: 1 to 127 characters without spaces and ``|``, for consumers to choose by.
            properties: names and JSON-able values, at most 16 KiB as JSON.
            message_group: messages of one group go to one queue.
            idempotency_key: a second send with the same key sends nothing and returns the receipt of the
                first.
            on_conflict: what to do when a message with the same key waits: "allow", "keep" or "replace".
            connection: a transaction of the caller, a psycopg2 connection or a SQLAlchemy ``Connection`` or
                ``Session``: the message exists if and when that commits.

        Returns:
            The id and the delivery instant.

        Raises:
            UnknownTopic, WrongMessageType, DelayOutOfRange, InvalidDelayLevel, InvalidInstant, BodyTooLarge,
            PropertiesTooLarge, InvalidKey, InvalidTag, NulInText, InvalidArgument: a parameter is wrong;
                nothing is sent.

        Example::

            broker.send("orders.timeout", b"4711", delay=timedelta(minutes=30), connection=connection)
        """
        return operations.sending.send(
            self._database,
            topic,
            NewMessage(
                body,
                delay=delay,
                deliver_at=deliver_at,
                delay_level=delay_level,
                key=key,
                tag=tag,
                properties=properties,
                message_group=message_group,
                idempotency_key=idempotency_key,
                on_conflict=on_conflict,
            ),
            connection,
        )

    def send_many(
        self,
        topic: str,
        messages: Iterable[NewMessage | Mapping[str, Any]],
        connection: CallerConnection | None = None,
    ) -> Sequence[SendReceipt]:
        """Send many messages at once: all of them or, with an error, none.

        Args:
            topic: the topic.
            messages: mappings with the names of :meth:`send`'s parameters, or ``NewMessage``; at most
                a million.
            connection: a transaction of the caller, as for :meth:`send`.

        Returns:
            The receipts, in the order given.

        Raises:
            DueWheelError: as for :meth:`send`; its ``index`` names the message it is about. Nothing is sent.

        Example::

            broker.send_many("orders.timeout", [{"body": b"1", "delay": timedelta(minutes=30)}, ...])
        """
        return operations.sending.send_many(self._database, topic, messages, connection)

    # --- recalling

    def recall(self, message_id: str, *, connection: CallerConnection | None = None) -> RecallOutcome:
        """Take a waiting message back.

        Args:
            message_id: the id from a receipt.
            connection: a transaction of the caller. The recall counts when it commits; if the message has
                been released by then, the commit fails with SQLSTATE DW012.

        Returns:
            ``recalled``: the message is never delivered. ``already_released``: too late. ``not_found``: no
            such message exists.

        Raises:
            InvalidArgument: not a message id.

        Example::

            if broker.recall(receipt.message_id) is RecallOutcome.ALREADY_RELEASED: ...
        """
        return operations.recalling.recall(self._database, message_id, connection)

    def recall_key(
        self, topic: str, key: str, *, connection: CallerConnection | None = None
    ) -> RecallOutcome:
        """Take back all messages that wait under a key.

        Args:
            topic: where it was sent to.
            key: the key it was sent with.
            connection: a transaction of the caller, as for :meth:`recall`.

        Returns:
            ``recalled`` if a message waited, ``already_released`` if all messages had been released, else
            ``not_found``.

        Raises:
            UnknownTopic: there is none of this name.
        """
        return operations.recalling.recall_key(self._database, topic, key, connection)

    def reschedule(
        self,
        message_id: str,
        *,
        delay: timedelta | None = None,
        deliver_at: Instant | None = None,
        connection: CallerConnection | None = None,
        idempotency_key: str | None = None,
    ) -> SendReceipt:
        """Move a waiting message to another instant, in one step.

        Args:
            message_id: the id from a receipt.
            delay: how long from now.
            deliver_at: or the new instant.
            connection: a transaction of the caller, as for :meth:`recall`.
            idempotency_key: a second call with the same key returns the receipt of the first move, for as
                long as the moved message is kept.

        Returns:
            The receipt of the message at its new instant, with a new id.

        Raises:
            AlreadyReleased: too late.
            UnknownMessage: there is no such message, or it was recalled.
            DelayOutOfRange, InvalidInstant: as for :meth:`send`.
        """
        return operations.recalling.reschedule(
            self._database, message_id, delay, deliver_at, connection, idempotency_key
        )

    def reschedule_key(
        self,
        topic: str,
        key: str,
        *,
        delay: timedelta | None = None,
        deliver_at: Instant | None = None,
        connection: CallerConnection | None = None,
        idempotency_key: str | None = None,
    ) -> list[SendReceipt]:
        """Move all messages that wait under a key to another instant, in one step.

        Args:
            topic: where it was sent to.
            key: the key it was sent with.
            delay: how long from now.
            deliver_at: or the new instant.
            connection: a transaction of the caller, as for :meth:`recall`.
            idempotency_key: a second call with the same key returns the receipts of the first move, for as
                long as the moved messages are kept.

        Returns:
            A receipt for each message that was moved, in the order in which they had been due; usually one.

        Raises:
            AlreadyReleased: too late, for all of them or for one just now; none is moved.
            UnknownMessage: there is none, or all were recalled.
            UnknownTopic: there is none of this name.
            DelayOutOfRange, InvalidInstant: as for :meth:`send`.

        Example::

            broker.reschedule_key("orders.timeout", "4711", delay=timedelta(hours=1))
        """
        return operations.recalling.reschedule_key(
            self._database, topic, key, delay, deliver_at, connection, idempotency_key
        )

    def recall_many(
        self,
        topic: str,
        *,
        tag: str | None = None,
        key_prefix: str | None = None,
        due_from: Instant | None = None,
        due_until: Instant | None = None,
        everything: bool = False,
        dry_run: bool = False,
        connection: CallerConnection | None = None,
    ) -> BulkRecall:
        """Take back all waiting messages that meet every criterion given, or count them.

        Without ``connection`` this works in transactions of 10 000 messages, so that the topic's wheel never
        waits for more than one of these, about a tenth of a second. After an interruption the finished
        transactions count; run it again for the rest. A message that is sent while it runs may be taken back
        or not.

        Args:
            topic: the topic they were sent to.
            tag: the tag.
            key_prefix: the beginning of the key, literally; ``%`` and ``_`` stand for themselves.
            due_from, due_until: a delivery instant from the first and before the second. Without
                ``due_from``, released messages are counted as far back as they are kept.
            everything: all waiting messages; instead of criteria.
            dry_run: only count.
            connection: a transaction of the caller, which then does all of it, while nobody waits for it. If
                one of the messages has been released by the commit, the commit fails with SQLSTATE DW012.

        Returns:
            How many matched, how many of them were taken back and are never delivered, and for how many it
            was too late.

        Raises:
            UnknownTopic: there is none of this name.
            InvalidArgument: no criterion, an empty window, or criteria beside ``everything``.
            InvalidTag, InvalidKey, InvalidInstant: a value that cannot be a tag, key or instant.

        Example::

            broker.recall_many("orders.timeout", key_prefix="shop-7/", dry_run=True)
        """
        return operations.recalling.recall_many(
            self._database,
            topic,
            tag=tag,
            key_prefix=key_prefix,
            due_from=due_from,
            due_until=due_until,
            everything=everything,
            dry_run=dry_run,
            connection=connection,
        )

    # --- looking up

    def find(self, message_id: str) -> StoredMessage | None:
        """A message by its id, or None where there is no such message, or no longer.

        Raises:
            InvalidArgument: not a message id.
        """
        return operations.lookups.find(self._database, message_id)

    def find_key(self, topic: str, key: str) -> list[StoredMessage]:
        """The messages with a key that are still kept, in order of delivery.

        Raises:
            UnknownTopic: there is none of this name.
        """
        return operations.lookups.find_key(self._database, topic, key)

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
            state: "waiting", "released", "recalled" or "all".
            due_from, due_until: due in this window of time; due_until is exclusive.
            key_prefix: the beginning of the key; the list is then in the order of the keys.
            tag: the tag.
            after: ``next`` of the previous page; None is the first page.
            max_messages: at most so many, 1 to 1 000. A page looks at 10 000 messages at most, so a page of a
                rare tag may hold few messages, or none, and still have a ``next``.

        Returns:
            The messages, and the value to give as ``after`` for the next page.

        Raises:
            UnknownTopic: there is none of this name.
            UnknownMessage: the message to continue after is gone.
            InvalidArgument, InvalidKey, InvalidTag, InvalidInstant: a parameter is wrong.

        Example::

            page = broker.list_messages("orders.timeout", key_prefix="customer-7/")
            while page.next:
                page = broker.list_messages("orders.timeout", key_prefix="customer-7/", after=page.next)
        """
        return operations.lookups.list_messages(
            self._database, topic, state, due_from, due_until, key_prefix, tag, after, max_messages
        )

    def history(self, message_id: str) -> list[HistoryEntry]:
        """The history of a message: one entry for each state and group, by time.

        The list is empty where there is no such message.

        Raises:
            InvalidArgument: not a message id.
        """
        return operations.lookups.history(self._database, message_id)

    def dead_letters(
        self,
        group: str,
        topic: str | None = None,
        *,
        max_messages: int = 100,
        redriven: bool | None = None,
    ) -> list[DeadLetter]:
        """The dead letters of a consumer group that are kept, of each topic the oldest first.

        Args:
            group: the group.
            topic: dead letters of this topic only; None is all topics that the group reads.
            max_messages: at most so many, 1 to 10 000.
            redriven: False for dead letters that were not sent again, True for those that were; None is both.

        Raises:
            UnknownGroup: there is none of this name.
        """
        return operations.dead_letters.dead_letters(self._database, group, topic, max_messages, redriven)

    def redrive(
        self,
        group: str,
        topic: str | None = None,
        *,
        message_ids: Sequence[str] | None = None,
        tag: str | None = None,
        key_prefix: str | None = None,
        reason_contains: str | None = None,
        dead_from: Instant | None = None,
        dead_until: Instant | None = None,
        max_messages: int | None = None,
        per_second: float | None = None,
        dry_run: bool = False,
    ) -> Redriven:
        """Send dead letters of a group again, each once, however often and by however many callers.

        A dead letter that was sent again comes to the group at once, with its id, its last error and one
        attempt more. If it fails again, it is a new dead letter. The call works in chunks; each chunk is a
        transaction that sends messages and notes which. After an interruption the finished chunks count, and
        the next call sends the rest. Messages that become dead letters during the call are left alone.

        Args:
            group: the group.
            topic: dead letters of this topic only; None is all topics that the group reads.
            message_ids: these messages only, by the ids that the senders were given.
            tag: the tag.
            key_prefix: the beginning of the key, literally.
            reason_contains: a part of the reason, literally.
            dead_from, dead_until: they became dead letters from the first instant on and before the second.
            max_messages: at most so many, the oldest.
            per_second: how many a second, 0.001 to 1 000 000; the call lasts as long as that takes. None is
                no pause.
            dry_run: only count.

        Returns:
            How many matched, and how many of them this call has sent again.

        Raises:
            UnknownGroup, UnknownTopic: there is none of this name.
            InvalidArgument: not a message id, an empty window, or a number out of its limits.
            InvalidInstant: a value that cannot be an instant.

        Example::

            broker.redrive("cancel-unpaid-orders", reason_contains="timeout", per_second=50)
        """
        return operations.dead_letters.redrive(
            self._database,
            group,
            topic,
            message_ids=message_ids,
            tag=tag,
            key_prefix=key_prefix,
            reason_contains=reason_contains,
            dead_from=dead_from,
            dead_until=dead_until,
            max_messages=max_messages,
            per_second=per_second,
            dry_run=dry_run,
        )

    def stats(self) -> Stats:
        """Numbers about all topics and groups; as cheap with ten million waiting messages as with ten."""
        return operations.overview.stats(self._database)

    # --- consuming

    def consumer(
        self,
        topic: str,
        group: str,
        tags: str = EVERY,
        start: str | Instant = "earliest",
        *,
        name: str | None = None,
        filter: str | None = None,  # noqa: A002 -- the parameter's public name
        mode: ConsumeMode | str = ConsumeMode.CLUSTERING,
        retry: RetryPolicy | None = None,
    ) -> Consumer:
        """A consumer that asks for messages; makes its group's subscription where that is new.

        Args:
            topic: the topic to read.
            group: the consumer group: each message goes to one of its consumers.
            tags: the messages to read: ``*``, or tags joined by ``||``.
            start: where a new subscription begins: "earliest" with all messages that are kept, "latest" with
                those released from now on, or an instant, with messages that are due from then on, or were
                due earlier and came only after it. It has no effect on an existing subscription;
                :meth:`rewind` moves that.
            name: the holder that leases show; None is host and process. In broadcasting it names the
                instance. An instance that starts again under the same name goes on where it was, so give a
                name that stays.
            filter: the messages to read, by their properties: an expression of SQL-92 as RocketMQ has it,
                such as ``region = 'north' AND amount > 100``. With ``tags``, both must choose a message.
                Messages that are not chosen count as read. Retries are not filtered again.
            mode: "clustering", or "broadcasting": each instance gets every message, and a message that fails
                there is passed over, without retry and dead letter. An instance that has not received for
                longer than the topic's retention is forgotten, and messages are not kept for it.
            retry: how the whole group retries from now on; None changes nothing. The consumer started last
                decides; a warning in the log names its change.

        Raises:
            UnknownTopic: there is none of this name.
            InvalidTagExpression, InvalidFilter: not such an expression.
            InvalidArgument: ``start`` is none of these, the group's name is not valid, the group has the
                other mode, or the policy does not fit the topic.

        Example::

            consumer = broker.consumer("orders.timeout", "cancel")
            batch = consumer.receive(wait=timedelta(seconds=20))
        """
        return Consumer(
            self._database,
            self._signals,
            topic,
            group,
            tags=tags,
            start=start,
            name=name,
            filter=filter,
            mode=mode,
            retry=retry,
        )

    def push_consumer(
        self,
        topic: str,
        group: str,
        listener: Listener,
        *,
        tags: str = EVERY,
        start: str | Instant = "earliest",
        threads: int = 8,
        invisible: timedelta = _MINUTE,
        consume_timeout: timedelta = timedelta(minutes=15),
        name: str | None = None,
        filter: str | None = None,  # noqa: A002 -- the parameter's public name
        mode: ConsumeMode | str = ConsumeMode.CLUSTERING,
        retry: RetryPolicy | None = None,
    ) -> PushConsumer:
        """A consumer that calls a listener with each message, in threads of its own.

        Args:
            topic, group, tags, start, name, filter, mode, retry: as for :meth:`consumer`.
            listener: called with each message. ``"success"`` acks it; ``"reconsume_later"``, None, any other
                value, or an exception makes it come again.
            threads: how many messages are worked on at once, 1 to 256.
            invisible: the length of a lease; it is extended while a listener works.
            consume_timeout: a listener that takes longer has failed.

        Raises:
            UnknownTopic, InvalidTagExpression, InvalidFilter: as for :meth:`consumer`.
            InvalidArgument: as for :meth:`consumer`, or ``threads`` or a span of time is out of its limit.

        Example::

            def cancel(message: Message) -> str:
                ...
                return "success"

            with broker.push_consumer("orders.timeout", "cancel", cancel):
                stop.wait()
        """
        consumer = self.consumer(topic, group, tags, start, name=name, filter=filter, mode=mode, retry=retry)
        from duewheel.store.consuming.push_consumer import PushConsumer

        return PushConsumer(
            consumer, listener, threads=threads, invisible=invisible, consume_timeout=consume_timeout
        )

    def groups(self) -> list[Group]:
        """All consumer groups: their topics, their retry settings and their positions."""
        return operations.groups.groups(self._database)

    def delete_group(self, group: str, topic: str | None = None) -> None:
        """Delete a consumer group: its positions, leases, retries and dead letters; messages stay.

        The group's consumers get UnknownTopic with their next receive, and LeaseLost for the messages they
        have in hand. A new consumer makes the group again, from its start.

        Args:
            group: the group; of a broadcasting one all instances, or one of them as ``group/instance``.
            topic: only the group's part on this topic; None is all of it.

        Raises:
            UnknownTopic, UnknownGroup: there is none of this name, or the group does not read the topic.
            GroupBusy: the group is read in a transaction that has been open for 10 s.

        Example::

            broker.delete_group("cancel")
        """
        operations.groups.delete_group(self._database, group, topic)

    def rewind(self, group: str, topic: str, to: Instant | str) -> Rewound:
        """Let a group consume again all messages released since an instant; other groups notice nothing.

        Messages in the hands of the group's consumers are taken from them: a late answer gets LeaseLost.
        Messages among these and among the retries that were released before the instant are not lost: they
        stay, or are ready again. The same holds on a FIFO topic for messages that were set aside because an
        earlier one of their message group was not done. Dead letters stay. Messages past retention do not
        come again.

        Args:
            group: the group; of a broadcasting one all instances, or one of them as ``group/instance``.
            topic: a topic that the group reads.
            to: an instant that is not in the future, or "earliest" for all messages that are kept, or
                "latest" for those released from now on. A message counts by when it was released, not by when
                it was due.

        Returns:
            How many leases ended, messages are ready again and retries were taken back.

        Raises:
            UnknownTopic, UnknownGroup: there is none of this name, or the group does not read the topic.
            GroupBusy: the group has answered in a transaction that has been open for 10 s.
            InvalidArgument: ``to`` is none of these, or in the future.
            InvalidInstant: not an instant.

        Example::

            broker.rewind("cancel", "orders.timeout", datetime.now(UTC) - timedelta(hours=1))
        """
        return operations.groups.rewind(self._database, group, topic, to)

    def doorbells(
        self,
        topics: Sequence[str],
        groups: Sequence[str],
        tags: Sequence[str] | None = None,
        filters: Sequence[str | None] | None = None,
    ) -> list[Doorbell]:
        """The messages ready and not leased, for pairs of a topic and a group; first releases due messages.

        Args:
            topics, groups: the pairs, as two sequences of the same length; those without a subscription are
                left out.
            tags: a tag expression for each pair; None counts all messages.
            filters: an expression over the properties, or None, for each pair; None counts all messages.

        Raises:
            InvalidArgument: the sequences are not of the same length.
            InvalidTagExpression, InvalidFilter: one of them cannot be understood.
        """
        from duewheel.store.consuming import doorbells

        return doorbells.doorbells(self._database, topics, groups, tags, filters)

    def take_over(self, consumer: Consumer, invisible: timedelta = _MINUTE) -> Batch:
        """Take the leases that a consumer of the same name and group holds, to go on with its work.

        For the successor of a consumer that may be gone, such as the next try of a task. The successor gets
        the same messages, without a further attempt counted, and later answers of the predecessor are
        refused.

        Args:
            consumer: the consumer that goes on; all others of its name lose their leases.
            invisible: how long the leases last from now on, 1 s to 12 h.

        Returns:
            The messages that have no answer yet; empty when no live lease has that name.

        Example::

            consumer = broker.consumer("order-timeout", "canceller", name="worker-7")
            batch = broker.take_over(consumer) or consumer.receive()
        """
        from duewheel.store.consuming import taking_over

        return taking_over.take_over(self._database, consumer, invisible)

    def take_over_leases(self, consumer: Consumer, invisible: timedelta = _MINUTE) -> list[Lease]:
        """As :meth:`take_over`, without the messages: for jobs that read their leases by themselves."""
        from duewheel.store.consuming import taking_over

        return taking_over.take_over_leases(self._database, consumer, invisible)

    # --- schedules

    def add_schedule(
        self,
        name: str,
        topic: str,
        body: object,
        *,
        cron: str | None = None,
        every: timedelta | None = None,
        timezone: str = "UTC",
        start_at: Instant | None = None,
        misfire: Misfire | str = "once",
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        """Send a message again and again; the same schedule may be added again.

        A wheel sends each occurrence up to 60 s ahead, as an ordinary delay message: exactly one for each,
        with any number of wheels and through crashes. The properties of the message hold the name of the
        ``schedule`` and the ``occurrence`` as ISO 8601 in UTC, whenever it is delivered. Occurrences of one
        schedule go to one queue, so they are read in order.

        Args:
            name: 1 to 127 letters, digits, dots, hyphens and underscores; unique in the broker.
            topic: the topic to send to, of type DELAY.
            body: as for :meth:`send`.
            cron: five fields, minute, hour, day of month, month and day of week, or ``@daily`` and the like.
                The schedule occurs at every instant whose local time matches. A wall time that the clocks go
                through twice counts twice; one that they jump over does not count. Where both days are given,
                one of them has to match.
            every: or an interval of 1 s to 3660 days, in absolute time.
            timezone: the zone of the cron expression, by its IANA name.
            start_at: no occurrence before this instant, up to 3660 days ahead; intervals are counted from it.
                None is now, so that the first interval ends ``every`` from now.
            misfire: the treatment of occurrences that no wheel sent until a minute after they were due:
                "skip" sends none of them, "once" only the last that has passed, "all" each of them.
            key, tag, properties: of each message, as for :meth:`send`; ``schedule`` and ``occurrence`` are
                names that cannot be used among the properties.

        Raises:
            InvalidSchedule: an invalid expression, zone or interval, or not exactly one of ``cron`` and
                ``every``.
            ExtraMissing: a cron expression, and the extra ``schedules`` is not installed.
            ScheduleExists: a schedule of this name has other settings; the message says which.
            UnknownTopic, WrongMessageType, BodyTooLarge, PropertiesTooLarge, InvalidKey, InvalidTag,
                InvalidInstant, InvalidArgument: as for :meth:`send`.

        Example::

            broker.add_schedule("clean-up", "files", b"", cron="0 5 * * *", timezone="Europe/Berlin")
            broker.add_schedule("push", "messages", b"", every=timedelta(minutes=2))
        """
        operations.schedules.add_schedule(
            self._database,
            name,
            topic,
            body,
            cron=cron,
            every=every,
            timezone=timezone,
            start_at=start_at,
            misfire=misfire,
            key=key,
            tag=tag,
            properties=properties,
        )

    def schedules(self) -> list[Schedule]:
        """All schedules with their next occurrences, by name."""
        return operations.schedules.schedules(self._database)

    def remove_schedule(self, name: str) -> None:
        """Remove a schedule and take back messages it has sent ahead; messages that are due are delivered.

        Raises:
            UnknownSchedule: there is none of this name.
        """
        operations.schedules.remove_schedule(self._database, name)

    def pause_schedule(self, name: str) -> None:
        """Pause a schedule and take back messages it has sent ahead; no effect on a paused one.

        Raises:
            UnknownSchedule: there is none of this name.
        """
        operations.schedules.pause_schedule(self._database, name)

    def resume_schedule(self, name: str) -> None:
        """Resume a paused schedule from now; occurrences during the pause are not made up for.

        Raises:
            UnknownSchedule: there is none of this name.
        """
        operations.schedules.resume_schedule(self._database, name)

    def advance_schedules(self) -> int:
        """Send the next messages of all schedules that are due within 30 s; the wheel does so in time.

        For tests, and for programs that have no wheel, which call this at least twice a minute. Any number of
        callers, beside any number of wheels, send each occurrence once.

        Returns:
            How many messages were sent.
        """
        return operations.schedules.advance_schedules(self._database)

    # --- the wheel

    def tick(self, topic: str) -> bool:
        """Release the due messages of a topic; true if there were any.

        Programs need not call this: receiving ticks by itself, and a wheel does so on time.

        Raises:
            UnknownTopic: there is none of this name.
        """
        check_text(topic, "topic")
        rows = self._database.rows("select duewheel.tick(%s, %s)", (topic, self._database.now()))
        return bool(rows[0][0])

    def maintain(self) -> Maintenance:
        """Make slots ahead, drop those past retention, and trim the logs; a wheel does so every hour.

        Slots, the partitions of messages by day, are dropped whole, the oldest first: those past retention
        that every group has finished, and, while all slots together are larger than the broker's
        ``retention_bytes``, further past ones. Waiting messages are never dropped. A warning in the log names
        messages that were lost unread.

        Returns:
            A report of the slots dropped and kept, with warnings.
        """
        from duewheel.store.wheel import upkeep

        def call(statement: str) -> tuple[Any, ...]:
            return self._database.rows(statement, (self._database.now(),))[0]

        done = upkeep.maintenance(upkeep.in_rounds(call))
        upkeep.warn(done, log)
        return done

    def settings(self) -> Settings:
        """The broker's own settings, and how large its messages are on disk."""
        return operations.settings.settings(self._database)

    def update_settings(
        self, *, retention_bytes: int | None = None, when_full: WhenFull | str | None = None
    ) -> None:
        """Change settings of the broker; settings that are not given stay.

        Args:
            retention_bytes: above this size on disk, indexes included, the oldest slots go before their
                retention ends; 0 is no limit, which is the default. :meth:`maintain` checks it, once an hour.
            when_full: the treatment of a slot that a group has not finished: ``"drop_unread"`` drops it with
                a warning, ``"keep_unread"`` keeps it with a warning. Broadcasting instances protect nothing.

        Raises:
            InvalidArgument: a setting out of its limits.

        Example::

            broker.update_settings(retention_bytes=50 * 2**30, when_full="keep_unread")
        """
        operations.settings.update_settings(self._database, retention_bytes, when_full)

    def wheel(
        self,
        *,
        listen: bool | None = None,
        topics: Sequence[str] | None = None,
        on_released: Callable[[int], None] | None = None,
    ) -> WheelRunner:
        """A timing wheel for this broker, to be run in a thread or an event loop.

        Args:
            listen: whether it uses LISTEN; None is the broker's own setting.
            topics: the topics to look after, by name; None is all.
            on_released: called with a topic's number after messages of it were released.
        """
        from duewheel.store.wheel.runner import WheelRunner

        return WheelRunner(
            self.dsn,
            listen=self._listen if listen is None else listen,
            topics=topics,
            on_released=on_released,
        )
