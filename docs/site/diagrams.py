"""Mermaid for the pages that have a diagram, from the npm package of plugin/ui instead of a server elsewhere.

Material draws the diagrams and gives them the colours of the light or dark theme. It would load Mermaid from
a public server unless the page has it already.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.utils import get_relative_url

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

MERMAID = Path(__file__).parents[2] / "plugin/ui/node_modules/@mermaid-js/tiny/dist/mermaid.tiny.js"
ON_SITE = "assets/javascripts/mermaid.js"


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Put Mermaid on the site."""
    if not MERMAID.exists():
        raise PluginError(f"There is no {MERMAID}: `make docs` installs it, `npm ci` in plugin/ui as well")
    files.append(File.generated(config, ON_SITE, abs_src_path=str(MERMAID)))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Load Mermaid, 2.5 MB, on the pages that have a diagram."""
    if 'class="mermaid"' not in html:
        return html
    return f'{html}\n<script src="{get_relative_url(ON_SITE, page.url)}"></script>'
