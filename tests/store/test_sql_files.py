"""How the SQL files are written, and that their functions have comments."""

from __future__ import annotations

from pathlib import Path

from tests.pages import signatures
from tests.waiting import ask, connected

from duewheel import store

COLUMNS = 120
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "sql.md"
# Released, and never edited since.
FROZEN = "v0001"


def test_sql_is_at_most_120_columns_wide() -> None:
    files = [
        path
        for path in Path(store.__path__[0]).rglob("*.sql")
        if FROZEN not in path.relative_to(Path(store.__path__[0])).parts
    ]
    assert len(files) > 30
    wide = [
        f"{path.name}:{number}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > COLUMNS
    ]
    assert wide == []


def test_every_function_of_the_reference_has_a_comment(dsn: str) -> None:
    """What it does is there in psql too."""
    documented = {call.partition("(")[0] for call in signatures(PAGE.read_text())}
    comments = """
        select p.proname, obj_description(p.oid, 'pg_proc')
        from pg_proc p where p.pronamespace = 'duewheel'::regnamespace and p.proname = any(%s)
    """
    with connected(dsn) as connection:
        found = ask(connection, comments, sorted(documented))
    assert {name for name, _ in found} == documented
    assert [name for name, comment in found if not comment] == []


#: Postgres refuses to change rows of a published table that it could not name to a subscriber.
NAMELESS = """
select c.relname from pg_class c
where c.relnamespace = 'duewheel'::regnamespace and c.relkind in ('r', 'p') and c.relpersistence = 'p'
  and not exists (select from pg_index i where i.indrelid = c.oid and (i.indisprimary or i.indisreplident))
"""


def test_x23_each_table_has_rows_that_a_publication_can_name(dsn: str) -> None:
    with connected(dsn) as connection:
        assert ask(connection, NAMELESS) == []
