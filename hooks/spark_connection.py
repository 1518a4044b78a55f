"""Reads an Airflow connection of the Apache Spark provider: where Spark runs, and how.

The provider itself is not used, because it installs ``pyspark-client``, which overwrites files of ``pyspark``
with those of another Spark version. Connections are read in the provider's own form
(``SparkSubmitHook._resolve_connection`` and ``SparkConnectHook.get_connection_url`` of version 6.3), so
``spark_default`` has the same meaning as for ``SparkSubmitOperator``. It may name a master in any of these
ways:

- type ``spark``, host ``local[4]``, ``yarn``, ``spark://10.0.0.1``, ``k8s://https://10.0.0.1`` or
  ``sc://10.0.0.1``, with the port in its own field or in the host;
- as an address such as ``spark://10.0.0.1:7077``, which Airflow takes apart into type, host and port;
- type ``spark_connect``, with the user's id as login, a token as password, and the extra ``use_ssl``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseHook

from duewheel.store.values.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Connection

CONF_OF_EXTRA = {
    "queue": "spark.yarn.queue",
    "namespace": "spark.kubernetes.namespace",
    "principal": "spark.kerberos.principal",
}
"""Extras that are settings of Spark under another name. Names that begin with ``spark.`` are unchanged."""

NOT_READ = {
    "keytab": "put the file on the workers, and its path into the extra spark.kerberos.keytab",
    "spark-home": "set SPARK_HOME on the workers",
}
"""Extras that must not be ignored silently, each with what to do instead."""

DEPLOY_MODES = ("client", "cluster")
BINARIES = ("spark-submit", "spark2-submit", "spark3-submit")


@dataclass(frozen=True)
class SparkPlace:
    """Where Spark runs, and how.

    Attributes:
        master: as ``spark-submit --master`` takes it, or ``sc://...`` for Spark Connect. It is not shown,
            because that of Spark Connect may hold a token.
        deploy_mode: where the driver is to run, ``client`` or ``cluster``; None is Spark's default. The
            operator refuses ``cluster``.
        binary: the program that submits an application, looked up on ``PATH``; None is the ``spark-submit``
            of ``pyspark``.
        conf: settings of Spark. They are not shown, because they may hold passwords.
    """

    master: str = field(repr=False)
    deploy_mode: str | None = None
    binary: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)


def spark_place(conn_id: str) -> SparkPlace:
    """Read a connection.

    Args:
        conn_id: id of a connection of type ``spark`` or ``spark_connect``.

    Raises:
        AirflowNotFoundException: the connection does not exist.
        InvalidArgument: the connection names no master, or has a value that is not understood here.

    Example::

        spark_place("spark_default").master
    """
    connection = BaseHook.get_connection(conn_id)
    extras: dict[str, Any] = connection.extra_dejson
    for name, instead in NOT_READ.items():
        if extras.get(name):
            raise InvalidArgument(f'the extra "{name}" of connection {conn_id} is not read here: {instead}')
    deploy_mode, binary = extras.get("deploy-mode") or None, extras.get("spark-binary") or None
    known = (("deploy-mode", deploy_mode, DEPLOY_MODES), ("spark-binary", binary, BINARIES))
    for name, value, words in known:
        if value is not None and value not in words:
            raise InvalidArgument(
                f'the extra "{name}" of connection {conn_id} is {value!r}: give one of {", ".join(words)}'
            )
    named = {CONF_OF_EXTRA.get(name, name): value for name, value in extras.items()}
    conf = {
        name: _text(value)
        for name, value in named.items()
        if name.startswith("spark.") and value not in (None, "")
    }
    master = _connect_address(connection) if connection.conn_type == "spark_connect" else _master(connection)
    return SparkPlace(master, deploy_mode, binary, conf)


def _master(connection: Connection) -> str:
    host = connection.host or ""
    if connection.conn_type == "yarn":
        return "yarn"
    if not host:
        raise InvalidArgument(
            f"connection {connection.conn_id} names no master: give local[2], spark://host:7077, yarn, "
            "k8s://https://host:443 or sc://host:15002 as its host"
        )
    whole = connection.conn_type == "spark" and ("://" in host or not connection.port)
    master = host if whole else f"{connection.conn_type}://{host}"
    return f"{master}:{connection.port}" if connection.port else master


def _connect_address(connection: Connection) -> str:
    if not connection.host:
        raise InvalidArgument(f"connection {connection.conn_id} names no server: give its host")
    host = connection.host.removeprefix("sc://")
    parameters = {
        "user_id": connection.login,
        "token": connection.password,
        "use_ssl": _text(connection.extra_dejson.get("use_ssl")),
    }
    given = "".join(f";{name}={quote(value)}" for name, value in parameters.items() if value)
    port = f":{connection.port}" if connection.port else ""
    return f"sc://{host}{port}/{given}"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
