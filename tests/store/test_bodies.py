"""Bodies, properties and text: what may be carried."""

from __future__ import annotations

import pytest

from duewheel.store.values.bodies import (
    MAX_BODY_BYTES,
    MAX_PROPERTIES_BYTES,
    check_text,
    properties_to_json,
    to_bytes,
)
from duewheel.store.values.errors import BodyTooLarge, InvalidArgument, NulInText, PropertiesTooLarge


def test_d12_bytes_text_and_json_become_bytes() -> None:
    for given, stored in (
        (b"\x00\xff", b"\x00\xff"),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"ab"), b"ab"),
        ("grüße", "grüße".encode()),
        ({"order": 17, "name": "ü"}, '{"order":17,"name":"ü"}'.encode()),
        ([1, None, True], b"[1,null,true]"),
        (17, b"17"),
        (None, b"null"),
    ):
        found = to_bytes(given)
        assert type(found) is bytes
        assert found == stored


def test_a_body_of_4_mib_is_the_largest() -> None:
    assert len(to_bytes(bytes(MAX_BODY_BYTES))) == 4 * 1024 * 1024
    with pytest.raises(
        BodyTooLarge, match=r"4194305 bytes, the limit is 4194304 \(4 MiB\): store it elsewhere"
    ):
        to_bytes(bytes(MAX_BODY_BYTES + 1))


def test_16_kib_of_properties_are_the_most() -> None:
    assert properties_to_json(None) is None
    assert properties_to_json({}) == "{}"
    assert properties_to_json({"a": [1, "ü"]}) == '{"a": [1, "ü"]}'
    frame = len('{"a": ""}')
    assert properties_to_json({"a": "x" * (MAX_PROPERTIES_BYTES - frame)}) is not None
    with pytest.raises(PropertiesTooLarge, match=r"16385 bytes as JSON, the limit is 16384 \(16 KiB\)"):
        properties_to_json({"a": "x" * (MAX_PROPERTIES_BYTES - frame + 1)})


def test_a_body_other_than_json_or_text_is_refused() -> None:
    for body in (object(), {1, 2}, float("nan"), {("a",): 1}, "\ud800", ["\ud800"]):
        with pytest.raises(InvalidArgument):
            to_bytes(body)
    for properties in ("text", [("a", 1)], {1: "a"}, {"a": object()}, {"a": float("inf")}):
        with pytest.raises(InvalidArgument):
            properties_to_json(properties)  # type: ignore[arg-type]
    for text in (b"bytes", 17, "\ud800"):
        with pytest.raises(InvalidArgument, match=r"^tag"):
            check_text(text, "tag")


def test_a_nul_is_refused_wherever_it_is() -> None:
    for properties in ({"a": "\0"}, {"\0": 1}, {"a": [{"b": ("x\0",)}]}):
        with pytest.raises(NulInText):
            properties_to_json(properties)
    # Its letters, escaped, are none.
    assert properties_to_json({"a": "\\u0000"}) == '{"a": "\\\\u0000"}'
    with pytest.raises(NulInText, match=r"key 'a\\x00b' holds a NUL"):
        check_text("a\0b", "key")
