"""Releasing due messages, and upkeep: by a wheel, or by a call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from duewheel.store.database.connected import Connected
from duewheel.store.values.bodies import check_text

if TYPE_CHECKING:
    from duewheel.store.wheel.runner import WheelRunner
    from duewheel.store.wheel.upkeep import Maintenance

log = logging.getLogger(__name__)

_MAY_TURN = """
select coalesce(bool_and(has_function_privilege(p.oid, 'execute')), true)
from pg_proc p join pg_namespace n on n.oid = p.pronamespace
where n.nspname = 'duewheel' and p.proname = 'due_topics'
"""


class Turning(Connected):
    """The wheel, and the parts of its work as single calls."""

    def tick(self, topic: str) -> bool:
        """Release the due messages of a topic; true if there were any.

        It also revives leases of its groups that have ended. Programs need not call this: a consumer that
        hears no wheel does so before it receives, and a wheel does so on time.

        Raises:
            UnknownTopic: no topic has this name.
        """
        check_text(topic, "topic")
        ((released,),) = self._database.rows("call duewheel.tick(%s, %s)", (topic, self._database.now()))
        return bool(released)

    def maintain(self) -> Maintenance:
        """Make slots ahead, drop slots past retention, and trim the logs; a wheel does so every hour, with
        pauses, and this call without.

        Slots, the partitions of messages by day, are dropped whole, the oldest first: those past retention
        that every group has finished, and, while all slots together are larger than the broker's
        ``retention_bytes``, further past slots. Waiting messages are never dropped. A warning in the log
        names messages that were lost unread.

        Returns:
            A report of the slots dropped and kept, with warnings, also of steps that failed.
        """
        from duewheel.store.wheel import upkeep

        def call(state: str | None, rows: int) -> upkeep.State:
            ((next_state,),) = self._database.rows(upkeep.STEP, (state, rows, self._database.now()))
            return dict(next_state)

        done = upkeep.maintenance(upkeep.in_rounds(call))
        upkeep.warn(done, log)
        return done

    def may_turn_wheel(self) -> bool:
        """Whether the login has the right to release messages; also true if that cannot be found out."""
        ((may_turn,),) = self._database.rows(_MAY_TURN, ())
        return bool(may_turn)

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
