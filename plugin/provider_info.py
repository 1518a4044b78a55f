"""The parts that the package offers to Airflow: the entry point ``apache_airflow_provider`` calls
:func:`get_provider_info`.

Airflow calls it in every process, so nothing is imported here and classes are named by their paths. The form
of the connection is described here, too; since Airflow 3.2 the form does not import the hook.
"""

from __future__ import annotations

from typing import Any

INTEGRATION = "duewheel"


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description in the form of Airflow's ``provider_info.schema.json``.

    Example:
        >>> get_provider_info()["connection-types"][0]["connection-type"]
        'duewheel'
    """
    return {
        "package-name": "airflow-provider-duewheel",
        "name": "duewheel",
        "description": "Delay messages on Postgres, released by a timing wheel, handled by DAGs and Spark.",
        "integrations": [{"integration-name": INTEGRATION, "tags": ["service"]}],
        "hooks": [{"integration-name": INTEGRATION, "python-modules": ["duewheel.hooks.broker"]}],
        "operators": [
            {
                "integration-name": INTEGRATION,
                "python-modules": [
                    "duewheel.operators.consume",
                    "duewheel.operators.due_messages",
                    "duewheel.operators.recall",
                    "duewheel.operators.redrive",
                    "duewheel.operators.reschedule",
                    "duewheel.operators.send",
                    "duewheel.operators.send_many",
                    "duewheel.operators.spark",
                    "duewheel.operators.topic",
                ],
            }
        ],
        "sensors": [{"integration-name": INTEGRATION, "python-modules": ["duewheel.sensors.due_messages"]}],
        "triggers": [
            {
                "integration-name": INTEGRATION,
                "python-modules": ["duewheel.triggers.due_messages", "duewheel.triggers.timing_wheel"],
            }
        ],
        "config": {
            "duewheel": {
                "description": "Options of the delay messages' wheel.",
                "options": {
                    "ring_again_seconds": {
                        "description": "How long a TimingWheelTrigger without ring_again waits before it "
                        "rings again if no run has taken its messages. Give more than a run "
                        "takes to start.\n",
                        "version_added": "0.2.0",
                        "type": "float",
                        "example": "120",
                        "default": "60",
                    },
                    "metrics_interval_seconds": {
                        "description": "How often the triggerer asks a broker for its metrics if Airflow "
                        "sends metrics; 60 seconds or more.\n",
                        "version_added": "0.2.0",
                        "type": "float",
                        "example": "300",
                        "default": "60",
                    },
                },
            }
        },
        "task-decorators": [
            {"name": "due_messages", "class-name": "duewheel.operators.decorators.due_messages_task"},
            {
                "name": "spark_due_messages",
                "class-name": "duewheel.operators.decorators.spark_due_messages_task",
            },
        ],
        "notifications": ["duewheel.operators.notifier.SendDelayMessageNotifier"],
        "asset-uris": [
            {
                "schemes": ["duewheel"],
                "handler": "duewheel.plugin.asset_uri.sanitize_uri",
                "to_openlineage_converter": "duewheel.plugin.asset_uri.convert_asset_to_openlineage",
            }
        ],
        "extra-links": [
            "duewheel.hooks.links.DeadLettersLink",
            "duewheel.hooks.links.MessageLink",
            "duewheel.hooks.links.SparkUiLink",
            "duewheel.hooks.links.TopicLink",
        ],
        "queues": ["duewheel.triggers.queue_provider.DueWheelMessageQueueProvider"],
        "connection-types": [
            {
                "connection-type": "duewheel",
                "hook-class-name": "duewheel.hooks.broker.DueWheelHook",
                "hook-name": "duewheel",
                "ui-field-behaviour": {
                    "hidden-fields": ["extra"],
                    "relabeling": {"schema": "Database", "login": "User"},
                    "placeholders": {
                        "host": "localhost, or /path of a Unix socket's folder",
                        "port": "5432",
                        "schema": "duewheel",
                        "login": "duewheel",
                    },
                },
                "conn-fields": _conn_fields(),
            }
        ],
    }


def _conn_fields() -> dict[str, Any]:
    """The fields of the form that are stored in the connection's extras: exactly the extras that the hook
    reads."""
    return {
        "listen": {
            "label": "LISTEN/NOTIFY",
            "description": "Off behind a pooler that shares sessions, such as PgBouncer in transaction mode.",
            "schema": {"type": ["boolean", "null"], "default": True},
        },
        "sslmode": {
            "label": "SSL mode",
            "schema": {
                "type": ["string", "null"],
                "enum": ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"],
            },
        },
        "sslrootcert": {"label": "SSL root certificate (path)", "schema": {"type": ["string", "null"]}},
        "sslcert": {"label": "SSL client certificate (path)", "schema": {"type": ["string", "null"]}},
        "sslkey": {"label": "SSL client key (path)", "schema": {"type": ["string", "null"]}},
        "sslcrl": {"label": "SSL revocation list (path)", "schema": {"type": ["string", "null"]}},
        "connect_timeout": {
            "label": "Connect timeout (seconds)",
            "schema": {"type": ["integer", "null"], "minimum": 1},
        },
        "call_timeout": {
            "label": "Call timeout (seconds)",
            "description": "How long each statement may wait for its answer; 120 when empty.",
            "schema": {"type": ["number", "null"], "exclusiveMinimum": 0},
        },
        "target_session_attrs": {
            "label": "Target session attributes",
            "description": "With several hosts: which one to use, such as read-write.",
            "schema": {"type": ["string", "null"]},
        },
    }
