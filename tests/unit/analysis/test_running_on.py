"""A rank that others wait for runs on: its place is where it was seen during their wait."""

from __future__ import annotations

import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings import findings
from pardbg_agent import wire
from tests.unit.facts import facts
from tests.unit.trace_builder import Trace, ns

LOOP = ["/home/me/train.py", 30, "polish"]


def runs_on(seen_at: float, until: float) -> Trace:
    """Rank 0 waits in an op from 1 s on. Rank 1 goes through a phase each half second; the hub took
    its stack at ``seen_at`` ms."""
    trace = Trace(2)
    zero, one = trace.ranks
    for proc in trace.ranks:
        proc.collective("world", "all_reduce", 100, 101)
    zero.collective("world", "all_reduce", 1000, None)
    for begin in range(1000, int(until), 500):
        one.phase("backward", begin, begin + 400)
    trace.flush()
    parts = [{"ranks": [1], "frames": [LOOP]}]
    trace.hub(wire.Key.CONTROL, seen_at, event="stall", since_ns=ns(seen_at), stacks=parts,
              source={1: "agent"})  # fmt: skip
    rows = {zero.proc: {"rank": 0, "alive": True, "open": 1, "open_since_ns": ns(1000)},
            one.proc: {"rank": 1, "alive": True, "since_ns": ns(until - 100)}}  # fmt: skip
    trace.state(until, **rows)
    return trace


@pytest.mark.parametrize(
    ("seen_at", "doing", "where"),
    [(6000, "runs", "train.py:30 in polish"), (900, "unknown", None)],  # 900: before the wait
)
def test_a_rank_that_runs_on_has_the_place_of_this_wait(
    seen_at: float, doing: str, where: str | None
) -> None:
    view = View(runs_on(seen_at, 14_000).store(), ns(14_000))
    (finding,) = (one for one in findings(view) if one.kind == "missing-rank")
    assert (finding.culprits, finding.where) == ((1,), where)
    (absent,) = facts(finding, "absences")
    assert (absent.doing, absent.place, absent.progresses) == (doing, where, True)
