"""The wheel that users install: its content, what it asks for, and what it does alone with psycopg2."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from datetime import date
from email.message import Message
from importlib.resources import files
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import psycopg2
import pytest

import duewheel

ROOT = Path(__file__).parents[1]
#: Set by `make release`: the folder of the files to look at, instead of ones built for these tests.
BUILT = os.environ.get("DUEWHEEL_DISTRIBUTION")

PLAIN_PROGRAM = """
import pkgutil, sys
from datetime import timedelta
from importlib import import_module
from zoneinfo import ZoneInfo, reset_tzpath

import duewheel.cli, duewheel.store
from duewheel.store import Broker, ExtraMissing, RecallOutcome

for module in pkgutil.walk_packages(duewheel.store.__path__, "duewheel.store."):
    if module.name.rpartition(".")[2] not in ("migration", "psycopg3"):
        import_module(module.name)

def refusal(call, *arguments, **named):
    try:
        call(*arguments, **named)
    except ExtraMissing as missing:
        return str(missing)

with Broker(sys.argv[1]) as broker:
    broker.check()
    broker.create_topic("orders")
    broker.send("orders", {"order": 1}, key="1", delay=timedelta(milliseconds=1))
    waiting = broker.send("orders", {"order": 2}, delay=timedelta(hours=1))
    assert broker.recall(waiting.message_id).outcome is RecallOutcome.RECALLED
    consumer = broker.consumer("orders", "cancellers")
    while not (batch := consumer.receive(wait=timedelta(seconds=30))):
        pass
    assert [message.key for message in batch] == ["1"]
    consumer.ack(batch)
    assert not consumer.receive()
    broker.create_schedule("hourly", "orders", b"", every=timedelta(hours=1))
    print(refusal(broker.upgrade))
    print(refusal(broker.create_schedule, "daily", "orders", b"", cron="@daily"))
    ZoneInfo.clear_cache()
    reset_tzpath([])
    print(refusal(broker.create_schedule, "daily", "orders", b"", every=timedelta(days=1)))
"""

TEST_OF_A_STRANGER = """
import sys
from datetime import timedelta
from pathlib import Path

from duewheel import testing

def test_an_order_has_half_an_hour(duewheel):
    assert Path(testing.__file__).is_relative_to(sys.prefix)
    duewheel.create_topic("order-timeout")
    duewheel.send("order-timeout", b"", key="4711", delay=timedelta(minutes=30))
    duewheel.assert_sent("order-timeout", key="4711", due_in=timedelta(minutes=30))
"""


def built(folder: Path) -> Path:
    if BUILT is not None:
        return Path(BUILT)
    subprocess.run([sys.executable, ".ci/distribution.py", str(folder)], cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (file,) = built(tmp_path_factory.mktemp("distribution")).glob("*.whl")
    return file


@pytest.fixture(scope="module")
def plain(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel and psycopg2, and no other package."""
    folder = tmp_path_factory.mktemp("plain")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    install = ["pip", "install", "--quiet", "--offline", "--no-deps", "--python", str(python), str(wheel)]
    subprocess.run([sys.executable, "-m", "uv", *install], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    driver = Path(psycopg2.__file__).parent
    for part in [driver, *driver.parent.glob("psycopg2_binary*")]:
        (packages / part.name).symlink_to(part)
    return python


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def clone(folder: Path) -> Path:
    """What is committed, in a folder of its own, with the page that is built here."""
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
    # Written now, so that it is newer than the page's sources, and nothing is built anew.
    shutil.copytree(ROOT / "plugin" / "bundle", folder / "plugin" / "bundle", copy_function=shutil.copy)
    return folder


@pytest.mark.long
@pytest.mark.slow
def test_a_commit_gives_the_same_bytes_wherever_it_is_built(tmp_path: Path) -> None:
    found: list[dict[str, bytes]] = []
    for name, mask in (("one", 0o022), ("two", 0o077)):
        checkout, dist = clone(tmp_path / name), tmp_path / f"{name}-dist"
        subprocess.run(
            [sys.executable, ".ci/distribution.py", str(dist)], cwd=checkout, umask=mask, check=True
        )
        found.append({file.name: file.read_bytes() for file in dist.iterdir() if file.name[0] != "."})
    assert found[0].keys() == found[1].keys()
    assert len(found[0]) == 2
    assert [name for name, data in found[0].items() if found[1][name] != data] == []


@pytest.mark.slow
def test_the_package_index_page_has_no_dead_link(wheel: Path) -> None:
    shown = str(metadata(wheel).get_payload())
    assert shown.startswith("# duewheel")
    for link in re.findall(r"\]\(([^)]+)\)", shown):
        assert link.startswith("https://"), link


def test_links_of_the_readme_lead_to_the_source_if_it_is_known() -> None:
    specification = spec_from_file_location("distribution", ROOT / ".ci" / "distribution.py")
    assert specification is not None
    assert specification.loader is not None
    distribution = module_from_spec(specification)
    specification.loader.exec_module(distribution)
    text = "See [the map](docs/index.md#x), [this](https://a.example) and\n![a picture](docs/a.png)"
    assert distribution.on_package_index(text, "https://h.example/o/n/blob/v1") == (
        "See [the map](https://h.example/o/n/blob/v1/docs/index.md#x), [this](https://a.example) and\n"
        "![a picture](https://h.example/o/n/raw/v1/docs/a.png)"
    )
    assert distribution.on_package_index(text, None) == "See the map, [this](https://a.example) and\n"


@pytest.mark.slow
def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    folders = {link.name for link in (ROOT / "src" / "duewheel").iterdir() if link.is_symlink()}
    wanted = {
        name
        for name in tracked.splitlines()
        if name.split("/")[0] in folders and not name.startswith(("cli/demo/", "plugin/ui/"))
    }
    wanted |= {"__init__.py", "py.typed", "plugin/bundle/main.js"}
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert found == {f"duewheel/{name}" for name in wanted}


@pytest.mark.slow
def test_without_extras_the_wheel_asks_for_the_driver_only(wheel: Path) -> None:
    asked = metadata(wheel).get_all("Requires-Dist", [])
    assert [re.split(r"[<>=]", line)[0] for line in asked if "extra ==" not in line] == ["psycopg2-binary"]


@pytest.mark.slow
def test_the_version_is_the_newest_of_the_changelog(wheel: Path) -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = [heading for heading in headings if heading != "Unreleased"]
    assert BUILT is None or released == headings, "name the section Unreleased after the version"
    version, day = released[0].split(" - ")
    date.fromisoformat(day)
    assert metadata(wheel)["Version"] == duewheel.__version__ == version


@pytest.mark.slow
def test_a_plain_installation_sends_receives_acks_and_recalls(plain: Path, dsn: str) -> None:
    listed = "from importlib.metadata import distributions; print(*sorted(d.name for d in distributions()))"
    names = subprocess.run([plain, "-c", listed], capture_output=True, text=True, check=True).stdout
    assert names.split() == ["airflow-provider-duewheel", "psycopg2-binary"]
    # As on a machine that has time zones, whether or not this one has.
    zones = {"PYTHONTZPATH": str(files("tzdata") / "zoneinfo")}
    said = subprocess.run(
        [plain, "-c", PLAIN_PROGRAM, dsn], env=zones, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    install = 'which is not installed: run pip install "airflow-provider-duewheel'
    assert said.splitlines() == [
        f'Broker.upgrade() needs the Python package alembic, {install}[upgrade]"',
        f'a cron expression needs the Python package croniter, {install}[schedules]"',
        f'a schedule on a machine without time zones needs the Python package tzdata, {install}[schedules]"',
    ]


@pytest.mark.slow
@pytest.mark.parametrize("command", [["duewheel"], ["python", "-m", "duewheel.cli"]])
def test_without_its_extra_the_command_says_how_to_install_it(plain: Path, command: list[str]) -> None:
    program, *arguments = command
    done = subprocess.run(
        [plain.with_name(program), *arguments, "stats"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == (
        "Error: the command line needs the Python package rich, which is not installed: "
        'run pip install "airflow-provider-duewheel[cli]"\n'
    )


@pytest.mark.slow
def test_an_installation_has_the_plugin_of_pytest(plain: Path, tmp_path: Path) -> None:
    (tmp_path / "test_of_a_stranger.py").write_text(TEST_OF_A_STRANGER)
    # The packages of these tests behind those of the installation, whose duewheel comes first.
    program = f"""
import sys
sys.path.append({str(Path(psycopg2.__file__).parents[1])!r})
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider"]))
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [plain, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.slow
def test_an_installation_has_no_demo(plain: Path) -> None:
    # The packages of these tests behind those of the installation, whose duewheel comes first.
    program = f"""
import sys
sys.path.append({str(Path(psycopg2.__file__).parents[1])!r})
from duewheel.cli.__main__ import run
run()
"""
    listed = subprocess.run(
        [plain, "-E", "-c", program, "--help"], capture_output=True, text=True, check=True
    )
    assert "wheel" in listed.stdout
    assert "demo" not in listed.stdout
    refused = subprocess.run(
        [plain, "-E", "-c", program, "demo"], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert "No such command 'demo'" in refused.stderr
