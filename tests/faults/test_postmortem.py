"""kill -9 of every process of a run: what its ranks did last is still to be had."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pardbg.analysis.answers.ranks import Activity, rank_rows
from pardbg.analysis.base.asof import View
from pardbg.analysis.findings import findings
from pardbg.errors import UserError
from pardbg.hub.client import HubControl
from pardbg.hub.postmortem import recover
from pardbg.hub.run import runs
from pardbg.hub.run.start import RunHandle
from pardbg.session.reader import load
from tests.distributed.runs import coverage, fake_job, hub_pid, maps, started, wait_ranks
from tests.harness import whole_messages
from tests.processes import wait_until

STUCK = """
import os, sys, time
from pardbg_agent import core
rank = int(sys.argv[1])
os.environ.update(RANK=str(rank), WORLD_SIZE="2")
agent = core.ensure()
group = agent.defs.group("g", "dp", None, [0, 1], "fake")
op = agent.defs.op("all_reduce", "float32", "sum")
now = time.monotonic_ns() - 15 * 10**9  # as if it had waited for 15 s already
if rank == 0:
    agent.ring.record(2, 3, 0, op, now, now, 7, 3, group, -1, -1, -1, 4096, 4096)
    agent.status.op(op, 3, group, -1, 0, now, 1, 4096, 4096)
agent.status.now(7, 0, 0, -1, -1, now)
print("stuck", flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def no_boxes_left() -> Iterator[None]:
    """What these runs leave would be kept for a day, in memory."""
    before = {box.path for box in runs.list_run_rings()}
    yield
    for box in runs.list_run_rings():
        if box.path not in before and box.config is not None and box.config.name == "test":
            shutil.rmtree(box.ring_dir)
            shutil.rmtree(box.path)


def kill_all(handle: RunHandle) -> None:
    """SIGKILL to launcher, hub, job and ranks, all at once: nobody can write a last word."""
    assert handle._launcher is not None
    top = psutil.Process(handle._launcher.pid)
    victims = [*top.children(recursive=True), top]
    for victim in victims:  # none may see another one die
        victim.send_signal(signal.SIGSTOP)
    for victim in victims:
        victim.kill()
    handle._launcher.wait(30)
    psutil.wait_procs(victims, timeout=10)


def test_everything_killed(tmp_path: Path) -> None:
    """Every record that a rank made is in the new session: the file has the first ones, the rings
    the rest. `pardbg ls` has kept them."""
    with started(fake_job(2, 50_000, 0.001), tmp_path / "s.mcap") as handle:
        control = HubControl(handle.run_dir)
        wait_ranks(control, 2)
        wait_until(lambda: control.command("status").data["records"] > 3000, 20, "records")
        wait_until(
            lambda: len(coverage(list(whole_messages(handle.session)))) == 2, 20, "whole chunks"
        )
        control.close()
        os.kill(hub_pid(handle), signal.SIGSTOP)  # so that the rings are ahead of the file
        time.sleep(0.3)
        kill_all(handle)
        assert handle.run not in [run.run for run in runs.list_runs()]
        assert handle.run in [box.run for box in runs.list_run_rings()]
        out = tmp_path / "p.mcap"
        found = recover(handle.run, out)
        before, after = (
            coverage(list(whole_messages(handle.session))),
            coverage(list(whole_messages(out))),
        )
    assert [rank.rank for rank in found.ranks] == [0, 1]
    assert found.from_file > 0 and all(rank.from_ring > 0 for rank in found.ranks)
    for rank in found.ranks:
        ((_, kept),) = before[rank.proc]
        # one stretch without a gap, as long as the file's and the ring's part together
        assert after[rank.proc] == [(0, kept + rank.from_ring)]
        assert not rank.alive and rank.lost == 0
    store = load(out)
    assert not store.truncated and store.lost(None) == 0
    assert [row.state for row in rank_rows(View(store, None), None)] == ["lost", "lost"]
    assert {end["reason"] for end in maps(list(whole_messages(out)), b"D") if end["k"] == "end"
            and end["proc"]} == {"killed"}  # fmt: skip


def test_the_open_op_of_each_rank_and_who_is_missing(tmp_path: Path) -> None:
    """Rank 0 waits in an all_reduce that rank 1 never came to."""
    code = (
        "import subprocess, sys; ps = [subprocess.Popen([sys.executable, '-c', sys.argv[1], r]) "
        "for r in '01']; [p.wait() for p in ps]"
    )
    argv = [sys.executable, "-c", code, STUCK]
    with started(argv, tmp_path / "s.mcap") as handle:
        log = handle.run_dir / "job.out"
        wait_until(lambda: log.read_text().count("stuck") == 2, 20, "both ranks")
        kill_all(handle)
        handle.session.unlink(missing_ok=True)  # the rings alone
        out = tmp_path / "p.mcap"
        found = recover(str(handle.run_dir), out)
    assert "no such file" in found.file_problem
    by_rank = {rank.rank: rank for rank in found.ranks}
    assert by_rank[0].open_op == "all_reduce dp #3" and by_rank[1].open_op is None
    assert by_rank[0].step == by_rank[1].step == 7
    store = load(out)
    last = max(rank.last_ns for rank in found.ranks)
    view = View(store, last)
    assert {row.rank: row.now for row in rank_rows(view, None)}[0] == Activity(
        "in", "all_reduce dp #3"
    )
    said = [(f.culprits, f.group, f.seq) for f in findings(View(store, None))]
    assert ((1,), "dp", 3) in said
    assert [line for _, (_, _, line) in store.output.last(None, 9)] == ["stuck", "stuck"]


def test_rings_alone_in_a_copied_directory(tmp_path: Path) -> None:
    with started(fake_job(2, 50_000, 0.001), tmp_path / "s.mcap") as handle:
        control = HubControl(handle.run_dir)
        wait_ranks(control, 2)
        control.close()
        kill_all(handle)
        copied = tmp_path / "rings"
        copied.mkdir()
        for path in Path(handle.config.ring_dir).iterdir():
            (copied / path.name).write_bytes(path.read_bytes())
        found = recover(str(copied), tmp_path / "p.mcap")
    assert found.from_file == 0 and {rank.rank for rank in found.ranks} == {0, 1}
    assert sorted(load(tmp_path / "p.mcap").rank_procs(None)) == [0, 1]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: path / "none", "is not a directory"),
        (lambda path: path, "neither a run.json nor rings"),
        (lambda path: "no-such-run", "no dead run 'no-such-run'"),
    ],
)
def test_nothing_to_recover(tmp_path: Path, make: object, says: str) -> None:
    with pytest.raises(UserError, match=says) as error:
        recover(str(make(tmp_path)), tmp_path / "p.mcap")  # type: ignore[operator]
    assert "\n" not in str(error.value) and not (tmp_path / "p.mcap").exists()
