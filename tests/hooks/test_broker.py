"""The hook turns a connection of Airflow into a broker, and reads nothing else from it than it says."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from airflow.sdk import Connection
from psycopg2.extensions import make_dsn, parse_dsn

from duewheel.hooks.broker import DueWheelHook, address_of
from duewheel.store import Broker
from duewheel.store.values.errors import BrokerUnreachable, InvalidArgument

if TYPE_CHECKING:
    from duewheel.store import EmbeddedPostgres

CONN_VARIABLE = "AIRFLOW_CONN_DUEWHEEL_DEFAULT"


def connection_to(dsn: str, **extras: object) -> str:
    """Airflow's JSON for a connection to the database at ``dsn``."""
    named = parse_dsn(dsn)
    return json.dumps(
        {
            "conn_type": "duewheel",
            "host": named.get("host"),
            "port": named.get("port"),
            "login": named.get("user"),
            "password": named.get("password"),
            "schema": named["dbname"],
            "extra": extras,
        }
    )


def test_every_field_of_the_form_reaches_the_address() -> None:
    connection = Connection(
        conn_id="c",
        host="db.internal",
        port=6432,
        login="app",
        password="a b'c",
        schema="shop",
        extra=json.dumps(
            {
                "sslmode": "verify-full",
                "sslrootcert": "/ca.pem",
                "connect_timeout": 3,
                "call_timeout": "7.5",
                "listen": False,
            }
        ),
    )
    address = address_of(connection)
    named = parse_dsn(address.dsn)
    assert named["host"] == "db.internal"
    assert named["port"] == "6432"
    assert named["user"] == "app"
    assert named["password"] == "a b'c"
    assert named["dbname"] == "shop"
    assert named["sslmode"] == "verify-full"
    assert named["sslrootcert"] == "/ca.pem"
    assert named["connect_timeout"] == "3"
    assert address.listen is False
    with address.open() as broker:
        assert broker._database.answer_seconds == 7.5


def test_extras_that_are_not_on_the_list_are_not_read() -> None:
    extras = {
        "options": "-c search_path=evil",
        "service": "x",
        "passfile": "/etc/shadow",
        "dbname": "other",
        "host": "h",
    }
    named = parse_dsn(address_of(Connection(conn_id="c", schema="shop", extra=json.dumps(extras))).dsn)
    assert named["dbname"] == "shop"
    assert not {"options", "service", "passfile", "host"} & named.keys()


def test_the_password_is_not_shown() -> None:
    address = address_of(Connection(conn_id="c", schema="shop", password="do-not-show"))
    assert "do-not-show" not in repr(address)


@pytest.mark.parametrize(
    ("value", "listen"),
    [(True, True), ("true", True), ("False", False), ("off", False), (None, True), ("", True), (0, False)],
)
def test_listen_is_understood_from_forms_uris_and_json(value: object, listen: bool) -> None:
    connection = Connection(conn_id="c", schema="shop", extra=json.dumps({"listen": value}))
    assert address_of(connection).listen is listen


@pytest.mark.parametrize(
    ("connection", "words"),
    [
        (Connection(conn_id="c", host="db"), "'c' names no database. Fill in its field 'Database'"),
        (Connection(conn_id="c", schema="s", extra="{"), "extras of the connection 'c' are not JSON"),
        (Connection(conn_id="c", schema="s", extra="[1]"), "extras of the connection 'c' are a list"),
        (Connection(conn_id="c", schema="s", extra='{"listen": "perhaps"}'), "it takes true or false"),
        *(
            (
                Connection(conn_id="c", schema="s", extra=json.dumps({"call_timeout": value})),
                "seconds above 0",
            )
            for value in (0, "two minutes", "nan")
        ),
        (
            Connection(conn_id="c", schema="s", extra='{"sslmode": "requir"}'),
            "'requir'; it takes one of disable",
        ),
        (
            Connection(conn_id="c", conn_type="duewheel", schema="s", extra='{"sslmod": "require"}'),
            "unknown extra 'sslmod': correct or remove it; the extras are sslmode",
        ),
    ],
)
def test_a_connection_that_names_no_broker_says_what_to_do(connection: Connection, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        address_of(connection)


def test_a_connection_as_a_uri_reaches_the_broker(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.create_topic("orders")
    monkeypatch.setenv(CONN_VARIABLE, Connection.from_json(connection_to(broker.dsn), conn_id="c").get_uri())
    with DueWheelHook().get_conn() as reached:
        assert [topic.name for topic in reached.topics()] == ["orders"]


def test_the_test_button_says_that_the_broker_is_ready(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONN_VARIABLE, connection_to(broker.dsn))
    assert DueWheelHook().test_connection() == (True, "Connected: the broker is ready and has 0 topics.")


def test_the_test_button_says_that_the_schema_is_missing(
    postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONN_VARIABLE, connection_to(postgres.ensure_database("empty")))
    done, words = DueWheelHook().test_connection()
    assert not done
    assert words.startswith("BrokerNotUpgraded: ")
    assert "duewheel db upgrade" in words


def test_a_trigger_resolves_the_connection_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONN_VARIABLE, "duewheel://app@db:5432/shop?listen=false")
    address = asyncio.run(DueWheelHook().aresolve())
    assert parse_dsn(address.dsn)["dbname"] == "shop"
    assert address.listen is False


@pytest.mark.parametrize(
    ("parameters", "advice"),
    [
        ({"dbname": "nowhere"}, "check the name of the database, or create it"),
        ({"user": "nobody-knows"}, "check the user and the password"),
        ({"password": "wrong"}, "check the user and the password"),
        ({"sslmode": "requir"}, "correct sslmode of the connection"),
        ({"sslmode": "require"}, "switch SSL on at the server, or choose another sslmode"),
        ({"host": "/nowhere"}, "check the address and that the server runs"),
    ],
)
def test_what_hinders_a_connection_is_said_with_what_to_do(
    dsn: str, parameters: dict[str, str], advice: str
) -> None:
    with Broker(make_dsn(dsn, **parameters)) as broker, pytest.raises(BrokerUnreachable, match=advice):
        broker.topics()
