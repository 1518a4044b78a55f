"""What the documents say holds: links lead somewhere, examples run, tables agree with the code."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import psycopg2
import pytest
from tests.pages import examples, signatures

import duewheel.store
from duewheel.cli.main import main
from duewheel.store import Broker, Consumer, EmbeddedPostgres, Message, RetryPolicy
from duewheel.store.values import errors

if TYPE_CHECKING:
    from psycopg2 import extensions

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "dags" / "README.md"])
README = (ROOT / "README.md").read_text()
FIRST_PAGE = (ROOT / "docs" / "index.md").read_text()
SEND = (ROOT / "docs" / "how-to" / "send-and-recall.md").read_text()
#: The table, the topic and the broker that the examples of every recipe use.
BEFORE = SEND.partition("## Before the examples\n")[2].partition("\n## ")[0]
TASKS = sorted((ROOT / "docs" / "how-to").glob("*.md"))
PYTHON, SQL, COMMAND_LINE, SPARK = (
    (ROOT / "docs" / "reference" / f"{name}.md").read_text()
    for name in ("python", "sql", "command-line", "spark")
)


def headings(page: Path) -> set[str]:
    """The anchors a page offers: its own, and those that Git hosts make from its headings."""
    text = page.read_text()
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return made | set(re.findall(r'<a id="([^"]+)"></a>', text))


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\((?!https://)([^)\s]+)\)", page.read_text()):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{page}: {link}"
            assert not anchor or anchor in headings(target), f"{page}: {link}"


def test_every_error_is_in_the_reference_with_its_sqlstate() -> None:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text()
    listed = dict(re.findall(r"^\| `(\w+)` \| (\w{5})? ?\|", page, re.MULTILINE))
    defined = {
        kind.__name__: kind.sqlstate or ""
        for kind in (*errors.DueWheelError.__subclasses__(), *errors.LeaseLost.__subclasses__())
        if kind.__module__ == errors.__name__
    }
    # Read as text: importing what raises them needs Spark.
    elsewhere = {
        name: ""
        for room in ("embedded", "hooks", "operators", "sensors", "spark", "triggers")
        for source in (ROOT / room).rglob("*.py")
        for name in re.findall(r"^class (\w+)\(DueWheelError\)", source.read_text(), re.MULTILINE)
    }
    assert listed == defined | elsewhere


@pytest.mark.slow
def test_readme_program_runs(dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(from datetime[^`]*Broker\.embedded[^`]*)```", README)
    exec(example.replace('Broker.embedded("./broker")', f"Broker({dsn!r})"), {})
    assert capsys.readouterr().out == "[{'order': 4711}]\n"


def test_readme_order_and_payment_run(cursor: extensions.cursor) -> None:
    (example,) = re.findall(r"```sql\n(.*?)```", README, re.DOTALL)
    cursor.execute(example)
    cursor.execute("select paid_at is not null from orders where number = 4711")
    assert cursor.fetchone() == (True,)
    cursor.execute("select recalled from duewheel.find_key('order-timeout', '4711')")
    assert cursor.fetchone() == (True,)


@pytest.fixture
def cursor(dsn: str) -> Iterator[extensions.cursor]:
    """A cursor on ``dsn``, each statement a transaction of its own."""
    with closing(psycopg2.connect(dsn)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            yield cursor


def test_sql_functions_are_listed_as_the_database_has_them(cursor: extensions.cursor) -> None:
    # Postgres itself reads the page: each signature is declared in a schema of its own and compared.
    cursor.execute("create schema page; set search_path = page, duewheel, pg_catalog")
    for call in signatures(SQL):
        bodies = ("jsonb", "text", "bytea") if call.startswith("send(") else ("jsonb",)
        for body in bodies:
            declared = call.replace("body jsonb", f"body {body}", 1)
            kind = "procedure" if call.startswith("tick(") else "function"
            cursor.execute(f"create {kind} {declared} language plpgsql as $$ begin end $$")
    listing = """
        select format('%%s(%%s) returns %%s', proname, pg_get_function_arguments(oid),
                      pg_get_function_result(oid))
        from pg_proc
        where pronamespace = %s::regnamespace and (%s or obj_description(oid, 'pg_proc') is not null)
    """
    cursor.execute(listing, ("duewheel", False))
    defined = {line for (line,) in cursor.fetchall()}
    cursor.execute(listing, ("page", True))
    listed = {line for (line,) in cursor.fetchall()}
    assert defined - listed == set(), "docs/reference/sql.md lacks these functions of entry/comments.sql"
    assert listed - defined == set(), "docs/reference/sql.md lists these; entry/comments.sql lacks them"


def test_every_explained_sql_function_is_for_a_role(cursor: extensions.cursor) -> None:
    cursor.execute(
        """
        select proname from pg_proc
        where pronamespace = 'duewheel'::regnamespace and obj_description(oid, 'pg_proc') is not null
        except select function_name from duewheel.entry_points()
        """
    )
    assert cursor.fetchall() == [], "name the role in a line `-- role: NAME` above the function"


def test_sql_types_and_views_are_listed_with_their_columns(cursor: extensions.cursor) -> None:
    listed = dict(re.findall(r"^\| `(\w+)` \| (\w+ \S+(?:, \w+ \S+)*) \|$", SQL, re.MULTILINE))
    cursor.execute(
        """
        select c.relname, string_agg(a.attname || ' ' || format_type(a.atttypid, null), ', ' order by attnum)
        from pg_class c join pg_attribute a on a.attrelid = c.oid
        where c.relnamespace = 'duewheel'::regnamespace and (c.relkind = 'v' or c.relname = any (%s))
          -- The slots and the far messages as one: tables, which are not an interface.
          and c.relname <> 'any_message'
        group by 1
        """,
        (["send_receipt", "recall_receipt", "received_message", "described_message"],),
    )
    defined = {
        name: columns.replace("timestamp with time zone", "timestamptz")
        for name, columns in cursor.fetchall()
    }
    assert listed == defined, "the table of types and views in docs/reference/sql.md"


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command below a group that does something, with the words to call it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")


def test_commands_are_listed() -> None:
    rows = re.findall(r"^\| `(duewheel(?: [a-z][a-z-]+)+)[ A-Z_]*` \|", COMMAND_LINE, re.MULTILINE)
    assert set(rows) == {call for call, _ in commands(main, "duewheel")}, (
        "the tables of commands in docs/reference/command-line.md"
    )


def test_extras_are_those_of_the_package() -> None:
    table = PYTHON.partition("## Install\n")[2].partition("\n## ")[0]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert re.findall(r"^\| `([a-z]+)` \|", table, re.MULTILINE) == [name for name in extras if name != "dev"]


def test_every_public_name_is_in_the_python_reference() -> None:
    # Its errors have a page for themselves.
    text = PYTHON + (ROOT / "docs" / "reference" / "errors.md").read_text()
    named = set(re.findall(r"\b[A-Z]\w+", re.sub(r"```.*?```", "", text, flags=re.DOTALL)))
    assert set(duewheel.store.__all__) <= named


def public(kind: type) -> set[str]:
    """The names of a class's methods and properties that are for callers; not those of Python's classes."""
    ours = [one for one in kind.__mro__ if one.__module__.startswith("duewheel.")]
    return {name for one in ours for name in vars(one) if not name.startswith("_")}


def methods(kind: type) -> set[str]:
    """The names of a class's own methods that are for callers."""
    return {name for name in public(kind) if callable(getattr(kind, name))}


def parameters(call: Callable[..., Any]) -> list[tuple[str, object, object]]:
    """What a call takes: names, kinds and defaults, an enumeration's member as its text."""
    return [
        (entry.name, entry.kind, entry.default.value if isinstance(entry.default, Enum) else entry.default)
        for entry in inspect.signature(call).parameters.values()
        if entry.name not in ("self", "cls")
    ]


def test_python_calls_are_listed_with_their_parameters() -> None:
    kinds: dict[str, type] = {kind.__name__: kind for kind in (Broker, EmbeddedPostgres)}
    sections: dict[str, type] = {kind.__name__: kind for kind in (Consumer, RetryPolicy)}
    listed: set[str] = set()
    for section in re.split(r"^## ", PYTHON, flags=re.MULTILINE):
        kind = sections.get(section.split("`")[1] if section.startswith("`") else "", Broker)
        for signature in signatures(section):
            name = signature.partition("(")[0]
            scope: dict[str, Any] = {"timedelta": timedelta}
            exec(f"def {signature}: pass", scope)
            assert parameters(scope[name]) == parameters(kinds.get(name) or getattr(kind, name)), signature
            listed.add(name if name in kinds else f"{kind.__name__}.{name}")
    properties = {name for kind in sections.values() for name in public(kind) - methods(kind)}
    assert properties <= set(re.findall(r"`(\w+)`", PYTHON))
    assert listed == {
        *kinds,
        *(f"Broker.{name}" for name in methods(Broker)),
        *(f"Consumer.{name}" for name in methods(Consumer)),
        *(f"RetryPolicy.{name}" for name in methods(RetryPolicy)),
    }, "the calls in docs/reference/python.md"


def test_the_fields_of_a_message_are_listed() -> None:
    (table,) = re.findall(r"^\| field of `Message` .*?\n\n", PYTHON, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(\w+)`", table)) - {"Message", "deliver_at"} == public(Message) - {
        "deliver_at"
    }, "the table of the fields of `Message` in docs/reference/python.md"


@pytest.fixture
def run_examples(
    dsn: str, cursor: extensions.cursor, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[[str], None]]:
    """Runs the SQL and Python examples of a text; what they print has to be as the comments beside it say."""
    scope: dict[str, Any] = {"dsn": dsn.replace("postgresql:", "postgresql+psycopg2:")}

    def run(text: str) -> None:
        for language, example in re.findall(r"```(sql|python)\n(.*?)```", text, re.DOTALL):
            if language == "sql":
                cursor.execute(example)
            elif "airflow" not in example:
                capsys.readouterr()
                exec(example, scope)
                printed = capsys.readouterr().out.splitlines()
                assert printed == re.findall(r"^ *print\(.*\)  # (.+)$", example, re.MULTILINE), example

    yield run
    for value in scope.values():
        if isinstance(value, Broker):
            value.close()
    if "engine" in scope:
        scope["engine"].dispose()


@pytest.mark.slow
@pytest.mark.parametrize("page", TASKS, ids=lambda page: page.stem)
def test_how_to_examples_run(page: Path, run_examples: Callable[[str], None]) -> None:
    run_examples(BEFORE + page.read_text().replace(BEFORE, ""))


def test_files_where_a_bug_lives_exist() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## Where a bug lives")[1].split("\n## ")[0]
    for row in re.findall(r"^\| (?!the symptom|---)(.*) \|$", section, re.MULTILINE):
        *_, places, tests = row.split(" | ")
        folder = ROOT
        for name in re.findall(r"`([\w/]+\.(?:py|sql))`", places):
            # A name without a folder stands beside the one before.
            file = ROOT / "store" / "sql" / name if name.endswith(".sql") else ROOT / name
            file = file if file.exists() else folder / name
            assert file.exists(), name
            folder = file.parent
        for name in re.findall(r"`([\w/]+\.py)`", tests):
            assert (ROOT / "tests" / name).exists(), name


def test_the_queries_for_debugging_run(run_examples: Callable[[str], None]) -> None:
    run_examples(BEFORE + (ROOT / "CONTRIBUTING.md").read_text())


def test_the_query_for_a_messages_tick_has_one_row_for_each(
    broker: Broker, cursor: extensions.cursor
) -> None:
    broker.create_topic("order-timeout")
    sent = {broker.send("order-timeout", b"", delay=timedelta(hours=n), key="4711") for n in (1, 2)}
    (query,) = re.findall(
        r"^select duewheel\.message_id.*?;", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE | re.DOTALL
    )
    cursor.execute(query)
    found = {(message_id, deliver_at) for message_id, deliver_at, *_ in cursor.fetchall()}
    assert found == {(each.message_id, each.deliver_at) for each in sent}


def test_how_to_examples_do_what_they_say(
    dsn: str, cursor: extensions.cursor, run_examples: Callable[[str], None]
) -> None:
    run_examples(SEND)
    cursor.execute("select count(*) from orders")
    assert cursor.fetchone() == (102,)
    with Broker(dsn) as broker:
        for key in ("4711", "4712"):
            (message,) = broker.find_key("order-timeout", key)
            assert message.recalled


def test_the_first_page_links_to_every_page() -> None:
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert pages - {"index.md"} <= set(re.findall(r"\]\(([^)]+)\)", FIRST_PAGE))


@pytest.mark.airflow
def test_dags_of_the_readme_and_the_how_tos_load(tmp_path: Path) -> None:
    file = tmp_path / "how_to.py"
    blocks = [
        block for page in (ROOT / "README.md", *TASKS) for block in examples(page.read_text(), "python")
    ]
    file.write_text("\n".join(block for block in blocks if "airflow" in block))
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path / "airflow")}
    subprocess.run([sys.executable, str(file)], env=environment, check=True, timeout=240)


def example_commands() -> Iterator[str]:
    """The command lines that the pages and the helps of the commands give as examples."""
    texts = [page.read_text() for page in PAGES if page.name != "command-line.md"]
    texts += [COMMAND_LINE.split("## Commands")[0]]
    texts += [command.help or "" for _, command in commands(main, "duewheel")]
    for text in (re.sub(r"\\\n\s*", "", text) for text in texts):
        for line in re.findall(r"^ {2,}(duewheel .+)$|`(duewheel [a-z][^`]+)`", text, re.MULTILINE):
            parts = re.split(r"&& (?=\w)", "".join(line))
            yield from (part.strip() for part in parts if "duewheel" in part)
        yield from re.findall(r"^(duewheel .+)$", text, re.MULTILINE)


def test_examples_of_commands_can_be_called_like_this() -> None:
    for line in sorted(set(example_commands())):
        words = shlex.split(re.sub(r" (\| psql .*|> \w+\.sql)$", "", line))[1:]
        command: click.Command = main
        while isinstance(command, click.Group) and words:
            found = command.get_command(click.Context(command), words[0])
            if found is None:
                break
            command, words = found, words[1:]
        try:
            command.make_context(line, words, resilient_parsing=False).close()
        except click.UsageError as error:
            pytest.fail(f"{line}: {error.message}")


def rows_of(table: str) -> list[list[str]]:
    """The cells of a table's rows, once for each name in the first."""
    rows = [row.strip("| ").split(" | ") for row in table.strip().splitlines()[2:]]
    return [[name, *cells] for names, *cells in rows for name in re.findall(r"`([^`]+)`", names)]


@pytest.mark.spark
def test_spark_columns_and_options_are_listed() -> None:
    from duewheel.spark import read_options, write_options, written_columns
    from duewheel.spark.message_columns import SPARK_SCHEMA

    columns, written = re.findall(r"^\| column .*?\n\n", SPARK, re.MULTILINE | re.DOTALL)
    found = {name: (kind, "never null" not in "".join(rest)) for name, kind, *rest in rows_of(columns)}
    assert found == {field.name: (field.dataType.simpleString(), field.nullable) for field in SPARK_SCHEMA}
    options, write_ones = re.findall(r"^\| option .*?\n\n", SPARK, re.MULTILINE | re.DOTALL)

    def named(table: str) -> set[str]:
        return {name for name, *_ in rows_of(table)}

    assert named(options) == read_options.OPTIONS
    assert named(write_ones) == write_options.OPTIONS
    assert named(written) == set(written_columns.WRITTEN_COLUMNS)


@pytest.mark.long
@pytest.mark.spark
def test_spark_example_runs(dsn: str, broker: Broker) -> None:
    broker.create_topic("order-timeout")
    broker.send("order-timeout", b"", delay=timedelta(0), tag="late")
    (example,) = examples(SPARK, "python")
    # A process of its own: a session that is active already would be taken instead.
    program = [sys.executable, "-c", f"dsn = {dsn!r}\n{example}"]
    done = subprocess.run(program, check=True, timeout=240, stdout=subprocess.PIPE, text=True)
    assert done.stdout == "1\n"
    assert broker.stats().topics[0].groups[0].inflight == 0
