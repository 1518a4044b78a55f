"""The alert rules in docs/how-to/operate.md are about metrics that are sent, with their tags."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.pages import examples

from duewheel.store.operations import metering
from duewheel.triggers import metrics

pytestmark = pytest.mark.airflow

DOCS = Path(__file__).parent.parent / "docs"
OPERATE = (DOCS / "how-to" / "operate.md").read_text(encoding="utf-8")
REFERENCE = (DOCS / "reference" / "airflow.md").read_text(encoding="utf-8")
#: As statsd_exporter writes a name of Airflow's.
EXPORTED = re.compile(r"\bairflow_duewheel_(\w+)")


def listed() -> dict[str, set[str]]:
    """The tags of each metric that the reference lists, by its name."""
    rows = re.findall(r"^\| `duewheel\.([\w.]+)` \| (\w+) \| ([\w, ]*) ?\|", REFERENCE, re.MULTILINE)
    # The exporter makes a summary of a timer.
    return {
        name: {"connection", *re.findall(r"\w+", tags), *(["quantile"] if kind == "timer" else [])}
        for name, kind, tags in rows
    }


def rules() -> list[dict[str, Any]]:
    """The rules of the page."""
    (block,) = examples(OPERATE, "yaml")
    return [rule for group in yaml.safe_load(block)["groups"] for rule in group["rules"]]


def test_the_metrics_are_listed_as_they_are_sent() -> None:
    sent = re.findall(r'Measured\("\w+", "([\w.]+)"', inspect.getsource(metering))
    of_a_triggerer = re.findall(r'self\._(?:gauge|count)\("([\w.]+)"', inspect.getsource(metrics))
    assert listed().keys() == {*sent, *of_a_triggerer}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_a_rule_is_about_metrics_that_are_sent(rule: dict[str, Any]) -> None:
    tags = {name.replace(".", "_"): labels for name, labels in listed().items()}
    names = EXPORTED.findall(rule["expr"])
    assert names
    asked = {label for labels in re.findall(r"by \(([^)]*)\)", rule["expr"]) for label in labels.split(", ")}
    asked |= set(re.findall(r"(\w+)=", rule["expr"]))
    asked |= set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    for name in names:
        assert asked <= tags[name], name
