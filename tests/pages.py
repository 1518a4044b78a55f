"""The code that pages of the documentation show."""

from __future__ import annotations

import re
from collections.abc import Iterator


def examples(page: str, language: str) -> list[str]:
    """The fenced blocks of a page, without the indentation of the list they stand in."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", page, re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indent}", "", block, flags=re.MULTILINE) for indent, block in found]


def signatures(page: str) -> Iterator[str]:
    """The calls that the text blocks of a page list, each on one line."""
    for block in examples(page, "text"):
        yield from (re.sub(r"\s+", " ", call.strip()) for call in re.split(r"\n(?=\w)", block))
