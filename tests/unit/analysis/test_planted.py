"""Faults planted into 1,024 ranks (tensor parallel over 8, data parallel over 128), at a place
drawn from a seed: the right rank, and one finding."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings import findings
from pardbg_agent import wire
from tests.unit.trace_builder import Proc, Trace, ns

RANKS, TP, STEPS, STEP_MS = 1024, 8, 2, 200.0
HANGS_MS = STEPS * STEP_MS
"""From where on ranks wait for the bad one."""


def planted(bad: int, does: Callable[[Proc], bool], gone: range = range(0)) -> Trace:
    """Healthy steps, and one in which rank ``bad`` does something else than the first of its four
    collectives (True: and waits in it); its tp group waits there, all others in the last, for
    6 s."""
    trace = Trace(RANKS)
    for first in range(0, RANKS, TP):
        trace.groups[f"tp{first // TP}"] = range(first, first + TP)
    for place in range(TP):
        trace.groups[f"dp{place}"] = range(place, RANKS, TP)
    for step in range(STEPS):
        for proc in trace.ranks:
            for group, at in own(proc):
                t0 = step * STEP_MS + at
                proc.collective(group, "all_reduce", t0, t0 + 5, flags=0, step=step)
            proc.step(step, step * STEP_MS, step * STEP_MS + 199)
    waiting = set()
    for proc in trace.ranks:
        if proc.rank == bad or proc.rank in gone:
            if does(proc):
                waiting.add(proc.proc)
            continue
        waiting.add(proc.proc)
        for group, at in own(proc):
            ends = group.startswith("tp") and (bad not in trace.groups[group] or gone)
            t0 = HANGS_MS + at
            proc.collective(group, "all_reduce", t0, t0 + 5 if ends else None, flags=0, step=STEPS)
            if not ends:
                break
    trace.flush()
    for proc in trace.ranks:
        if proc.rank in gone:
            trace.define_end(proc, HANGS_MS + 2, "killed")
    waits = {"open": 1, "open_since_ns": ns(HANGS_MS + 10), "os": "S", "cpu": 0.0}
    works = {"open": 0, "phase": "forward", "os": "T", "since_ns": ns(HANGS_MS)}
    live = [p for p in trace.ranks if p.rank not in gone]
    said = {p.proc: {"rank": p.rank, **(waits if p.proc in waiting else works)} for p in live}
    trace.state(HANGS_MS + 6000, **said)
    return trace


def own(proc: Proc) -> tuple[tuple[str, float], ...]:
    """(group, ms into the step) of a rank's collectives."""
    rank = proc.rank or 0
    tp = f"tp{rank // TP}"
    return (tp, 10), (tp, 40), (tp, 70), (f"dp{rank % TP}", 140)


def found(trace: Trace) -> list[tuple[str, tuple[int, ...]]]:
    made = findings(View(trace.store(), ns(HANGS_MS + 6000)))
    return [(one.kind, one.culprits) for one in made if one.severity != "info"]


@pytest.mark.parametrize("kind", ["rank-stopped", "op-mismatch", "size-mismatch"])
def test_one_rank_of_a_thousand(kind: str) -> None:
    bad = random.Random(kind).randrange(RANKS)

    def does(proc: Proc) -> bool:
        op = "broadcast" if kind == "op-mismatch" else "all_reduce"
        if kind == "rank-stopped":
            return False
        size = 1004 if kind == "size-mismatch" else 1000
        proc.collective(own(proc)[0][0], op, HANGS_MS + 10, None, size, flags=0, step=STEPS)
        return True

    assert found(planted(bad, does)) == [(kind, (bad,))]


def test_a_node_of_a_thousand_ranks() -> None:
    first = random.Random("node").randrange(RANKS // 8) * 8
    gone = range(first, first + 8)
    assert found(planted(first, lambda proc: False, gone)) == [("rank-lost", tuple(gone))]


def test_what_all_ranks_lost_is_said_once() -> None:
    trace = Trace(RANKS)
    for proc in trace.ranks:
        proc.step(0, 0, 199)
        proc.flush(dropped=1)
        proc.define(wire.DefKind.ERROR, where="memory", text="KeyError", t_ns=ns(9))
    everyone = tuple(range(RANKS))
    made = findings(View(trace.store(), ns(500)))
    assert sorted((one.kind, one.ranks) for one in made) == [
        ("hook-error", everyone), ("records-dropped", everyone),
    ]  # fmt: skip
