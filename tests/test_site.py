"""The documentation site: its strict build refuses what a reader would miss."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from tests.pages import signatures

ROOT = Path(__file__).parents[1]
HOOKS = ROOT / "docs" / "site"
#: As little of mkdocs.yml as shows docstrings.
CONFIGURATION = f"""
site_name: sample
strict: true
theme: null
plugins:
  - mkdocstrings:
      handlers:
        python:
          paths: [.]
          options:
            extensions:
              - {HOOKS / "docstrings.py"}:
                  names: [sample.Wheel]
"""


def build(folder: Path, package: str, options: str = "") -> tuple[int, str]:
    """Build a site that shows a class of a package: the exit status, and what was reported."""
    (folder / "docs").mkdir(exist_ok=True)
    (folder / "docs" / "index.md").write_text("# Sample\n\n::: sample.Wheel\n")
    (folder / "mkdocs.yml").write_text(CONFIGURATION + options)
    (folder / "sample.py").write_text(package)
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HOOKS), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    return done.returncode, done.stderr


@pytest.mark.slow
def test_a_public_name_without_a_docstring_fails_the_build(tmp_path: Path) -> None:
    silent = 'class Wheel:\n    """Turns."""\n\n    def tick(self) -> None: ...\n'
    status, report = build(tmp_path, silent)
    assert status == 1, report
    assert "sample.Wheel.tick is public and has no docstring" in report

    status, report = build(tmp_path, silent.replace("...", '"""Release."""'))
    assert status == 0, report


def configuration() -> dict[str, Any]:
    """What mkdocs.yml says."""

    class Loader(yaml.SafeLoader):
        """Reads past the tags that name Python objects."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    site: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    return site


def handler_options() -> dict[str, Any]:
    """How mkdocs.yml has docstrings shown."""
    (python,) = [
        each["mkdocstrings"]["handlers"]["python"]
        for each in configuration()["plugins"]
        if "mkdocstrings" in each
    ]
    options: dict[str, Any] = python["options"]
    return options


@pytest.mark.slow
def test_a_class_is_shown_with_its_public_methods(tmp_path: Path) -> None:
    docstring = """Release.

        Raises:
            KeyError, ValueError,
            OSError: it does not turn.

        Example:
            >>> [wheel.tick() for _ in range(2)]
            [1, 2]
        """
    methods = f'def tick(self) -> int:\n        """{docstring}"""\n\n    def _turn(self) -> None: ...\n'
    options = handler_options()
    shown = "".join(f"            {name}: {options[name]}\n" for name in ("docstring_style", "filters"))
    status, report = build(tmp_path, f'class Wheel:\n    """Turns."""\n\n    {methods}', shown)
    assert status == 0, report
    page = (tmp_path / "site" / "index.html").read_text()
    assert 'id="sample.Wheel.tick"' in page
    assert 'id="sample.Wheel._turn"' not in page
    for error in ("KeyError", "ValueError", "OSError"):
        assert f'<span title="{error}">' in page, error
    assert "language-pycon" in page


def printed(program: str) -> str:
    """What a program prints that has the site's hooks at hand."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HOOKS), *sys.path])},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout


def generated(page: str) -> str:
    """A page that is made from the code."""
    return printed(f"from {page}_reference import {page}_page; print({page}_page())")


def test_the_page_of_sql_functions_has_all_of_the_reference() -> None:
    explained = (ROOT / "docs" / "reference" / "sql.md").read_text()
    page = generated("sql")
    assert set(re.findall(r"^### (\w+)", page, re.MULTILINE)) == {
        call.partition("(")[0] for call in signatures(explained)
    }
    assert "recall(message_id text, now timestamptz = null) returns duewheel.recall_receipt" in page
    assert len(re.findall("Needs the role `duewheel_producer`", page)) == 8


def test_the_page_of_the_commands_has_each_with_its_help() -> None:
    page = generated("command")
    for command in ("topic create", "message send", "dead-letter redrive", "db upgrade"):
        _, _, after = page.partition(f"## duewheel {command}\n")
        assert after.lstrip().startswith(f"```text\nUsage: duewheel {command} [OPTIONS]")
        assert "--json" in after.partition("\n## ")[0]


def test_a_picture_has_its_dark_twin_beside_it() -> None:
    program = """
from types import SimpleNamespace as Namespace
import links
page = Namespace(file=Namespace(src_uri="how-to/page.md"))
for name in ("overview-wide", "alone"):
    print(links.on_page_markdown(f"![It](page/{name}-light.png)", page, None, None))
"""
    assert printed(program).splitlines() == [
        "![It](page/overview-wide-light.png#only-light)![It](page/overview-wide-dark.png#only-dark)",
        "![It](page/alone-light.png)",
    ]


SEARCHED = f"""
site_name: sample
use_directory_urls: false
theme:
  name: material
  font: false
hooks: [{HOOKS / "search.py"}]
extra:
  polyfills: [assets/javascripts/iframe-worker.js]
plugins: [search, offline]
"""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A folder by HTTP on this machine; yields its address."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@contextmanager
def opened_page() -> Iterator[Any]:
    """A page of a browser."""
    from playwright.sync_api import sync_playwright

    path = next(one for one in ("/usr/bin/chromium", "/usr/bin/google-chrome") if Path(one).exists())
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=path, args=["--no-sandbox"]) as browser,
    ):
        yield browser.new_page()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.needs("chromium")
def test_the_search_works_on_a_page_that_is_opened_from_the_disk(tmp_path: Path) -> None:
    from playwright.sync_api import expect

    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Sample\n\nNothing is said here.\n")
    (tmp_path / "docs" / "wheel.md").write_text("# The wheel\n\nIt turns on a doorbell.\n")
    (tmp_path / "mkdocs.yml").write_text(SEARCHED)
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet"]
    subprocess.run(build, cwd=tmp_path, check=True, timeout=240)
    asked: list[str] = []
    with opened_page() as page:
        page.on("request", lambda request: asked.append(request.url))
        page.goto((tmp_path / "site" / "index.html").as_uri())
        page.locator("input[name=query]").click()
        page.locator("input[name=query]").press_sequentially("doorbell")
        expect(page.locator(".md-search-result__item").first).to_contain_text("The wheel", timeout=60_000)
    assert [url for url in asked if not url.startswith(("file:", "data:", "about:"))] == []


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.needs("chromium")
def test_a_reader_chooses_among_the_versions_of_the_site(tmp_path: Path) -> None:
    from playwright.sync_api import expect

    version = configuration()["extra"]["version"]
    (tmp_path / "docs").mkdir()
    (tmp_path / "mkdocs.yml").write_text(SEARCHED.replace("extra:", f"extra:\n  version: {version}"))
    who = {f"GIT_{whose}_NAME": "author" for whose in ("AUTHOR", "COMMITTER")}
    who |= {name.replace("NAME", "EMAIL"): "author@example.invalid" for name in who}
    programs = Path(sys.executable).parent
    # mike calls mkdocs by its name.
    environment = {**os.environ, **who, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}

    def run(*command: str) -> None:
        subprocess.run(command, cwd=tmp_path, check=True, timeout=240, env=environment)

    run("git", "init", "--quiet")
    run("git", "commit", "--quiet", "--allow-empty", "--message", "start")
    for number in ("0.1", "0.2"):
        (tmp_path / "docs" / "index.md").write_text(f"# Sample\n\nOf version {number}.\n")
        run(
            str(Path(sys.executable).with_name("mike")),
            "deploy",
            "--update-aliases",
            "--alias-type",
            "copy",
            number,
            "latest",
        )
    run("git", "worktree", "add", "--quiet", "pages", "gh-pages")
    with (
        served(tmp_path / "pages") as address,
        opened_page() as page,
    ):
        page.goto(f"{address}/latest/index.html")
        expect(page.get_by_text("Of version 0.2.")).to_be_visible()
        page.locator(".md-version__current").focus()
        page.get_by_role("link", name="0.1").click()
        expect(page.get_by_text("Of version 0.1.")).to_be_visible()
