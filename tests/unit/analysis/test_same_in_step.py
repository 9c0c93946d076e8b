"""Equal data of ranks whose optimizers average within their step (Muon)."""

from __future__ import annotations

import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings.values.batches import same_data
from pardbg_agent import wire
from tests.unit.trace_builder import Trace

FALLS = [1 / (step + 1) for step in range(30)]


@pytest.mark.parametrize(
    ("other", "sums", "found"),
    [
        (FALLS, ((1, 2, 3), (1, 2, 3)), [(0, 1)]),
        ([loss + 1e-9 for loss in FALLS], ((1, 2, 3), (1, 2, 3)), []),
        (FALLS, ((1, 2, 3), (4, 5, 6)), []),  # parts of one model: tensor parallel, say
        (FALLS, ((), ()), []),
    ],
)
def test_ranks_whose_optimizers_average_within_their_step(
    other: list[float], sums: tuple[tuple[int, ...], ...], found: list[tuple[int, ...]]
) -> None:
    """Steps of 10 ms: backward 1-3, optimizer 6-7 with ops in it; ``sums``: of each rank's
    parameters, every tenth step."""
    trace = Trace(2)
    for proc, losses, own in zip(trace.ranks, (FALLS, other), sums, strict=True):
        proc.define(wire.DefKind.MODEL, zero=0, shards=1, parameters_bytes=4096, optimizer="Muon",
                    start=7, dtype="float32")  # fmt: skip
        for step, loss in enumerate(losses):
            t = 10 * step
            proc.phase("backward", t + 1, t + 3, step)
            proc.seen_loss(t + 1, loss, step)
            for op in ("reduce_scatter", "all_gather"):
                proc.collective("world", op, t + 6.2, t + 6.4, 4096, step=step)
            proc.phase("optimizer", t + 6, t + 7, step)
            proc.step(step, t, t + 9)
        for look, whole in enumerate(own):
            proc.record(wire.Kind.PROBE, 100 * look + 7, 100 * look + 7,
                        proc.name("checksum-own weight"), step=10 * look, a=whole,
                        group_id=proc.group("world"))  # fmt: skip
    trace.flush()
    assert [one.ranks for one in same_data(View(trace.store(), None))] == found


@pytest.mark.parametrize(
    ("op", "moved", "dtype", "targets", "found"),
    [
        ("all_to_all", 4096, "float32", (0, 0), [(0, 1)]),
        ("all_to_all", 4096, "float32", (7, 7), [(0, 1)]),
        ("all_to_all", 4096, "float32", (7, 8), []),  # what they compare with differs
        ("all_to_all", 8, "float32", (0, 0), []),  # the loss, say
        ("all_to_all", 8, "int64", (0, 0), [(0, 1)]),  # how many tokens follow
        ("all_reduce", 8, "int64", (0, 0), [(0, 1)]),  # of how many tokens the loss is
        ("all_reduce", 4, "float32", (0, 0), []),  # the loss itself
        ("all_gather", 8, "int64", (0, 0), []),  # samples
    ],
)
def test_tokens_that_ranks_exchange_make_no_common_loss(
    op: str, moved: int, dtype: str, targets: tuple[int, int], found: list[tuple[int, ...]]
) -> None:
    """Steps of 10 ms: forward 0.1-0.5 with ``op`` in it, backward 1-3, the model is summed at 4,
    optimizer 6-7."""
    trace = Trace(2)
    for proc, own in zip(trace.ranks, targets, strict=True):
        proc.define(wire.DefKind.MODEL, zero=0, shards=1, parameters_bytes=4096, optimizer="SGD",
                    start=7, dtype="float32")  # fmt: skip
        for step, loss in enumerate(FALLS):
            t = 10 * step
            proc.phase("forward", t + 0.1, t + 0.5, step)
            proc.collective("world", op, t + 0.2, t + 0.3, moved, moved, dtype=dtype, step=step)
            proc.record(wire.Kind.PROBE, t + 1, t + 1, proc.name("loss by MseLossBackward0"),
                        lane=wire.Lane.COUNTER, step=step, a=own and own + step)  # fmt: skip
            proc.phase("backward", t + 1, t + 3, step)
            proc.seen_loss(t + 1, loss, step)
            proc.collective("world", "all_reduce", t + 4, t + 5, 4096, step=step)
            proc.phase("optimizer", t + 6, t + 7, step)
            proc.step(step, t, t + 9)
    trace.flush()
    assert [one.ranks for one in same_data(View(trace.store(), None))] == found
