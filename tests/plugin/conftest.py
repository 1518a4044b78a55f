"""One API server and one browser for all tests of the page, which take seconds to start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.conftest import execute
from tests.plugin.airflow_server import AirflowServer, airflow_server

from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.plugin.bundle import _BUILT
from duewheel.store.broker import Broker

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def shop_dsn(fresh_database: Callable[[], tuple[str, str]]) -> str:
    """The database of the broker that the page shows first."""
    return fresh_database()[1]


@pytest.fixture(scope="session")
def shop(shop_dsn: str) -> Iterator[Broker]:
    """That broker."""
    with Broker(shop_dsn) as broker:
        yield broker


@pytest.fixture(scope="session")
def night_dsn(fresh_database: Callable[[], tuple[str, str]]) -> str:
    """The database of a broker in which the oldest and the most are what one module made."""
    return fresh_database()[1]


@pytest.fixture(scope="session")
def airflow(
    tmp_path_factory: pytest.TempPathFactory,
    shop_dsn: str,
    night_dsn: str,
    fresh_database: Callable[[], tuple[str, str]],
    postgres: EmbeddedPostgres,
) -> Iterator[AirflowServer]:
    """An API server whose page shows these brokers, and others that are of no use."""
    _, moved_dsn = fresh_database()
    execute(moved_dsn, "update duewheel.broker set system_identifier = 1")
    brokers = {
        "duewheel_default": shop_dsn,
        "moved": moved_dsn,
        "night": night_dsn,
        "not_upgraded": postgres.dsn(),
        "unreachable": "host=127.0.0.1 port=1 dbname=secret_name user=secret_user password=secret_word",
    }
    with airflow_server(tmp_path_factory.mktemp("page"), brokers) as server:
        yield server


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """The system's Chromium, without a window.

    Its driver keeps an event loop running in this thread, so it ends with the module: no test after it could
    run a loop of its own.
    """
    from playwright.sync_api import sync_playwright

    # The tests are of the page that is built from the sources, not of what stands in for it.
    if not _BUILT.exists():
        pytest.fail("the page is not built: run `make page`")
    path = next(one for one in ("/usr/bin/chromium", "/usr/bin/google-chrome") if Path(one).exists())
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
