"""Sharded steps, recomputed forwards and the parts of an all_to_all, out of hand-made records."""

from __future__ import annotations

import pytest

from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.answers.timeline import lanes
from pardbg.analysis.memory.breakdown import zero_model
from pardbg.analysis.memory.sharding import Stretch, split_name
from pardbg.store.definitions import ModelDef
from pardbg_agent.wire import Flag, Kind, Lane
from tests.unit.trace_builder import Proc, Trace, ns


def unit(proc: Proc, name: str, t0: float, t1: float, size: int, whole: int, step: int = 0) -> None:
    proc.record(Kind.FSDP, t0, t1, proc.name(name), lane=Lane.COMM, step=step, a=size, b=whole)


def two_steps() -> Trace:
    """A root of 100 bytes and a block of 300. In step 1 the block is gathered twice; of step 2
    only the begin has come."""
    trace = Trace(1)
    (proc,) = trace.ranks
    for step, t in ((0, 0.0), (1, 100.0)):
        unit(proc, "root unshard", t + 0, t + 4, 100, 0, step)
        unit(proc, "root wait unshard", t + 4, t + 5, 100, 100, step)
        unit(proc, "a.0 unshard", t + 5, t + 8, 300, 100, step)
        unit(proc, "a.0 wait unshard", t + 9, t + 10, 300, 400, step)
        unit(proc, "a.0 reshard", t + 19, t + 20, 300, 100, step)
        unit(proc, "a.0 unshard", t + 40, t + 44, 300, 100, step)
        unit(proc, "a.0 wait unshard", t + 44, t + 45, 300, 400, step)
        unit(proc, "a.0 reshard", t + 59, t + 60, 300, 100, step)
        unit(proc, "a.0 reduce", t + 60, t + 70, 300, 100, step)
        proc.phase("forward", t, t + 30, step)
        proc.phase("backward", t + 30, t + 80, step)
        proc.step(step, t, t + 90)
    unit(proc, "root unshard", 200, 204, 100, 0, 2)
    unit(proc, "root wait unshard", 204, 205, 100, 100, 2)
    return trace


def at(t0: float, t1: float) -> Stretch:
    return Stretch(ns(t0), ns(t1))


def between_steps(model: ModelDef) -> int | None:
    zero = zero_model(model, None)
    return None if zero is None else zero.bytes_at(zero.level)


def test_the_last_complete_step_is_told_unit_by_unit() -> None:
    shown = snapshot(two_steps().store(), None).sharding
    assert shown is not None
    assert (shown.rank, shown.step, shown.t0_ns, shown.t1_ns) == (0, 1, ns(100), ns(190))
    assert (shown.peak_bytes, shown.whole_bytes) == (400, 400)
    root, block = shown.units
    assert (root.name, root.bytes, block.name, block.bytes) == ("root", 100, "a.0", 300)
    # The root was never thrown away in these records: whole until the step's end.
    assert root.fetching == (at(100, 105),) and root.whole == (at(105, 190),)
    assert block.fetching == (at(105, 110), at(140, 145))
    assert block.whole == (at(110, 120), at(145, 160))
    assert block.reducing == (at(160, 170),) and root.reducing == ()
    assert [(t - ns(100), size) for t, size in shown.curve] == [
        (4_000_000, 0), (5_000_000, 100), (10_000_000, 400), (20_000_000, 100),
        (45_000_000, 400), (60_000_000, 100),
    ]  # fmt: skip
    assert [name for name, _, _ in shown.phases] == ["forward", "backward"]


def test_each_rank_has_its_peak_and_runs_without_units_have_nothing() -> None:
    (row,) = snapshot(two_steps().store(), None).memory
    assert row.gathered_peak_bytes == 400
    trace = Trace(1)
    trace.ranks[0].step(0, 0, 10)
    empty = snapshot(trace.store(), None)
    assert empty.sharding is None and empty.memory[0].gathered_peak_bytes is None


@pytest.mark.parametrize(
    ("name", "unit_name", "verb"),
    [
        ("layers.0 unshard", "layers.0", "unshard"),
        ("layers.0 wait unshard", "layers.0", "wait unshard"),
        ("root reduce", "root", "reduce"),
        ("odd", "odd", ""),
    ],
)
def test_a_units_name_and_what_it_does(name: str, unit_name: str, verb: str) -> None:
    assert split_name(name) == (unit_name, verb)


def test_expected_bytes_are_those_between_steps() -> None:
    """P = G = 1000, AdamW: O = 2000, over 4 ranks. A ZeRO-2 that keeps its parameters: 1000 + 3000
    / 4; fully_shard's throws them away after backward: 4000 / 4."""
    kept = ModelDef(2, 4, 1000, "AdamW")
    assert between_steps(kept) == 1750
    assert between_steps(ModelDef(2, 4, 1000, "AdamW", parameters_sharded=True)) == 1000
    assert between_steps(ModelDef(3, 4, 1000, "AdamW", parameters_sharded=True)) == 1000


def test_a_recomputed_forward_lies_on_its_own_lane() -> None:
    trace = Trace(1)
    (proc,) = trace.ranks
    proc.phase("forward", 0, 30)
    proc.record(Kind.PHASE, 40, 50, proc.name("recompute"), flags=Flag.RECOMPUTE)
    proc.phase("backward", 30, 90)
    store = trace.store()
    found = lanes(store, ns(0), ns(100), 100)[0]
    assert [s.label for s in found["phase"]] == ["forward", "backward"]
    (again,) = found["recomp."]
    assert (again.label, again.style) == ("recompute", "phase.recompute")
    assert (again.t0_ns, again.t1_ns) == (ns(40), ns(50))
    assert "recomp." not in lanes(store, ns(60), ns(100), 100)[0]


def test_parts_of_an_all_to_all_are_observed_edges() -> None:
    """Rank 0 sends 30 and later 5 bytes to rank 1, which sends 7 to rank 0."""
    trace = Trace(2, {"ep": (0, 1)})
    first, second = trace.ranks
    for proc, peer, t, size in ((first, 1, 1, 30), (first, 1, 2, 5), (second, 0, 1, 7)):
        proc.record(
            Kind.PART, t, t, proc.op("all_to_all"), group_id=proc.group("ep"), peer=peer, a=size
        )
    edges = snapshot(trace.store(), None).traffic.edges
    assert [(e.src, e.dst, e.bytes, e.num_ops, e.source) for e in edges] == [
        (0, 1, 35, 2, "observed"), (1, 0, 7, 1, "observed"),
    ]  # fmt: skip
