"""A node of which nothing is heard is not taken for one whose ranks hold Python's lock."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pardbg.analysis.answers.hang import hang_view
from pardbg.analysis.base.asof import View
from pardbg.analysis.findings import findings
from pardbg.analysis.findings.finding import Finding
from pardbg.analysis.findings.kinds.absence import Absence
from pardbg_agent import wire
from tests.unit.facts import facts
from tests.unit.trace_builder import Trace, ns


def view(beats: Sequence[float], lost: bool = False, per_host: int = 2) -> View:
    """Ranks 0 and 1 on one host stand in dp0 and dp1 since 1 ms, for 2 and 3 on the next ones, at
    5 s; ``beats``: each rank's last one, ms."""
    hosts = [f"n{1 + rank // per_host}" for rank in range(4)]
    trace = Trace(0, {"dp0": (0, 2), "dp1": (1, 3)})
    trace.ranks = [trace.process(rank, host=host) for rank, host in enumerate(hosts)]
    for rank in (0, 1):
        trace.ranks[rank].collective(f"dp{rank}", "all_reduce", 1, None)
    for rank in (2, 3):
        trace.ranks[rank].step(0, 0, 1)
    trace.flush()
    trace.state(5000, **{
        proc.proc: {"rank": rank, "alive": True, "open": int(rank < 2), "open_since_ns": ns(1),
                    "since_ns": ns(1), "heartbeat_ns": ns(beat), "os": "S"}
        for rank, (proc, beat) in enumerate(zip(trace.ranks, beats, strict=True))
    })  # fmt: skip
    if lost:
        trace.hub(wire.Key.CONTROL, 5001, event="node", change="lost", node=3, ranks=[2])
    return View(trace.store(), ns(5010))


def waited_for(view: View) -> list[Finding]:
    return [f for f in findings(view) if f.seq == 0]


@pytest.mark.parametrize("oldest", [1950, 1700], ids=["just now", "a beat and a turn ago"])
def test_a_silent_node_is_told_once_with_all_its_ranks(oldest: int) -> None:
    """Its rows are as its relay read them last, at 2 s; an agent beats five times a second."""
    at = view((4990, 4980, 1990, oldest))
    (found,) = waited_for(at)
    assert (found.kind, found.culprits, found.ranks) == ("node-lost", (2, 3), (0, 1))
    assert facts(found, "absences") == (Absence("cut off", name="n2"),) * 2
    ops = {wait.rank: wait.op for wait in facts(found, "waits")}
    assert ops == {0: "all_reduce dp0 #0", 1: "all_reduce dp1 #0"}
    hang = hang_view(at)
    assert hang is not None and (hang.kind, hang.culprits) == ("node-lost", (2, 3))


@pytest.mark.parametrize(
    ("beats", "per_host"),
    [((4990, 4980, 1990, 4970), 2), ((4990, 4980, 1990, 1000), 2), ((4990, 4980, 1990, 4970), 1)],
    ids=["its neighbour beats", "they fell silent apart", "it is alone there"],
)
def test_else_something_holds_the_lock(beats: Sequence[float], per_host: int) -> None:
    found = {f.culprits: f.kind for f in waited_for(view(beats, per_host=per_host))}
    assert found[2,] == "gil-held"


def test_a_node_of_one_rank_is_silent_once_the_hub_says_so() -> None:
    found = waited_for(view((4990, 4980, 1990, 4970), lost=True, per_host=1))
    assert {f.culprits: f.kind for f in found}[2,] == "node-lost"
