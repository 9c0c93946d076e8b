"""One group of many stands while the others go on, far beyond the collectives that are kept."""

from __future__ import annotations

import pytest

from pardbg.analysis.comm.matching import collectives
from pardbg.analysis.findings import findings
from tests.unit.analysis.test_waitgraph import at
from tests.unit.trace_builder import Trace


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize(("odd", "kind"), [("broadcast", "op-mismatch"), ("", "missing-rank")])
def test_one_group_of_many_stands_while_the_others_go_on(odd: str, kind: str, ends: bool) -> None:
    """The last 200 collectives are all of other groups by then. Live, and after all have died."""
    trace = Trace(8, {"left": (0, 1), "right": (2, 3, 4), "all": range(8)})
    for proc in trace.ranks[2:5]:
        if odd or proc.rank != 4:
            op = odd if odd and proc.rank == 4 else "all_reduce"
            proc.collective("right", op, 1, None, flags=0)
    for proc in trace.ranks[:2]:
        for n in range(300):
            proc.collective("left", "all_reduce", 2 + n, 2.5 + n, flags=0)
    for proc in (*trace.ranks[:2], *trace.ranks[5:]):
        proc.collective("all", "all_reduce", 310, None, flags=0)
    trace.flush()
    assert {row.group for row in collectives(at(trace, 3000))} == {"left", "all"}
    if ends:
        for proc in trace.ranks:
            first = proc.rank == 4
            trace.define_end(proc, 2800 if first else 2900, "killed" if first else "lost")
    said = findings(at(trace, 3000))
    if ends and not odd:
        assert said[0].culprits == (4,) and "Ranks 0,1,5–7 wait for it" in said[0].text
    else:
        assert (said[0].kind, said[0].culprits) == (kind, (4,))
