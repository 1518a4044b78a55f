"""Leases in the hands of a driver: keeping them alive, and answering them as a whole.

During the work, :meth:`HeldLeases.kept_alive` extends the leases. An ack in a transaction first stops
the extending: from then on the broker waits for the transaction's end before it gives the messages to another
consumer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from psycopg2.extensions import TRANSACTION_STATUS_IDLE

from duewheel.spark.lease_states import BatchOutcome, outcome_of
from duewheel.spark.rejecting import OwnRejects
from duewheel.store.broker import Broker
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.consuming.lease_keeper import LeaseKeeper
from duewheel.store.consuming.lease_states import (
    HELD,
    OPEN,
    LeaseState,
    lease_states,
    raise_if_lost,
)
from duewheel.store.database.connections import DriverConnection, driver_connection
from duewheel.store.values.errors import LeaseLost
from duewheel.store.values.leases import Lease

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duewheel.store.database.connections import CallerConnection

NACK_WAIT = timedelta(seconds=30)
"""How long a nack waits for open transactions that answer leases of the batch."""


class HeldLeases:
    """The leases of a batch, how far they are answered, and what keeps them alive.

    Attributes:
        leases: the leases, to be passed on with :func:`duewheel.store.leases.to_json`.
        count: how many messages they cover.
    """

    def __init__(self, broker: Broker, consumer: Consumer, leases: list[Lease], invisible: timedelta) -> None:
        self.leases = leases
        self.count = sum(lease.count for lease in leases)
        self._is_answered = False
        self._broker = broker
        self._consumer = consumer
        self._invisible = invisible
        self._keeper: LeaseKeeper | None = None
        self._transaction: DriverConnection | None = None
        # Why the work on some leases failed.
        self._reasons: Mapping[Lease, str] = {}
        self._may_be_given_back = False
        self._own = OwnRejects()

    def __bool__(self) -> bool:
        return bool(self.leases)

    @property
    def answered(self) -> bool:
        """Whether an answer was given and not refused. If it was inside a transaction that was rolled back
        later, the broker does not have it."""
        return self._is_answered

    def outcome(self) -> BatchOutcome:
        """How many messages are acked, given back, unanswered and lost by now."""
        with self._broker.connection() as connection:
            return outcome_of(lease_states(connection, self.leases, self._broker.now()))

    @contextmanager
    def kept_alive(self) -> Iterator[LeaseKeeper]:
        """Extend the leases until the block is left, or the batch is answered inside it.

        The keeper that the block gets says whether a lease was lost (``lost``, ``raise_if_lost``).
        """
        keeper = LeaseKeeper(self._consumer, self.leases, self._invisible)
        keeper.may_be_given_back = self._may_be_given_back
        with keeper:
            self._keeper = keeper
            try:
                yield keeper
            finally:
                self._keeper = None

    def ack(self, connection: CallerConnection | None = None) -> None:
        """Say that the work on all messages is done.

        Args:
            connection: a psycopg2 connection, or a SQLAlchemy ``Connection`` or ``Session``, in whose
                transaction to ack: the work and the ack are then committed, or rolled back, together.

        Raises:
            LeaseLost: a lease had ended. Nothing is changed, and the transaction cannot go on.

        Example::

            with closing(psycopg2.connect(dsn)) as connection, connection:
                cancel_orders(connection, unpaid)
                batch.ack(connection)
        """
        self._stop_keeper()
        self._transaction = None if connection is None else driver_connection(connection)
        self._is_answered = True
        try:
            self._consumer.ack(self._not_given_back(), connection=connection)
        except BaseException:
            # Whatever ends it, an interrupt too: the batch may be answered still.
            self.note_answered(all_of_it=False)
            raise

    def ack_unanswered(self) -> int:
        """Ack the unanswered messages and return how many they are. For a caller that ends the work of other
        processes.

        Raises:
            LeaseLost: a lease had ended unanswered; nothing is changed.
        """
        self._stop_keeper()
        with self._broker.connection() as connection:
            states = lease_states(connection, self.leases, self._broker.now())
        raise_if_lost(states)
        held = [state.lease for state in states if state.state in (HELD, OPEN)]
        if held:
            self._consumer.ack(held)
        self.note_answered(all_of_it=True)
        return outcome_of(states).unanswered

    def nack(self, delay: timedelta | None = None, *, reason: str | None = None) -> None:
        """Give back all messages that have no answer: each is delivered again, or is a dead letter after
        its last retry.

        Args:
            delay: until the next delivery, from now; None is the group's interval for that retry.
            reason: kept with the retry, for the message's history. Parts that failed in
                :meth:`~duewheel.spark.batch.Batch.foreach_partition` keep their own.

        Raises:
            LeaseLost: a lease had ended, or all were answered before. Leases still held were given back.
        """
        self._stop_keeper()
        by_reason: dict[str | None, list[Lease]] = {}
        for lease in self.leases:
            by_reason.setdefault(self._reasons.get(lease, reason), []).append(lease)
        states: list[LeaseState] = []
        for said, leases in by_reason.items():
            states += self._consumer.answer_held("nack", leases, delay=delay, reason=said, wait=NACK_WAIT)
        raise_if_lost(states)
        if states and all(state.state not in (HELD, OPEN) for state in states):
            raise LeaseLost(
                f"all messages of the batch were answered before ({states[0].state}): "
                "there is nothing to give back"
            )
        self.note_answered(all_of_it=True)

    def give_back(self, *, reason: str | None = None) -> None:
        """Give back all messages that have no answer and were not worked on: they are ready again at once, as
        the same attempt.

        Args:
            reason: to be read in the messages' history.

        Raises:
            LeaseLost: a lease had ended. Leases still held were given back.

        Example::

            try:
                spark = spark_session("late orders")
            except Exception:
                batch.give_back(reason="Spark did not start")
                raise
        """
        self._stop_keeper()
        raise_if_lost(self._consumer.answer_held("give_back", self.leases, reason=reason, wait=NACK_WAIT))
        self.note_answered(all_of_it=True)

    def _not_given_back(self) -> list[Lease]:
        return [lease for lease in self.leases if lease not in self._own.leases]

    def keep(self, invisible: timedelta) -> int:
        """Extend all unanswered leases to last ``invisible`` from now; returns how many they are."""
        self._stop_keeper()
        states = self._consumer.answer_held("extend", self.leases, invisible=invisible)
        return sum(state.state == HELD for state in states)

    def let_others_reject(self) -> None:
        """Do not take a lease that is given back for lost from now on, because messages are rejected."""
        self._may_be_given_back = True
        if self._keeper is not None:
            self._keeper.may_be_given_back = True

    def loss(self, states: Sequence[LeaseState]) -> LeaseLost | None:
        """The error to raise when messages may be with others although the work itself gave none of them
        back, or None.

        Args:
            states: of all the leases, as they were before this call.
        """
        return self._own.loss(states)

    def note_answered(self, *, all_of_it: bool) -> None:
        """Take up whether all of the batch is answered, other than in an open transaction."""
        self._is_answered = all_of_it
        self._transaction = None

    def in_open_transaction(self) -> bool:
        """Whether an ack was made in a transaction that is still open: another answer would wait for its
        end."""
        transaction = self._transaction
        return (
            transaction is not None
            and not transaction.closed
            and transaction.info.transaction_status != TRANSACTION_STATUS_IDLE
        )

    def _stop_keeper(self) -> None:
        # An extension beside an answer would find the lease gone and call it lost.
        if self._keeper is not None:
            self._keeper.stop()
