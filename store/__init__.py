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
    from duewheel.store.broker import Broker as Broker
    from duewheel.store.consumer import Consumer as Consumer
    from duewheel.store.doorbells import Doorbell as Doorbell
    from duewheel.store.embedded import EmbeddedPostgres as EmbeddedPostgres
    from duewheel.store.embedded import EmbeddedPostgresError as EmbeddedPostgresError
    from duewheel.store.errors import AlreadyAnswered as AlreadyAnswered
    from duewheel.store.errors import AlreadyReleased as AlreadyReleased
    from duewheel.store.errors import BodyTooLarge as BodyTooLarge
    from duewheel.store.errors import BrokerMoved as BrokerMoved
    from duewheel.store.errors import BrokerNotUpgraded as BrokerNotUpgraded
    from duewheel.store.errors import BrokerUnreachable as BrokerUnreachable
    from duewheel.store.errors import DelayOutOfRange as DelayOutOfRange
    from duewheel.store.errors import DueWheelError as DueWheelError
    from duewheel.store.errors import GroupBusy as GroupBusy
    from duewheel.store.errors import InvalidArgument as InvalidArgument
    from duewheel.store.errors import InvalidDelayLevel as InvalidDelayLevel
    from duewheel.store.errors import InvalidFilter as InvalidFilter
    from duewheel.store.errors import InvalidInstant as InvalidInstant
    from duewheel.store.errors import InvalidKey as InvalidKey
    from duewheel.store.errors import InvalidSchedule as InvalidSchedule
    from duewheel.store.errors import InvalidTag as InvalidTag
    from duewheel.store.errors import InvalidTagExpression as InvalidTagExpression
    from duewheel.store.errors import LeaseLost as LeaseLost
    from duewheel.store.errors import NotAllowed as NotAllowed
    from duewheel.store.errors import NulInText as NulInText
    from duewheel.store.errors import Overtaken as Overtaken
    from duewheel.store.errors import PropertiesTooLarge as PropertiesTooLarge
    from duewheel.store.errors import ScheduleExists as ScheduleExists
    from duewheel.store.errors import StagingFailed as StagingFailed
    from duewheel.store.errors import TopicExists as TopicExists
    from duewheel.store.errors import UnknownGroup as UnknownGroup
    from duewheel.store.errors import UnknownMessage as UnknownMessage
    from duewheel.store.errors import UnknownSchedule as UnknownSchedule
    from duewheel.store.errors import UnknownTopic as UnknownTopic
    from duewheel.store.errors import WrongIsolationLevel as WrongIsolationLevel
    from duewheel.store.errors import WrongMessageType as WrongMessageType
    from duewheel.store.groups import Group as Group
    from duewheel.store.groups import Rewound as Rewound
    from duewheel.store.lookups import MessagePage as MessagePage
    from duewheel.store.messages import Batch as Batch
    from duewheel.store.messages import ConsumeMode as ConsumeMode
    from duewheel.store.messages import Message as Message
    from duewheel.store.messages import MessageType as MessageType
    from duewheel.store.messages import NewMessage as NewMessage
    from duewheel.store.messages import OnConflict as OnConflict
    from duewheel.store.messages import OutOfRange as OutOfRange
    from duewheel.store.messages import RecallOutcome as RecallOutcome
    from duewheel.store.messages import SendOutcome as SendOutcome
    from duewheel.store.messages import SendReceipt as SendReceipt
    from duewheel.store.recalling import BulkRecall as BulkRecall
    from duewheel.store.retry_policy import RetryPolicy as RetryPolicy
    from duewheel.store.schedules import Misfire as Misfire
    from duewheel.store.schedules import Schedule as Schedule
    from duewheel.store.upkeep import Maintenance as Maintenance

# Each public name and the module it lives in.
_HOMES = {
    "AlreadyAnswered": "errors",
    "AlreadyReleased": "errors",
    "Batch": "messages",
    "BodyTooLarge": "errors",
    "Broker": "broker",
    "BrokerMoved": "errors",
    "BrokerNotUpgraded": "errors",
    "BrokerUnreachable": "errors",
    "BulkRecall": "recalling",
    "ConsumeMode": "messages",
    "Consumer": "consumer",
    "DelayOutOfRange": "errors",
    "Doorbell": "doorbells",
    "DueWheelError": "errors",
    "EmbeddedPostgres": "embedded",
    "EmbeddedPostgresError": "embedded",
    "Group": "groups",
    "GroupBusy": "errors",
    "InvalidArgument": "errors",
    "InvalidDelayLevel": "errors",
    "InvalidFilter": "errors",
    "InvalidInstant": "errors",
    "InvalidKey": "errors",
    "InvalidSchedule": "errors",
    "InvalidTag": "errors",
    "InvalidTagExpression": "errors",
    "LeaseLost": "errors",
    "Maintenance": "upkeep",
    "Message": "messages",
    "MessagePage": "lookups",
    "MessageType": "messages",
    "Misfire": "schedules",
    "NewMessage": "messages",
    "NotAllowed": "errors",
    "NulInText": "errors",
    "OnConflict": "messages",
    "OutOfRange": "messages",
    "Overtaken": "errors",
    "PropertiesTooLarge": "errors",
    "RecallOutcome": "messages",
    "RetryPolicy": "retry_policy",
    "Rewound": "groups",
    "Schedule": "schedules",
    "ScheduleExists": "errors",
    "StagingFailed": "errors",
    "SendOutcome": "messages",
    "SendReceipt": "messages",
    "TopicExists": "errors",
    "UnknownGroup": "errors",
    "UnknownMessage": "errors",
    "UnknownSchedule": "errors",
    "UnknownTopic": "errors",
    "WrongIsolationLevel": "errors",
    "WrongMessageType": "errors",
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
    "ConsumeMode",
    "Consumer",
    "DelayOutOfRange",
    "Doorbell",
    "DueWheelError",
    "EmbeddedPostgres",
    "EmbeddedPostgresError",
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
    "Overtaken",
    "PropertiesTooLarge",
    "RecallOutcome",
    "RetryPolicy",
    "Rewound",
    "Schedule",
    "ScheduleExists",
    "SendOutcome",
    "SendReceipt",
    "StagingFailed",
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
    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
