"""Watches in real DDP training with a planted fault: memory, a straggler and NaN each stop the
job at the rank that it is about, everybody lives, and the losses are those of the run that nobody
watched."""

from __future__ import annotations

from pathlib import Path

import pytest

from pardbg.events.control_codes import Verb
from pardbg.hub.client import HubControl
from pardbg.lab.recipes import catalogue
from pardbg.render.reports.replies import as_json
from tests.distributed.runs import events, session_of, started, wait_ranks
from tests.forked import served
from tests.processes import rank_env, run_argv, wait_until

STEPS, FAULT = 13, 11
FAULTY = ("--fault-rank", "1", "--fault-step", str(FAULT))


def _stopped(control: HubControl, *says: str) -> str:
    """Why it is held, once that is for this reason; what else a busy machine makes slow goes on."""
    reason = ""

    def held() -> bool:
        nonlocal reason
        data = as_json(control.command(Verb.STATUS))
        reason = data["reason"] if data["mode"] == "held" else ""
        if reason and not all(word in reason for word in says):
            control.command(Verb.CONTINUE)
            return False
        # Rank 0 may wait in an op for rank 1, which stays where it is.
        return bool(reason) and {*data["held"], *data["waiting"]} == {0, 1}

    wait_until(held, 30, f"held: {says}")
    return reason


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_each_watch_stops_at_the_rank_it_is_about(tmp_path: Path) -> None:
    argv = served(catalogue.command("fault:nan", 2, STEPS, own=FAULTY))
    with started(argv, tmp_path / "s.mcap", env=rank_env()) as handle:
        control = HubControl(handle.run_dir)
        wait_ranks(control, 2)
        assert control.command(Verb.WATCH, expr="nan").ok
        assert control.command(Verb.WATCH, "1", expr="slow>1000").ok  # it learns what is usual
        assert control.command(Verb.WATCH, "1", expr="memory>1MiB").ok
        refused = control.command(Verb.WATCH, expr="memory>20ms")
        assert not refused.ok and "no unit 'ms'" in refused.refusal.text

        reason = _stopped(control, "watch 3: rank 1 step", "memory>1MiB: ")
        assert "allocated (parameters" in reason and reason.count("watch") == 1, reason
        assert control.command(Verb.DELETE, numbers=[3]).ok

        assert control.command(Verb.UNTIL, expr="step==8").ok
        assert control.command(Verb.CONDITION, number=2, expr="slow>5×median").ok
        assert control.command(Verb.DELAY, "1", ns=1_500_000_000).ok
        control.command(Verb.CONTINUE)
        reason = _stopped(control, "watch 2: rank 1 step", " × the median ", " of its own before ")
        assert "rank 0" not in reason, "it would find its op slow, which rank 1 has not issued"
        assert control.command(Verb.DELAY, "1", ns=0).ok
        assert control.command(Verb.DELETE, numbers=[2]).ok

        control.command(Verb.CONTINUE)
        reason = _stopped(control, f"watch 1: rank 1 step {FAULT}, nan: the loss is nan")
        listed = control.command(Verb.BREAKS).data["breaks"]
        assert [(b["number"], b["kind"], b["hits"]) for b in listed] == [(1, "nan", 1)]
        assert control.command(Verb.DELETE).ok
        assert control.command(Verb.CONTINUE).ok
        assert handle.wait(60) == 0
        control.close()
        out = (handle.run_dir / "job.out").read_text()
        trail = events(session_of(handle))
    said, alone = _losses(out), run_argv(argv, env=rank_env(), timeout_s=60)
    assert alone.code == 0 and said == _losses(alone.out)
    assert said[FAULT] == "nan" and "nan" not in said[:FAULT]
    assert trail.count("watch") == 3 and trail.count("hit") >= 4, "three watches and one until"


def _losses(out: str) -> list[str]:
    """As printed: nine digits, so equal text is equal bits."""
    return [line.split()[-1] for line in out.splitlines() if " loss " in line]
