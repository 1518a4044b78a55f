"""Lease handles: joined, and as JSON."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from duewheel.store.leases import from_json, to_json
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.leases import Lease, joined

END = datetime(2026, 1, 5, 9, 31, 0, 123456, tzinfo=UTC)
WHOLE = Lease(1, 2, 3, 4, 5, END, 3)


def part(*seqs: int) -> Lease:
    return Lease(1, 2, 3, 4, 5, END, 3, seqs)


def test_parts_of_a_lease_are_joined() -> None:
    assert joined([part(7), part(9), part(7)]) == [part(7, 9)]
    assert joined([part(7), part(8), part(9)]) == [WHOLE]
    assert joined([part(7), WHOLE]) == [WHOLE]
    assert joined([WHOLE, part(7)]) == [WHOLE]
    assert joined([]) == []


def test_leases_go_through_json_and_other_text_is_refused() -> None:
    other = Lease(1, 2, 3, 5, 5, END, 1)
    assert joined([part(7), other, part(8)]) == [part(7, 8), other]
    for leases in ([], [WHOLE], [part(7, 9)], [part(7), Lease(1, 2, 0, 9, 2**62, END, 1)]):
        assert from_json(to_json(leases)) == leases
    assert from_json(to_json(WHOLE)) == [WHOLE]
    versions = ('{"v":2,"leases":[]}', '{"v":1,"leases":[[1,2]]}', '{"v":1,"leases":["a"]}')
    for text in ("", "{}", "[]", "null", *versions):
        with pytest.raises(InvalidArgument):
            from_json(text)
