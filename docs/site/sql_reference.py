"""The page of the SQL functions: their signatures, the role that may call each, and their comments.

The signatures are from the schema that tests/store/test_schema_drift.py compares with a database, the
comments and roles from the files that `duewheel db upgrade` runs.
"""

from __future__ import annotations

import re
import textwrap

from sources import ROOT

from duewheel.store import sql

PAGE = "reference/api/sql.md"
_COMMENTS = ROOT / "store" / "sql" / "entry" / "comments.sql"
_WIDTH = 96
_COMMENT = re.compile(
    r"comment on (?:function|procedure) duewheel\.(\w+).*? is\s+'((?:[^']|'')*)';", re.DOTALL
)


def sql_page() -> str:
    """The Markdown of the page."""
    sections = [
        "# SQL functions",
        "All functions for programs, in the schema `duewheel`. [SQL](../sql.md) explains them by examples.",
    ]
    roles = sql.roles()
    signatures = _signatures()
    for chapter, comments in _chapters().items():
        sections.append(f"## {chapter}")
        for name, comment in comments.items():
            shown = "\n".join(map(_wrapped, signatures[name]))
            sections += [
                f"### {name}",
                f"```text\n{shown}\n```",
                comment,
                f"Needs the role `duewheel_{roles[name]}`."
                if name in roles
                else "For the owner of the schema.",
            ]
    return "\n\n".join(sections)


def _chapters() -> dict[str, dict[str, str]]:
    """The comment of each function by its chapter; of a function with several signatures, the first one."""
    chapters: dict[str, dict[str, str]] = {}
    # A comment of one line opens each chapter.
    for part in _COMMENTS.read_text().split("\n\n-- ")[1:]:
        title, _, statements = part.partition("\n")
        comments = chapters[title] = {}
        for name, comment in _COMMENT.findall(statements):
            comments.setdefault(name, comment.replace("''", "'"))
    return chapters


def _signatures() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (ROOT / "tests" / "store" / "schema.txt").read_text().splitlines():
        if match := re.match(r"(?:function|procedure) ((\w+)\(.*)", line):
            found.setdefault(match[2], []).append(_readable(match[1]))
    return found


def _readable(signature: str) -> str:
    """The usual form: Postgres writes the type after each default, and types by their long names."""
    signature = signature.replace("timestamp with time zone", "timestamptz").replace(" DEFAULT ", " = ")
    # A procedure has its answer among its parameters.
    signature = re.sub(r"\bIN (?=\w)", "", signature).removesuffix(" returns ").replace("INOUT ", "inout ")
    return re.sub(r"(= (?:'[^']*'|NULL))::\w+(?:\[\])?", r"\1", signature).replace("= NULL", "= null")


def _wrapped(signature: str) -> str:
    return textwrap.fill(
        signature, _WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
