"""Bodies as files, and lists as files: a row for each, of dead letters with its body.

An export reads one page of a list, sends it, and reads the next. It borrows the broker's session for one page
at a time. So even a long export delays no other request and holds no more than a page in memory.
"""

from __future__ import annotations

import base64
import csv
import inspect
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import chain
from typing import Annotated, Any, Final, Literal, get_args

from airflow.api_fastapi.logging.decorators import action_logging
from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, TypeAdapter

from duewheel.plugin import seeing, waiting_runs, watching
from duewheel.plugin.brokers import brokers
from duewheel.plugin.rights import ReadingBodies
from duewheel.plugin.seeing import WhichDeadLetters
from duewheel.store import UnknownMessage
from duewheel.store.operations import dead_letter_pages
from duewheel.store.values.dead_letters import DeadLetter, DeadLetterFilter

router = APIRouter(prefix="/api/brokers/{connection_id}")
#: The exports of the lists that the page shows.
list_exports = APIRouter(prefix="/api")
#: The most rows of an export of such a list. Each export asks the broker for a page of the list.
MOST_ROWS: Final = 10_000

Format = Literal["csv", "jsonl"]
_MEDIA_TYPES: Final[dict[Format, str]] = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/jsonl; charset=utf-8",
}
COLUMNS: Final = (
    "topic",
    "message_id",
    "key",
    "tag",
    "properties",
    "body",
    "body_encoding",
    "born_at",
    "dead_at",
    "attempt",
    "reason",
    "redriven_at",
)
#: Characters that begin a formula in a spreadsheet. A sender may have written one: see OWASP, "CSV
#: Injection".
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


@router.get(
    "/dead-letters/export",
    response_class=StreamingResponse,
    dependencies=[Depends(action_logging("duewheel.export_dead_letters"))],
)
def export_dead_letters(
    connection_id: str,
    _: ReadingBodies,
    which: WhichDeadLetters,
    as_format: Annotated[Format, Query(alias="format")] = "jsonl",
) -> StreamingResponse:
    """The dead letters of a group with their bodies, by topic and the oldest first."""
    pages = ([_row(letter) for letter in page] for page in _pages(connection_id, which))
    return _file("dead-letters", COLUMNS, pages, as_format)


def _file(
    name: str, columns: Sequence[str], pages: Iterator[list[dict[str, object]]], as_format: Format
) -> StreamingResponse:
    """Rows as a file."""
    # Read before the answer begins, while it can still become an error.
    first = next(pages)
    return StreamingResponse(
        _text(columns, chain([first], pages), as_format),
        media_type=_MEDIA_TYPES[as_format],
        headers=_headers(f"{name}.{as_format}"),
    )


def _headers(file_name: str) -> dict[str, str]:
    """The headers with which a browser saves an answer as a file."""
    return {
        "Content-Disposition": f'attachment; filename="{file_name}"',
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }


def _exports(name: str, listed: Callable[..., BaseModel], rows: str, limit: int | None = None) -> None:
    """Add the route that exports a list: it takes what the list takes, and a format.

    Args:
        name: the list's, as in its path.
        listed: the route of the list.
        rows: the field of its answer that has the rows.
        limit: how many rows to ask for at once, for a list with pages.
    """
    signature = inspect.signature(listed, eval_str=True)
    page_kind = signature.return_annotation.model_fields[rows].annotation
    (kind,) = get_args(page_kind)
    adapter: TypeAdapter[Any] = TypeAdapter(page_kind)

    def pages(asked: dict[str, Any]) -> Iterator[list[dict[str, object]]]:
        after, left = None, MOST_ROWS
        while left > 0:
            more = {} if limit is None else {"after": after, "limit": limit}
            page = listed(**asked, **more)
            found = adapter.dump_python(getattr(page, rows), mode="json")[:left]
            yield found
            left -= len(found)
            after = getattr(page, "next", None)
            if after is None:
                return

    def export(as_format: Format, **asked: Any) -> StreamingResponse:
        return _file(
            name, list(adapter.json_schema()["$defs"][kind.__name__]["properties"]), pages(asked), as_format
        )

    export.__doc__ = f"The first {MOST_ROWS} rows of the list {name}, as a file."
    export.__name__ = f"export_{name.replace('-', '_')}"
    as_format = Annotated[Format, Query(alias="format")]
    kept = [one for one in signature.parameters.values() if one.name not in ("after", "limit")]
    export.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # FastAPI reads it
        [
            inspect.Parameter("as_format", inspect.Parameter.KEYWORD_ONLY, annotation=as_format),
            *(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in kept),
        ]
    )
    where = "/brokers/{connection_id}/" if "connection_id" in signature.parameters else "/"
    list_exports.get(f"{where}{name}/export", response_class=StreamingResponse)(export)


_exports("topics", seeing.list_topics, "topics", 200)
_exports("groups", seeing.list_groups, "groups", 200)
_exports("leases", seeing.list_leases, "leases")
_exports("retries", seeing.list_retries, "retries")
_exports("messages", seeing.list_messages, "messages", 1_000)
_exports("schedules", seeing.list_schedules, "schedules")
_exports("waiting-consumers", seeing.list_waiting_consumers, "consumers")
_exports("waiting-runs", waiting_runs.list_waiting_runs, "runs")
_exports("early-answers", waiting_runs.list_early_answers, "answers")
_exports("watchers", watching.list_watchers, "watchers")


@router.get("/messages/{message_id}/body", response_class=Response)
def download_body(connection_id: str, message_id: str, _: ReadingBodies) -> Response:
    """The body of a message as it was sent, as a file."""
    with brokers.lend(connection_id) as broker:
        found = broker.find(message_id)
    if found is None:
        raise UnknownMessage("No message has this id, or its retention has ended.")
    return Response(
        found.body,
        media_type="application/octet-stream",
        headers=_headers(found.message_id),
    )


def _pages(connection_id: str, which: DeadLetterFilter) -> Iterator[list[DeadLetter]]:
    """All pages; some may be empty."""
    after: str | None = None
    while True:
        with brokers.lend(connection_id) as broker:
            letters, after = dead_letter_pages.dead_letter_page(broker, which, after)
        yield letters
        if after is None:
            return


def _text(
    columns: Sequence[str], pages: Iterable[list[dict[str, object]]], as_format: Format
) -> Iterator[str]:
    if as_format == "csv":
        yield _csv_lines(columns, [dict(zip(columns, columns, strict=True))])
    for rows in pages:
        if as_format == "csv":
            yield _csv_lines(columns, rows)
        else:
            yield "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)


def _csv_lines(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows([_cell(row[name]) for name in columns] for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _row(letter: DeadLetter) -> dict[str, object]:
    try:
        body, encoding = letter.body.decode(), "text"
    except UnicodeDecodeError:
        body, encoding = base64.b64encode(letter.body).decode(), "base64"
    row = asdict(letter) | {"body": body, "body_encoding": encoding}
    return {
        name: value.isoformat() if isinstance(value := row[name], datetime) else value for name in COLUMNS
    }
