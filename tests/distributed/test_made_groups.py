"""Groups that a program makes by hand (torchft's): real ranks, seen in both ways."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import pytest

from pardbg.analysis.base.asof import View
from pardbg.analysis.comm.matching import collectives
from pardbg.analysis.findings import findings
from pardbg.analysis.findings.finding import Finding
from pardbg.analysis.findings.kinds.stall_kinds import MissingRank
from pardbg.hub.client import LiveSource
from pardbg.session.reader import load
from pardbg.store.store import Store
from pardbg_agent.wire import START_UP
from tests.distributed.programs import made_groups as program
from tests.distributed.runs import started
from tests.hook_ways import NATIVE, WAYS
from tests.processes import rank_env, wait_until


def argv(sort: str) -> list[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    return [*torchrun, str(program.__file__), sort]


def way_env(end: Path, way: str) -> dict[str, str]:
    return rank_env({"END": str(end), "PARDBG_HOOKS": way, "PARDBG_NATIVE": NATIVE})


@pytest.mark.parametrize("way", WAYS)
def test_who_is_missing_in_one_is_not_who_left(tmp_path: Path, way: str) -> None:
    """Ranks 0 and 2 wait for rank 3; rank 1, which is in no group any more, sleeps as it does."""
    env = way_env(tmp_path / "end", way)
    with started(argv("shrinks"), tmp_path / "s.mcap", env=env) as handle:
        store, found = Store(live=True), list[Finding]()
        with closing(LiveSource(handle.run_dir)) as source:

            def told() -> bool:
                store.apply_all(source.poll(50))
                found[:] = [f for f in findings(View(store, None)) if f.severity != "info"]
                return bool(found)

            wait_until(told, 60)
    assert [(f.kind, f.culprits, f.ranks) for f in found] == [("missing-rank", (3,), (0, 2))]
    assert isinstance(found[0].facts, MissingRank)
    assert found[0].facts.absences[0].doing != START_UP  # though it has no default group


@pytest.mark.parametrize("way", WAYS)
def test_nobody_is_matched_in_groups_that_cannot_be_told_apart(tmp_path: Path, way: str) -> None:
    end, session = tmp_path / "end", tmp_path / "s.mcap"
    end.touch()
    env = way_env(end, way)
    with started(argv("pairs"), session, env=env) as handle:
        assert handle.wait(60) == 0
    view = View(load(session), None)
    assert not [f for f in findings(view) if f.severity != "info"]
    known = {key: of.ranks for key, of in view.store.groups.items() if of.backend == "gloo"}
    assert list(known.values()) == [(3, 1, 0)]
    ops = [(row.op, row.verdict) for row in collectives(view) if row.key in known]
    assert ops == [("all_to_all", "matched"), ("broadcast", "matched")]
