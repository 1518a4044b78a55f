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

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duewheel.embedded.postgres import EmbeddedPostgres as EmbeddedPostgres
    from duewheel.embedded.postgres import EmbeddedPostgresError as EmbeddedPostgresError
    from duewheel.store.broker import Broker as Broker
    from duewheel.store.consuming.consumer import Consumer as Consumer
    from duewheel.store.values.bulk_results import BulkRecall as BulkRecall
    from duewheel.store.values.bulk_results import Rewound as Rewound
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
    from duewheel.store.values.errors import WrongIsolationLevel as WrongIsolationLevel
    from duewheel.store.values.errors import WrongMessageType as WrongMessageType
    from duewheel.store.values.groups import Group as Group
    from duewheel.store.values.messages import Batch as Batch
    from duewheel.store.values.messages import ConsumeMode as ConsumeMode
    from duewheel.store.values.messages import Message as Message
    from duewheel.store.values.messages import MessageType as MessageType
    from duewheel.store.values.messages import NewMessage as NewMessage
    from duewheel.store.values.messages import OnConflict as OnConflict
    from duewheel.store.values.messages import OutOfRange as OutOfRange
    from duewheel.store.values.messages import RecallOutcome as RecallOutcome
    from duewheel.store.values.messages import SendOutcome as SendOutcome
    from duewheel.store.values.messages import SendReceipt as SendReceipt
    from duewheel.store.values.retry_policy import RetryPolicy as RetryPolicy
    from duewheel.store.values.schedules import Misfire as Misfire
    from duewheel.store.values.schedules import Schedule as Schedule
    from duewheel.store.values.stored_messages import MessagePage as MessagePage
    from duewheel.store.wheel.upkeep import Maintenance as Maintenance

# Each public name and the module it lives in, below duewheel.
_HOMES = {
    "AlreadyAnswered": "store.values.errors",
    "AlreadyReleased": "store.values.errors",
    "Batch": "store.values.messages",
    "BodyTooLarge": "store.values.errors",
    "Broker": "store.broker",
    "BrokerMoved": "store.values.errors",
    "BrokerNotUpgraded": "store.values.errors",
    "BrokerUnreachable": "store.values.errors",
    "BulkRecall": "store.values.bulk_results",
    "ConsumeMode": "store.values.messages",
    "Consumer": "store.consuming.consumer",
    "ClockSetBack": "store.values.errors",
    "DelayOutOfRange": "store.values.errors",
    "Doorbell": "store.values.doorbells",
    "DueWheelError": "store.values.errors",
    "EmbeddedPostgres": "embedded.postgres",
    "EmbeddedPostgresError": "embedded.postgres",
    "ExtraMissing": "store.values.errors",
    "Group": "store.values.groups",
    "GroupBusy": "store.values.errors",
    "InvalidArgument": "store.values.errors",
    "InvalidDelayLevel": "store.values.errors",
    "InvalidFilter": "store.values.errors",
    "InvalidInstant": "store.values.errors",
    "InvalidKey": "store.values.errors",
    "InvalidSchedule": "store.values.errors",
    "InvalidTag": "store.values.errors",
    "InvalidTagExpression": "store.values.errors",
    "LeaseLost": "store.values.errors",
    "Maintenance": "store.wheel.upkeep",
    "Message": "store.values.messages",
    "MessagePage": "store.values.stored_messages",
    "MessageType": "store.values.messages",
    "Misfire": "store.values.schedules",
    "NewMessage": "store.values.messages",
    "NotAllowed": "store.values.errors",
    "NulInText": "store.values.errors",
    "OnConflict": "store.values.messages",
    "OutOfRange": "store.values.messages",
    "PropertiesTooLarge": "store.values.errors",
    "RecallOutcome": "store.values.messages",
    "RetryPolicy": "store.values.retry_policy",
    "Rewound": "store.values.bulk_results",
    "Schedule": "store.values.schedules",
    "ScheduleExists": "store.values.errors",
    "StagingFailed": "store.values.errors",
    "SendOutcome": "store.values.messages",
    "SendReceipt": "store.values.messages",
    "TickInTransaction": "store.values.errors",
    "TopicExists": "store.values.errors",
    "UnknownGroup": "store.values.errors",
    "UnknownMessage": "store.values.errors",
    "UnknownSchedule": "store.values.errors",
    "UnknownTopic": "store.values.errors",
    "WrongIsolationLevel": "store.values.errors",
    "WrongMessageType": "store.values.errors",
}

__all__ = [
    "AlreadyAnswered",
    "AlreadyReleased",
    "Batch",
    "BodyTooLarge",
    "Broker",
    "BrokerMoved",
    "BrokerNotUpgraded",
    "BrokerUnreachable",
    "BulkRecall",
    "ClockSetBack",
    "ConsumeMode",
    "Consumer",
    "DelayOutOfRange",
    "Doorbell",
    "DueWheelError",
    "EmbeddedPostgres",
    "EmbeddedPostgresError",
    "ExtraMissing",
    "Group",
    "GroupBusy",
    "InvalidArgument",
    "InvalidDelayLevel",
    "InvalidFilter",
    "InvalidInstant",
    "InvalidKey",
    "InvalidSchedule",
    "InvalidTag",
    "InvalidTagExpression",
    "LeaseLost",
    "Maintenance",
    "Message",
    "MessagePage",
    "MessageType",
    "Misfire",
    "NewMessage",
    "NotAllowed",
    "NulInText",
    "OnConflict",
    "OutOfRange",
    "PropertiesTooLarge",
    "RecallOutcome",
    "RetryPolicy",
    "Rewound",
    "Schedule",
    "ScheduleExists",
    "SendOutcome",
    "SendReceipt",
    "StagingFailed",
    "TickInTransaction",
    "TopicExists",
    "UnknownGroup",
    "UnknownMessage",
    "UnknownSchedule",
    "UnknownTopic",
    "WrongIsolationLevel",
    "WrongMessageType",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"duewheel.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
