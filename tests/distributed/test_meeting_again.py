"""Ranks that meet again in the same processes under other numbers: real ones, seen in both ways."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.comm.matching import collectives
from pardbg.analysis.findings import findings
from pardbg.analysis.findings.finding import Finding
from pardbg.hub.client import LiveSource
from pardbg.session.reader import load
from pardbg.store.store import Store
from tests.distributed.programs import meets_again as program
from tests.distributed.runs import started
from tests.distributed.test_made_groups import way_env
from tests.hook_ways import WAYS
from tests.processes import wait_until


@pytest.mark.parametrize("way", WAYS)
def test_the_new_number_is_missing_and_the_old_ones_are_another_life(
    tmp_path: Path, way: str
) -> None:
    """The new ranks 0 and 1 wait for 2, which was 3; the old rank 1 sleeps as 2 does."""
    end, session = tmp_path / "end", tmp_path / "s.mcap"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    argv = [*torchrun, str(program.__file__)]
    with started(argv, session, env=way_env(end, way)) as handle:
        store, found = Store(live=True), list[Finding]()
        with closing(LiveSource(handle.run_dir)) as source:

            def told() -> bool:
                store.apply_all(source.poll(50))
                found[:] = [f for f in findings(View(store, None)) if f.severity != "info"]
                return any(f.where is not None and len(f.ranks) == 2 for f in found)

            wait_until(told, 60)
        said = sorted((f.kind, f.culprits, sorted(f.ranks)) for f in found)
        assert said == [("missing-rank", (2,), [0, 1]), ("restarted", (), [0, 1, 2])]
        end.touch()
        assert handle.wait(60) == 0
    recorded = load(session)
    lives = [(part.ranks, part.num_steps) for part in recorded.parts() if "," not in part.name]
    assert lives == [((0, 1, 2, 3), 20), ((0, 1, 2), 20)]
    for number, ranks in enumerate(((0, 1, 2, 3), (0, 1, 2)), 1):
        assert recorded.look_at(number)
        view = View(recorded, None)
        assert tuple(view.ranks) == ranks
        rows = [row for row in collectives(view) if row.op == "all_reduce"]
        assert rows and all(tuple(sorted(row.issued)) == ranks for row in rows)
        assert all(row.verdict == "matched" for row in rows)
        wrong = [f.kind for f in findings(view) if f.severity != "info"]
        assert not {"several-jobs", "rank-lost"} & {*wrong}
