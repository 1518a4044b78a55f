"""The rules in docs/how-to/alert-rules.yml are about metrics that are sent, and Prometheus fires each."""

from __future__ import annotations

import inspect
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from duewheel.plugin.models import FaultKind
from duewheel.store.metrics import metering
from duewheel.triggers import metrics

pytestmark = pytest.mark.airflow

DOCS = Path(__file__).parent.parent / "docs"
RULES = (DOCS / "how-to" / "alert-rules.yml").read_text(encoding="utf-8")
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
    return [rule for group in yaml.safe_load(RULES)["groups"] for rule in group["rules"]]


def test_the_metrics_are_listed_as_they_are_sent() -> None:
    sent = re.findall(r'Measured\("\w+", "([\w.]+)"', inspect.getsource(metering))
    of_a_triggerer = re.findall(r'self\._(?:gauge|count)\("([\w.]+)"', inspect.getsource(metrics))
    assert listed().keys() == {*sent, *of_a_triggerer}


def test_x08_each_rule_has_its_sentence_in_the_pages_first_line() -> None:
    """These three the page sees in the strip and among the watchers, the others are faults of the API."""
    seen = {"NoWheelTurns", "MessagesReleasedLate", "WatchersCannotRing"}
    kinds = {
        "GroupDoesNotKeepUp": "lags",
        "GroupTakesNothing": "takes_nothing",
        "LeasesExpire": "leases_expire",
        "DeadLetters": "dead_letters",
        "DeadLettersDroppedSoon": "dropped_soon",
        "GroupIsAbandoned": "abandoned",
        "UpkeepIsHeldUp": "upkeep_held_up",
        "UpkeepIsOverdue": "upkeep_overdue",
    }
    assert {rule["alert"] for rule in rules()} == seen | kinds.keys()
    assert (seen | kinds.keys()) <= set(re.findall(r"`(\w+)`", OPERATE))
    assert set(kinds.values()) == set(get_args(FaultKind))


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


@dataclass(frozen=True)
class Firing:
    """When a rule fires and when it does not.

    Attributes:
        series: what metrics are when the rule fires, a minute each, in promtool's notation.
        quiet: the same for a time in which the rule does not fire.
        also_quiet: the same for another cause of its silence.
        labels: of the series and of the alert.
        summary: what the alert says.
    """

    series: dict[str, str]
    quiet: dict[str, str]
    summary: str
    labels: tuple[str, ...] = ("connection", "topic", "group")
    also_quiet: dict[str, str] | None = None


LABELS = {"connection": "shop", "topic": "timeouts", "group": "cancel"}
#: All rules are asked then, of series as long as this.
MINUTES = 90
FIRING = {
    "NoWheelTurns": Firing(
        {"wheel_turning": "0x90"},
        {"wheel_turning": "1x90"},
        "Nobody turns a wheel, so messages are late until a consumer receives.",
        (),
    ),
    "WatchersCannotRing": Firing(
        {"watchers_failing": "2x90"},
        {"watchers_failing": "0x90"},
        "Watchers of group cancel on timeouts cannot ring over connection shop: the page's view Watchers has "
        "the reason.",
    ),
    "MessagesReleasedLate": Firing(
        {'lateness{quantile="0.99"}': "2.5x90", 'lateness{quantile="0.5"}': "0x90"},
        {'lateness{quantile="0.99"}': "0.01x90"},
        "Releases of timeouts are 2.5 s late.",
        ("connection", "topic"),
    ),
    "GroupDoesNotKeepUp": Firing(
        {"ready": "1+10x90"}, {"ready": "1000-10x90"}, "The backlog of group cancel on timeouts grows."
    ),
    "GroupTakesNothing": Firing(
        {"ready": "5x90", "inflight": "0x90", "paused": "0x90"},
        {"ready": "5x90", "inflight": "0x90", "paused": "1x90"},
        "Group cancel takes none of the messages of timeouts.",
        also_quiet={"ready": "5x90", "inflight": "1x90", "paused": "0x90"},
    ),
    "LeasesExpire": Firing(
        {"expired_leases": "0+1x90"},
        {"expired_leases": "7x90"},
        "Consumers of group cancel die, or work longer than their leases.",
    ),
    "DeadLetters": Firing(
        {"dead_letters": "3x90"}, {"dead_letters": "0x90"}, "Group cancel on timeouts has 3 dead letters."
    ),
    "DeadLettersDroppedSoon": Firing(
        {"dead_letters_dropped_soon": "2x90"},
        {"dead_letters_dropped_soon": "0x90"},
        "2 dead letters of group cancel on timeouts are dropped in less than a day, and were not sent again.",
    ),
    "GroupIsAbandoned": Firing(
        {"abandoned_seconds": "691200x90"},
        {"abandoned_seconds": "86400x90"},
        "Group cancel has taken nothing of timeouts for 8d 0h 0m 0s, and messages past retention are kept "
        "for it.",
    ),
    "UpkeepIsHeldUp": Firing(
        {"upkeep_held_up_seconds": "3600x90"},
        {"upkeep_held_up_seconds": "0x90"},
        "Upkeep waits for a session or a prepared transaction, which `duewheel stats` names.",
        ("connection",),
    ),
    "UpkeepIsOverdue": Firing(
        {"upkeep_age_seconds": "10800x90"},
        {"upkeep_age_seconds": "1800x90"},
        "Upkeep, due every hour, was last done 3h 0m 0s ago.",
        ("connection",),
    ),
}


def series(metrics: dict[str, str], labels: dict[str, str]) -> list[dict[str, str]]:
    """Series as promtool reads them."""
    marked = ", ".join(f'{name}="{value}"' for name, value in labels.items())
    found = []
    for metric, values in metrics.items():
        name, _, own = metric.partition("{")
        given = ", ".join(part for part in (own.removesuffix("}"), marked) if part)
        found.append({"series": f"airflow_duewheel_{name}{{{given}}}", "values": values})
    return found


def test_each_rule_is_made_to_fire() -> None:
    assert {rule["alert"] for rule in rules()} == FIRING.keys()


@pytest.mark.needs("prometheus")
@pytest.mark.parametrize("alert", FIRING)
def test_prometheus_fires_a_rule_when_it_should_and_only_then(alert: str, tmp_path: Path) -> None:
    firing = FIRING[alert]
    labels = {name: LABELS[name] for name in firing.labels}
    fires = [{"exp_labels": labels, "exp_annotations": {"summary": firing.summary}}]

    def told(metrics: dict[str, str], expected: list[dict[str, Any]]) -> dict[str, Any]:
        asked = {"eval_time": f"{MINUTES}m", "alertname": alert, "exp_alerts": expected}
        given = series(metrics, labels or LABELS)
        return {"interval": "1m", "input_series": given, "alert_rule_test": [asked]}

    (tmp_path / "rules.yml").write_text(RULES)
    tests = [told(firing.series, fires), told(firing.quiet, [])]
    if firing.also_quiet is not None:
        tests.append(told(firing.also_quiet, []))
    asked = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "asked.yml").write_text(yaml.safe_dump(asked))
    done = subprocess.run(
        ["promtool", "test", "rules", "asked.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
