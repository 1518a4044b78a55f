"""The broker: messages, the wheel, leases, recalls. It knows Postgres, and neither Airflow nor Spark.

Everything a program needs is a name of this package::

    from datetime import timedelta
    from duewheel.store import Broker

    with Broker("postgresql://...") as broker:
        broker.send("order-timeout", {"order": 4711}, delay=timedelta(minutes=30), key="4711")

Names are imported on first use, so ``import duewheel.store`` costs nothing in a DAG file that only mentions
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duewheel.store.lazy_names import lazy_names

if TYPE_CHECKING:
    from duewheel.embedded.postgres import EmbeddedPostgres as EmbeddedPostgres
    from duewheel.embedded.postgres import EmbeddedPostgresError as EmbeddedPostgresError
    from duewheel.store.broker import Broker as Broker
    from duewheel.store.consuming.consumer import Consumer as Consumer
    from duewheel.store.consuming.lease_states import LeaseState as LeaseState
    from duewheel.store.operations.overview import RunningLease as RunningLease
    from duewheel.store.values.bulk_results import BulkRecall as BulkRecall
    from duewheel.store.values.bulk_results import Rewound as Rewound
    from duewheel.store.values.bulk_results import SubscriptionChange as SubscriptionChange
    from duewheel.store.values.doorbells import Doorbell as Doorbell
    from duewheel.store.values.errors import AlreadyAnswered as AlreadyAnswered
    from duewheel.store.values.errors import AlreadyReleased as AlreadyReleased
    from duewheel.store.values.errors import BodyTooLarge as BodyTooLarge
    from duewheel.store.values.errors import BrokerMoved as BrokerMoved
    from duewheel.store.values.errors import BrokerNotUpgraded as BrokerNotUpgraded
    from duewheel.store.values.errors import BrokerUnreachable as BrokerUnreachable
    from duewheel.store.values.errors import ClockSetBack as ClockSetBack
    from duewheel.store.values.errors import DelayOutOfRange as DelayOutOfRange
    from duewheel.store.values.errors import DueWheelError as DueWheelError
    from duewheel.store.values.errors import ExtraMissing as ExtraMissing
    from duewheel.store.values.errors import GroupBusy as GroupBusy
    from duewheel.store.values.errors import InvalidArgument as InvalidArgument
    from duewheel.store.values.errors import InvalidDelayLevel as InvalidDelayLevel
    from duewheel.store.values.errors import InvalidFilter as InvalidFilter
    from duewheel.store.values.errors import InvalidInstant as InvalidInstant
    from duewheel.store.values.errors import InvalidKey as InvalidKey
    from duewheel.store.values.errors import InvalidSchedule as InvalidSchedule
    from duewheel.store.values.errors import InvalidTag as InvalidTag
    from duewheel.store.values.errors import InvalidTagExpression as InvalidTagExpression
    from duewheel.store.values.errors import LeaseLost as LeaseLost
    from duewheel.store.values.errors import NotAllowed as NotAllowed
    from duewheel.store.values.errors import NulInText as NulInText
    from duewheel.store.values.errors import PropertiesTooLarge as PropertiesTooLarge
    from duewheel.store.values.errors import ScheduleExists as ScheduleExists
    from duewheel.store.values.errors import StagingFailed as StagingFailed
    from duewheel.store.values.errors import TickInTransaction as TickInTransaction
    from duewheel.store.values.errors import TopicExists as TopicExists
    from duewheel.store.values.errors import UnknownGroup as UnknownGroup
    from duewheel.store.values.errors import UnknownMessage as UnknownMessage
    from duewheel.store.values.errors import UnknownSchedule as UnknownSchedule
    from duewheel.store.values.errors import UnknownTopic as UnknownTopic
    from duewheel.store.values.errors import UnreadableBody as UnreadableBody
    from duewheel.store.values.errors import WrongIsolationLevel as WrongIsolationLevel
    from duewheel.store.values.errors import WrongMessageType as WrongMessageType
    from duewheel.store.values.groups import Group as Group
    from duewheel.store.values.messages import AnswerOutcome as AnswerOutcome
    from duewheel.store.values.messages import AnswerReceipt as AnswerReceipt
    from duewheel.store.values.messages import Batch as Batch
    from duewheel.store.values.messages import ConsumeMode as ConsumeMode
    from duewheel.store.values.messages import EarlyAnswer as EarlyAnswer
    from duewheel.store.values.messages import KeyRecall as KeyRecall
    from duewheel.store.values.messages import Message as Message
    from duewheel.store.values.messages import MessageType as MessageType
    from duewheel.store.values.messages import NewMessage as NewMessage
    from duewheel.store.values.messages import OnConflict as OnConflict
    from duewheel.store.values.messages import OutOfRange as OutOfRange
    from duewheel.store.values.messages import RecallOutcome as RecallOutcome
    from duewheel.store.values.messages import RecallReceipt as RecallReceipt
    from duewheel.store.values.messages import SendOutcome as SendOutcome
    from duewheel.store.values.messages import SendReceipt as SendReceipt
    from duewheel.store.values.messages import Wait as Wait
    from duewheel.store.values.messages import WaitOutcome as WaitOutcome
    from duewheel.store.values.retry_policy import RetryPolicy as RetryPolicy
    from duewheel.store.values.schedules import Misfire as Misfire
    from duewheel.store.values.schedules import Schedule as Schedule
    from duewheel.store.values.stored_messages import MessagePage as MessagePage
    from duewheel.store.wheel.upkeep import Maintenance as Maintenance

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "duewheel.embedded.postgres": "EmbeddedPostgres EmbeddedPostgresError",
        "duewheel.store.broker": "Broker",
        "duewheel.store.consuming.consumer": "Consumer",
        "duewheel.store.consuming.lease_states": "LeaseState",
        "duewheel.store.operations.overview": "RunningLease",
        "duewheel.store.values.bulk_results": "BulkRecall Rewound SubscriptionChange",
        "duewheel.store.values.doorbells": "Doorbell",
        "duewheel.store.values.errors": (
            "AlreadyAnswered AlreadyReleased BodyTooLarge BrokerMoved BrokerNotUpgraded "
            "BrokerUnreachable ClockSetBack DelayOutOfRange DueWheelError ExtraMissing GroupBusy "
            "InvalidArgument InvalidDelayLevel InvalidFilter InvalidInstant InvalidKey InvalidSchedule "
            "InvalidTag InvalidTagExpression LeaseLost NotAllowed NulInText PropertiesTooLarge "
            "ScheduleExists StagingFailed TickInTransaction TopicExists UnknownGroup UnknownMessage "
            "UnknownSchedule UnknownTopic UnreadableBody WrongIsolationLevel WrongMessageType"
        ),
        "duewheel.store.values.groups": "Group",
        "duewheel.store.values.messages": (
            "AnswerOutcome AnswerReceipt Batch ConsumeMode EarlyAnswer KeyRecall Message MessageType "
            "NewMessage OnConflict OutOfRange RecallOutcome RecallReceipt SendOutcome SendReceipt Wait "
            "WaitOutcome"
        ),
        "duewheel.store.values.retry_policy": "RetryPolicy",
        "duewheel.store.values.schedules": "Misfire Schedule",
        "duewheel.store.values.stored_messages": "MessagePage",
        "duewheel.store.wheel.upkeep": "Maintenance",
    },
)
