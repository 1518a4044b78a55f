"""The functions for programs of any language say what they do, in psql too."""

from __future__ import annotations

from pathlib import Path

from tests.pages import signatures
from tests.waiting import ask, connected

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "sql.md"


def test_every_function_of_the_reference_has_a_comment(dsn: str) -> None:
    documented = {call.partition("(")[0] for call in signatures(PAGE.read_text())}
    with connected(dsn) as connection:
        rows = ask(
            connection,
            """
            select p.proname, obj_description(p.oid, 'pg_proc')
            from pg_proc p where p.pronamespace = 'duewheel'::regnamespace and p.proname = any(%s)
            """,
            sorted(documented),
        )
    assert {name for name, _ in rows} == documented
    assert [name for name, comment in rows if not comment] == []
