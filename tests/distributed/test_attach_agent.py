"""The agent enters a job of torchrun that was started without it, leaves it, and enters again; the
job computes and ends as without it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pardbg.hub.attach.entry import gdb_refuses
from pardbg.hub.run.runs import list_runs
from tests.processes import end_tree, rank_env, wait_until

PROGRAM = Path(__file__).parent / "programs" / "plain_training.py"
KINDS = Path(__file__).parent / "programs" / "kinds_of_training.py"
PARDBG = [sys.executable, "-m", "pardbg"]
STEPS = 4000

needs_a_way = pytest.mark.skipif(
    sys.version_info < (3, 14) and (shutil.which("gdb") is None or bool(gdb_refuses())),
    reason="Python before 3.14 is entered by gdb, which is not here or can call nothing here",
)


class Job:
    """A torchrun of two ranks, beside which pardbg's commands run."""

    def __init__(self, folder: Path, port: int, program: Sequence[str]) -> None:
        self.stop, self._folder = folder / "stop", folder
        self.out = folder / "out"
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                [*launcher, "--master-port", str(port), *program, str(self.stop), str(STEPS)],
                env=rank_env(), stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.launcher = str(self.process.pid)

    def losses(self) -> dict[int, str]:
        """Step -> loss, as far as whole lines tell."""
        lines = self.out.read_text().splitlines(keepends=True)
        pairs = (line.split() for line in lines if line.endswith("\n"))
        return {int(pair[0]): pair[1] for pair in pairs if len(pair) > 1 and pair[0].isdigit()}

    def goes_on(self, steps: int = 20) -> None:
        before = max(self.losses(), default=-1)
        wait_until(lambda: max(self.losses(), default=-1) >= before + steps, 60, "steps")

    def pardbg(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [*PARDBG, *words], env=rank_env(), capture_output=True, text=True, timeout=90,
            cwd=self._folder, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def enters(self, name: str) -> str:
        """Attach; return the run."""
        self.pardbg("attach", "--agent", "--launcher", self.launcher, "-o", name)
        return next(one.run for one in list_runs() if one.session.name == name)

    def ends(self) -> int:
        self.stop.touch()
        return self.process.wait(60)


@pytest.fixture
def job(
    tmp_path: Path, free_port: Callable[..., int], request: pytest.FixtureRequest
) -> Iterator[Job]:
    """Of the plain program, or of the one that is the fixture's parameter."""
    made = Job(tmp_path, free_port(), getattr(request, "param", [str(PROGRAM)]))
    try:
        yield made
    finally:
        end_tree(made.process.pid)
        made.process.wait(20)


def report(job: Job, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(job.pardbg("report", "--json", name))
    return found


def ends_of(job: Job, run: str) -> None:
    wait_until(lambda: run not in job.pardbg("ls"), 30, "the run's end")


@needs_a_way
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_it_enters_leaves_and_enters_again(job: Job, tmp_path: Path) -> None:
    job.goes_on(3)
    run = job.enters("a.mcap")
    job.goes_on()
    held = job.pardbg("ctl", run, "pause")
    assert "0  " in held and "1  " in held
    assert "plain_training.py" in job.pardbg("ctl", run, "where")
    job.pardbg("ctl", run, "continue")
    job.goes_on()
    job.pardbg("attach", "--agent", "--launcher", job.launcher, code=2)  # it is entered
    job.pardbg("ctl", run, "pause")
    job.pardbg("ctl", run, "kill")  # the agent leaves held ranks, too
    ends_of(job, run)
    job.goes_on()
    assert not list(Path("/dev/shm").glob(f"pardbg-*/{run}")), "nothing of the run is left"

    again = job.enters("b.mcap")
    job.goes_on()
    assert job.ends() == 0
    ends_of(job, again)

    for name in ("a.mcap", "b.mcap"):
        found = report(job, name)
        assert found["run"]["attached"] and found["run"]["exit_code"] is None
        assert len(found["steps"]) >= 20
        assert {one["step"] for one in found["steps"]} >= set(range(1, 20))
        assert [f["kind"] for f in found["findings"] if f["severity"] != "info"] == []
    assert_losses_as_plain(job, tmp_path)


@needs_a_way
@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("job", [[str(KINDS), "compiled_step"]], indirect=True)
def test_it_enters_between_the_pieces_of_a_compiled_step(job: Job) -> None:
    """What runs there is not compiled with the program's."""
    job.goes_on(3)
    run = job.enters("a.mcap")
    job.goes_on()
    assert job.ends() == 0
    ends_of(job, run)
    assert [f for f in report(job, "a.mcap")["findings"] if f["severity"] != "info"] == []


def assert_losses_as_plain(job: Job, tmp_path: Path) -> None:
    """The same program, never entered: each loss to the last digit."""
    seen = job.losses()
    assert sorted(seen) == list(range(len(seen)))
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         str(PROGRAM), str(tmp_path / "never"), str(len(seen))],
        env=rank_env(), capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [f"{step} {loss}" for step, loss in seen.items()]


@needs_a_way
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_who_attaches_is_killed_while_ranks_are_held(job: Job) -> None:
    """A rank that is stopped never comes to its step's end: the other waits; then it runs on."""
    job.goes_on(3)
    pids = ranks_of(job)
    os.kill(pids[1], signal.SIGSTOP)
    attaching = subprocess.Popen(
        [*PARDBG, "attach", "--agent", "--launcher", job.launcher, "-o", str(job.stop) + ".mcap"],
        env=rank_env(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert attaching.stderr is not None and "enters" in attaching.stderr.readline()
    finally:
        attaching.kill()
        attaching.communicate(timeout=20)
    os.kill(pids[1], signal.SIGCONT)
    job.goes_on()
    assert job.ends() == 0


def ranks_of(job: Job) -> list[int]:
    path = Path(f"/proc/{job.launcher}/task/{job.launcher}/children")
    return [int(pid) for pid in path.read_text().split()]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_half_a_job_is_refused(job: Job) -> None:
    job.goes_on(1)
    job.pardbg("attach", "--agent", str(ranks_of(job)[0]), code=2)
    assert job.ends() == 0
