"""Kept elements are compared one by one: which differ, on which rank, where in the whole tensor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pardbg.analysis.same import names as renaming
from pardbg.analysis.same.comparison import Sameness, compare
from pardbg.analysis.same.elements import Elements, of_parameter
from pardbg.render.frame.same_words import element_lines
from pardbg.render.reports.sameness import same_text
from pardbg.store.captured import Kept, TensorDef, add_values, tensor_def
from pardbg.store.store import Store
from tests.unit.analysis.same.captured import run

NAME = "blocks.0.weight"
KEY = (0, "grad", NAME)
WHOLE = np.arange(1.0, 33.0).reshape(8, 4)


def kept(values: np.ndarray[Any, Any], dtype: str = "float32") -> Kept:
    stored = values.astype("<f4")
    data = (stored.view("<u4") >> 16).astype("<u2") if dtype == "bfloat16" else stored
    return Kept(dtype, (), (), {0: data.tobytes()})


def part(values: np.ndarray[Any, Any], offset: tuple[int, int]) -> TensorDef:
    """A rank's box of WHOLE."""
    made = tensor_def({
        "step": 0, "what": "grad", "name": NAME, "dtype": "float32", "shape": [8, 4],
        "offset": list(offset), "size": list(values.shape), "count": values.size,
        "sketch": np.zeros(256).tobytes(),
    })  # fmt: skip
    return replace(made, kept=kept(values))


def compared(*parts: TensorDef) -> Elements:
    """Noise of 0.1 in a norm of 100: an element may be off by 1 / sqrt(32), or by 1 % of itself."""
    reference = [(0, part(WHOLE, (0, 0)))]
    found = of_parameter(KEY, (8, 4), 0.1, 100.0, reference, list(enumerate(parts)))
    assert found is not None
    return found


def test_wrong_rows_and_columns_of_a_shard_are_named_in_the_whole_tensor() -> None:
    wrong = WHOLE[4:].copy()
    wrong[1:3, 2] += 1
    one, other = compared(part(WHOLE[:4], (0, 0)), part(wrong, (4, 0))).shards
    assert (one.rank, one.wrong, one.compared, one.ranges) == (0, 0, 16, ())
    assert (other.rank, other.wrong, other.compared) == (1, 2, 16)
    assert other.ranges == ((5, 6), (2, 2)) and other.first == (5, 2)
    assert (other.reference, other.run) == (23.0, 24.0)  # 5 x 4 + 2, from 1 on
    assert other.strips == ((None,) * 4 + (0, 0.25, 0.25, 0), (0, 0, 0.5, 0))


def test_rounding_of_an_element_is_not_wrong() -> None:
    # 0.17 and 0.18 lie on both sides of 1 / sqrt(32) = 0.1768; 32 x 1 % = 0.32 allows more
    moved = WHOLE.copy()
    moved[0, :2] += (0.17, 0.18)
    moved[7, 3] += 0.31
    (shard,) = compared(part(moved, (0, 0))).shards
    assert (shard.wrong, shard.first) == (1, (0, 1))


def test_what_is_not_finite_is_wrong() -> None:
    odd = WHOLE.copy()
    odd[2, 1], odd[2, 3] = np.nan, np.inf
    (shard,) = compared(part(odd, (0, 0))).shards
    assert (shard.wrong, shard.ranges) == (2, ((2, 2), (1, 3)))


def test_a_part_that_is_cut_off_is_compared_as_far_as_it_goes() -> None:
    cut = replace(part(WHOLE + 9, (0, 0)), kept=kept((WHOLE + 9).ravel()[:6]))
    (shard,) = compared(cut).shards
    assert (shard.compared, shard.wrong, shard.ranges) == (6, 6, ((0, 1), (0, 3)))


def test_flat_shards_are_told_by_rows_and_columns() -> None:
    flat = replace(part(WHOLE[:1], (0, 0)), shape=(32,), offset=(20,), size=(12,), count=12)
    flat = replace(flat, kept=kept(WHOLE.ravel()[20:] * 2))
    (shard,) = compared(flat).shards
    assert (shard.wrong, shard.ranges) == (12, ((5, 7), (0, 3)))


@pytest.mark.parametrize("odd", [
    {"shape": (1 << 40, 1 << 40)}, {"offset": (7, 7)}, {"size": (8,)}, {"shape": (4, 4)},
])  # fmt: skip
def test_nothing_is_said_of_parts_that_make_no_sense(odd: dict[str, Any]) -> None:
    right, wrong = part(WHOLE, (0, 0)), replace(part(WHOLE, (0, 0)), **odd)
    for sides in (([(0, right)], [(0, wrong)]), ([(0, wrong)], [(0, right)])):
        assert of_parameter(KEY, (8, 4), 0.1, 100.0, *sides) is None


def test_pieces_are_joined_up_to_a_gap_and_bounded() -> None:
    known: dict[Any, Kept] = {}
    data = np.arange(6, dtype="<f4").tobytes()
    head = {"step": 0, "what": "out", "name": "a", "model": 0, "dtype": "float32", "rows": [3]}
    much = 1 << 20
    for at, room, new in ((16, much, 1), (0, much, 1), (0, much, 0), (8, 8, 0), (8, much, 1)):
        some = {**head, "at": at, "values": data[at : at + 8]}
        assert bool(add_values(known, some, room)) == new
        if at == 0:
            assert known[0, "out", "a", 0].values().tolist() == [0, 1]
    assert known[0, "out", "a", 0].values().tolist() == [0, 1, 2, 3, 4, 5]
    assert known[0, "out", "a", 0].rows == (3,)
    for odd in ({"at": -1, "values": b"1"}, {"at": 4, "values": b""}, {"at": 4, "values": [1]}):
        assert not add_values(known, {**head, **odd}, much)
    assert kept(np.array([1.5, -2.0]), "bfloat16").values().tolist() == [1.5, -2.0]
    assert not len(Kept("int3", (), (), {0: b"1234"}).values())
    # what it takes is more than its bytes
    assert add_values(known, {**head, "name": "b", "at": 0, "values": bytes(100)}, much) > 200


def with_values(store: Store, name: str, values: np.ndarray[Any, Any]) -> Store:
    for process in store.rank_procs(None).values():
        (found,) = [t for t in process.tensors if (t.step, t.what, t.name) == (0, "grad", name)]
        process.kept[0, "grad", name, found.model] = kept(values)
    return store


def test_the_answer_has_the_elements_of_red_tensors() -> None:
    whole = run().values[KEY]
    off = whole.copy()
    off[3] *= 3
    reference, bad = run(), run()
    bad.values[KEY] = off
    found = compare(
        with_values(reference.store(), NAME, whole), with_values(bad.store(), NAME, off)
    )
    (one,) = found.elements
    assert (found.what, one.name, one.by_sample) == ("grad", NAME, False)
    assert one.shards[0].ranges[0] == (3, 3) and one.shards[0].wrong == 8
    lines = list(element_lines(one))
    assert lines[2].split()[-1] == "▁▁▁█▁▁▁▁" and set(lines[3].split()[-1]) == {"▂"}
    assert lines[0] in same_text(found)
    # what agrees is not told
    assert not compare(
        with_values(reference.store(), NAME, whole), with_values(run().store(), NAME, whole)
    ).elements


def test_without_them_it_is_said_how_to_keep_them() -> None:
    bad = run()
    bad.values[KEY] = bad.values[KEY] * 2
    found = compare(run().store(), bad.store())
    assert f"--full {found.what}:{found.name}" in same_text(found)
    assert "--full" not in same_text(Sameness("same"))


def test_rules_of_names_move_elements_too() -> None:
    store = with_values(run().store(), NAME, WHOLE)
    renaming.rename(store, renaming.parse("^blocks => layers"))
    (process,) = store.rank_procs(None).values()
    assert [key[2] for key in process.kept] == ["layers.0.weight"]
