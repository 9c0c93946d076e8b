"""A receive from any rank."""

from __future__ import annotations

import pytest

from tests.unit.analysis.test_waitgraph import found
from tests.unit.facts import facts
from tests.unit.trace_builder import Trace


@pytest.mark.parametrize("standing", [(0, 1, 3), (0, 1)])
def test_a_receive_from_anybody_where_nobody_is_left_to_send(standing: tuple[int, ...]) -> None:
    """2 receives from any rank, all others are in an all_reduce; or 3 may yet send."""
    trace = Trace(4)
    trace.ranks[2].p2p("world", -1, False, 1, None)
    for rank in standing:
        trace.ranks[rank].collective("world", "all_reduce", 2, None)
    said = found(trace, 2500)
    assert ("deadlock" in said) == (3 in standing)
    if 3 in standing:
        assert said["deadlock"].culprits == (2,)
        assert {wait.rank: wait.op for wait in facts(said["deadlock"], "waits")}[2] == (
            "recv from any rank"
        )
