"""The lists of the page have the same columns in the database, in Python and in the views."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from tests.waiting import ask, connected

from duewheel.store.operations import dead_letter_pages, overview, statistics
from duewheel.store.values.stored_messages import HistoryEntry, ListedMessage

VIEWS = Path(__file__).parents[2] / "plugin" / "ui" / "src" / "views"

#: For each list its dataclass, its SQL function and its view.
LISTS = (
    (statistics.TopicNumbers, "topic_stats", "Topics"),
    (statistics.GroupNumbers, "group_stats", "Groups"),
    (overview.RunningLease, "running_leases", "Leases"),
    (overview.WaitingRetry, "waiting_retries", "Retries"),
    (dead_letter_pages.ListedDeadLetter, "dead_letter_page", "DeadLetters"),
    (overview.NamedMessage, "messages_by_name", "TaskMessages"),
    (overview.WaitingConsumer, "waiting_consumers", "WaitingConsumers"),
    (overview.TurningWheel, "wheels", "Overview"),
    (statistics.UpkeepHolder, "upkeep_holders", "Overview"),
    (overview.TopicLateness, "release_lateness", "Lateness"),
    (ListedMessage, "list_messages", "Messages"),
    (HistoryEntry, "history", "Message"),
)

#: Columns of a function that are no column of its list.
NO_FIELD = {
    "dead_letter_page": {"properties", "body", "place"},
    "list_messages": {"listed"},
}

#: Fields that a list leaves out, as there is no room for them, or shows in another column.
NOT_SHOWN = {
    overview.TopicLateness: {"ticks"},
    statistics.GroupNumbers: {
        "inflight_is_exact",
        "dropped_soon",
        "abandoned_since",
        "kept_messages",
        "kept_bytes",
    },
    dead_letter_pages.ListedDeadLetter: {"tag", "born_at", "redriven_at"},
    overview.WaitingRetry: {"tag"},
}

IDS = [kind.__name__ for kind, _, _ in LISTS]


@pytest.mark.parametrize(("kind", "function", "view"), LISTS, ids=IDS)
def test_a_column_of_the_function_is_a_field(dsn: str, kind: type, function: str, view: str) -> None:
    with connected(dsn) as connection:
        ((columns,),) = ask(
            connection,
            "select array(select name from unnest(proargnames, proargmodes) p (name, mode) where mode = 't')"
            " from pg_proc where pronamespace = 'duewheel'::regnamespace and proname = %s",
            function,
        )
    named = {field.name for field in fields(kind)}
    returned = set(columns) - NO_FIELD.get(function, set())
    # A function names a column otherwise where its own name is taken.
    plain = {name if name in named else re.sub("^consumer_|_name$", "", name) for name in returned}
    assert plain - named == set(), f"{function} returns these, and {kind.__name__} has no such field"
    assert named - plain == set(), f"{kind.__name__} has these fields, and {function} returns no such column"


@pytest.mark.parametrize(("kind", "function", "view"), LISTS, ids=IDS)
def test_a_field_is_shown_in_the_view(kind: type, function: str, view: str) -> None:
    source = (VIEWS / f"{view}.tsx").read_text()
    shown = set(re.findall(r"\b(?:(?:one|entry)\.|accessor\(\s*\")(\w+)", source))
    # The page has lengths of time as seconds.
    missing = {f.name for f in fields(kind) if not shown & {f.name, f"{f.name}_seconds"}}
    assert missing == NOT_SHOWN.get(kind, set()), (
        f"{view}.tsx and {kind.__name__} differ: add a column to the view, or the field to NOT_SHOWN here"
    )
