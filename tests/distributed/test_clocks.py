"""Two hosts whose clocks differ: real ranks in network and time namespaces."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.comm.matching import collectives
from pardbg.analysis.findings import findings
from pardbg.session.reader import load
from tests.distributed.programs.two_hosts import LATE_MS, ROUNDS
from tests.processes import rank_env, run_argv

MS = 1_000_000
AHEAD_MS = 50
HOSTS = [sys.executable, "-m", "tests.distributed.programs.two_hosts"]


@pytest.mark.timeout(90)
def test_two_hosts_with_clocks_50_ms_apart_are_one_timeline(tmp_path: Path) -> None:
    """Rank 1's clock is exactly 50 ms ahead of the hub's: what is told must cover that. In round i
    rank i % 2 comes 20 ms after the other; by the clocks alone rank 1 would always be last."""
    possible = run_argv([*HOSTS, "--possible"], env=rank_env(), timeout_s=20)
    if possible.code:
        pytest.skip(f"no network and time namespaces here: {possible.err.splitlines()[-1]}")
    path = tmp_path / "s.mcap"
    argv = [sys.executable, "-m", "pardbg.cli", "run", "-o", str(path), "--", *HOSTS]
    done = run_argv([*argv, str(AHEAD_MS)], env=rank_env(), timeout_s=70)
    assert done.code == 0, done.err
    store = load(path)
    view = View(store, None)
    assert {rank: process.host for rank, process in view.ranks.items()} == {0: "n0", 1: "n1"}
    assert (view.ranks[0].offset_ns, view.ranks[0].clock_error_ns) == (0, 0)
    told, error = view.ranks[1].offset_ns, view.ranks[1].clock_error_ns
    assert error is not None and abs(told + AHEAD_MS * MS) <= error < 10 * MS
    assert not view.ranks[1].clocks.jumps
    rows = [row for row in collectives(view) if row.op == "all_reduce"]
    assert [row.verdict for row in rows] == ["matched"] * ROUNDS
    # On a busy machine the rank that comes early may itself come late, now and then. Half of the
    # rounds would be right if rank 1 were always last.
    assert sum(row.last_rank == i % 2 for i, row in enumerate(rows)) >= 0.75 * ROUNDS
    skews = sorted((row.skew_ns or 0) / MS for row in rows)
    assert skews[ROUNDS // 2] >= LATE_MS - 1 - error / MS
    assert skews[ROUNDS // 2] <= LATE_MS + AHEAD_MS / 2  # 70 ms if nothing was aligned
    assert [f for f in findings(view) if f.severity == "error"] == []
