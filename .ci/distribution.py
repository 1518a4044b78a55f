"""Builds what is published, the sdist and from it the wheel: ``python .ci/distribution.py FOLDER``.

Built is a copy of the files that git knows, as they are in the working tree. So nothing that lies about there
is published, such as ``build/lib`` of an earlier build, which setuptools would take for its own. And the
working tree, which an editable installation runs from, gets no second metadata of the package.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = Path("plugin", "bundle")


def build(folder: Path) -> None:
    """Build the sdist and the wheel into a folder, which is made if it is missing.

    Raises:
        subprocess.CalledProcessError: a tool failed; what it printed says why.
    """
    subprocess.run([sys.executable, "plugin/ui/page_build.py"], cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory() as copy:
        for name in _git("ls-files", "-z").split("\0"):
            file = ROOT / name
            # Neither the end of the list nor a file that was deleted and not yet committed.
            if name and (file.is_symlink() or file.exists()):
                into = Path(copy, name)
                into.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, into, follow_symlinks=False)
        # Dated now: the folders of the page's sources are, and an older script would be built again.
        shutil.copytree(ROOT / PAGE, Path(copy, PAGE), copy_function=shutil.copy)
        # uv uses the setuptools that is installed here, whose version is locked.
        command = ["uv", "build", "--quiet", "--offline", "--no-build-isolation", "--python", sys.executable]
        subprocess.run([sys.executable, "-m", *command, "--out-dir", str(folder), copy], check=True)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    build(Path(sys.argv[1]).resolve())
