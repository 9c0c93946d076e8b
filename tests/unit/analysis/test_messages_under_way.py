"""Messages of which both sides were issued. Times in ms; an op that is open for 5 s counts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.analysis.test_waitgraph import FORWARD, WAITING, found, stall
from tests.unit.trace_builder import Trace


@pytest.mark.parametrize(("frames", "said"), [(WAITING, "stuck-op"), (FORWARD, "missing-rank")])
def test_who_stands_in_a_message_on_its_way_is_not_to_blame(
    frames: list[list[Any]], said: str
) -> None:
    """1 waits for what 0 has sent (and dropped the Work of); 0 for the answer, which 1 has not
    sent. Where 1 has posted its receive ahead and computes, it is waited for."""
    trace = Trace(2)
    zero, one = trace.ranks
    zero.p2p("world", 1, True, 1, 1.5)
    zero.p2p("world", 1, False, 2, None)
    one.p2p("world", 0, False, 1, None)
    trace.flush()
    stall(trace, 4100, r0=WAITING, r1=frames)
    assert [(one.kind, one.ranks, one.culprits) for one in found(trace, 6200).values()] == [
        ("stuck-op", (1,), ()) if said == "stuck-op" else (said, (0,), (1,))
    ]
