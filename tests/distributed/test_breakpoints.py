"""Breakpoints in a real 1F1B pipeline: they stop where they say, one rank can be
held alone, and the losses are those of the run that nobody stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from pardbg.events.control_codes import Verb
from pardbg.hub.client import HubControl
from pardbg.lab.recipes import catalogue
from pardbg.render.reports.replies import as_json
from tests.distributed.recorded import recorded
from tests.distributed.runs import started, wait_ranks
from tests.forked import served
from tests.processes import rank_env, wait_until

STEPS = 10


def _held(control: HubControl, reason: str) -> dict[int, str]:
    """What comes next on each held rank, once that has stopped them."""
    found: dict[int, str] = {}

    def stopped() -> bool:
        data = as_json(control.command(Verb.STATUS))
        found.clear()
        found.update(data["held"])
        return data["mode"] == "held" and reason in data["reason"]

    wait_until(stopped, 30, reason)
    return found


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_breakpoints_stop_the_pipeline_where_they_say(tmp_path: Path) -> None:
    argv = served(catalogue.command("1f1b", 4, STEPS))
    with started(argv, tmp_path / "s.mcap", env=rank_env()) as handle:
        control = HubControl(handle.run_dir)
        wait_ranks(control, 4)
        assert control.command(Verb.BREAK, expr="action==B and mb==3 and stage==2").ok
        held = _held(control, "breakpoint 1: rank 2 before 2B3")
        assert held[2] == "2B3"
        # 1B3 needs 2B3's gradient: nobody before rank 2 can be past it.
        listed = control.command(Verb.BREAKS).data["breaks"]
        assert [(b["number"], b["hits"]) for b in listed] == [(1, 1)]
        assert control.command(Verb.STEP, "2").ok, "over the breakpoint, one action"
        assert control.command(Verb.DELETE, numbers=[1]).ok
        for what in ("mismatch", "diverge", "skew>60s"):  # a healthy pipeline, paused or not
            assert control.command(Verb.WATCH, expr=what).ok

        reply = control.command(Verb.UNTIL, expr="op==send and step>=3 and rank==0")
        assert reply.ok and reply.status is not None, reply
        assert [(w.rank, w.next) for w in reply.status.why] == [(0, "send F0 to r1")]

        assert control.command(Verb.CONTINUE).ok
        alone = control.command(Verb.PAUSE, "1")
        assert alone.ok and list(alone.data["held"]) == [1], alone
        wait_until(
            lambda: {0, 2} <= set(control.command(Verb.STATUS).data["waiting"]), 20, "who waits"
        )
        left = control.command(Verb.STATUS).data["timeout_ns"]
        assert left is not None and left > 60e9, "gloo's default is half an hour"
        refused = control.command(Verb.BREAK, expr="rnak==2")
        assert not refused.ok and "did you mean 'rank'" in refused.refusal.text
        assert control.command(Verb.CONTINUE).ok
        assert handle.wait(60) == 0
        control.close()
        out = (handle.run_dir / "job.out").read_text()
    said = [line.split()[-1] for line in out.splitlines() if " loss " in line]
    assert said == recorded("1f1b", steps=STEPS).loss_texts
