"""Healthy runs are the same, planted mistakes are found with their first tensor and cause, and what
cannot be compared is never called different."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pardbg.analysis.same.comparison import Sameness, alone, compare
from pardbg.analysis.same.module_rows import as_dict
from pardbg.cli import main
from pardbg.render.frame.same_words import verdict
from pardbg.render.reports.sameness import same_text
from pardbg.store.store import Store
from pardbg_agent import wire
from tests.unit.analysis.same.captured import MODEL, RATE, Run, changed, noisy, retrain, run
from tests.unit.trace_builder import Trace

LAST = "head.weight"


def against(made: Run, reference: Run | None = None, floor: Run | None = None) -> Sameness:
    first = run() if reference is None else reference
    return compare(first.store(), made.store(), None if floor is None else floor.store())


def differs(found: Sameness, name: str, cause: str | None, what: str = "grad") -> str:
    """The verdict of a run whose first tensor that differs is as expected."""
    assert found.exit_code == 1, verdict(found)
    assert (found.what, found.name, found.step) == (what, name, 0)
    assert (found.hypothesis.cause if found.hypothesis else None) == cause
    return verdict(found)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("ranks", "shard"), [(1, False), (2, False), (4, True), (8, True)], ids=str
)
def test_healthy_layouts_are_the_same(seed: int, ranks: int, shard: bool) -> None:
    found = against(run(ranks, seed=seed, shard=shard))
    assert (found.exit_code, found.reason) == (0, "same"), same_text(found)
    assert {row.level for row in found.rows} == {"green"}
    assert found.inputs_known and verdict(found).startswith("The same computation: 12 tensors")
    later = {left.why: left.names for left in found.left}
    assert later == {"step": tuple(sorted(MODEL))}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_with_a_floor_later_steps_and_coarse_dtypes_are_judged(dtype: str) -> None:
    noise = 2e-7 if dtype == "float32" else 4e-3
    made, other = (run(2, seed=seed, noise=noise, dtype=dtype) for seed in (1, 2))
    reference = run(dtype=dtype)
    found = against(made, reference, other)
    assert found.reason == "same" and {row.step for row in found.rows} == {0, 1}
    wrong = changed(run(2, seed=1, noise=noise, dtype=dtype), lambda g: 1.5 * g, LAST, step=1)
    found = against(wrong, reference, other)
    assert (found.exit_code, found.step, found.name) == (1, 1, LAST)
    assert against(wrong, reference).step is None  # later steps need the floor


@pytest.mark.parametrize(("noise", "step"), [(0.0, 1), (2e-7, None)])
def test_after_equal_parameters_the_next_step_is_judged(noise: float, step: int | None) -> None:
    """Another learning rate from step 1 on: 1.5 times that of the reference."""
    made = run(seed=1, noise=noise)
    for name in MODEL:
        before, after = (made.values[of, "param", name] for of in (0, 1))
        made.values[1, "param", name] = before + 1.5 * (after - before)
    found = against(made)
    assert found.step == step
    if step is not None:
        assert found.what == "param" and found.hypothesis is not None
        assert found.hypothesis.cause == "update"
        assert found.hypothesis.factor == pytest.approx(1.5)


def test_a_coarse_dtype_without_a_floor_is_not_judged() -> None:
    coarse = run(2, seed=1, noise=4e-3, dtype="bfloat16")
    found = against(coarse, run(dtype="bfloat16"))
    assert (found.exit_code, found.reason) == (2, "nothing-judged")
    assert "noise" in {left.why for left in found.left}
    doubled = changed(coarse, lambda g: 2 * g)
    assert "2 × the reference's" in differs(against(doubled, run(dtype="bfloat16")), LAST, "factor")


@pytest.mark.parametrize(
    ("by", "said"), [(2, "2 ×"), (0.5, "1/2 ×"), (4, "4 ×"), (0.25, "1/4 ×"), (-1, "−1 ×|-1 ×"),
                     (1.7, "1.7 ×")]
)  # fmt: skip
def test_a_factor_is_said(by: float, said: str) -> None:
    found = against(changed(run(4, seed=1), lambda g: by * g))
    text = differs(found, LAST, "factor")
    assert any(one in text for one in said.split("|")), text


@pytest.mark.parametrize("by", [2, 0.5, 4, 0.25, 1.7])
def test_what_was_tried_is_told_by_its_error(by: float) -> None:
    """Taken as what it is, the tensor is the reference; as c times it, it is off by |by / c − 1|
    of the reference's norm; as the one before it has nothing to be compared with."""
    found = against(changed(run(4, seed=1), lambda g: by * g))
    assert found.hypothesis is not None
    factors = {one.factor: one.floors for one in found.tried if one.cause == "factor"}
    assert set(factors) == {2, 0.5, 4, 0.25, found.hypothesis.factor}
    assert {one.cause for one in found.tried} == {"factor"}
    best, *others = found.tried
    assert best.factor == found.hypothesis.factor == pytest.approx(by, rel=1e-3)
    assert best.floors < 3 and all(one.floors > 1000 for one in others)
    size = {c: abs(by / c - 1) for c in factors if c != best.factor}
    scale = {c: factors[c] / size[c] for c in size}  # the reference's norm, in floors
    assert max(scale.values()) == pytest.approx(min(scale.values()), rel=0.01)


def test_backward_comes_from_the_last_parameter() -> None:
    early = changed(run(2, seed=1), lambda g: 2 * g, "embed.weight", "blocks.0.norm")
    differs(against(early), "blocks.0.norm", "factor")


def test_zero_and_not_finite_and_no_gradient() -> None:
    zero = changed(run(2, seed=1), np.zeros_like, "blocks.1.norm")
    assert "all of it is 0" in differs(against(zero), "blocks.1.norm", "zero")

    def nan(grad: np.ndarray) -> np.ndarray:
        grad = grad.copy()
        grad[0] = np.nan
        return grad

    differs(against(changed(run(2, seed=1), nan, LAST)), LAST, "not-finite")
    lacking = run(2, seed=1)
    del lacking.values[0, "grad", "blocks.1.weight"]
    differs(against(retrain(lacking)), "blocks.1.weight", "no-gradient")


def test_a_stale_gradient_and_a_stale_parameter() -> None:
    floor, stale = run(seed=3), run(2, seed=1)
    stale.values[1, "grad", LAST] = stale.values[0, "grad", LAST]
    found = against(retrain(stale), floor=floor)
    assert (found.exit_code, found.step, found.name) == (1, 1, LAST)
    assert found.hypothesis is not None and found.hypothesis.cause == "stale"
    unmoved = run(2, seed=1)
    unmoved.values[0, "param", "blocks.0.weight"] = unmoved.values[0, "init", "blocks.0.weight"]
    text = differs(against(unmoved), "blocks.0.weight", "stale", "param")
    assert text.endswith("it is what it was before this step.")


def test_a_small_difference_of_an_update_is_no_mistake() -> None:
    """Adam makes whole updates of tiny gradients' rounding."""
    made = run(2, seed=1)
    for name in MODEL:
        before, after = made.values[0, "init", name], made.values[0, "param", name]
        made.values[0, "param", name] = before + noisy(after - before, 5, 0.05)
    assert against(made).reason == "same"


def test_a_gradient_of_mere_rounding_is_not_judged() -> None:
    """The bias of attention's keys has none in exact arithmetic."""
    reference, made = run(), run(2, seed=1)
    for at, side in enumerate((reference, made)):
        drawn = np.random.default_rng(at).normal(size=MODEL["blocks.0.norm"])
        side.values[0, "grad", "blocks.0.norm"] = 1e-9 * drawn
        retrain(side)
    found = against(made, reference)
    assert found.reason == "same"
    assert {left.why: left.names for left in found.left}["noise"] == ("blocks.0.norm",)


def test_one_shard_is_missing() -> None:
    made = run(4, seed=1, shard=True)
    whole = made.values[0, "grad", LAST].copy()
    whole[2:4] = 0
    made.values[0, "grad", LAST] = whole
    text = differs(against(retrain(made)), LAST, "part-zero")
    assert "the part of rank 1 is 0" in text
    hidden = run(4, seed=1, shard=True)
    hidden.hidden.add((0, "grad", LAST, 1))
    found = against(hidden)
    assert found.exit_code == 0 and found.left[0].why == "incomplete"


def test_replicas_that_differ_need_no_reference() -> None:
    made = run(3, seed=1)
    made.own[0, "grad", "blocks.1.norm", 2] = made.values[0, "grad", "blocks.1.norm"] * 1.01
    found = alone(made.store())
    assert (found.exit_code, found.name) == (1, "blocks.1.norm")
    assert "rank 2 unlike the others of ranks 0–2" in verdict(found)
    assert found.hypothesis is not None and found.hypothesis.odd_ranks == (2,)
    assert against(made).reason == "replicas-differ"
    assert alone(run(3).store()).exit_code == 0
    assert alone(run(1).store()).reason == "no-replicas"
    unknown = run(3)
    unknown.own, unknown.over = made.own, lambda rank: [rank]
    # whole parameters that began equal: their ranks compute what one rank would
    assert (alone(unknown.store()).exit_code, against(unknown).exit_code) == (2, 1)
    (left,) = alone(unknown.store()).left
    assert (left.why, left.names) == ("copies", ("blocks.1.norm",))


def test_ranks_that_only_began_equal_may_own_a_slice_each() -> None:
    """Each rank's optimizer has all parameters, and only a slice of the gradient is reduced."""
    made = run(2, seed=1, over=lambda rank: [rank])
    name, right = "blocks.1.weight", made.values[0, "grad", "blocks.1.weight"]
    for rank in range(2):
        mine = np.zeros_like(right)
        mine[4 * rank : 4 * rank + 4] = right[4 * rank : 4 * rank + 4]
        junk = np.random.default_rng(rank).normal(size=right.shape)
        made.own[0, "grad", name, rank] = np.where(mine != 0, mine, junk)
    found = against(made)
    assert found.exit_code == 0
    assert ("copies", (name,)) in {(left.why, left.names) for left in found.left}


@pytest.mark.parametrize(("by", "cause"), [(1, "mean"), (1 / 4, "sum")])
def test_a_gradient_that_is_not_reduced(by: float, cause: str) -> None:
    made = run(4, seed=1)
    for name in MODEL:
        shares = np.random.default_rng(3).normal(size=(4, *MODEL[name]))
        shares += made.values[0, "grad", name] - shares.mean(axis=0)
        for rank in range(4):
            made.own[0, "grad", name, rank] = by * shares[rank]
    found = against(made)
    assert (found.exit_code, found.name) == (1, LAST)
    assert found.hypothesis is not None and found.hypothesis.cause == cause
    causes = [one.cause for one in found.tried]
    assert causes[0] == cause and {"sum", "mean", "replicas"} < set(causes)
    sizes = {one.cause: one.floors for one in found.tried if one.cause in ("sum", "mean")}
    other = "sum" if cause == "mean" else "mean"
    assert sizes[cause] < 3 and sizes[other] > 1000  # 4 × the reference, or a quarter of it


def test_other_inputs_and_other_parameters_end_the_comparison() -> None:
    """But not what is wrong whatever the reference is."""
    wrong = changed(run(2, seed=1), lambda g: 2 * g)
    wrong.inputs = {0: [0, 2, 4, 6], 1: [1, 3, 5, 77]}
    found = against(wrong)
    assert (found.exit_code, found.rows) == (2, ())
    assert (found.reason, found.step) == ("inputs-differ", 0)
    other = changed(run(2, seed=1), lambda g: 2 * g)
    other.values[0, "init", "blocks.0.weight"] = other.values[0, "init", "blocks.0.weight"] + 1e-3
    found = against(other)
    assert (found.exit_code, found.rows) == (2, ())
    assert (found.reason, found.name) == ("initial-parameters-differ", "blocks.0.weight")
    wrong.own[0, "grad", "head.weight", 1] = wrong.values[0, "grad", "head.weight"] * 1.01
    found = against(wrong)
    assert (found.exit_code, found.reason, found.name) == (1, "replicas-differ", "head.weight")


def test_samples_may_come_in_any_order_and_twice() -> None:
    made = run(2, seed=1, steps=1)
    made.inputs = {0: [7, 6, 5, 4, 3, 2, 1, 0], 1: [0, 1, 2, 3, 4, 5, 6, 7]}
    assert against(made, run(steps=1)).reason == "same"


def test_later_stages_of_a_pipeline_get_activations_and_no_inputs() -> None:
    made = run(2, seed=1)
    made.inputs = {0: range(8), 1: [91, 92]}
    assert against(made).reason == "inputs-differ"
    for stage, reason in ((1, "same"), (0, "inputs-differ")):
        trace = run(2, seed=1, steps=1, inputs=made.inputs).trace()
        trace.ranks[1].define(wire.DefKind.STAGE, stage=stage, rank=1, num_stages=2, parameters=1)
        assert compare(run(steps=1).store(), trace.store()).reason == reason


def test_many_rows_are_not_known() -> None:
    made = run(2, seed=1, steps=1)
    made.inputs = {0: range(4096), 1: [5]}
    found = against(made, run(steps=1))
    assert (found.reason, found.inputs_known) == ("same", False)


def test_unknown_inputs_leave_a_difference_uncertain() -> None:
    made = changed(run(2, seed=1), lambda g: noisy(g, 5, 0.3), LAST)
    assert against(made).exit_code == 1 and "dropout must be off" in same_text(against(made))
    made.inputs = {}
    found = against(made)
    assert (found.exit_code, found.reason, found.inputs_known) == (2, "uncertain", False)
    assert "but the inputs are not known" in verdict(found)
    doubled = changed(run(2, seed=1), lambda g: 2 * g)
    doubled.inputs = {}
    differs(against(doubled), LAST, "factor")  # other inputs give no exact factor


def test_dropout_leaves_a_difference_uncertain() -> None:
    trace = changed(run(2, seed=1), lambda g: noisy(g, 5, 0.3), LAST).trace()
    trace.ranks[1].define(wire.DefKind.TENSOR, step=0, what="random", name="blocks.0.drop", order=0)
    found = compare(run().store(), trace.store())
    assert (found.exit_code, found.reason, found.random) == (2, "uncertain", True)


def test_what_is_cut_flat_is_compared_with_what_is_not() -> None:
    """As ZeRO's: the sketch of elements by their flat index is that of the matrix."""
    flat = run(2, seed=1, steps=1)
    flat.values = {key: whole.reshape(-1) for key, whole in flat.values.items()}
    found = against(flat)
    assert (found.reason, found.exit_code) == ("same", 0)
    assert {row.what for row in found.rows} == {"grad", "param"}


def test_tensors_without_a_parameter_are_not_called_not_captured() -> None:
    nothing = run(steps=0)
    nothing.values.clear()
    assert against(nothing).reason == "nothing-captured"
    for ended, reason in ((False, "not-stepped"), (True, "no-parameters")):
        only_inputs = run(ended=ended)
        only_inputs.values.clear()
        found = against(only_inputs)
        assert (found.reason, found.name, found.exit_code) == (reason, "B", 2)


def test_hand_made_shards_have_no_known_layout() -> None:
    made = run(2, seed=1)
    for step, what, name in list(made.values):
        if name.endswith("weight"):
            halves = np.array_split(made.values[step, what, name], 2)
            made.values[step, what, name] = halves[0]
            made.own[step, what, name, 1] = halves[1]
    made.over = lambda rank: [rank]
    found = against(made)
    assert found.exit_code == 2, same_text(found)
    assert {left.why for left in found.left} >= {"copies"}
    made = changed(made, lambda g: noisy(g, 5, 0.3), "blocks.0.norm")
    assert against(made).reason == "uncertain"  # initial weights are not known


def test_every_gradient_off_a_little_is_perhaps_low_precision() -> None:
    made = run(2, seed=1, noise=4e-3)
    found = against(made)
    assert (found.exit_code, found.reason) == (2, "all-rounding")
    assert against(made, floor=run(seed=2, noise=4e-3)).reason == "same"


def test_names_and_steps_in_common() -> None:
    other = run(2, seed=1)
    other.values = {(s, what, f"net.{name}"): v for (s, what, name), v in other.values.items()}
    assert against(other).reason == "same"  # found by their initial values
    other.values = {key: value for key, value in other.values.items() if key[1] != "init"}
    assert against(other).reason == "no-common-names"
    more = run(2, seed=1)
    for what in ("init", "grad", "param"):
        more.values[0, what, "extra"] = np.ones(3)
    found = against(more)
    assert found.reason == "same"
    assert ("only-run", ("extra",)) in {(left.why, left.names) for left in found.left}
    late = run(2, seed=1)
    late.values = {(s + 4, what, name): v for (s, what, name), v in late.values.items()}
    assert against(late).reason == "no-common-steps"


def test_a_floor_that_tells_nothing_is_said() -> None:
    found = against(run(2, seed=1), floor=run())
    assert found.floor_idle and found.reason == "same"
    assert "it tells nothing of rounding" in same_text(found)
    other = run()
    other.inputs = {0: [5]}
    assert against(run(2, seed=1), floor=other).reason == "floor-inputs-differ"


def test_a_session_of_which_not_all_was_read_is_not_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, reference = run(2, seed=1), run().store()
    monkeypatch.setattr("pardbg.store.store._MAX_DEFINITION_BYTES", 100_000)
    part = whole.store()
    assert (compare(reference, part).reason, alone(part).reason) == ("too-large", "too-large")
    assert compare(part, reference).exit_code == 2


def test_the_table_and_json() -> None:
    found = against(changed(run(4, seed=1), lambda g: 2 * g))
    lines = same_text(found).splitlines()
    assert lines[0].startswith(
        "Not the same computation: the gradient of head.weight differs first"
    )
    assert "first tensors that differ" in lines and "not compared" in lines
    assert all(len(line) <= 120 for line in lines)
    made = json.loads(json.dumps(as_dict(found)))
    assert made["exit_code"] == 1 and made["hypothesis"]["factor"] == 2
    assert made["rows"][0]["name"] == LAST and made["rows"][0]["level"] == "red"


NUMBERS = st.lists(st.integers(-1, 3) | st.integers(-(1 << 63), (1 << 64) - 1), max_size=3)
FLOATS = st.sampled_from([0.0, 1.0, 1e-300, 1e300, -1e308, float("nan"), float("inf")])
ODD = st.fixed_dictionaries({
    "step": st.integers(-1, 2), "what": st.sampled_from(["init", "grad", "param", "input", "x"]),
    "name": st.sampled_from(["a", "b", "\x1b[31m"]), "order": st.integers(-1, 2),
    "dtype": st.sampled_from(["float32", "bfloat16", "int8", ""]), "shape": NUMBERS,
    "offset": NUMBERS, "size": NUMBERS, "over": NUMBERS, "count": st.integers(0, 9), "most": FLOATS,
    "bad": st.integers(-1, 2), "bits": st.integers(0, 3), "samples": NUMBERS,
    "sketch": FLOATS | st.binary(max_size=9),
})  # fmt: skip


def odd_store(told: list[tuple[int, dict[str, object]]], boxed: bool) -> Store:
    """A store of definitions of (rank, fields); ``boxed``: with parts that are whole tensors."""
    trace = Trace(2)
    for rank, values in told:
        size = [3] if boxed else values["size"]
        more: dict[str, object] = (
            {"shape": size, "offset": [0], "size": size, "count": 3} if boxed else {}
        )
        if isinstance(value := values["sketch"], float):
            more["sketch"] = np.full(256, value).tobytes()
        trace.ranks[rank].define(wire.DefKind.TENSOR, **{**values, **more})
    return trace.store()


@settings(max_examples=50)
@given(st.lists(st.lists(st.tuples(st.integers(0, 1), ODD), max_size=9), min_size=3, max_size=3),
       st.booleans())  # fmt: skip
def test_odd_recordings_are_answered(
    told: list[list[tuple[int, dict[str, object]]]], boxed: bool
) -> None:
    a, b, floor = (odd_store(each, boxed) for each in told)
    for found in (alone(a), compare(a, b), compare(a, b, floor), compare(a, a)):
        json.dumps(as_dict(found), allow_nan=False)
        assert same_text(found) and found.exit_code in (0, 1, 2)


def code(*words: object) -> int:
    with pytest.raises(SystemExit) as end:
        main(["same", *map(str, words)])
    assert isinstance(end.value.code, int)
    return end.value.code


def test_exit_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pardbg.hub.run.runs.list_runs", list)
    reference, good = run().file(tmp_path / "a.mcap"), run(2, seed=1).file(tmp_path / "b.mcap")
    wrong = changed(run(2, seed=1), lambda g: RATE * g).file(tmp_path / "c.mcap")
    empty = Run().file(tmp_path / "d.mcap")
    floor = run(seed=4).file(tmp_path / "f.mcap")
    assert code(reference, good) == 0 and "The same computation" in capsys.readouterr().out
    assert code(reference, wrong) == 1 and "0.1 × the reference's" in capsys.readouterr().out
    assert code(reference, good, "--floor", floor) == 0
    assert code(good) == 0 and "Replicas are equal" in capsys.readouterr().out
    assert code(reference, wrong, "--json") == 1
    assert json.loads(capsys.readouterr().out)["reason"] == "differs"
    assert code(reference, empty, "--json") == 2
    told = json.loads(capsys.readouterr().out)
    assert (told["reason"], told["name"]) == ("not-stepped", "B")
    assert code(reference, "--floor", floor) == 2
    assert "--floor" in capsys.readouterr().err


def test_a_buffer_that_differs_alone_is_named() -> None:
    reference, made = run(), run(2, seed=1)
    mean = np.linspace(0.1, 1, 24)
    reference.values[0, "buffer", "norm.mean"] = mean
    made.values[0, "buffer", "norm.mean"] = noisy(mean, 3)
    found = against(made, reference)
    assert found.reason == "same" and "buffer" in {row.what for row in found.rows}
    made.values[0, "buffer", "norm.mean"] = 2 * mean
    text = differs(against(made, reference), "norm.mean", "factor", "buffer")
    assert "2 × the reference's" in text
    # a mean that is 0 but for rounding is no difference
    reference.values[0, "buffer", "norm.mean"] = mean * 1e-8
    made.values[0, "buffer", "norm.mean"] = mean[::-1] * 1e-8
    assert against(made, reference).reason == "same"


def test_buffers_that_ranks_keep_for_themselves_are_not_judged() -> None:
    reference, made = run(), run(2, seed=1, over=lambda rank: [0, 1])
    reference.values[0, "buffer", "norm.mean"] = np.linspace(0.1, 1, 24)
    made = run(2, seed=1, over=lambda rank: [rank])
    made.values[0, "buffer", "norm.mean"] = np.ones(24)
    made.own[0, "buffer", "norm.mean", 1] = np.zeros(24)
    found = against(made, reference)
    assert found.exit_code == 0 and ("copies", ("buffer",)) in {
        (left.why, left.whats) for left in found.left
    }
