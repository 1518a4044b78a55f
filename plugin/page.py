"""The page in Airflow's UI, as Airflow's plugin machinery reads it.

Airflow imports this module in every process, even in workers, but only its API server uses the page. So this
module imports only the base class, and makes the application when the API server asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow.plugins_manager import AirflowPlugin

if TYPE_CHECKING:
    from fastapi import FastAPI

URL_PREFIX = "/duewheel"
#: The label in Airflow's navigation, as long as it has room for.
PAGE_NAME = "Delays"


class _MadeWhenRead:
    """A class attribute whose value is made when it is read."""

    def __init__(self, make: Callable[[], list[dict[str, Any]]]) -> None:
        self._make = make

    def __get__(self, instance: object, owner: type | None = None) -> list[dict[str, Any]]:
        return self._make()


@cache
def _application() -> FastAPI:
    """The application, made once: Airflow's UI asks for the list of plugins at each load of a page."""
    from duewheel.plugin.app import application

    return application()


def _fastapi_apps() -> list[dict[str, Any]]:
    return [{"app": _application(), "url_prefix": URL_PREFIX, "name": "duewheel"}]


def _react_apps() -> list[dict[str, Any]]:
    from duewheel.plugin.bundle import bundle_version

    # Relative to the page's base address, which includes a proxy's path prefix. A new version has a new
    # address, so a browser never shows an old page from its cache.
    static = f"{URL_PREFIX.removeprefix('/')}/static"
    # Airflow's UI loads a script once, and keeps the component under this name for all places.
    shared = {
        "name": PAGE_NAME,
        "bundle_url": f"{static}/main.js?v={bundle_version()}",
        "icon": f"{static}/icon.svg",
        "icon_dark_mode": f"{static}/icon-dark.svg",
    }
    return [
        {**shared, "destination": "nav", "url_route": "duewheel", "nav_top_level": True},
        {**shared, "destination": "task_instance", "url_route": "duewheel-task"},
    ]


class DueWheelPlugin(AirflowPlugin):
    """The parts of duewheel in Airflow's UI: a page, a tab of each task instance, and their API."""

    name = "duewheel"
    fastapi_apps = _MadeWhenRead(_fastapi_apps)
    react_apps = _MadeWhenRead(_react_apps)
