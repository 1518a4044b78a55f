"""The pytest plugin. It only declares fixtures, which import and start what they need when a test asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from duewheel.testing.broker_in_test import BrokerInTest
    from duewheel.testing.dag_runs import Airflow
    from duewheel.testing.databases import Databases

__all__ = ["duewheel", "duewheel_airflow", "duewheel_databases", "duewheel_server"]


@pytest.fixture(scope="session")
def duewheel_server() -> Iterator[str]:
    """The address of the Postgres in which each test gets a database: an embedded one, for the session.

    A project with its own server overrides this fixture with one that returns the address of any
    database of it. The login has to be a superuser there, or may make databases and roles.
    """
    from duewheel.testing.databases import embedded_server

    with embedded_server() as dsn:
        yield dsn


@pytest.fixture(scope="session")
def duewheel_databases(duewheel_server: str) -> Iterator[Databases]:
    """Makes the databases of the tests; the schema is made once, and copied for each test."""
    from duewheel.testing.databases import Databases

    with Databases(duewheel_server) as databases:
        yield databases


@pytest.fixture(scope="session")
def duewheel_airflow(tmp_path_factory: pytest.TempPathFactory) -> Airflow:
    """The Airflow that ``duewheel.run_dag`` uses, which shares nothing with an installed Airflow."""
    from duewheel.testing.dag_runs import Airflow

    return Airflow(tmp_path_factory.mktemp("duewheel-airflow"))


@pytest.fixture
def duewheel(
    duewheel_databases: Databases, duewheel_airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> Iterator[BrokerInTest]:
    """A broker in a database of this test alone, whose clock is stopped until the test moves it.

    The connection ``duewheel_default`` of Airflow and the command line's ``DUEWHEEL_DSN`` lead to it.
    """
    from duewheel.testing.broker_in_test import BrokerInTest

    with (
        duewheel_databases.fresh() as dsn,
        BrokerInTest(dsn, airflow=duewheel_airflow, environment=monkeypatch) as broker,
    ):
        yield broker
