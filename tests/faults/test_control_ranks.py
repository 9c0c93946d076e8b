"""Held ranks and what happens to them: the hub stands still, the line to it is cut, one is killed,
one raises, torchelastic starts them anew. In every case the job goes on within the lease or stays
held because somebody wants it, nothing is left behind, and the session says what happened."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from pardbg.events.control_codes import Verb
from pardbg.events.control_events import event_of
from pardbg.hub.client import HubControl
from pardbg.hub.run.start import RunHandle
from pardbg.render.frame.control_words import fact_text
from tests.distributed.owned import children
from tests.distributed.runs import fake_job, hub_pid, maps, session_of, started, wait_ranks
from tests.processes import rank_env, wait_until


class Line:
    """A unix socket that passes everything on to another one, until it is cut (and mended)."""

    def __init__(self, path: Path) -> None:
        self.whole = threading.Event()
        self.whole.set()
        self.target = ""
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        try:
            while True:
                here, _ = self._server.accept()
                there = socket.socket(socket.AF_UNIX)
                there.connect(self.target)
                self._ends += [here, there]
                for pair in ((here, there), (there, here)):
                    threading.Thread(target=self._copy, args=pair, daemon=True).start()
        except OSError:
            return

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        """Cut, it neither passes anything on nor says that it does not."""
        try:
            while data := source.recv(65536):
                self.whole.wait()
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            end.close()

    def close(self) -> None:
        self.whole.set()
        self._server.close()
        for end in self._ends:
            end.close()


def lines(handle: RunHandle) -> int:
    """How far the job's output is."""
    return (handle.run_dir / "job.out").read_text().count("\n")


def settled_lines(handle: RunHandle) -> int:
    """How far the job's output is, once all of it has been copied: its ranks are held."""
    job = children(handle)["job"].pid
    kept = handle.run_dir / "job.out"
    wait_until(lambda: kept.stat().st_size == os.stat(f"/proc/{job}/fd/1").st_size, 20, "its copy")
    return lines(handle)


def held(handle: RunHandle, ranks: int = 2) -> HubControl:
    control = HubControl(handle.run_dir)
    wait_ranks(control, ranks)
    reply = control.command(Verb.PAUSE)
    assert reply.ok, reply.refusal
    return control


def runs_on(handle: RunHandle, since: int, what: str) -> None:
    """Wait until its output goes on: soon, but a loaded machine may take its time."""
    wait_until(lambda: lines(handle) > since + 3, 40, what)


def said(handle: RunHandle) -> list[tuple[str, str]]:
    """The audit trail: (event, text)."""
    events = [event_of(plain) for plain in maps(session_of(handle), b"C")]
    return [(e.fact.TAG, fact_text(e.fact)) for e in events if e.fact is not None]


@pytest.mark.timeout(180)
def test_without_a_word_from_the_hub_held_ranks_run_on(tmp_path: Path, run_dir: Path) -> None:
    """One job's hub is stopped (SIGSTOP), another's line to its ranks is cut. Their ranks, whose
    lease is 3 s here, run on by themselves. Back again, the viewer still wants them held: they
    are, and the session says that they were loose; its ``continue`` ends it. The output is what it
    is without all that."""
    line = Line(run_dir / "away")
    away = [sys.executable, "-m", "tests.faults.programs.away_ranks", str(run_dir / "away")]
    # However slow this machine is: no job ends before its ranks have been seen to be loose.
    ends = [run_dir / "end0", run_dir / "end1"]
    jobs = [[*away, *fake_job(2, 400, 0.005)[3:], str(end)] for end in ends]
    with ExitStack() as stack:
        stack.callback(line.close)
        cut = stack.enter_context(started(jobs[0], tmp_path / "cut.mcap"))
        line.target = cut.config.ctrl.removeprefix("ipc://")
        straight = Line(run_dir / "straight")
        stack.callback(straight.close)
        jobs[1][3] = str(run_dir / "straight")
        stopped = stack.enter_context(started(jobs[1], tmp_path / "stopped.mcap"))
        straight.target = stopped.config.ctrl.removeprefix("ipc://")
        controls = [held(handle) for handle in (cut, stopped)]
        line.whole.clear()
        hub = hub_pid(stopped)
        os.kill(hub, signal.SIGSTOP)
        before = [settled_lines(handle) for handle in (cut, stopped)]
        try:
            for handle, since in zip((cut, stopped), before, strict=True):
                runs_on(handle, since, "its ranks to run on by themselves")
        finally:
            os.kill(hub, signal.SIGCONT)
        line.whole.set()
        for handle, control, end in zip((cut, stopped), controls, ends, strict=True):
            wait_until(lambda h=handle: any("came loose" in t for _, t in live(h)), 40, "said")
            assert control.command(Verb.PAUSE).ok, "held again"
            assert control.command(Verb.CONTINUE).ok
            end.touch()
            assert handle.wait(30) == 0
            control.close()
            out = (handle.run_dir / "job.out").read_text().splitlines()
            assert [line.split()[1] for line in out] == [str(n) for n in range(400)]


def live(handle: RunHandle) -> list[tuple[str, str]]:
    return said(handle) if handle.session.exists() else []


@pytest.mark.timeout(120)
def test_a_rank_killed_and_a_rank_that_raises_while_others_are_held(tmp_path: Path) -> None:
    """Under torchrun with one restart. Rank 1 is killed while all are held: torchelastic ends
    rank 0 (held or not) and starts both anew; nobody is left to be held, so the new ones run. Then
    rank 0 alone is held and rank 1 raises: torchelastic ends the job, the held rank too."""
    argv = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "1",
        "--monitor-interval", "0.1", "--nproc-per-node", "2",
        "-m", "tests.faults.programs.restarted_ranks", str(tmp_path),
    ]  # fmt: skip
    with started(argv, tmp_path / "s.mcap", env=rank_env()) as handle:
        control = held(handle)
        first = control.command(Verb.RANKS).data["ranks"]
        victim = next(proc for proc, row in first.items() if row["rank"] == 1)
        os.kill(int(victim.rpartition(".")[2]), signal.SIGKILL)

        def anew() -> bool:
            rows = control.command(Verb.RANKS).data.get("ranks", {})
            return sorted(proc[:2] for proc in rows if rows[proc]["rank"] >= 0) == ["1.", "1."]

        wait_until(anew, 60, "both ranks of the next epoch")
        wait_until(lambda: control.command(Verb.STATUS).data["ranks"] == [0, 1], 10, "their hello")
        assert control.command(Verb.STATUS).data["mode"] == "running"
        alone = control.command(Verb.PAUSE, "0")
        assert alone.ok and list(alone.data["held"]) == [0]
        (tmp_path / "RAISE-1").touch()
        assert handle.wait(40) == 1
        control.close()
        trail = said(handle)
        definitions = maps(session_of(handle), b"D")
    ends = {d["proc"]: d.get("reason") for d in definitions if d["k"] == "end"}
    assert [event for event, _ in trail if event != "resend"][:2] == ["verb", "cut"]
    gone = [text for event, text in trail if event == "detach"]
    # torchelastic may have ended rank 0 before the hub looked for rank 1.
    assert "rank 1 is gone" in gone[:2] and any(t.startswith("rank 0 ") for t in gone[:2]), gone
    assert ("running", "no rank is left") in trail
    assert ends[victim] == "killed" and len(ends) == 5, "two epochs of two ranks, and the run"
