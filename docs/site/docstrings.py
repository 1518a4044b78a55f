"""A griffe extension that sets docstrings as Markdown and reports the public names that have none.

Docstrings are written to be read in a terminal: an example follows ``Example::``, a name may be in a role
such as ``:meth:``, and parameters that need the same words share an entry.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Any

import griffe
from python_reference import public_names

_log = griffe.get_logger(__name__)

_LITERAL_BLOCK = re.compile(r"^( *)(\S.*?)::\n\n((?:\1 +\S.*\n|\n)+)", re.MULTILINE)
_ROLE = re.compile(r":\w+:`~?(?:[\w.]+\.)?([\w.]+)`")
_SHARED_ENTRY = re.compile(r"^( +)(\w+(?:,\s+\w+)+): (.*\n(?:\1 +\S.*\n)*)", re.MULTILINE)
_DOCTEST = re.compile(r"^( *)Example:\n((?:\1 +\S.*\n)+)", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Prepares every docstring of the package once it was read.

    Args:
        names: the dotted names that have to have a docstring; None is every public name.
    """

    def __init__(self, names: Sequence[str] | None = None) -> None:
        self._names = [name for page in public_names().values() for name in page] if names is None else names

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Set the docstring as Markdown."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Warn of missing docstrings; the strict build then fails."""
        for name in undocumented(pkg, [name for name in self._names if name.startswith(f"{pkg.name}.")]):
            _log.warning("%s is public and has no docstring", name)


def as_markdown(text: str) -> str:
    """The docstring with fenced examples, names as code and an entry for each parameter."""

    def fenced(block: re.Match[str]) -> str:
        indent, title, code = block.groups()
        example = f"**{title}:**\n\n```python\n{textwrap.dedent(code).strip()}\n```\n\n"
        return textwrap.indent(example, indent)

    def session(block: re.Match[str]) -> str:
        indent, code = block.groups()
        example = f"**Example:**\n\n```pycon\n{textwrap.dedent(code).strip()}\n```\n\n"
        return textwrap.indent(example, indent)

    def separate(entry: re.Match[str]) -> str:
        indent, names, words = entry.groups()
        return "".join(f"{indent}{name}: {words}" for name in re.split(r",\s+", names))

    text = _DOCTEST.sub(session, _LITERAL_BLOCK.sub(fenced, f"{text}\n"))
    return _ROLE.sub(r"`\1`", _SHARED_ENTRY.sub(separate, text))


def undocumented(package: griffe.Object, names: Sequence[str]) -> list[str]:
    """The names, and their public methods, properties and inner classes, that have no docstring."""
    missing = []
    for name in names:
        shown = package[name.removeprefix(f"{package.name}.")]
        members = shown.all_members.values() if shown.is_class else ()
        own = [member for member in members if not member.name.startswith("_") and not _is_plain(member)]
        missing += [each.path for each in (shown, *own) if not each.has_docstring]
    return missing


def _is_plain(member: griffe.Object | griffe.Alias) -> bool:
    """Whether a member is a value that its class explains; a property needs a docstring."""
    return member.is_attribute and "property" not in member.labels
