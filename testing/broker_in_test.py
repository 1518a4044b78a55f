"""The broker of one test: a clock that the test moves, assertions about messages, and runs of DAGs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol

from duewheel.store.broker import Broker
from duewheel.store.values.bodies import check_text, to_bytes
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.instants import Instant, said_span, to_datetime, to_span
from duewheel.testing.clock import StandingClock
from duewheel.testing.connections import connection_json

if TYPE_CHECKING:
    from duewheel.store.values.stored_messages import StoredMessage
    from duewheel.testing.dag_runs import Airflow, DagRunResult

#: How far an instant may be from the expected one: code under test may compute it from its own clock.
TOLERANCE: Final = timedelta(seconds=1)
#: How long before it is due a schedule's message is sent.
_AHEAD: Final = timedelta(seconds=10)
#: An assertion that fails names this many messages.
_NAMED_MESSAGES = 10


class Environment(Protocol):
    """Sets environment variables for the length of a test, as pytest's ``monkeypatch`` does."""

    def setenv(self, name: str, value: str) -> None:
        """Set one."""


class BrokerInTest(Broker):
    """A broker in a database of one test, whose clock is stopped until the test moves it.

    The fixture ``duewheel`` makes it. It is a :class:`~duewheel.store.broker.Broker` in all else. The clock
    is the database's: it holds for every program that reaches the database. Airflow's connection
    ``duewheel_default`` and ``DUEWHEEL_DSN`` lead to it while the test runs.

    Args:
        dsn: the database.
        airflow: runs the DAGs.
        environment: sets the environment variables.

    Example::

        def test_an_order_has_half_an_hour(duewheel):
            duewheel.create_topic("order-timeout")
            place_order(duewheel, "4711")
            duewheel.assert_sent("order-timeout", key="4711", due_in=timedelta(minutes=30))
            duewheel.advance(minutes=30)
            (timeout,) = duewheel.consumer("order-timeout", "canceller").receive()
            assert timeout.key == "4711"
    """

    def __init__(self, dsn: str, *, airflow: Airflow, environment: Environment) -> None:
        self._standing = StandingClock(dsn)
        super().__init__(dsn, clock=self._standing)
        self._airflow = airflow
        self._environment = environment
        environment.setenv("DUEWHEEL_DSN", dsn)
        self.connect("duewheel_default")

    def close(self) -> None:
        """Close the idle connections."""
        super().close()
        self._standing.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- the clock -------------------------------------------------------------------------------------------

    @property
    def time(self) -> datetime:
        """The clock's present instant in UTC; at first the second in which the test began."""
        return self._standing.stands_at().astimezone(UTC)

    def advance(self, by: timedelta | None = None, **span: float) -> datetime:
        """Move the clock on and turn the wheel, as if this time had passed.

        Messages that are due by then are released, retries are due again, schedules send their occurrences
        one after the other, and leases that end by then have ended.

        Args:
            by: the span; or its parts by name, as ``timedelta`` takes them: ``advance(minutes=30)``.
            span: the parts by name.

        Returns:
            The clock's new instant, in UTC.

        Raises:
            InvalidArgument: the span is negative, or not given.

        Example::

            duewheel.advance(minutes=30)
        """
        if (by is None) == (not span):
            raise InvalidArgument("advance takes a timedelta or its parts by name: give advance(minutes=30)")
        return self.advance_to(self.time + (timedelta(**span) if by is None else to_span(by, "by")))

    def advance_to(self, instant: Instant) -> datetime:
        """Like :meth:`advance`, to an instant.

        Raises:
            InvalidArgument: the instant is before :attr:`time`.
            InvalidInstant: it is not an instant.
        """
        target = to_datetime(instant, "instant")
        if target < self.time:
            raise InvalidArgument(
                f"the clock is at {self.time} and is never set back: give a later instant than {target}"
            )
        while (occurs_at := self._next_occurrence()) is not None and occurs_at - _AHEAD <= target:
            # A little ahead, as a wheel sends them; at the instant itself if the topic allows no delay.
            self._turn_at(occurs_at - _AHEAD)
            if self._next_occurrence() == occurs_at:
                self._turn_at(min(occurs_at, target))
            if self._next_occurrence() == occurs_at:
                # It cannot be sent; the log says why.
                break
        return self._turn_at(target)

    def _next_occurrence(self) -> datetime | None:
        return min(
            (one.next_at for one in self.schedules() if one.next_at is not None and not one.paused),
            default=None,
        )

    def _turn_at(self, instant: datetime) -> datetime:
        self._standing.set(max(instant, self.time))
        self.maintain()
        self.advance_schedules()
        for topic in self.topics():
            self.tick(topic.name)
        return self.time

    # -- messages --------------------------------------------------------------------------------------------

    def assert_sent(
        self,
        topic: str,
        key: str | None = None,
        *,
        due_in: timedelta | None = None,
        body: object = None,
        tag: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> StoredMessage:
        """Assert that exactly one message was sent that is as described, and return it.

        Messages that were recalled or replaced do not count; messages that consumers have received do.

        Args:
            topic: the topic that it was sent to.
            key, tag: as it was sent; None is any.
            due_in: from :attr:`time` on, to the second: code under test may use its own clock.
            body: as given to ``send``; None is any.
            properties: properties that it has, perhaps with others.

        Raises:
            AssertionError: no message matches, or several do; it names the messages sent to the topic.
            UnknownTopic: the topic does not exist.

        Example::

            duewheel.assert_sent("order-timeout", key="4711", due_in=timedelta(minutes=30))
        """
        found = self._sent(topic, key, due_in, body, tag, properties)
        if len(found) != 1:
            how_many = "no message" if not found else f"{len(found)} messages"
            raise AssertionError(f"{how_many} of topic {topic} as asserted; {self._all_of(topic)}")
        return found[0]

    def assert_not_sent(self, topic: str, key: str | None = None) -> None:
        """Assert that no message was sent, or that each was recalled or replaced.

        Args:
            topic: the topic.
            key: the key; None is any.

        Raises:
            AssertionError: there is one; it names the messages sent to the topic.
            UnknownTopic: the topic does not exist.
        """
        if self._sent(topic, key, None, None, None, None):
            raise AssertionError(f"a message was sent to topic {topic}; {self._all_of(topic)}")

    def assert_recalled(self, topic: str, key: str) -> StoredMessage:
        """Assert that every message with this key was recalled, so that none is ever delivered.

        Args:
            topic: the topic.
            key: the key.

        Returns:
            The message that is due last.

        Raises:
            AssertionError: one was not recalled, or there is none; it names the messages that were sent.
            UnknownTopic: the topic does not exist.

        Example::

            pay_order(duewheel, "4711")
            duewheel.assert_recalled("order-timeout", "4711")
        """
        check_text(key, "key")
        ends = [message for message in self._stored(topic, key) if message.moved_to is None]
        if not ends or not all(message.recalled for message in ends):
            raise AssertionError(
                f"not every message with key {key!r} of topic {topic} was recalled; {self._all_of(topic)}"
            )
        return ends[-1]

    def _sent(
        self,
        topic: str,
        key: str | None,
        due_in: timedelta | None,
        body: object,
        tag: str | None,
        properties: Mapping[str, Any] | None,
    ) -> list[StoredMessage]:
        wanted: list[Callable[[StoredMessage], bool]] = [
            lambda one: not one.recalled and one.moved_to is None and one.replaced_by is None
        ]
        if due_in is not None:
            due_at = self.time + to_span(due_in, "due_in")
            wanted.append(lambda one: abs(one.deliver_at - due_at) <= TOLERANCE)
        if body is not None:
            bytes_wanted = to_bytes(body)
            wanted.append(lambda one: one.body == bytes_wanted)
        if tag is not None:
            wanted.append(lambda one: one.tag == tag)
        if properties is not None:
            wanted.append(lambda one: one.properties.items() >= properties.items())
        return [one for one in self._stored(topic, key) if all(holds(one) for holds in wanted)]

    def _stored(self, topic: str, key: str | None) -> list[StoredMessage]:
        if key is not None:
            found = self.find_key(topic, key)
        else:
            found = []
            after: str | None = None
            while True:
                page = self.list_messages(topic, state="all", after=after)
                found += [one for each in page.messages if (one := self.find(each.message_id)) is not None]
                if (after := page.next) is None:
                    break
        return sorted({one.message_id: one for one in found}.values(), key=lambda one: one.deliver_at)

    def _all_of(self, topic: str) -> str:
        stored = self._stored(topic, None)
        if not stored:
            return "nothing was sent to it"
        said = [
            f"  key {one.key!r}, tag {one.tag!r}, due in {self._due_in(one)}, "
            f"body {one.body[:80]!r}" + (", replaced" if one.replaced_by else ", recalled" * one.recalled)
            for one in stored[:_NAMED_MESSAGES]
        ]
        more = f"\n  and {len(stored) - len(said)} more" if len(stored) > len(said) else ""
        return "sent to it were:\n" + "\n".join(said) + more

    def _due_in(self, message: StoredMessage) -> str:
        return said_span(timedelta(seconds=round((message.deliver_at - self.time).total_seconds())))

    # -- Airflow ---------------------------------------------------------------------------------------------

    def connect(self, conn_id: str, conn_type: str = "duewheel") -> None:
        """Let a connection of Airflow lead to this database, for the length of the test.

        Args:
            conn_id: the connection's id.
            conn_type: its type, such as ``postgres`` for the hook that your tasks use.

        Example::

            duewheel.connect("orders_db", "postgres")
        """
        check_text(conn_id, "conn_id")
        self._environment.setenv(
            f"AIRFLOW_CONN_{conn_id.upper()}", connection_json(self.dsn, conn_type=conn_type)
        )

    def run_dag(
        self,
        dag: Any,
        *,
        conf: Mapping[str, Any] | None = None,
        left_out: str | None = None,
        ends: str = "success",
    ) -> DagRunResult:
        """Run a DAG to its end with ``dag.test()``, on this broker.

        The run is a separate process with its own Airflow. It neither reads nor touches the database, the
        secrets and the settings of an Airflow that is installed here. A patch in the process of the test does
        not reach it; environment variables do, except for settings (``AIRFLOW__...``).
        ``duewheel_default`` and the ``duewheel_conn_id`` of each task lead to this broker; :meth:`connect`
        gives further connections. The tasks use this broker's clock, which is stopped meanwhile. So a
        ``DueMessagesSensor`` that finds too few messages times out at once: it fails, or is skipped
        with ``soft_fail``.

        Args:
            dag: a DAG at the top level of its file, or the function of such a ``@dag``.
            conf: the run's configuration, which sets its params.
            left_out: a regular expression; tasks whose whole id matches succeed without being run.
            ends: the state in which the run ends.

        Returns:
            The states and results of its tasks, and its log.

        Raises:
            AssertionError: the run ended otherwise, or not at all; it has the run's log.

        Example::

            run = duewheel.run_dag(place_orders(), conf={"orders": 10})
            assert run.tasks["place"].xcom == 10
        """
        from duewheel.testing.dag_runs import declared

        for_run = declared(dag)
        for conn_id in for_run.conn_ids:
            self.connect(conn_id)
        return self._airflow.run(for_run, conf=conf, left_out=left_out, ends=ends)
