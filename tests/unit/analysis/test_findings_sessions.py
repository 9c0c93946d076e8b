"""Findings on every recorded session, at the end and on the way: each planted fault named with its
culprit and no error beside it; healthy training none. `sessions/README.md` says what was planted.
"""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path

import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings import findings
from pardbg.analysis.findings.finding import Finding
from pardbg.session.reader import load
from pardbg.store.store import Store

SESSIONS = sorted((Path(__file__).parents[3] / "sessions").glob("*.mcap"))
CURSORS = 25
PLANTED: dict[str, tuple[str, tuple[int, ...]]] = {
    "missing-rank": ("missing-rank", (2,)),
    "mismatch-op": ("op-mismatch", (2,)),
    "mismatch-shape": ("size-mismatch", (2,)),
    "mismatch-dtype": ("dtype-mismatch", (2,)),
    "mismatch-root": ("root-mismatch", (2,)),
    "group-order": ("deadlock", (2,)),
    "p2p-cycle": ("p2p-cycle", (1, 2, 3)),
    "unpaired-send": ("unpaired-send", (2,)),
    "unpaired-recv": ("unpaired-recv", (2,)),
    "straggler": ("straggler", (2,)),
    "slow-loader": ("straggler", (2,)),
    "slow-link": ("slow-link", (2, 3)),
    "exposed-comm": ("exposed-communication", ()),
    "small-messages": ("small-messages", ()),
    "stage-imbalance": ("stage-imbalance", (1,)),
    "nan": ("nan", (2,)),
    "diverge": ("replica-divergence", (2,)),
    "memory-creep": ("memory-creep", (2,)),
    "memory-imbalance": ("memory-imbalance", (2,)),
    "exception": ("exception", (2,)),
    "kill": ("rank-lost", (2,)),
    "gil-hold": ("gil-held", (2,)),
}
"""What ``fault:NAME`` is called, and who is named. Four ranks; rank 2 is the faulty one, but for
the ring of 1 to 3 and the second stage."""

OVER_STEPS = ("small-messages", "stage-imbalance", "exposed-communication", "straggler")
LEAST_STEPS = 8
"""Two to warm up and six to look at, as in pardbg.analysis.findings.speed.windows."""


@lru_cache(maxsize=2)
def store_of(path: Path) -> Store:
    return load(path)


@cache
def on_the_way(path: Path) -> list[Finding]:
    """All that was said at cursors spread over the run."""
    store = store_of(path)
    whole = View(store, None)
    length = whole.end_ns - whole.begin_ns
    times = (whole.begin_ns + length * i // (CURSORS - 1) for i in range(CURSORS))
    return [finding for t in times for finding in findings(View(store, t))]


@pytest.mark.parametrize("path", SESSIONS, ids=lambda path: path.stem)
def test_no_error_is_said_that_was_not_planted(path: Path) -> None:
    planted = PLANTED.get(path.stem.removeprefix("fault-"), ("", ()))
    said = {(f.kind, f.culprits): f.text for f in on_the_way(path) if f.severity == "error"}
    said.pop(planted, None)
    assert said == {}


@pytest.mark.parametrize("path", [p for p in SESSIONS if p.stem.startswith("fault-")],
                         ids=lambda path: path.stem)  # fmt: skip
def test_what_was_planted_is_named(path: Path) -> None:
    wanted = PLANTED[path.stem.removeprefix("fault-")]
    steps = max(p.table("step").visible(None) for p in store_of(path).procs.values())
    if wanted[0] in OVER_STEPS and steps < LEAST_STEPS:
        pytest.skip(f"{steps} steps recorded: too few to say that something is so again and again")
    said = {(f.kind, f.culprits) for f in on_the_way(path) if f.severity != "info"}
    assert wanted in said
