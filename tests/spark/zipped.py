"""The package in a zip, as it is shipped to executors that have only its dependencies."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import duewheel


def zip_of_the_package(folder: Path) -> Path:
    """A zip in this folder with the files that a wheel has."""
    package = Path(duewheel.__file__).parent
    path = folder / "duewheel.zip"
    with zipfile.ZipFile(path, "w") as written:
        # The folders of the package are links in a checkout.
        for parent, _, names in os.walk(package, followlinks=True):
            if "node_modules" in parent:
                continue
            for name in names:
                if name.endswith((".py", ".sql")):
                    file = Path(parent, name)
                    written.write(file, file.relative_to(package.parent))
    return path
