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
