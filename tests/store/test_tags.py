"""Tag expressions."""

from __future__ import annotations

import pytest

from duewheel.store.values.errors import InvalidTagExpression, NulInText
from duewheel.store.values.tags import parse


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("*", None),
        (" * ", None),
        ("paid", ["paid"]),
        ("paid || cancelled", ["paid", "cancelled"]),
        ("a||b||a", ["a", "b"]),
        ("größe || a:b/c", ["größe", "a:b/c"]),
        ("x" * 127, ["x" * 127]),
    ],
)
def test_d12_tag_expressions(expression: str, tags: list[str] | None) -> None:
    assert parse(expression) == tags


@pytest.mark.parametrize(
    "expression", ["", " ", "||", "a ||", "a | b", "a b", "a || *", "x" * 128, "a\tb", "a || b c", None]
)
def test_a_bad_tag_expression_is_refused(expression: object) -> None:
    with pytest.raises(InvalidTagExpression):
        parse(expression)  # type: ignore[arg-type]


def test_a_nul_is_in_no_tag_expression() -> None:
    with pytest.raises(NulInText):
        parse("a\0b")
