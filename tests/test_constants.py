"""Where a page gives a number that the code fixes, it is the number of the code."""

from __future__ import annotations

import inspect
import re
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from duewheel.operators import consuming
from duewheel.plugin import brokers
from duewheel.spark import message_writer
from duewheel.store import Broker
from duewheel.store.consuming import consumer
from duewheel.store.operations import recalling
from duewheel.store.wheel import job_connection, runner, upkeep
from duewheel.triggers import ringing

ROOT = Path(__file__).parents[1]
PAGES = sorted({ROOT / "README.md", *(ROOT / "docs").rglob("*.md")})
SQL = ROOT / "store" / "sql"

#: How pages write the units of a span of time.
UNITS = {
    **dict.fromkeys(("ms", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "second", "seconds"), 1.0),
    **dict.fromkeys(("minute", "minutes", "min"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3_600.0),
    **dict.fromkeys(("day", "days"), 86_400.0),
    "year": 31_536_000.0,
}
WORDS = {"a quarter of a": 0.25, "a tenth of a": 0.1, "a": 1, "two": 2, "four": 4, "seven": 7}


class Constant(NamedTuple):
    """A number of the code, and a pattern of how pages give it, with the number as a group."""

    value: str
    said: str


def in_sql(file: str, pattern: str) -> str:
    """What stands in the one place of an SQL file that a pattern finds."""
    (found,) = re.findall(pattern, (SQL / file).read_text(encoding="utf-8"))
    return str(found).replace("milliseconds", "ms")


def default(name: str) -> timedelta:
    """Of a parameter of `Broker.create_topic`."""
    span = inspect.signature(Broker.create_topic).parameters[name].default
    assert isinstance(span, timedelta)
    return span


def constants() -> dict[str, Constant]:
    """By their names."""
    hour, minute = timedelta(hours=1), timedelta(minutes=1)
    return {
        "granularity": Constant(
            in_sql("base/topics.sql", r"create_topic\.granularity, interval '([^']+)'"),
            r"(?:busy topic[,:]|granularity\*?,) (\d+ ms) unless set|(\d+ ms) unless set, instead of",
        ),
        "longest delay": Constant(
            f"{default('max_delay') / hour:g} h",
            r"(\d+ h(?:ours)?) unless (?:set|the topic says)|delays? (?:up to|over) (\d+ h)",
        ),
        "retention of dead letters": Constant(
            in_sql("base/topics.sql", r"dead_letter_retention interval default '([^']+)'"),
            r"dead letter is kept for (\d+ days)",
        ),
        "reach of a notification": Constant(
            in_sql("tick/wheel_reach.sql", r"return interval '([^']+)'"),
            r"looks (\d+ ms) ahead|due within (\d+ ms)|due within (0\.\d s) may",
        ),
        "wait of a tick for a lock": Constant(
            f"{job_connection.LOCK_TIMEOUT_MS} ms",
            r"A tick waits (a quarter of a second) for a lock",
        ),
        "patience of a consumer": Constant(
            f"{consumer._GRACE_SECONDS * 1000:g} ms",
            r"once something is overdue by (\d+ ms)",
        ),
        "late try": Constant(
            f"{consuming.LATE_TRY / minute:g} min",
            r"The lease ends (two minutes) after",
        ),
        "rings": Constant(
            f"{ringing.MOST_ON_THE_WAY}",
            r"rings up to (\d+) times without an answer",
        ),
        "staged rows": Constant(
            in_sql("upkeep/forget.sql", r"forget_staged\(p_limit, null, p_now - interval '([^']+)'"),
            r"never sent are dropped after (seven days)|sends them, at most (seven days) after",
        ),
        "idempotency key of a Spark job": Constant(
            f"{message_writer._KEEP / timedelta(days=1):g} days",
            r"within (a year) sends nothing|stopped for more than (a year) may send",
        ),
        "rest after a recall": Constant(
            in_sql("recall/recall.sql", r"idle_in_transaction_session_timeout', '(\d+)s'") + " s",
            r"the server ends after (\d+ s) without a statement",
        ),
        "statement of the page": Constant(
            f"{brokers.STATEMENT_TIMEOUT_SECONDS} s",
            r"A statement ends after (\d+ s), except",
        ),
        "upkeep": Constant(f"{runner.MAINTAIN_SECONDS / 3600:g} h", r"due every (hour)"),
        "portion of upkeep": Constant(
            f"{upkeep._AIM_SECONDS * 1000:g} ms",
            r"strives for (a tenth of a second)",
        ),
        "pause of upkeep": Constant(
            f"{upkeep._PAUSE_FOR_STEP:g}",
            r"pauses after each step for (four) times as long",
        ),
        "slots during upkeep": Constant(
            in_sql("upkeep/upkeep.sql", r"interval '(\d+) minutes'") + " min",
            r"makes and drops slots every (\d+ minutes) meanwhile",
        ),
        "next round of upkeep": Constant(
            f"{upkeep._SHORTEST_REST_SECONDS:g} s",
            r"another round follows after (\d+ s)",
        ),
        "portion of a bulk recall": Constant(
            f"{recalling.CHUNK:,}".replace(",", " "),
            r"transactions of (\d+ \d+) messages|in lots of (\d+ \d+), or",
        ),
    }


def amount(text: str) -> float:
    """A number, or a span of time in seconds, as a page says it."""
    number, _, unit = text.rpartition(" ") if text.split()[-1] in UNITS else (text, "", "")
    scale = UNITS[unit] if unit else 1.0
    return (WORDS[number] if number in WORDS else float((number or "1").replace(" ", ""))) * scale


def test_a_constant_is_the_same_everywhere() -> None:
    for name, constant in constants().items():
        pattern = re.compile(constant.said.replace(" ", r"\s+"))
        said = {
            (page.name, re.sub(r"\s+", " ", next(filter(None, found.groups()))))
            for page in PAGES
            for found in pattern.finditer(page.read_text(encoding="utf-8"))
        }
        assert said, f"no page says {name} as {constant.said}"
        assert {one for one in said if amount(one[1]) != pytest.approx(amount(constant.value))} == set()
