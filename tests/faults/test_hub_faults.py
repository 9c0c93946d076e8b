"""What dies, dies alone: viewers, hubs, ranks."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mcap.reader import make_reader

from pardbg.events.control_codes import Verb, Why
from pardbg.events.control_events import event_of
from pardbg.events.control_facts import Left, Refusal
from pardbg.hub.client import HubControl, LiveSource
from pardbg.hub.ranks.stack_requests import py_spy
from pardbg.store.source import Message
from tests.distributed.runs import (
    coverage,
    events,
    fake_job,
    kill_hub,
    maps,
    session_of,
    started,
    wait_ranks,
)  # fmt: skip
from tests.processes import wait_until

VIEWER = """
import sys, time
from pathlib import Path
from pardbg.events.control_codes import Verb
from pardbg.hub.client import HubControl
from tests.distributed.runs import wait_ranks
control = HubControl(Path(sys.argv[1]))
wait_ranks(control, 2)
reply = control.command(Verb.PAUSE)
print("held" if reply.ok else reply.refusal, flush=True)
time.sleep(60)
"""


@pytest.mark.timeout(150)
def test_a_viewer_killed_while_it_holds_lets_the_ranks_run_on(tmp_path: Path) -> None:
    """The hub notices at once that nobody is there; the lease (10 s) would be the last resort."""
    with started(fake_job(2, 10_000), tmp_path / "s.mcap") as handle:  # a viewer starts in 20 s
        viewer = subprocess.Popen(
            [sys.executable, "-c", VIEWER, str(handle.run_dir)], stdout=subprocess.PIPE
        )
        assert viewer.stdout is not None
        assert viewer.stdout.readline() == b"held\n"
        assert not handle.ended()
        viewer.kill()
        viewer.wait()
        viewer.stdout.close()
        assert handle.wait(90) == 0
        messages = session_of(handle)
    facts = [event_of(plain).fact for plain in maps(messages, b"C")]
    [left] = [fact for fact in facts if isinstance(fact, Left)]
    assert left.disconnected and left.was_held


def plain_output(steps: int) -> list[str]:
    """What the same job prints without pardbg."""
    argv = fake_job(2, steps, 0.005)
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=50)
    return done.stdout.splitlines()


def test_a_killed_hub_comes_back_and_the_job_never_knows(tmp_path: Path) -> None:
    """kill -9 twice in the middle: output and exit code are those of a run without pardbg; the
    session goes on in the same file; a viewer stays; what is missing is counted."""
    steps = 400
    plain = plain_output(steps)
    with started(fake_job(2, steps, 0.005), tmp_path / "s.mcap") as handle:
        control = HubControl(handle.run_dir)
        source = LiveSource(handle.run_dir)
        live: list[Message] = []
        wait_until(lambda: control.command("status").data["records"] > 400, 20, "records")
        for _ in range(2):
            kill_hub(handle)
            new = control.command("status").data["hub"]
            while source._hub != new:  # pytest's timeout is the bound
                live += source.poll(50)
        while not source.finished:
            live += source.poll(100)
        assert handle.wait(20) == 0
        source.close()
        control.close()
        out = (handle.run_dir / "job.out").read_text().splitlines()
        messages = session_of(handle)
    assert out == plain
    assert events(messages).count("hub_restart") == 2
    assert [o["text"] for o in maps(messages, b"O") if o["stream"] == "stdout"] == plain
    # Every record is there, or its loss was said.
    said = sum(event["num"] for event in maps(messages, b"C") if event["event"] == "gap")
    gaps = sum(
        later[0] - earlier[1]
        for parts in coverage(messages).values()
        for earlier, later in itertools.pairwise([(0, 0), *parts])
        if later[0] > earlier[1]
    )
    assert gaps == said
    assert all(parts[-1][1] == 4 * steps for parts in coverage(messages).values())
    # The viewer has what the session has from its begin on: all, but where no core was left.
    starts = {proc: parts[0][0] for proc, parts in coverage(messages).items()}
    assert {proc: parts[0][0] for proc, parts in coverage(live).items()} == starts
    numbers = [m["n"] for key in (b"O", b"C", b"S") for m in maps(messages, key)]
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("seed", range(3))
def test_no_record_is_lost_that_a_ring_still_has(tmp_path: Path, seed: int) -> None:
    """kill -9 at drawn moments: also while the hub starts, and while it takes its place."""
    rng, steps = random.Random(seed), 500
    with started(fake_job(2, steps, 0.005), tmp_path / "s.mcap") as handle:
        for _ in range(4):
            time.sleep(rng.choice((0.02, 0.3, 1.0)) * rng.random())
            kill_hub(handle)
        assert handle.wait(40) == 0
        messages = session_of(handle)
    assert list(coverage(messages).values()) == [[(0, 4 * steps)]] * 2
    assert "gap" not in events(messages)
    with handle.session.open("rb") as file:
        found = make_reader(file, validate_crcs=True)
        summary = found.get_summary()
        assert summary is not None
        assert summary.statistics is not None
        assert len(list(found.iter_messages())) == summary.statistics.message_count > 0


def test_a_hub_killed_while_it_holds_lets_the_ranks_run_on(tmp_path: Path) -> None:
    with started(fake_job(2, 600), tmp_path / "s.mcap") as handle:
        control = HubControl(handle.run_dir)
        wait_ranks(control, 2)
        assert control.command(Verb.PAUSE).ok
        kill_hub(handle)
        assert handle.wait(25) == 0
        control.close()
        assert "hub_restart" in events(session_of(handle))


def test_a_killed_ranks_last_seconds_are_salvaged(tmp_path: Path) -> None:
    """Held, so that it stands still: every record it made is in the file, and why it ended."""
    with started(fake_job(2, 5000), tmp_path / "s.mcap") as handle:
        control = HubControl(handle.run_dir)
        wait_ranks(control, 2)
        assert control.command(Verb.PAUSE).ok
        rows = control.command(Verb.RANKS).data["ranks"]
        victim = next(proc for proc, row in rows.items() if row["rank"] == 1)
        os.kill(int(victim.rpartition(".")[2]), signal.SIGKILL)
        wait_until(
            lambda: control.command(Verb.STATUS).data["ranks"] == [0], 30, "rank 1 to be missed"
        )
        assert control.command("kill", confirm=True).ok
        handle.wait(20)
        control.close()
        messages = session_of(handle)
    end = next(d for d in maps(messages, b"D") if d["k"] == "end" and d["proc"] == victim)
    assert end["reason"] == "killed"
    assert coverage(messages)[victim] == [(0, end["last_index"] + 1)]


def test_kill_ends_the_whole_job(tmp_path: Path) -> None:
    """Also ranks that lead sessions of their own and ignore SIGTERM are named and ended."""
    with started(fake_job(2, 50000), tmp_path / "s.mcap") as handle:
        control = HubControl(handle.run_dir)
        wait_ranks(control, 2)
        assert control.command("kill").refusal == Refusal(Why.UNCONFIRMED)
        assert not handle.ended()
        assert control.command("kill", confirm=True).ok
        assert handle.wait(20) == 143
        control.close()


HOLDS_GIL = """
import ctypes, os, sys, threading, time
from pardbg_agent import core
os.environ.update(RANK="0", WORLD_SIZE="1")
agent = core.ensure()
agent.defs.group("g", "dp", None, [0], "fake")
def hold_the_gil():
    open(sys.argv[1] + ".held", "w").close()
    ctypes.PyDLL(None).sleep(30)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
hold_the_gil()
"""


def test_where_of_a_rank_that_holds_its_gil_comes_from_outside(tmp_path: Path) -> None:
    try:
        py_spy(os.getpid())
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        pytest.skip(f"py-spy cannot read a process here: {error}")
    go = tmp_path / "go"
    argv = [sys.executable, "-c", HOLDS_GIL, str(go)]
    with started(argv, tmp_path / "s.mcap") as handle:
        control = HubControl(handle.run_dir)
        wait_ranks(control, 1)
        go.touch()
        wait_until(go.with_name("go.held").exists, what="the GIL is held")
        where = control.command(Verb.WHERE).data
        assert where["source"] == {0: "py-spy"}
        assert [frame[2] for frame in where["tree"][0]["frames"]][-1] == "hold_the_gil"
        assert control.command("kill", confirm=True).ok
        handle.wait(20)
        control.close()
