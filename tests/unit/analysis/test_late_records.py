"""Who is missing while records are on their way: a viewer of many ranks may be seconds behind."""

from __future__ import annotations

import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings import findings
from tests.unit.trace_builder import Trace, ns


@pytest.mark.parametrize(
    ("more", "silent_ms", "alive", "now_ms", "missing"),
    [
        (0, 0, True, 6_000, True),  # it has issued no more
        (2, 0, True, 6_000, False),  # what it has issued is on its way
        (2, 3_000, True, 6_000, True),  # its agent sends nothing: it keeps them itself
        (2, 0, False, 6_000, True),  # it has ended
        (2, 0, True, 13_000, True),  # they will not come any more
    ],
)
def test_a_rank_whose_records_are_on_their_way_is_not_missing(
    more: int, silent_ms: int, alive: bool, now_ms: int, missing: bool
) -> None:
    """Ranks 0 and 1 stand in #1 from second 1 on; 2 has issued #0, as far as is known here, and its
    ring holds ``more`` records. The hub looked 1.6 s ago, and now."""
    trace = Trace(3)
    for proc in trace.ranks:
        proc.collective("world", "all_reduce", 900, 950, 1000)
        if proc.rank != 2:
            proc.collective("world", "all_reduce", 1000, None, 1000)
        proc.flush()
    for at in (now_ms - 1_600, now_ms):
        rows = {}
        for proc in trace.ranks:
            waits, own = proc.rank != 2, proc.rank == 2
            rows[proc.proc] = {
                "rank": proc.rank, "alive": alive or not own, "open": int(waits),
                "open_since_ns": ns(1000) if waits else 0, "since_ns": ns(1000), "os": "S",
                "open_op": "all_reduce world #1" if waits else None, "seen_ns": ns(at),
                "head": proc.index + more * own, "heartbeat_ns": ns(at - silent_ms * own),
            }  # fmt: skip
        trace.state(at, **rows)
    found = findings(View(trace.store(live=True), None))
    said = {one.culprits for one in found if one.kind in ("missing-rank", "gil-held")}
    assert said == ({(2,)} if missing else set())
    assert not [one for one in found if one.kind == "stuck-op"]
