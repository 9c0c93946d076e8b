"""Pages of rows within a number of characters."""

from __future__ import annotations

import json

import pytest

from pardbg.doors.tools import MAX_CHARS, fitted, packed, page
from pardbg.errors import UserError


def test_pages_follow_each_other_to_the_end() -> None:
    rows = [{"n": n, "text": "x" * 300} for n in range(100)]
    seen: list[int] = []
    offset: int | None = 0
    while offset is not None:
        text = page({"name": "run"}, rows, offset, 200)
        assert len(text) <= MAX_CHARS
        answer = json.loads(text)
        assert (answer["name"], answer["total"], answer["offset"]) == ("run", 100, offset)
        seen += [row["n"] for row in answer["rows"]]
        offset = answer["next_offset"]
    assert seen == list(range(100))


def test_a_limit_is_kept() -> None:
    answer = json.loads(page({}, list(range(10)), 4, 3))
    assert answer["rows"] == [4, 5, 6] and answer["next_offset"] == 7
    assert json.loads(page({}, list(range(10)), 7, 3))["next_offset"] is None
    assert json.loads(page({}, [], 0, 3)) == {
        "total": 0, "offset": 0, "next_offset": None, "rows": [],
    }  # fmt: skip
    assert json.loads(page({}, [1], 9, 3))["rows"] == []


def test_one_large_row_is_shortened_and_says_so() -> None:
    row = {"ranks": list(range(100_000)), "text": "y" * 50_000, "culprits": [3]}
    text = page({"head": ["z" * 90_000]}, [row, row], 0, 2)
    assert len(text) <= MAX_CHARS
    answer = json.loads(text)
    assert answer["rows"][0]["culprits"] == [3]
    assert answer["rows"][0]["ranks"][:2] == [0, 1] and "more" in answer["rows"][0]["ranks"][-1]
    assert answer["next_offset"] == 1


def test_what_fits_is_left_alone() -> None:
    value = {"a": [1, 2, {"b": "c"}]}
    assert fitted(value, 100) is value
    wide = {f"key{n}": n for n in range(10_000)}
    assert set(fitted(wide, 100)) == {"left_out"}  # type: ignore[call-overload]
    assert packed("\udcff").encode() == b'"?"'
    assert packed({"é": (1, 2)}) == '{"é":[1,2]}'


@pytest.mark.parametrize(("offset", "limit"), [(-1, 5), (0, 0), (0, 201)])
def test_no_such_page(offset: int, limit: int) -> None:
    with pytest.raises(UserError):
        page({}, [], offset, limit)
