"""Who waits is found however the clock of its host is told anew: records have the offset that was
known when they came, STATE times are by the process's own clock. Times in ms."""

from __future__ import annotations

import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.hangs.waitgraph import wait_graph
from pardbg_agent import wire
from tests.unit.trace_builder import MS, Proc, Trace, ns


def clock(trace: Trace, proc: Proc, t: float, offset: float) -> None:
    """Known to ±15 ms."""
    trace.flush()
    trace.define(
        wire.DefKind.CLOCK, proc=proc.proc, offset_ns=int(offset * MS), error_ns=15 * MS, t_ns=ns(t)
    )


@pytest.mark.parametrize(
    ("told", "op", "anew"),
    [(2500, 100, 20), (95, 90, -20)],
    ids=["later", "before its record came, and after it began"],
)
def test_an_op_is_open_whatever_is_told_of_the_clock(told: float, op: float, anew: float) -> None:
    """2 hangs; 1 waits for it in tp, 0 for 1 in dp. Without 1's op, 1 would be named."""
    trace = Trace(3, {"dp": (0, 1), "tp": (1, 2)})
    zero, one, _ = trace.ranks
    clock(trace, one, 0, 0)
    zero.collective("dp", "all_reduce", 90, None)
    if told < op + 10:  # its record comes after
        clock(trace, one, told, anew)
    one.collective("tp", "all_reduce", op, None)
    if told > op + 10:
        clock(trace, one, told, anew)
    states = {
        proc.proc: {"rank": proc.rank, "alive": True, "open": 1, "open_since_ns": ns(since),
                    "since_ns": ns(1), "heartbeat_ns": ns(5000)}
        for proc, since in ((zero, 90), (one, op))
    }  # fmt: skip
    trace.state(5000, **states)
    view = View(trace.store(), ns(5010))
    assert [(blame.ranks, blame.victims) for blame in wait_graph(view).blames] == [((2,), (0, 1))]
