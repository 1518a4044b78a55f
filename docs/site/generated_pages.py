"""The pages of the site that are not files in docs/: the top level, the example DAGs, the references made
from the code, the measurements.

The navigation in mkdocs.yml may end with an entry ``FOLDER/*``; it becomes the pages of that folder.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from command_reference import PAGE as COMMAND_PAGE
from command_reference import command_page
from mkdocs.structure.files import File, Files
from python_reference import python_pages
from sources import DAGS_PAGE, PAGES, ROOT
from sql_reference import PAGE as SQL_PAGE
from sql_reference import sql_page

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig


def on_config(config: MkDocsConfig) -> None:
    """Replace each ``FOLDER/*`` of the navigation by the pages of that folder."""
    folders = {
        "reference/api/*": [*python_pages(), SQL_PAGE, COMMAND_PAGE],
        # Each has the same heading.
        "measured/*": [
            {Path(page).stem.replace("_", " ").capitalize(): page}
            for page in PAGES.values()
            if page.startswith("measured/")
        ],
    }
    config.nav = _expanded(config.nav, folders)


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages that are made here."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    style = (ROOT / "docs" / "site" / "wide.css").read_text()
    files.append(File.generated(config, "assets/wide.css", content=style))
    files.append(File.generated(config, DAGS_PAGE, content=_example_dags()))
    for page, content in {**python_pages(), SQL_PAGE: sql_page(), COMMAND_PAGE: command_page()}.items():
        files.append(File.generated(config, page, content=content))


def _expanded(nav: Any, folders: Mapping[str, list[Any]]) -> Any:
    if isinstance(nav, dict):
        return {title: _expanded(entry, folders) for title, entry in nav.items()}
    if isinstance(nav, list):
        return [_expanded(page, folders) for entry in nav for page in folders.get(str(entry), [entry])]
    return nav


def _example_dags() -> str:
    """The list of the example DAGs, then a section for each: its docstring and its source."""
    sections = [(ROOT / "dags" / "README.md").read_text().rstrip()]
    for file in sorted((ROOT / "dags").glob("[a-z]*.py")):
        source = file.read_text()
        sections += [f"## {file.name}", ast.get_docstring(ast.parse(source)) or "", f"```python\n{source}```"]
    return "\n\n".join(sections)
