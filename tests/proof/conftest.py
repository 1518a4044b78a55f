"""A server that takes prepared transactions, for all tests of this folder that have any."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from psycopg2.extensions import make_dsn
from tests.conftest import execute

from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.store.database import migration
from duewheel.testing.databases import TEST_SETTINGS

NUMBERS = count(1)


@pytest.fixture(scope="session")
def two_phase(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """The server. Its databases belong to a login that is no superuser."""
    settings = {**TEST_SETTINGS, "max_prepared_transactions": "5"}
    with EmbeddedPostgres(tmp_path_factory.mktemp("two-phase"), settings=settings) as server:
        template = server.ensure_database("template_plain")
        execute(template, "create role plain login password 'plain'")
        execute(template, "alter database template_plain owner to plain")
        migration.upgrade(make_dsn(template, user="plain", password="plain"))
        yield server


@pytest.fixture
def own_dsn(two_phase: EmbeddedPostgres) -> str:
    """A broker's database there; its owner sees of others' sessions as little as any login."""
    name = f"own_{next(NUMBERS)}"
    copied = f"create database {name} template template_plain strategy file_copy owner plain"
    execute(two_phase.dsn(), copied)
    return make_dsn(two_phase.dsn(name), user="plain", password="plain")
