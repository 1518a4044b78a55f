"""Airflow finds the page, and finds it in no process that has no use for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from airflow.api_fastapi.core_api.datamodels.plugins import PluginResponse
from airflow.plugins_manager import get_plugin_info

from duewheel.plugin.bundle import bundle_version
from duewheel.plugin.page import PAGE_NAME, URL_PREFIX, DueWheelPlugin


# Importing Airflow's API warns of a library's future.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_airflow_lists_the_page() -> None:
    (found,) = (one for one in get_plugin_info() if one["name"] == "duewheel")
    answer = PluginResponse.model_validate(found)
    assert [(one.name, one.destination, one.url_route) for one in answer.react_apps] == [
        (PAGE_NAME, "nav", "duewheel"),
        (PAGE_NAME, "task_instance", "duewheel-task"),
    ]
    assert {one.bundle_url for one in answer.react_apps} == {f"duewheel/static/main.js?v={bundle_version()}"}
    (app,) = answer.fastapi_apps
    assert app.url_prefix == URL_PREFIX


@pytest.mark.slow
def test_the_api_is_made_only_when_it_is_asked_for() -> None:
    script = (
        "import sys, duewheel.plugin.page as page\n"
        "assert page.DueWheelPlugin.name == 'duewheel'\n"
        "assert 'fastapi' not in sys.modules, 'every process of Airflow imports the page'\n"
        "assert 'duewheel.plugin.app' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def test_two_looks_at_the_attribute_do_not_share_a_list() -> None:
    DueWheelPlugin.react_apps.clear()
    assert DueWheelPlugin.react_apps


def test_x08_the_list_of_plugins_makes_the_api_once() -> None:
    """Airflow's UI asks for the list before each page that it loads, and making the API takes 0.2 s."""
    first, second = (DueWheelPlugin.fastapi_apps[0]["app"] for _ in range(2))
    assert first is second


@pytest.mark.slow
def test_x08_the_views_pass_their_own_tests() -> None:
    page_build = Path(__file__).parents[2] / "plugin" / "ui" / "page_build.py"
    done = subprocess.run(
        [sys.executable, str(page_build), "test"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]
