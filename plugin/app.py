"""The API of the page: an application that Airflow's API server mounts under ``/duewheel``.

Every route that shows data depends on a right (``rights.py``). Errors are answered in words that leak neither
addresses nor SQL; the API server's log has the details.
"""

from __future__ import annotations

import psycopg2
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response

from duewheel import __version__
from duewheel.plugin import acted, acting, counting, exporting, seeing, waiting_runs, watching
from duewheel.plugin.brokers import BrokerBusy, UnknownBroker
from duewheel.plugin.bundle import bundle_version, icon, script
from duewheel.plugin.models import Problem
from duewheel.plugin.problems import of_database, unavailable
from duewheel.store import (
    AlreadyReleased,
    DueWheelError,
    NotAllowed,
    UnknownGroup,
    UnknownMessage,
    UnknownSchedule,
    UnknownTopic,
)

_NOT_FOUND = (UnknownTopic, UnknownGroup, UnknownMessage, UnknownSchedule)
_YEAR_SECONDS = 31_536_000
#: The header that names the script version of the answering API.
VERSION_HEADER = "Duewheel-Page"


def application() -> FastAPI:
    """Return a new application with all routes."""
    app = FastAPI(
        title="duewheel",
        version=__version__,
        description="The API of Airflow's page for delay messages. Not a public interface.",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(_say_version)],
    )
    # Before the route of one message, which would take the word for an id.
    app.include_router(counting.router)
    app.include_router(exporting.list_exports)
    app.include_router(seeing.router)
    app.include_router(exporting.router)
    app.include_router(acting.router)
    app.include_router(acted.router)
    app.include_router(watching.router)
    app.include_router(waiting_runs.router)
    app.add_api_route("/static/main.js", _script, include_in_schema=False)
    app.add_api_route("/static/{name}.svg", _icon, include_in_schema=False)
    app.add_exception_handler(DueWheelError, _refused)
    app.add_exception_handler(UnknownBroker, _unknown_broker)
    app.add_exception_handler(BrokerBusy, _busy)
    app.add_exception_handler(psycopg2.Error, _database_error)
    app.add_exception_handler(RequestValidationError, _not_understood)
    return app


def _say_version(response: Response) -> None:
    # A tab that was opened before an upgrade still runs the old script.
    response.headers[VERSION_HEADER] = bundle_version()


def _script() -> FileResponse:
    # Its address changes with its contents.
    headers = {"Cache-Control": f"public, max-age={_YEAR_SECONDS}, immutable"}
    return FileResponse(script(), media_type="text/javascript", headers=headers)


def _icon(name: str) -> Response:
    found = icon(f"{name}.svg")
    if found is None:
        return _problem(404, "UnknownFile", "There is no such icon.")
    return FileResponse(found, media_type="image/svg+xml")


def _refused(_: Request, error: Exception) -> JSONResponse:
    name = type(error).__name__
    problem = unavailable(error)
    if problem is not None:
        return _problem(503, problem.error, problem.detail)
    if isinstance(error, NotAllowed):
        return _problem(403, name, str(error))
    if isinstance(error, _NOT_FOUND):
        return _problem(404, name, str(error))
    if isinstance(error, AlreadyReleased):
        return _problem(409, name, str(error))
    return _problem(422, name, str(error))


def _unknown_broker(_: Request, __: Exception) -> JSONResponse:
    return _problem(404, "UnknownBroker", "No Airflow connection of type duewheel has this id.")


def _busy(_: Request, __: Exception) -> JSONResponse:
    return _problem(503, "BrokerBusy", "Other requests keep this broker busy. Try again in a moment.")


def _database_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, psycopg2.Error)
    problem = of_database(error)
    status = {"Locked": 503, "TookTooLong": 504, "InvalidValue": 422}.get(problem.error, 500)
    return _problem(status, problem.error, problem.detail)


def _not_understood(_: Request, error: Exception) -> JSONResponse:
    # The input, which FastAPI would quote, is left out: it may not be text, or be a number that JSON cannot
    # express.
    assert isinstance(error, RequestValidationError)
    said = "; ".join(f"{one['loc'][-1]}: {one['msg']}" for one in error.errors())
    return _problem(422, "NotUnderstood", said.encode(errors="backslashreplace").decode())


def _problem(status: int, error: str, detail: str) -> JSONResponse:
    headers = {VERSION_HEADER: bundle_version()}
    return JSONResponse(Problem(error=error, detail=detail).model_dump(), status_code=status, headers=headers)
