"""Control of a real 1F1B pipeline: the cut, the wavefront, and losses untouched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pardbg.events.control_codes import Verb
from pardbg.events.decode import RECORD_DTYPE
from pardbg.hub.client import HubControl
from pardbg.hub.run.start import RunHandle
from pardbg.lab.recipes import catalogue
from pardbg_agent.wire import FRAME, Kind
from tests.distributed.recorded import recorded
from tests.distributed.runs import maps, session_of, started, wait_ranks
from tests.forked import served
from tests.processes import rank_env

STEPS = 10
TICKS = 4


def losses(out: str) -> list[str]:
    return [line.split()[-1] for line in out.splitlines() if " loss " in line]


def held_actions(control: HubControl) -> dict[int, str]:
    data = control.command(Verb.STATUS).data
    assert data["mode"] == "held"
    return dict(data["held"])


def finished_actions(handle: RunHandle, step: int) -> list[str]:
    """Compute actions of a step in the order they ended, text form."""
    messages = session_of(handle)
    names = {
        (m.key[1:], d["id"]): d["s"]
        for m in messages if m.key[:1] == b"D"
        for d in maps([m], b"D") if d["k"] == "name"
    }  # fmt: skip
    rows = []
    for m in messages:
        if m.key[:1] == b"R":
            for r in np.frombuffer(m.payload[FRAME.size :], RECORD_DTYPE):
                if r["kind"] == Kind.ACTION and r["step"] == step:
                    kind = names[(m.key[1:], int(r["name_id"]))]
                    rows.append((int(r["t1_ns"]), f"{r['stage']}{kind}{r['microbatch']}"))
    return [text for _, text in sorted(set(rows)) if text[1] in "FBIW"]


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_ticks_draw_the_wavefront_and_losses_stay(tmp_path: Path) -> None:
    argv = served(catalogue.command("1f1b", 4, STEPS))
    with started(argv, tmp_path / "s.mcap", env=rank_env()) as handle:
        control = HubControl(handle.run_dir)
        wait_ranks(control, 4)
        paused = control.command(Verb.PAUSE)
        assert paused.ok and sorted(paused.data["held"]) == [0, 1, 2, 3], paused
        assert control.command(Verb.NEXT).ok
        at = held_actions(control)
        assert set(at.values()) == {at[0]} and at[0].startswith("step "), at
        step = int(at[0].split()[1])
        for _ in range(TICKS):
            assert control.command(Verb.TICK).ok
        assert control.command(Verb.CONTINUE).ok
        assert handle.wait(50) == 0
        control.close()
        out = (handle.run_dir / "job.out").read_text()
        order = finished_actions(handle, step)
    # Worked out by hand: warm-up adds one rank per tick.
    front = [{"0F0"}, {"0F1", "1F0"}, {"0F2", "1F1", "2F0"}, {"0F3", "1F2", "2F1", "3F0"}]
    assert set(order[:1]) == front[0]
    assert set(order[1:3]) == front[1]
    assert set(order[3:6]) == front[2]
    assert set(order[6:10]) == front[3]
    assert losses(out) == recorded("1f1b", steps=STEPS).loss_texts
