"""Ranks that disagree in real training: `watch skew`, `mismatch` and `diverge` stop the job at the
rank that they are about, before it issues; everybody lives, and what would have happened happens
when the job goes on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pardbg.events.control_codes import Verb
from pardbg.hub.client import HubControl
from pardbg.render.reports.replies import as_json
from pardbg_agent.control import posts
from pardbg_agent.wire import RUN_FILE
from tests.distributed.programs import disagreeing as program
from tests.distributed.runs import maps, session_of, started, wait_ranks
from tests.forked import PROGRAM
from tests.processes import rank_env, wait_until


class Watching:
    """A job, held by watches."""

    def __init__(self, control: HubControl, ranks: int = 3) -> None:
        self._control, self._ranks = control, set(range(ranks))

    def do(self, verb: Verb, ranks: str = "", **args: Any) -> dict[str, Any]:
        reply = self._control.command(verb, ranks, **args)
        assert reply.ok, reply.refusal
        return as_json(reply)

    def held(self, says: str) -> dict[str, Any]:
        """STATUS once everybody is held, or waits inside an op for who is held, for this reason;
        who is late only because the machine is slow, as the `skew` watch sees it, goes on."""
        data: dict[str, Any] = {}

        def stopped() -> bool:
            nonlocal data
            data = self.do(Verb.STATUS)
            everybody = {*data["held"], *data["waiting"]} == self._ranks
            if data["mode"] != "held" or not everybody:
                return False
            if says not in data["reason"] and "skew>" in data["reason"]:
                self.do(Verb.CONTINUE)
            return says in data["reason"]

        try:
            wait_until(stopped, 40, says)
        except AssertionError as error:
            raise AssertionError(f"{error}: {data}") from None
        return data


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_who_disagrees_is_held_before_it_issues(tmp_path: Path) -> None:
    go, end = tmp_path / "go", tmp_path / "end"
    argv = [sys.executable, "-m", PROGRAM, "3", program.__name__, "fault:diverge"]
    env = rank_env({program.GO: str(go), program.END: str(end)})
    with started(argv, tmp_path / "s.mcap", env=env) as handle:
        control = HubControl(handle.run_dir)
        wait_ranks(control, 3)
        job = Watching(control)

        job.do(Verb.WATCH, expr="skew>500ms")
        job.do(Verb.DELAY, "1", ns=1_500_000_000)  # in each step; there is only one yet
        data = job.held("watch 1: rank 1 step 0, skew>500ms: last to broadcast int64[1] root 0 on")
        assert " s after rank " in data["reason"]
        # rank 2 may have its part of the broadcast already, and be held at what comes next
        assert 1 in data["held"] and sorted({*data["held"], *data["waiting"]}) == [0, 1, 2]
        job.do(Verb.DELAY, "1", ns=0)
        job.do(Verb.DELETE, numbers=[1])
        job.do(Verb.WATCH, expr="mismatch")
        job.do(Verb.WATCH, expr="diverge")
        job.do(Verb.WATCH, expr="skew>60s")
        go.touch()
        job.do(Verb.CONTINUE)

        # Nothing in healthy training; then a sum of int32 among float32. Rank 2 is held; if it was
        # there first, the others are.
        data = job.held("mismatch: wants all_reduce ")
        assert "reduce int32[]" in data["reason"] and "reduce float32[]" in data["reason"], data
        job.do(Verb.CONTINUE)

        # Steps 0-4 were healthy and 5 had that; the third of the next training is 8.
        data = job.held("diverge: parameter 0.token.weight differs after step 8: rank 2 from")
        assert "rank 2 from ranks 0,1 (101 of 101 differ)" in data["reason"]
        end.touch()
        job.do(Verb.CONTINUE)

        data = job.held("mismatch: wants all_gather float32[")
        assert "float32[3]" in data["reason"] and "float32[4]" in data["reason"]
        rows = job.do(Verb.RANKS)["ranks"].values()
        assert sorted(row["rank"] for row in rows if row["alive"]) == [0, 1, 2]
        ring_dir = Path(json.loads((handle.run_dir / RUN_FILE).read_text())["ring_dir"])
        assert len(list(ring_dir.glob(f"*{posts.SUFFIX}"))) == 3
        job.do(Verb.CONTINUE)
        assert handle.wait(30) != 0, "gloo ends a process, as without us"
        control.close()
        messages = session_of(handle)
    assert not ring_dir.exists(), "boards go with the rings"
    assert [d for d in maps(messages, b"D") if d["k"] == "error"] == []
