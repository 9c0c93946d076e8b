"""Names of stages and experts are found by the initial values of their parameters."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from pardbg.analysis.same.names import own_names, prefixes
from pardbg.analysis.same.wholes import Whole, told, wholes
from pardbg.store.store import Store
from pardbg_agent import wire
from tests.unit.analysis.same.captured import Array, fields
from tests.unit.trace_builder import Trace

DRAWN = np.random.default_rng(3)
MODEL = {
    name: DRAWN.normal(size=shape) if "norm" not in name else np.ones(shape)
    for name, shape in (
        ("embed.weight", (8, 4)), ("layers.0.up.weight", (6, 4)), ("layers.0.norm.weight", (4,)),
        ("layers.1.up.weight", (6, 4)), ("layers.1.norm.weight", (4,)),
        ("layers.2.up.weight", (6, 4)), ("layers.2.norm.weight", (4,)), ("head.weight", (8, 4)),
    )
}  # fmt: skip


def run(*ranks: Mapping[tuple[int, str], Array]) -> Store:
    """A run of ranks with these parameters, by (outermost module, name)."""
    trace = Trace(len(ranks))
    for rank, proc in enumerate(trace.ranks):
        for order, ((model, name), value) in enumerate(ranks[rank].items()):
            proc.define(
                wire.DefKind.TENSOR, step=0, what="init", name=name, dtype="float32", order=order,
                model=model, over=[rank], **fields(value, [0] * value.ndim, value.shape),
            )  # fmt: skip
    return trace.store()


def reference() -> dict[str, Whole]:
    found = wholes(run({(0, name): value for name, value in MODEL.items()})).tensors
    return {name: whole for (_, _, name), whole in found.items()}


def renamed(store: Store) -> dict[tuple[int, int, int], str]:
    """(rank, model, order) -> name."""
    found = told(store, prefixes(reference(), store))
    return {(rank, tensor.model, tensor.order): tensor.name for rank, tensor in found}


def test_a_run_with_the_references_names_keeps_them() -> None:
    store = run({(0, name): value for name, value in MODEL.items()})
    assert prefixes(reference(), store) == {}


def test_stages_that_count_from_0_get_the_names_of_their_layers() -> None:
    first = {
        (0, "0.weight"): MODEL["embed.weight"],
        (0, "1.up.weight"): MODEL["layers.0.up.weight"],
        (0, "1.norm.weight"): MODEL["layers.0.norm.weight"],
    }
    second = {
        (0, "0.up.weight"): MODEL["layers.1.up.weight"],
        (0, "0.norm.weight"): MODEL["layers.1.norm.weight"],
        (0, "1.up.weight"): MODEL["layers.2.up.weight"],
        (0, "1.norm.weight"): MODEL["layers.2.norm.weight"],
        (0, "2.weight"): MODEL["head.weight"],
    }
    assert list(renamed(run(first, second)).values()) == list(MODEL)
    moved = prefixes(reference(), run(first, second))
    assert own_names(moved, "layers.2.up") == [(1, "1.up")]
    assert own_names(moved, "layers.0") == [(0, "1")] and own_names(moved, "layers") == []


def test_stages_of_one_rank_are_told_apart() -> None:
    rank = {(model, "0.up.weight"): MODEL[f"layers.{model}.up.weight"] for model in (0, 1, 2)}
    assert list(renamed(run(rank)).values()) == [f"layers.{at}.up.weight" for at in range(3)]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_with_some_layers_by_their_own_names_is_a_part(rank: int) -> None:
    halves = list(MODEL)[:3], list(MODEL)[3:]
    store = run(*({(0, name): MODEL[name] for name in half} for half in halves))
    assert prefixes(reference(), store)[rank, 0] == {}
    assert set(renamed(store).values()) == set(MODEL)


def test_equal_values_tell_nothing() -> None:
    store = run({(0, "a.norm.weight"): np.ones(4), (0, "b.up.weight"): np.zeros((6, 4))})
    assert list(renamed(store).values()) == ["a.norm.weight", "b.up.weight"]


def test_a_stage_whose_matrices_are_cut_over_ranks_is_found_by_its_parts() -> None:
    """Rank 1 has the lower half of the last layer and of the head, whose names count from 0."""
    trace = Trace(2)
    for order, (name, of) in enumerate((
        ("0.up.weight", "layers.2.up.weight"), ("0.norm.weight", "layers.2.norm.weight"),
        ("1.weight", "head.weight"),
    )):  # fmt: skip
        whole = MODEL[of]
        rows = len(whole) // 2 if whole.ndim == 2 else 0
        offset = [rows] + [0] * (whole.ndim - 1)
        size = [len(whole) - rows, *whole.shape[1:]]
        trace.ranks[1].define(
            wire.DefKind.TENSOR, step=0, what="init", name=name, dtype="float32", order=order,
            model=0, over=[1], **fields(whole, offset, size),
        )  # fmt: skip
    assert renamed(trace.store()) == {
        (1, 0, 0): "layers.2.up.weight", (1, 0, 1): "layers.2.norm.weight",
        (1, 0, 2): "head.weight",
    }  # fmt: skip
