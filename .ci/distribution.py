"""Builds what is published, the sdist and from it the wheel: ``python .ci/distribution.py FOLDER``.

It builds a copy of the files that git knows, as they are in the working tree. So no other file is published,
such as ``build/lib`` of an earlier build, which setuptools would take for its own. And the working tree,
which an editable installation runs from, gets no second metadata of the package.

The same commit gives the same bytes, wherever and whenever it is built: every file has the date of the commit
and the rights that git knows, and the sdist names no account.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = Path("plugin", "bundle")


def build(folder: Path) -> None:
    """Build the sdist and the wheel into a folder, which is made if it is missing.

    Raises:
        subprocess.CalledProcessError: a tool failed; its output has the reason.
    """
    subprocess.run([sys.executable, "plugin/ui/page_build.py"], cwd=ROOT, check=True)
    committed_at = int(_git("log", "-1", "--format=%ct"))
    # Metadata that a tool writes has the rights that this leaves it.
    os.umask(0o022)
    with tempfile.TemporaryDirectory() as copy:
        for name in _git("ls-files", "-z").split("\0"):
            file = ROOT / name
            # Neither the end of the list nor a file that was deleted and not yet committed.
            if name and (file.is_symlink() or file.exists()):
                into = Path(copy, name)
                into.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, into, follow_symlinks=False)
                if not into.is_symlink():
                    into.chmod(0o755 if into.stat().st_mode & 0o100 else 0o644)
        readme = Path(copy, "README.md")
        readme.write_text(on_package_index(readme.read_text(encoding="utf-8"), _source()), encoding="utf-8")
        # Dated now: the folders of the page's sources are, and an older script would be built again.
        shutil.copytree(ROOT / PAGE, Path(copy, PAGE), copy_function=shutil.copy)
        # uv uses the setuptools that is installed here, whose version is locked.
        command = ["uv", "build", "--quiet", "--offline", "--no-build-isolation", "--python", sys.executable]
        dated = {**os.environ, "SOURCE_DATE_EPOCH": str(committed_at)}
        subprocess.run(
            [sys.executable, "-m", *command, "--out-dir", str(folder), copy], env=dated, check=True
        )
    for sdist in folder.glob("*.tar.gz"):
        _date(sdist, committed_at)


def on_package_index(readme: str, source: str | None) -> str:
    """README.md for a package index, where a link within the repository leads nowhere.

    Args:
        source: the address of this version's files, such as ``https://host/owner/name/blob/v1.0.0``; with
            None, links are their text, and pictures are left out.
    """
    link = re.compile(r"(!?)\[((?:[^]\\]|\\.)*)\]\((?!https?:|#)([^)\s]+)\)")

    def shown(found: re.Match[str]) -> str:
        picture, text, path = found.groups()
        if source is None:
            return "" if picture else text
        return f"{picture}[{text}]({(source.replace('/blob/', '/raw/') if picture else source)}/{path})"

    return link.sub(shown, readme)


def _source() -> str | None:
    """Where the files of this version are found, by ``Source`` of ``[project.urls]``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address = project.get("urls", {}).get("Source")
    if address is None:
        return None
    root = (ROOT / "src" / "duewheel" / "__init__.py").read_text(encoding="utf-8")
    (version,) = re.findall(r'^__version__ = "(.+)"$', root, re.MULTILINE)
    return f"{address.rstrip('/')}/blob/v{version}"


def _date(sdist: Path, instant: int) -> None:
    """Rewrite an sdist with one date and no account."""
    written = sdist.with_suffix(".dated")
    with (
        tarfile.open(sdist) as old,
        written.open("wb") as file,
        gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=instant) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = instant, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    written.replace(sdist)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    build(Path(sys.argv[1]).resolve())
