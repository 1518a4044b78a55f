"""Connections of the Apache Spark provider mean the same here as there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowNotFoundException

from duewheel.hooks.spark_connection import SparkPlace, spark_place
from duewheel.store.values.errors import InvalidArgument


def of(monkeypatch: pytest.MonkeyPatch, connection: str | dict[str, Any]) -> SparkPlace:
    text = connection if isinstance(connection, str) else json.dumps(connection)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", text)
    return spark_place("spark_default")


@pytest.mark.parametrize(
    ("connection", "master"),
    [
        ({"conn_type": "spark", "host": "local[2]"}, "local[2]"),
        ({"conn_type": "spark", "host": "yarn"}, "yarn"),
        ({"conn_type": "spark", "host": "spark://10.0.0.1", "port": 7077}, "spark://10.0.0.1:7077"),
        ({"conn_type": "spark", "host": "10.0.0.1", "port": 7077}, "spark://10.0.0.1:7077"),
        ({"conn_type": "spark", "host": "k8s://https://10.0.0.1:443"}, "k8s://https://10.0.0.1:443"),
        ({"conn_type": "spark", "host": "sc://10.0.0.1:15002"}, "sc://10.0.0.1:15002"),
        ("spark://10.0.0.1:7077", "spark://10.0.0.1:7077"),
        ("k8s://10.0.0.1:443", "k8s://10.0.0.1:443"),
        ("sc://10.0.0.1:15002", "sc://10.0.0.1:15002"),
        ("yarn://", "yarn"),
        ({"conn_type": "spark_connect", "host": "10.0.0.1", "port": 15002}, "sc://10.0.0.1:15002/"),
        (
            {
                "conn_type": "spark_connect",
                "host": "sc://10.0.0.1",
                "login": "ann",
                "password": "a;b",
                "extra": '{"use_ssl": true}',
            },
            "sc://10.0.0.1/;user_id=ann;token=a%3Bb;use_ssl=true",
        ),
    ],
)
def test_master(monkeypatch: pytest.MonkeyPatch, connection: str | dict[str, Any], master: str) -> None:
    place = of(monkeypatch, connection)
    assert place == SparkPlace(master)
    assert master not in repr(place)


def test_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    extras = {
        "queue": "night",
        "deploy-mode": "cluster",
        "spark-binary": "spark3-submit",
        "namespace": "",
        "rest-port": "6066",
        "spark.executor.cores": 2,
        "spark.speculation": True,
    }
    place = of(monkeypatch, {"conn_type": "spark", "host": "yarn", "extra": json.dumps(extras)})
    assert (place.deploy_mode, place.binary) == ("cluster", "spark3-submit")
    assert place.conf == {
        "spark.yarn.queue": "night",
        "spark.executor.cores": "2",
        "spark.speculation": "true",
    }


@pytest.mark.parametrize(
    ("connection", "said"),
    [
        ({"conn_type": "spark"}, "names no master"),
        ({"conn_type": "spark_connect"}, "names no server"),
        ({"conn_type": "spark", "host": "yarn", "extra": '{"deploy-mode": "far"}'}, "client, cluster"),
        ({"conn_type": "spark", "host": "yarn", "extra": '{"spark-binary": "sh"}'}, "spark3-submit"),
        ({"conn_type": "spark", "host": "yarn", "extra": '{"keytab": "QUJD"}'}, "spark.kerberos.keytab"),
        ({"conn_type": "spark", "host": "yarn", "extra": '{"spark-home": "/opt"}'}, "SPARK_HOME"),
    ],
)
def test_unknown_values_are_refused(
    monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said) as refused:
        of(monkeypatch, connection)
    assert "\n" not in str(refused.value)


def test_connection_that_is_not_there_is_no_yarn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT", raising=False)
    with pytest.raises(AirflowNotFoundException):
        spark_place("spark_default")


def test_x19_secrets_of_a_connection_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"spark.hadoop.fs.s3a.secret.key": "hush"}
    place = of(monkeypatch, {"conn_type": "spark", "host": "local[2]", "extra": extra})
    assert place.conf == extra
    assert "hush" not in repr(place)
