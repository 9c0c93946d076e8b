"""A launcher with RANK in its environment is no rank: real jobs whose nodes' launchers have it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from pardbg.hub.client import HubControl
from pardbg.session.reader import load
from pardbg.store.intake import ISSUE_COLLECTIVE
from tests.distributed.programs import launched_ranks as program
from tests.distributed.runs import kill_hub, started, wait_ranks
from tests.processes import rank_env


@pytest.mark.parametrize(("how", "hub_dies"), [("popen", False), ("spawn", False), ("popen", True)])
def test_launchers_of_nodes_are_no_ranks(
    tmp_path: Path, free_port: Callable[..., int], how: str, hub_dies: bool
) -> None:
    """They hold no pause up, and are no life before that of the ranks."""
    end, session = tmp_path / "end", tmp_path / "s.mcap"
    argv = [sys.executable, str(program.__file__), how, str(free_port())]
    with started(argv, session, env=rank_env({"END": str(end)})) as handle:
        with closing(HubControl(handle.run_dir)) as control:
            wait_ranks(control, 4)
            if hub_dies:
                kill_hub(handle)
                wait_ranks(control, 4)
            held = control.command("pause")
            assert held.ok, held
            assert sorted(map(int, held.data["held"])) == [0, 1, 2, 3]
            assert control.command("continue").ok
        end.touch()
        assert handle.wait(30) == 0
    store = load(session)
    assert store.parts() == ()
    ranks = store.rank_procs(None)
    assert sorted(ranks) == [0, 1, 2, 3]
    assert all(len(process.table(ISSUE_COLLECTIVE)) for process in ranks.values())
    assert sum(process.launches for process in store.procs.values()) == 2
