"""Links between pages as Git hosts follow them, made to lead to the same place on the site.

A picture whose name ends with ``-light`` may have a dark twin next to it; the theme shows one of
them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from sources import ROOT, repository_path, site_page

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

_LIGHT = re.compile(r"(!\[[^]]*\]\()([^)\s#]+)-light\.png\)")
_LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links to files of the repository; a link that leads to no page is left for MkDocs to report."""
    here = page.file.src_uri
    folder = repository_path(here).parent

    def in_both_lights(picture: re.Match[str]) -> str:
        begin, name = picture.groups()
        if not (ROOT / folder / f"{name}-dark.png").exists():
            return picture.group()
        return f"{begin}{name}-light.png#only-light){begin}{name}-dark.png#only-dark)"

    def rewritten(link: re.Match[str]) -> str:
        path, anchor = link.group(1), link.group(2) or ""
        target = site_page(Path(os.path.normpath(folder / path)))
        if target is None:
            return link.group()
        return f"]({os.path.relpath(target, Path(here).parent)}{anchor})"

    return _LINK.sub(rewritten, _LIGHT.sub(in_both_lights, markdown))
