"""Consumer groups: their topics, their retry settings and who set them, and their positions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from duewheel.store.database.connected import Connected
from duewheel.store.values.bodies import check_text
from duewheel.store.values.instants import Instant, to_datetime
from duewheel.store.values.reasons import as_reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duewheel.store.operations.overview import RunningLease
    from duewheel.store.values.bulk_results import Rewound
    from duewheel.store.values.groups import Group

_GROUPS = """
select consumer_group, topic, mode, instance, max_retries,
    array(select (extract(epoch from i) * 1000000)::bigint
          from unnest(retry_intervals) with ordinality w (i, place) order by place),
    retry_jitter, message_type = 'FIFO', settings_by, settings_at, read_to, released_to, stalled_since,
    paused_at, tags, filter::text
from duewheel.groups
order by consumer_group, topic, instance
"""

_REWIND = """
select sum(leases_ended)::bigint, sum(messages_returned)::bigint, sum(retries_recalled)::bigint,
    coalesce(jsonb_agg(rest) filter (where rest is not null), '[]')
from duewheel.rewind(%s, %s, %s, %s, %s)
"""
_REWIND_CHUNK = """
select leases_ended, messages_returned, retries_recalled, rest from duewheel.rewind_chunk(%s, %s)
"""


class Groups(Connected):
    """The operations on consumer groups."""

    def groups(self) -> list[Group]:
        """All consumer groups: their topics, tags, filters, retry settings and positions."""
        from duewheel.store.values.groups import groups_of

        return groups_of(self._database.read(_GROUPS, ()))

    def rename_group(self, group: str, new_name: str) -> None:
        """Give a consumer group another name; its positions, leases, retries and dead letters are kept.

        Running consumers continue, and their receipt handles stay valid. Rename the group before a consumer
        with the new name starts. A consumer that starts with the old name gets InvalidArgument: its group
        would receive all kept messages again.

        Args:
            group: the group; of a broadcasting one, all instances are renamed.
            new_name: a name that no group has; it may be the former name of a group.

        Raises:
            UnknownGroup: no group has this name.
            InvalidArgument: the new name is not valid, or a group has it.
            GroupBusy: the group is made, deleted or renamed in a transaction that has been open for 10 s.

        Example::

            broker.rename_group("cancel", "cancel-orders")
        """
        check_text(group, "group")
        check_text(new_name, "new_name")
        self._database.rows("select duewheel.rename_group(%s, %s)", (group, new_name))

    def delete_group(self, group: str, *, topic: str | None = None) -> None:
        """Delete a consumer group: its positions, leases, retries and dead letters; messages stay.

        The group's consumers get UnknownGroup with their next receive, and LeaseLost for the messages that
        they have leased. A new consumer makes the group again, from its start.

        Args:
            group: the group; of a broadcasting group all instances, or one instance as ``group/instance``.
            topic: only the group's part on this topic; None is all of it.

        Raises:
            UnknownTopic, UnknownGroup: no such topic or group, or the group does not read the topic.
            GroupBusy: the group is read in a transaction that has been open for 10 s.

        Example::

            broker.delete_group("cancel")
        """
        check_text(group, "group")
        check_text(topic, "topic", optional=True)
        more = True
        while more:
            ((more,),) = self._database.rows("select more from duewheel.delete_group(%s, %s)", (group, topic))

    def pause_group(self, group: str, *, topic: str | None = None) -> int:
        """Let a consumer group get no messages until it is resumed; its position is kept.

        Its consumers receive nothing, no DAG is started for it, and its streams stop. Leased messages may be
        answered. Leases end, and failed messages become retries or dead letters, as without a pause. A topic
        that the group reads later is not paused.

        Args:
            group: the group; of a broadcasting group all instances, or one instance as ``group/instance``.
            topic: only on this topic; None is all that it reads.

        Returns:
            On how many topics, or for how many instances, it was not paused before.

        Raises:
            UnknownTopic, UnknownGroup: no such topic or group, or the group does not read the topic.

        Example::

            broker.pause_group("cancel")
        """
        return self._set_paused("pause_group", group, topic)

    def resume_group(self, group: str, *, topic: str | None = None) -> int:
        """Let a paused consumer group continue from its position.

        Args:
            group, topic: see :meth:`pause_group`.

        Returns:
            On how many topics, or for how many instances, it was paused before.

        Raises:
            UnknownTopic, UnknownGroup: no such topic or group, or the group does not read the topic.

        Example::

            broker.resume_group("cancel")
        """
        return self._set_paused("resume_group", group, topic)

    def retry_now(self, group: str, message_ids: Sequence[str]) -> list[str]:
        """Make retries due now.

        Each keeps its attempts and the error of the last one. On a FIFO topic the later messages of its
        message group follow it.

        Args:
            group: the group in which they wait.
            message_ids: 1 to 1000 messages, by any ids that they have had.

        Returns:
            The ids of the messages whose retry waited. All others are in flight, ready, done or dead letters.

        Raises:
            UnknownGroup: no group has this name.
            GroupBusy: the group is read in a transaction that has been open for 10 s.
            InvalidArgument: not a message id, or too many.

        Example::

            broker.retry_now("cancel-unpaid-orders", [message_id])
        """
        from duewheel.store.operations.dead_letters import ids_of
        from duewheel.store.operations.recalling import decided

        check_text(group, "group")
        asked = (group, ids_of(message_ids), self._database.now())
        ((waited,),) = decided(
            lambda: self._database.rows("select duewheel.retry_now(%s, %s, %s)", asked),
        )
        return list(waited)

    def leases(
        self, *, topic: str | None = None, group: str | None = None, max_leases: int = 200
    ) -> list[RunningLease]:
        """The leases that run, the first to end at the top.

        Args:
            topic, group: only on this topic, and of this group; None is all.
            max_leases: at most so many, 1 to 1000.

        Raises:
            UnknownGroup, UnknownTopic: no such topic or group.
            InvalidArgument: ``max_leases`` is out of its limits.
        """
        from duewheel.store.operations.overview import running_leases

        return running_leases(self, max_leases, group, topic)[0]

    def release_lease(self, lease_id: str, reason: str | None = None) -> int | None:
        """End the lease of a consumer that hangs, as if it had expired now.

        Its messages are ready again at once and count an attempt, because the consumer may hang on them; a
        message without retries left becomes a dead letter. A late answer of the consumer gets LeaseLost. Do
        not use it while a consumer still works on the messages: the work would be done twice.

        Args:
            lease_id: the id in :meth:`leases`.
            reason: a text for the history of the messages.

        Returns:
            How many messages are ready again or become dead letters; None if the lease was answered or had
            ended.

        Raises:
            GroupBusy: the lease is answered in a transaction that has been open for 10 s.
            InvalidArgument: not the id of a lease, or a lease of a broadcasting consumer.

        Example::

            for lease in broker.leases(group="cancel-unpaid-orders"):
                broker.release_lease(lease.lease_id, "its machine is gone")
        """
        check_text(lease_id, "lease_id")
        ((messages,),) = self._database.rows(
            "select duewheel.release_lease(%s, %s, %s)",
            (lease_id, None if reason is None else as_reason(reason), self._database.now()),
        )
        return None if messages is None else int(messages)

    def _set_paused(self, call: str, group: str, topic: str | None) -> int:
        check_text(group, "group")
        check_text(topic, "topic", optional=True)
        ((changed,),) = self._database.rows(
            f"select duewheel.{call}(%s, %s, %s)", (group, topic, self._database.now())
        )
        return int(changed)

    def rewind(self, topic: str, group: str, to: Instant | str) -> Rewound:
        """Let a group consume again all messages released since an instant; other groups are not affected.

        Leased messages are taken from the group's consumers: a late answer gets LeaseLost. A leased message
        or a retry is not lost if it was released before the instant, or if the group's tags and filter no
        longer choose it: it stays, or is ready again. On a FIFO topic this also holds for messages that were
        set aside because an earlier message of their message group was not done. Dead letters stay. Messages
        past retention are not delivered again.

        Args:
            topic: a topic that the group reads.
            group: the group; of a broadcasting group all instances, or one instance as ``group/instance``.
            to: an instant that is not in the future, or "earliest" for all messages that are kept, or
                "latest" for those released from now on. The instant of the release counts, not the instant
                at which the message was due.

        Returns:
            How many leases ended, messages are ready again and retries were recalled. Leases end and
            retries are recalled in portions after the position has moved. Until then the group may answer
            such a lease, or receive such a retry in addition to its message.

        Raises:
            UnknownTopic, UnknownGroup: no such topic or group, or the group does not read the topic.
            GroupBusy: the group has answered in a transaction that has been open for 10 s.
            InvalidArgument: ``to`` is none of the above, or in the future.
            InvalidInstant: not an instant.

        Example::

            broker.rewind("orders.timeout", "cancel", datetime.now(UTC) - timedelta(hours=1))
        """
        from duewheel.store.values.bulk_results import Rewound

        check_text(group, "group")
        check_text(topic, "topic")
        if isinstance(to, str):
            check_text(to, "to")
            instant, start = None, to
        else:
            instant, start = to_datetime(to, "to"), None
        ((*done, rests),) = self._database.rows(_REWIND, (topic, group, instant, start, self._database.now()))
        for rest in rests:
            left = rest
            while left is not None:
                chunk = (json.dumps(left), self._database.now())
                ((*counts, left),) = self._database.rows(_REWIND_CHUNK, chunk)
                done = [one + count for one, count in zip(done, counts, strict=True)]
        return Rewound(*done)
