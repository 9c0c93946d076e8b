"""Whole runs: launcher, hub, real agents (without torch), viewers."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from pardbg.errors import UserError
from pardbg.events.control_codes import Verb, Why
from pardbg.events.control_facts import Refusal
from pardbg.hub.client import HubControl, LiveSource
from pardbg.hub.run.runs import RunError, find_run, list_runs
from pardbg.hub.run.start import start_run
from pardbg.store.source import Message
from tests.distributed.runs import (
    coverage,
    events,
    fake_job,
    maps,
    session_of,
    started,
    wait_ranks,
)  # fmt: skip
from tests.processes import wait_until

STEPS = 30
RECORDS = 4 * STEPS
"""Per rank: an action, an op's issue and completion, and the step itself, each step."""


def test_a_run_is_recorded_from_its_first_record_to_its_end(tmp_path: Path) -> None:
    with started(fake_job(3, STEPS), tmp_path / "s.mcap") as handle:
        assert handle.wait(40) == 0
        messages = session_of(handle)
    assert list(coverage(messages).values()) == [[(0, RECORDS)]] * 3
    defs = maps(messages, b"D")
    assert defs[0]["k"] == "run" and defs[0]["argv"][2] == "tests.distributed.fake_ranks"
    ends = {end["proc"]: end for end in defs if end["k"] == "end"}
    assert ends.pop(None)["code"] == 0
    assert {end["reason"] for end in ends.values()} == {"exit"}
    assert {end["last_index"] for end in ends.values()} == {RECORDS - 1}
    clocks = [d for d in defs if d["k"] == "clock"]
    assert [(c["offset_ns"], c["error_ns"]) for c in clocks] == [(0, 0)] * 3
    lines = [(o["stream"], o["rank"], o["text"]) for o in maps(messages, b"O")]
    out = [text for stream, _, text in lines if stream == "stdout"]
    assert out[0].startswith("step 0 value") and len(out) == STEPS
    assert {rank for stream, rank, text in lines if text == "done"} == {0, 1, 2}
    assert not Path(handle.config.ring_dir).exists()
    assert not handle.launcher_alive()


def poll_all(source: LiveSource) -> list[Message]:
    out: list[Message] = []
    while not source.finished:
        out += source.poll(100)
    return out


def test_a_late_viewer_misses_nothing(tmp_path: Path) -> None:
    """It joins in the middle: history and stream meet without a gap, up to the run's end."""
    with started(fake_job(2, 150, 0.01), tmp_path / "s.mcap") as handle:
        control = HubControl(handle.run_dir)
        wait_until(lambda: control.command("status").data["records"] > 200, 20, "records")
        source = LiveSource(handle.run_dir)
        messages = poll_all(source)
        source.close()
        control.close()
        assert handle.wait(30) == 0
    assert list(coverage(messages).values()) == [[(0, 600)]] * 2
    ends = [d for d in maps(messages, b"D") if d["k"] == "end" and d["proc"] is None]
    assert [end["code"] for end in ends] == [0]
    # Where history and stream meet some come twice; the store takes each number once.
    texts = {o["n"]: o["text"] for o in maps(messages, b"O") if o["stream"] == "stdout"}
    assert len(texts) == 150


def test_verbs_on_real_agents(tmp_path: Path) -> None:
    with started(fake_job(3, 5000), tmp_path / "s.mcap") as handle:
        control = HubControl(handle.run_dir)
        wait_ranks(control, 3)
        assert control.command(Verb.STEP).refusal == Refusal(Why.NOTHING_HELD, verb="step")
        paused = control.command(Verb.PAUSE)
        assert paused.ok and paused.data["mode"] == "held" and len(paused.data["held"]) == 3
        assert control.command(Verb.NEXT).ok
        held = control.command(Verb.NEXT).data["held"]
        assert len(set(held.values())) == 1 and held[0].startswith("step ")
        held = control.command(Verb.OP).data["held"]
        assert len(set(held.values())) == 1 and held[0].startswith("all_reduce dp #")
        assert control.command(Verb.PAUSE).ok  # held already
        one = control.command(Verb.STEP, "1")
        assert one.ok, one  # its peers issue the same all_reduce, and no more
        assert one.data["held"] == {0: "optimizer", 1: "optimizer", 2: "optimizer"}
        where = control.command(Verb.WHERE).data
        assert where["source"] == {0: "agent", 1: "agent", 2: "agent"}
        assert where["tree"][0]["ranks"] == [0, 1, 2]
        rows = control.command(Verb.RANKS, "0-1").data["ranks"].values()
        assert sorted((row["rank"], row["next"]) for row in rows) == [
            (0, "optimizer"), (1, "optimizer"),
        ]  # fmt: skip
        assert control.command(Verb.CONTINUE).ok
        assert control.command("kill", confirm=True).ok
        handle.wait(20)
        control.close()
        said = events(session_of(handle))
    assert said[:3] == ["refused", "pause", "cut"]
    assert said[-2:] == ["running", "kill"] or "kill" in said


def test_a_script_holds_between_its_commands(tmp_path: Path) -> None:
    """Each command is a connection of its own, closed after it: only the lease counts."""
    with started(fake_job(2, 5000), tmp_path / "s.mcap") as handle:

        def ctl(verb: Verb) -> dict[str, object]:
            port = HubControl(handle.run_dir, script=True)
            try:
                if verb is Verb.PAUSE:
                    wait_ranks(port, 2)
                reply = port.command(verb, lease_s=60)
                assert reply.ok, reply
                return reply.data
            finally:
                port.close()

        ctl(Verb.PAUSE)
        assert ctl(Verb.STEP)["mode"] == "held"
        assert ctl(Verb.NEXT)["controller"] == "ctl"
        assert ctl(Verb.CONTINUE)["mode"] == "running"
        assert ctl(Verb.STATUS)["controller"] is None


@pytest.mark.parametrize(
    ("code", "want"),
    [("import sys; sys.exit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)],
    ids=["exit code", "signal"],
)
def test_a_job_that_dies_at_start_keeps_its_own_code(tmp_path: Path, code: str, want: int) -> None:
    with started([sys.executable, "-c", code], tmp_path / "s.mcap") as handle:
        assert handle.wait(20) == want
        defs = maps(session_of(handle), b"D")
    assert [d["code"] for d in defs if d["k"] == "end"] == [want]


def test_what_cannot_be_started_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such command") as caught:
        start_run(["no-such-program"], name="x", session=tmp_path / "s.mcap")
    assert "\n" not in str(caught.value)


def test_live_runs_are_found_and_ended_ones_are_not(tmp_path: Path) -> None:
    with started(fake_job(1, 5000), tmp_path / "s.mcap") as handle:
        assert handle.run in [run.run for run in list_runs()]
        assert find_run(handle.run).path == handle.run_dir
        assert find_run(str(handle.run_dir)).session == handle.session
        handle.signal(signal.SIGTERM)
        assert handle.wait(20) == 143
        end = [d for d in maps(session_of(handle), b"D") if d["k"] == "end" and d["proc"] is None]
        assert [number for _, number in end[0]["told"]] == [signal.SIGTERM]
        assert handle.run not in [run.run for run in list_runs()]
        with pytest.raises(RunError):
            find_run(handle.run)
