"""What detectors read of a run does not grow with it."""

from __future__ import annotations

import numpy as np
import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings.registry import findings
from pardbg.analysis.findings.values import exchanged, paces
from pardbg.analysis.hangs.blocking_calls import counted
from pardbg_agent import wire
from pardbg_agent.wire import Kind
from tests.unit.trace_builder import Trace, ns

BYTES = 4096
_isin = np.isin


def searched(monkeypatch: pytest.MonkeyPatch, steps: int, starts: tuple[int, int]) -> int:
    """Rows among which names are searched for at the end of a run that sums its gradients by hand
    in steps of 10 ms; in each, rank 1 is seen in a file."""
    trace = Trace(2)
    for proc, start in zip(trace.ranks, starts, strict=True):
        proc.define(wire.DefKind.MODEL, zero=0, shards=1, parameters_bytes=BYTES, optimizer="SGD",
                    start=start)  # fmt: skip
        file = proc.name("blocked\nfile\t/a\t\t\ntrain.py:3")
        for step in range(steps):
            t = 10 * step
            proc.phase("backward", t + 1, t + 3, step)
            proc.collective("world", "all_reduce", t + 4, t + 5, BYTES, step=step)
            proc.phase("optimizer", t + 6, t + 7, step)
            proc.metric("loss", t + 8, 1 / (step + 1), step)
            if proc.rank == 1:
                proc.record(Kind.PROBE, t + 8, t + 8, file, step=step)
            proc.step(step, t, t + 9)
    trace.flush()
    view, sizes = View(trace.store(), ns(10 * steps)), [0]
    with monkeypatch.context() as patch:
        patch.setattr(np, "isin", lambda a, *rest: (sizes.append(len(a)), _isin(a, *rest))[1])
        kinds = {one.kind for one in findings(view)}
        counted(view, 1, ns(10 * steps - 300), view.t_ns)
    assert ("unequal-start" in kinds) == (len(set(starts)) > 1)
    return sum(sizes)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("starts", [(7, 7), (7, 8)])
def test_names_are_searched_for_in_as_many_rows_late_in_a_run_as_early(
    monkeypatch: pytest.MonkeyPatch, starts: tuple[int, int]
) -> None:
    for module in (exchanged, paces):
        monkeypatch.setattr(module, "PHASES_BACK", 1024)
    monkeypatch.setattr(paces, "_ROWS_BACK", 1024)
    early, late = (searched(monkeypatch, steps, starts) for steps in (2_100, 6_300))
    assert 0 < late <= early


def test_looks_at_one_stay_in_a_call_add_up() -> None:
    """Seen once at 1 and at 2 s; the first stay was seen twice more, the last time at 1.4 s."""
    trace = Trace(1)
    (proc,) = trace.ranks
    for t, more in ((1000, 0), (1400, 2), (2000, 0)):
        proc.record(Kind.PROBE, t, t, proc.name("blocked\nsleep\n\ntrain.py:3"), a=more)
    trace.flush()
    view = View(trace.store(), ns(5000))
    assert list(counted(view, 0, ns(0), view.t_ns).values()) == [4]
    assert list(counted(view, 0, ns(1300), view.t_ns).values()) == [2]
    assert list(counted(view, 0, ns(0), ns(1300)).values()) == [1]
