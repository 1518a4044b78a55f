"""Bodies as files, and dead letters as a file: a row for each, with its body, for users who may read bodies.

The export reads one page of dead letters, sends it, and reads the next. It borrows the broker's session for
one page at a time. So even a long export delays no other request and holds no more than a page in memory.
"""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from itertools import chain
from typing import Annotated, Final, Literal

from airflow.api_fastapi.logging.decorators import action_logging
from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response, StreamingResponse

from duewheel.plugin.brokers import brokers
from duewheel.plugin.rights import ReadingBodies
from duewheel.plugin.seeing import WhichDeadLetters
from duewheel.store import UnknownMessage
from duewheel.store.operations import dead_letter_pages
from duewheel.store.values.dead_letters import DeadLetter, DeadLetterFilter

router = APIRouter(prefix="/api/brokers/{connection_id}")

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
    pages = _pages(connection_id, which)
    # Read before the answer begins, while it can still become an error.
    first = next(pages)
    return StreamingResponse(
        _text(first, pages, as_format),
        media_type=_MEDIA_TYPES[as_format],
        headers={
            "Content-Disposition": f'attachment; filename="dead-letters.{as_format}"',
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        },
    )


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
        headers={
            "Content-Disposition": f'attachment; filename="{found.message_id}"',
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        },
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


def _text(first: list[DeadLetter], others: Iterable[list[DeadLetter]], as_format: Format) -> Iterator[str]:
    if as_format == "csv":
        yield _csv_lines([dict(zip(COLUMNS, COLUMNS, strict=True))])
    for page in chain([first], others):
        rows = [_row(letter) for letter in page]
        if as_format == "csv":
            yield _csv_lines(rows)
        else:
            yield "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)


def _csv_lines(rows: Iterable[Mapping[str, object]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows([_cell(row[name]) for name in COLUMNS] for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, dict):
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
