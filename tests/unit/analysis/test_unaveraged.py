"""Replicas that never exchange a gradient, and what must not be taken for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pardbg.analysis.answers.snapshot import snapshot
from pardbg_agent import wire
from tests.unit.trace_builder import Trace

BYTES = 196


def run(
    starts: tuple[int | None, int | None] = (7, 7),
    op_bytes: int = 4,
    before_bytes: int = BYTES,
    change: Callable[[Trace], None] | None = None,
    ended: bool = True,
    in_backward: int = 0,
) -> list[tuple[int, ...]]:
    """Ranks of the finding in a run of two ranks and four steps of 10 ms: backward, one
    all_reduce of ``op_bytes`` (and in the first ``in_backward`` one inside), a step. Parameters
    were broadcast before."""
    trace = Trace(2)
    for proc, start in zip(trace.ranks, starts, strict=True):
        proc.define(
            wire.DefKind.MODEL, zero=0, shards=1, parameters_bytes=BYTES, optimizer="SGD",
            start=start,
        )  # fmt: skip
        proc.collective("world", "broadcast", 0, 0.5, before_bytes)
        for step in range(4):
            t = 10 * step
            if step < in_backward:
                proc.collective("world", "all_reduce", t + 2, t + 2.5, op_bytes, step=step)
            proc.phase("backward", t + 1, t + 3, step)
            proc.collective("world", "all_reduce", t + 4, t + 5, op_bytes, step=step)
            proc.step(step, t, t + 9)
    if change is not None:
        change(trace)
    if ended:
        trace.end(50)
    found = snapshot(trace.store(), None).findings
    return [f.ranks for f in found if f.kind == "no-gradient-exchange"]


def test_replicas_that_exchange_a_loss_alone_are_found() -> None:
    """The broadcast of all parameters before the first backward is no gradient."""
    assert run() == [(0, 1)]


def test_an_average_of_the_gradients_is_an_exchange() -> None:
    assert run(op_bytes=BYTES) == []


def test_rows_of_a_sparse_gradient_are_an_exchange() -> None:
    """An eighth of 196 B a step is 24.5 B; a loss and its count are 8."""
    assert run(op_bytes=25) == [] and run(op_bytes=24) == [(0, 1)]


def test_what_most_backwards_issue_is_an_exchange() -> None:
    """Tensor parallel by hand, of activations of 4 B: in 3 of 4 backwards, not in 2 of 4."""
    assert run(op_bytes=4, in_backward=3) == [] and run(op_bytes=4, in_backward=2) == [(0, 1)]


def test_ranks_that_began_apart_are_no_replicas() -> None:
    """Pipeline stages, experts, tensor parallel shards."""
    assert run(starts=(7, 8)) == []


@pytest.mark.parametrize(("parts", "op_bytes", "found"), [
    ([(2, 0), (2, 1)], 4, [(0, 1)]), ([(2, 0), (2, 1)], BYTES, []), ([(1, 0), (1, 0)], 4, []),
    ([(2, 0), (3, 1)], 4, []),
])  # fmt: skip
@pytest.mark.parametrize("start", [8, None])
def test_ranks_that_part_one_set_of_samples_are_replicas(
    parts: list[tuple[int, int]], op_bytes: int, found: list[tuple[int, ...]], start: int | None
) -> None:
    """However they began."""

    def sampled(trace: Trace) -> None:
        for proc, (of, own) in zip(trace.ranks, parts, strict=True):
            proc.record(wire.Kind.PROBE, 0, 0, proc.name("part of samples"),
                        lane=wire.Lane.COUNTER, a=of, b=own)  # fmt: skip

    assert run(starts=(7, start), op_bytes=op_bytes, change=sampled) == found


def test_a_run_that_goes_on_may_average_later() -> None:
    """Local SGD: four steps say nothing."""
    assert run(ended=False) == []


def _message(trace: Trace) -> None:
    for proc in trace.ranks:
        proc.p2p("world", 1 - (proc.rank or 0), (proc.rank or 0) == 0, 44, 45)


def _sharded(trace: Trace) -> None:
    for proc in trace.ranks:
        proc.define(
            wire.DefKind.MODEL, zero=3, shards=2, parameters_bytes=BYTES, optimizer="", start=7
        )


def _rpc(trace: Trace) -> None:
    for proc in trace.ranks:
        proc.define(
            wire.DefKind.MODEL, zero=0, shards=1, parameters_bytes=BYTES, optimizer="", start=7,
            rpc=True,
        )  # fmt: skip


def _lost(trace: Trace) -> None:
    for proc in trace.ranks:
        proc.lose()
        proc.step(4, 40, 49)


@pytest.mark.parametrize("change", [_message, _sharded, _rpc, _lost])
def test_what_may_move_gradients_unseen(change: Callable[[Trace], None]) -> None:
    """A parameter server's messages, shards, RPC, records that are missing."""
    assert run(change=change) == []


@pytest.mark.parametrize(
    ("steps", "idle", "found"), [(3, True, True), (2, True, False), (3, False, False)]
)
def test_an_optimizer_whose_parameters_never_have_a_gradient(
    steps: int, idle: bool, found: bool
) -> None:
    trace = Trace(2)
    for proc in trace.ranks:
        proc.define(
            wire.DefKind.MODEL,
            zero=0,
            shards=1,
            parameters_bytes=BYTES,
            optimizer="Adam",
            idle=idle,
        )
        for step in range(steps):
            proc.step(step, 10 * step, 10 * step + 9)
    said = [f for f in snapshot(trace.store(), None).findings if f.kind == "no-gradient"]
    assert [f.ranks for f in said] == [(0, 1)] * found
    assert all(f.text.startswith("ranks 0,1 step Adam, but no parameter") for f in said)
