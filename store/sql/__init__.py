"""The SQL functions of the broker, in folders by duty, and the role that may call each of them.

``manifest.txt`` names the folders with their duties, and the files in the order of an upgrade.

A function that programs call has a line ``-- role: NAME`` above it: ``answerer``, ``producer``,
``consumer``, ``admin``, or ``everyone`` for a function that runs with its caller's own rights. An upgrade
makes the SQL function ``duewheel.entry_points()`` of these lines, and grants the rights by it.
"""

from __future__ import annotations

import re
from importlib import resources
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

#: The files, with their manifest, in a folder or a zip file; another folder in tests of upgrades.
FOLDER: Traversable = resources.files(__name__)

_ROLE: Final = re.compile(
    r"^-- role: (answerer|producer|consumer|admin|everyone)\n"
    r"create or replace (?:function|procedure) duewheel\.(\w+)\(",
    re.MULTILINE,
)


def files() -> list[str]:
    """The names of the files, such as ``"send/send"``, in the order in which an upgrade applies them."""
    lines = FOLDER.joinpath("manifest.txt").read_text("utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def text_of(name: str) -> str:
    """The text of a file."""
    return FOLDER.joinpath(f"{name}.sql").read_text("utf-8")


def roles() -> dict[str, str]:
    """The role that may call each function, by the name of the function: ``consumer`` for all consumers."""
    return {function: role for name in files() for role, function in _ROLE.findall(text_of(name))}


def entry_points() -> str:
    """The statements that make ``duewheel.entry_points()`` and ``duewheel.plain_functions()``."""
    known = sorted(roles().items())
    called = ", ".join(f"('{name}', 'duewheel_{role}')" for name, role in known if role != "everyone")
    plain = ", ".join(f"'{name}'" for name, role in known if role == "everyone")
    return f"""
create or replace function duewheel.entry_points() returns table (function_name text, role_name text)
language sql immutable
begin atomic
    select e.* from (values {called}) e (function_name, role_name);
end;
create or replace function duewheel.plain_functions() returns text[]
language sql immutable
return array[{plain}];
"""
