"""A schema that is changed while the API server runs: the page says both revisions and the command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg2
import pytest
from tests.airflow_runs import connection_json
from tests.conftest import execute
from tests.next_version import NextVersion

from duewheel.store.database.schema import newest_revision
from duewheel.store.values.errors import BrokerNotUpgraded

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.slow,
    # Importing Airflow's API warns of a library's future.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]

OLDER = "0000"
NEWER = f"{int(newest_revision()) + 1:04}"


class Page:
    """What the page asks the broker of a database, with the sessions of one process of the API server."""

    def __init__(self, dsn: str) -> None:
        from duewheel.plugin.brokers import Brokers

        self.dsn = dsn
        self._brokers = Brokers()

    def close(self) -> None:
        self._brokers.close()

    def show(self) -> str:
        """Ask for a list; "shown", or the text of the problem."""
        from duewheel.plugin.problems import of_database, unavailable
        from duewheel.store.operations import overview

        try:
            with self._brokers.lend("changed") as broker:
                overview.waiting_consumers(broker)
        except BrokerNotUpgraded as error:
            problem = unavailable(error)
            assert problem is not None
            return problem.detail
        except psycopg2.Error as error:
            return of_database(error).detail
        return "shown"

    def set_revision(self, revision: str) -> None:
        execute(self.dsn, f"update duewheel.alembic_version set version_num = '{revision}'")


@pytest.fixture
def page(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    monkeypatch.setenv("AIRFLOW_CONN_CHANGED", connection_json(dsn))
    with closing(Page(dsn)) as found:
        yield found


@pytest.mark.parametrize(
    "change",
    [
        "alter function duewheel.waiting_consumers rename to waiting_consumers_of_another",
        "drop schema duewheel cascade",
    ],
)
def test_x08_an_older_schema_under_a_running_page_says_both_revisions(page: Page, change: str) -> None:
    """As after a restore of an older backup, or of an empty database."""
    assert page.show() == "shown"
    page.set_revision(OLDER)
    execute(page.dsn, change)
    state = (
        "There is no duewheel schema in this database"
        if change.startswith("drop")
        else f"The schema is at revision {OLDER}"
    )
    assert page.show() == (
        f"{state}, this program needs revision {newest_revision()}. Run `duewheel db upgrade` on it."
    )


def test_x08_a_newer_schema_that_lacks_something_says_both_revisions(page: Page) -> None:
    assert page.show() == "shown"
    page.set_revision(NEWER)
    execute(page.dsn, "alter function duewheel.waiting_consumers rename to waiting_consumers_of_another")
    assert page.show() == (
        f"The schema is at revision {NEWER}, this program was made for revision {newest_revision()}. "
        "Run `pip install --upgrade airflow-provider-duewheel` on Airflow's API server, and restart it."
    )


def test_x08_a_page_goes_on_when_the_schema_is_upgraded_under_it(
    page: Page, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """First the page is newer than the schema, and then older."""
    page.set_revision(OLDER)
    assert f"revision {OLDER}" in page.show()
    page.set_revision(newest_revision())
    assert page.show() == "shown"
    NextVersion(tmp_path_factory.mktemp("next")).upgrade(page.dsn)
    assert page.show() == "shown"
