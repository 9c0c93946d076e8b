"""Ten minutes paused, with process groups that time out after thirty seconds.

``python -m tests.bench.pause_long [SECONDS [RECIPE…]]`` (600, ddp and 1f1b): each recipe runs
plain, without pardbg; then all of them at once, watched, with a group timeout of SECONDS / 20 (3 s
at least), paused to a cut after some steps, held for SECONDS, let go. At a cut no rank waits inside
an op, so no timeout runs: the job must live, and print the losses of the plain run to the last
digit (nine of them, which tell any two float32 apart).

Not named bench_…: ``make bench`` should not take ten minutes longer. It sleeps most of its time.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import psutil

from pardbg.events.control_codes import Verb
from pardbg.hub.client import HubControl
from pardbg.hub.run.start import RunHandle
from pardbg_agent.wire import CALLS
from tests.bench.figures import HEADER, Figure
from tests.distributed.recorded import launched
from tests.distributed.runs import maps, session_of, started
from tests.processes import rank_env, run_argv, wait_until

STEPS = 24
LOOK_S = 5.0
TIMEOUT = "RANKS_TIMEOUT_S"
"""What tests.distributed.programs.forked_ranks makes the groups' timeout."""
_LOSS = re.compile(r"step \d+ loss (\S+)")


@dataclass(slots=True)
class Held:
    """One job under its pause."""

    name: str
    handle: RunHandle
    control: HubControl
    held_s: float = 0.0
    looks: int = 0
    """How often it was looked at while held; always found held, with nobody waiting."""
    cpu_s: float = 0.0
    """CPU time of the job's processes while held."""


def ranks_of(handle: RunHandle) -> list[psutil.Process]:
    """The job's processes."""
    with closing(HubControl(handle.run_dir, script=True)) as rows:
        found = rows.command(Verb.RANKS).data["ranks"]
    return [psutil.Process(int(proc.rpartition(".")[2])) for proc in found]


def losses(text: str) -> list[str]:
    return _LOSS.findall(text)


def plain(name: str, steps: int) -> list[str]:
    """The losses of the run that nobody watches. Not paced, as the other: DDP's buckets follow the
    order in which gradients come, and a sum's last bits the buckets."""
    job = [*launched(name, None, steps), "--pace", "0"]
    done = run_argv(job, env=rank_env(), timeout_s=300)
    assert done.code == 0, done.err[-2000:]
    return losses(done.out)


def start(
    stack: ExitStack, name: str, steps: int, limit_s: float, folder: Path, *conditions: str
) -> Held:
    """The job, watched; it will stop where all of these are true, each on some rank."""
    job = [*launched(name, None, steps), "--pace", "0"]
    return start_job(stack, name, job, rank_env({TIMEOUT: str(limit_s)}), folder, *conditions)


def start_job(
    stack: ExitStack, name: str, job: list[str], env: dict[str, str], folder: Path, *conditions: str
) -> Held:
    """``start`` for any command."""
    handle = stack.enter_context(started(job, folder / f"{name}.mcap", env=env))
    control = stack.enter_context(closing(HubControl(handle.run_dir)))
    for condition in conditions:  # before there is a rank: nobody gets past it
        assert control.command(Verb.TBREAK, expr=condition).ok
    return Held(name, handle, control)


def stopped(job: Held) -> None:
    """Wait until it stands at a cut, nobody inside an op."""

    def held() -> bool:
        assert not job.handle.ended(), (job.handle.run_dir / "job.out").read_text()[-2000:]
        return job.control.command(Verb.STATUS).data.get("mode") == "held"

    wait_until(held, 90, "a hit")
    # Who hit stands where it is, whoever waits for it: a step of one moves all to a real cut.
    reply = job.control.command(Verb.NEXT)
    assert reply.ok and not reply.data["waiting"], reply


def all_stopped(jobs: Sequence[Held]) -> None:
    """``stopped`` for each as soon as it hits: at the hit itself, others wait inside an op, for as
    long as their groups' timeout lets them."""
    with ThreadPoolExecutor(len(jobs)) as each:
        list(each.map(stopped, jobs))


def hold(jobs: Sequence[Held], seconds: float) -> None:
    """Keep them held, and look that they are."""
    begun = time.monotonic()
    processes = {job.name: ranks_of(job.handle) for job in jobs}
    before = {name: _cpu(found) for name, found in processes.items()}
    while (left := begun + seconds - time.monotonic()) > 0:
        time.sleep(min(LOOK_S, left))
        for job in jobs:
            status = job.control.command(Verb.STATUS).data
            assert status.get("mode") == "held" and not status["waiting"], status
            assert len(status["held"]) == len(processes[job.name]), status
            job.looks += 1
    for job in jobs:
        job.held_s = time.monotonic() - begun
        job.cpu_s = _cpu(processes[job.name]) - before[job.name]


def _cpu(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def finish(job: Held, expected: list[str], limit_s: float) -> list[str]:
    """Let go; what is wrong with how it ended, nothing if all is well."""
    wrong = []
    if not job.control.command(Verb.CONTINUE).ok:
        wrong.append("continue was refused")
    code = job.handle.wait(300)
    out = (job.handle.run_dir / "job.out").read_text()
    if code:
        wrong.append(f"exit code {code}")
    found = losses(out)
    if found != expected:
        pairs = zip(found, expected, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), len(found))
        wrong.append(f"other losses than the plain run from step {at} of {len(found)} on")
    definitions = maps(session_of(job.handle), b"D")
    groups = [d for d in definitions if d["k"] == "group" and d["backend"] != CALLS]
    limits = {d["timeout_ns"] for d in groups}
    if limits != {int(limit_s * 1e9)}:
        wrong.append(f"groups with a timeout of {limits}")
    return wrong


def measure(seconds: float, names: Sequence[str], steps: int = STEPS) -> list[Figure]:
    """One figure a recipe: how long it was held, and what went wrong."""
    limit_s = max(3.0, seconds / 20)
    expected = {name: plain(name, steps) for name in names}
    figures, jobs = [], []
    with tempfile.TemporaryDirectory(prefix="pardbg-pause-") as folder, ExitStack() as stack:
        for name in names:
            jobs.append(start(stack, name, steps, limit_s, Path(folder), "step==3"))
        all_stopped(jobs)
        hold(jobs, seconds)
        for job in jobs:
            wrong = finish(job, expected[job.name], limit_s)
            note = "; ".join(wrong) or (
                f"group timeout {limit_s:g} s; lives, {len(expected[job.name])} losses"
                f" bit-identical; looked at {job.looks} times, {job.cpu_s:.1f} s CPU in all"
            )
            held = 0.0 if wrong else job.held_s
            figures.append(Figure(f"held at a cut, {job.name}", held, "s", seconds, True, note))
    return figures


if __name__ == "__main__":
    words = sys.argv[1:]
    print(HEADER)
    for figure in measure(float(words[0]) if words else 600.0, words[1:] or ["ddp", "1f1b"]):
        print(figure.line(), flush=True)
