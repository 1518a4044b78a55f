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


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (b"\x00\xff", b"\x00\xff"),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"ab"), b"ab"),
        ("grüße", "grüße".encode()),
        ({"order": 17, "name": "ü"}, '{"order":17,"name":"ü"}'.encode()),
        ([1, None, True], b"[1,null,true]"),
        (17, b"17"),
        (None, b"null"),
    ],
)
def test_d12_bytes_text_and_json_become_bytes(given: object, stored: bytes) -> None:
    found = to_bytes(given)
    assert type(found) is bytes
    assert found == stored


@pytest.mark.parametrize("given", [object(), {1, 2}, float("nan"), {("a",): 1}, "\ud800", ["\ud800"]])
def test_what_is_not_json_is_no_body(given: object) -> None:
    with pytest.raises(InvalidArgument):
        to_bytes(given)


def test_a_body_of_4_mib_is_the_largest() -> None:
    assert len(to_bytes(bytes(MAX_BODY_BYTES))) == 4 * 1024 * 1024
    with pytest.raises(
        BodyTooLarge, match=r"4194305 bytes, the limit is 4194304 \(4 MiB\): store it elsewhere"
    ):
        to_bytes(bytes(MAX_BODY_BYTES + 1))


def test_properties_are_an_object_of_json() -> None:
    assert properties_to_json(None) is None
    assert properties_to_json({}) == "{}"
    assert properties_to_json({"a": [1, "ü"]}) == '{"a": [1, "ü"]}'


def test_16_kib_of_properties_are_the_most() -> None:
    frame = len('{"a": ""}')
    assert properties_to_json({"a": "x" * (MAX_PROPERTIES_BYTES - frame)}) is not None
    with pytest.raises(PropertiesTooLarge, match=r"16385 bytes as JSON, the limit is 16384 \(16 KiB\)"):
        properties_to_json({"a": "x" * (MAX_PROPERTIES_BYTES - frame + 1)})


@pytest.mark.parametrize("given", ["text", [("a", 1)], {1: "a"}, {"a": object()}, {"a": float("inf")}])
def test_other_properties_are_refused(given: object) -> None:
    with pytest.raises(InvalidArgument):
        properties_to_json(given)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [{"a": "\0"}, {"\0": 1}, {"a": [{"b": ("x\0",)}]}])
def test_a_nul_anywhere_in_properties_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(NulInText):
        properties_to_json(given)


def test_the_letters_of_an_escaped_nul_are_no_nul() -> None:
    assert properties_to_json({"a": "\\u0000"}) == '{"a": "\\\\u0000"}'


def test_text_with_a_nul_is_refused_by_name() -> None:
    with pytest.raises(NulInText, match=r"key 'a\\x00b' holds a NUL"):
        check_text("a\0b", "key")


@pytest.mark.parametrize("given", [b"bytes", 17, "\ud800"])
def test_what_is_no_text_is_refused(given: object) -> None:
    with pytest.raises(InvalidArgument, match=r"^tag"):
        check_text(given, "tag")
