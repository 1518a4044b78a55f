"""Search in pages that are opened from the disk, by the theme's plugin ``offline``.

The plugin would load a script that a browser needs for it from a public server, unless a script of that name
is there.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

ON_SITE = "assets/javascripts/iframe-worker.js"


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Put the script on the site; mkdocs.yml names it."""
    script = Path(__file__).with_name("iframe-worker.js")
    files.append(File.generated(config, ON_SITE, abs_src_path=str(script)))
