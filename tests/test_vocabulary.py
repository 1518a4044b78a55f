"""The states of a message have one word each, in the concepts, SQL, the page and the command line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click import Choice

from duewheel.cli.message_lookup import _STATE_WORDS, list_messages

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def words() -> dict[str, str]:
    """The word for each state in the concepts."""
    text = (ROOT / "docs/concepts.md").read_text(encoding="utf-8")
    table = text.partition("## The states of a message")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", table, re.MULTILINE))


def test_x08_the_history_has_the_states_of_the_concepts(words: dict[str, str]) -> None:
    source = (ROOT / "store/sql/look/history.sql").read_text(encoding="utf-8")
    assert set(re.findall(r"'([A-Z][a-z]\w*|DLQ)'", source)) == set(words)


@pytest.mark.parametrize("page", ["docs/how-to/operate.md", "docs/reference/sql.md"])
def test_x08_the_pages_name_no_other_states(words: dict[str, str], page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    if page.endswith("sql.md"):
        (listed,) = re.findall(r"a row for each state in the order of time: ([\w,\s]+)\.", text)
        assert set(re.split(r",\s+", listed)) == set(words)
    else:
        table = text.partition("| last state | meaning |")[2].partition("\n\n")[0]
        assert {one.strip("`") for one in re.findall(r"^ *\| (`\w+`)", table, re.MULTILINE)} <= set(words)


def test_x08_the_page_says_the_words_of_the_concepts(words: dict[str, str]) -> None:
    sources = ROOT / "plugin/ui/src"
    texts = dict(re.findall(r'^  (\w+): "(.*)",$', (sources / "texts.ts").read_text("utf-8"), re.MULTILINE))
    table = (sources / "states.tsx").read_text("utf-8").partition("const STATES")[2].partition("};")[0]
    shown = {
        state: texts[name] for state, name in re.findall(r"^  (\w+): \[TEXT\.(\w+),", table, re.MULTILINE)
    }
    assert {state: word for state, word in shown.items() if state[0].isupper()} == words
    # The states of the lists, and the kinds of a deletion, are their own words.
    lower = {state: word for state, word in shown.items() if state[0].islower()}
    assert {state for state, word in lower.items() if not word.startswith(state.replace("_", " "))} == set()


def test_x08_the_command_line_says_the_words_of_the_concepts(words: dict[str, str]) -> None:
    assert words == _STATE_WORDS


def test_x08_the_command_line_asks_for_the_words_of_the_concepts(words: dict[str, str]) -> None:
    (kind,) = (one.type for one in list_messages.params if one.name == "state")
    assert isinstance(kind, Choice)
    assert set(kind.choices) - {"all"} <= set(words.values())
