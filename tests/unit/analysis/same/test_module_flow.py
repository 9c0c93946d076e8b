"""The first module whose output differs, by what ranks may have had of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from pardbg.analysis.same.activations import Activation, activations
from pardbg.analysis.same.module_flow import Flow, flow
from pardbg.analysis.same.noise import ROUNDINGS
from pardbg.analysis.same.siblings import beside
from pardbg.analysis.same.wholes import Whole
from pardbg.store.store import Store
from pardbg_agent import wire
from tests.unit.trace_builder import Trace

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
MODULES = ["embed", "blocks.0.mlp", "blocks.0", "blocks.1.mlp", "blocks.1", "blocks.2.mlp",
           "blocks.2", "head"]  # fmt: skip
ROWS, WIDE = 4, 8
Had = Callable[[str, str, Array, int], dict[tuple[int, int, int], Array]]
"""(what, module, value, rank) -> what the rank had, by (dim, parts, at)"""


def values(seed: int = 5) -> dict[tuple[str, str], Array]:
    drawn = np.random.default_rng(seed)
    return {(what, name): drawn.normal(size=256) for what in ("out", "d_out") for name in MODULES}


def run(
    made: dict[tuple[str, str], Array], ranks: int = 1, had: Had | None = None, same: bool = True
) -> Store:
    """Ranks with the same samples, or with samples of their own."""
    trace = Trace(ranks)
    for rank, proc in enumerate(trace.ranks):
        rows = list(range(ROWS)) if same else [rank]
        proc.define(
            wire.DefKind.TENSOR, step=0, what="input", name="0", order=0, dtype="int64",
            shape=[len(rows), 1], samples=rows,
        )  # fmt: skip
        ordered = [("out", name) for name in MODULES] + [("d_out", n) for n in reversed(MODULES)]
        for order, (what, name) in enumerate(ordered):
            value = made[what, name]
            cuts = {(0, 1, 0): value} if had is None else had(what, name, value, rank)
            proc.define(
                wire.DefKind.TENSOR, step=0, what=what, name=name, order=order, dtype="float32",
                shape=[WIDE], count=len(rows), most=float(np.abs(value).max()), bad=0,
                module="Module", place="model.py:1", times=[],
                cuts=[
                    {"cut": list(cut), "sketch": part.tobytes(), "by_place": part.tobytes()}
                    for cut, part in cuts.items()
                ],
            )  # fmt: skip
    return trace.store()


def of(store: Store) -> Sequence[Activation]:
    return activations(store, 0, {})


def noise(left: Whole, right: Whole, measured: float = 0.0) -> float:
    return ROUNDINGS * 2.0**-23 * left.norm


def judged(store: Store, reference: Store | None = None) -> Flow:
    return flow(of(reference or run(values())), of(store), (), noise, (2, 4))


def levels(found: Flow) -> set[str]:
    return {one.level for one in found.judged}


def whole(value: Array) -> dict[tuple[int, int, int], Array]:
    return {(0, 1, 0): value}


def test_equal_runs_are_green_from_the_first_to_the_last() -> None:
    found = judged(run(values()))
    assert [one.run.name for one in found.judged] == [*MODULES, *reversed(MODULES)]
    assert found.first is None and levels(found) == {"green"}


def test_rows_of_ranks_add_up() -> None:
    def own(what: str, name: str, value: Array, rank: int) -> dict[tuple[int, int, int], Array]:
        return whole(value * (0.25 if rank == 0 else 0.75))

    assert levels(judged(run(values(), 2, own, same=False))) == {"green"}


def test_sums_and_slices_are_read_as_such() -> None:
    drawn = np.random.default_rng(9)
    noises = {name: drawn.normal(size=256) for name in MODULES}

    def parts(what: str, name: str, value: Array, rank: int) -> dict[tuple[int, int, int], Array]:
        mine = value * 0.5 + (noises[name] if rank else -noises[name])
        if "mlp" in name:
            return whole(mine)
        return whole(value * 9) | {(0, 2, rank): mine} if name == "head" else whole(value)

    reference, made = values(), run(values(), 2, parts)
    found = flow(of(run(reference)), _wide(of(made)), (), noise, (2,))
    assert found.first is None
    hows = {one.run.name: one.reading and one.reading.how for one in found.judged}
    assert (hows["blocks.0.mlp"], hows["blocks.0"]) == ("sum", "whole")


def _wide(found: Sequence[Activation]) -> Sequence[Activation]:
    return [one for one in found if one.name != "head"]


@pytest.mark.parametrize("factor", [2.0, 1 / 4])
def test_gradients_are_compared_up_to_one_factor(factor: float) -> None:
    made = {key: v * (factor if key[0] == "d_out" else 1) for key, v in values().items()}
    found = judged(run(made))
    assert found.first is None and levels(found) == {"green"}


def test_the_first_output_that_differs_is_named() -> None:
    made = values()
    for name in MODULES[3:]:
        made["out", name] = made["out", name] + 0.01 * np.random.default_rng(1).normal(size=256)
    first = judged(run(made)).first
    assert first is not None
    assert (first.what, first.name, first.kind, first.source, first.through) == (
        "out", "blocks.1.mlp", "Module", "model.py:1", "",
    )  # fmt: skip


def test_backward_names_whose_backward_it_comes_out_of() -> None:
    made = values()
    for name in MODULES[:4]:
        made["d_out", name] = made["d_out", name][::-1].copy()
    first = judged(run(made)).first
    assert first is not None
    assert (first.what, first.name, first.through) == ("d_out", "blocks.1.mlp", "blocks.1")


def test_a_loss_that_differs_is_no_modules_fault() -> None:
    made = values()
    for name in MODULES:
        made["d_out", name] = made["d_out", name][::-1].copy()
    first = judged(run(made)).first
    assert first is not None and first.what == "loss"


def test_a_sum_that_nobody_summed_is_named_where_it_comes_from() -> None:
    """Of block 1 the rank's own part goes on; the others' are summed behind the mlp."""
    drawn = np.random.default_rng(9)
    off = drawn.normal(size=256)

    def parts(what: str, name: str, value: Array, rank: int) -> dict[tuple[int, int, int], Array]:
        mine = value * 0.5 + (off if rank else -off)
        gone = what == "out" and MODULES.index(name) > MODULES.index("blocks.1.mlp")
        return whole(mine if "mlp" in name else value + (off if rank else -2 * off) * gone)

    first = judged(run(values(), 2, parts)).first
    assert first is not None and first.hypothesis is not None
    assert (first.what, first.name) == ("out", "blocks.1.mlp")
    assert (first.hypothesis.cause, first.hypothesis.ranks) == ("sum", (0, 1))


@pytest.mark.parametrize("goes_on", [True, False])
def test_what_most_siblings_have_summed_is_wrong_if_what_comes_of_it_is(goes_on: bool) -> None:
    off = np.random.default_rng(9).normal(size=256)

    def parts(what: str, name: str, value: Array, rank: int) -> dict[tuple[int, int, int], Array]:
        if (what, name) == ("d_out", "blocks.1.mlp"):
            return whole(value * 0.5 + (off if rank else -off))
        gone = what == "d_out" and name in ("embed", "blocks.0") and goes_on
        return whole(value + off if gone else value)

    first = judged(run(values(), 2, parts)).first
    if not goes_on:  # another place sums it, as what follows is right
        assert first is None
        return
    assert first is not None and first.hypothesis is not None
    assert (first.what, first.name, first.hypothesis.cause) == ("d_out", "blocks.1.mlp", "sum")


def test_a_rank_that_is_unlike_the_others_is_named() -> None:
    def parts(what: str, name: str, value: Array, rank: int) -> dict[tuple[int, int, int], Array]:
        late = what == "out" and MODULES.index(name) >= MODULES.index("blocks.2")
        return whole(value * 1.5 if late and rank == 2 else value)

    first = judged(run(values(), 4, parts)).first
    assert first is not None and first.hypothesis is not None
    assert (first.name, first.hypothesis.cause) == ("blocks.2", "replicas")
    assert (first.hypothesis.ranks, first.hypothesis.odd_ranks) == ((0, 1, 2, 3), (2,))


def test_what_no_reading_fits_is_not_called_wrong_before_any_has() -> None:
    other = values(seed=6)
    found = judged(run(other, 2))
    assert found.first is None and levels(found) == {"layout", "scale"}


def test_ranks_that_share_samples_tell_nothing_by_contents() -> None:
    store = run(values(), 2)
    trace_of = [one for one in of(store) if one.readings]
    assert {reading.by for one in trace_of for reading in one.readings} == {"contents", "place"}
    known = {"contents"}
    mixed = activations(run(values(), 2, None, same=False), 0, {})
    assert {reading.by for one in mixed for reading in one.readings} == known


@pytest.mark.parametrize("seed", range(40))
def test_definitions_that_nobody_would_send_are_survived(seed: int) -> None:
    drawn = np.random.default_rng(seed)
    odd: list[object] = [
        None,
        -1,
        0,
        (1 << 64) - 1,
        "x",
        [],
        [[]],
        {},
        b"",
        b"y" * 2048,
        [1 << 62],
        [-5, 3],
        2.5,
        [{"cut": [0, 1 << 40, 0], "sketch": b"\xff" * 2048, "by_place": b"\0" * 2048}],
        [{"cut": [9, 3, 7], "sketch": b"\0" * 2048, "by_place": b"\0" * 2048}],
    ]
    trace = Trace(2)
    for proc in trace.ranks:
        for _ in range(30):
            known: dict[str, object] = {
                "step": 0, "what": str(drawn.choice(["out", "d_out", "input", "init"])),
                "name": str(drawn.choice(["", "a", "a.0", "blocks.1.b"])), "order": 1,
                "shape": [8], "count": 4, "most": 1.0, "bad": 0, "times": [1, 2],
                "cuts": [{"cut": [0, 1, 0], "sketch": b"\0" * 2048, "by_place": b"\0" * 2048}],
            }  # fmt: skip
            for key in drawn.choice(list(known), 2):
                known[str(key)] = odd[int(drawn.integers(len(odd)))]
            proc.define(wire.DefKind.TENSOR, **known)
    store = trace.store()
    found = flow(of(run(values())), of(store), of(store), noise, (2,))
    assert all(one.error >= 0 for one in found.judged)
    beside(store, of(store), "blocks.1.b", backward=bool(seed % 2))


@pytest.mark.parametrize("goes_on", [False, True])
def test_what_is_red_inside_a_module_that_agrees_was_misread(goes_on: bool) -> None:
    """Both ranks have one wrong output of blocks.0.mlp, as of a gated layer's slices."""
    made = values()
    made["out", "blocks.0.mlp"] = made["out", "blocks.0.mlp"][::-1].copy()
    if goes_on:
        for name in MODULES[2:]:
            made["out", name] = made["out", name] * 1.5
    found = judged(run(made, 2))
    of_mlp = {one.run.what: one.level for one in found.judged if one.run.name == "blocks.0.mlp"}
    assert of_mlp == ({"out": "red", "d_out": "green"} if goes_on else dict.fromkeys(
        ("out", "d_out"), "layout"))  # fmt: skip
    assert (found.first is None) is not goes_on


def test_an_identity_in_another_stage_is_not_the_module() -> None:
    def told(*kinds: str) -> Store:
        trace = Trace(len(kinds))
        for rank, (proc, kind) in enumerate(zip(trace.ranks, kinds, strict=True)):
            value = np.full(256, 1.0 + rank)
            proc.define(
                wire.DefKind.TENSOR, step=0, what="out", name="embed", order=0, dtype="float32",
                shape=[WIDE], count=ROWS, most=2.0, bad=0, module=kind, place="", times=[], cuts=[
                    {"cut": [0, 1, 0], "sketch": value.tobytes(), "by_place": value.tobytes()}],
            )  # fmt: skip
        return trace.store()

    reference = of(told("Embedding"))
    for other in ("Identity", "PassThrough"):
        (found,) = activations(told("Embedding", other), 0, {}, (), reference)
        assert found.alone and list(found.times) == [0]
    (found,) = activations(told("A", "B"), 0, {}, (), reference)  # neither is known to be it
    assert list(found.times) == [0, 1]


def test_what_is_misread_in_one_block_is_in_others() -> None:
    """Block 2 puts out something wrong; its mlp is off as block 0's is, whose block agrees."""
    made = values()
    for name in ("blocks.0.mlp", "blocks.2.mlp"):
        made["out", name] = made["out", name][::-1].copy()
    for name in MODULES[MODULES.index("blocks.2") :]:
        made["out", name] = made["out", name] * 1.5
    found = judged(run(made, 2))
    outs = {one.run.name: one.level for one in found.judged if one.run.what == "out"}
    assert (outs["blocks.0.mlp"], outs["blocks.2.mlp"]) == ("layout", "layout")
    assert found.first is not None and found.first.name == "blocks.2"


@pytest.mark.parametrize(("doubted", "first"), [
    (("blocks.2", "head"), ("out", "blocks.2")), (("blocks.1",), ("d_out", "blocks.2.mlp")),
])  # fmt: skip
def test_an_output_that_is_yellow_to_the_end_explains_a_red_gradient(
    doubted: tuple[str, ...], first: tuple[str, str]
) -> None:
    made = values()
    for name in doubted:  # 5 floors of 8 roundings
        made["out", name] = made["out", name] * (1 + 40 * 2.0**-23)
    assert judged(run(made)).first is None  # no gradient is red
    for name in MODULES[: MODULES.index("blocks.2")]:
        made["d_out", name] = np.random.default_rng(9).normal(size=256)
    found = judged(run(made)).first
    assert found is not None and (found.what, found.name) == first
