"""Rows that train: against Kineto's spans, against another layout, and held for long."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pardbg
from tests.bench.pause_long import finish, hold, losses, start_job, stopped
from tests.gpu.table import Checks
from tests.processes import rank_env, run_argv, torchrun_argv
from tests.same import __main__ as layouts

PARDBG: Final = (sys.executable, "-m", "pardbg.cli")
MS: Final = 1_000_000


def own_env() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def kineto(device: str, checks: Checks) -> None:
    """The lengths of actions, and the bubble, of one step that torch.profiler sees as well."""
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        session, told = Path(folder, "s.mcap"), Path(folder, "kineto.json")
        job = torchrun_argv("-m", "tests.gpu.programs.profiled", device, str(told), nproc=2)
        argv = [*PARDBG, "run", "-o", str(session), "--", *job]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300, env=own_env(),
                              stdin=subprocess.DEVNULL)  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip()[-300:]}")
        truth: list[dict[str, tuple[float, float]]] = json.loads(told.read_text())
        pipeline = pardbg.open(session).pipeline()
    assert pipeline is not None
    step = pipeline.steps[-1]
    worst = 0.0
    for number, spans in enumerate(truth):
        checks.some(spans, 16, "actions of Kineto")
        busy = sum(end - begin for begin, end in spans.values()) / 1e3
        ours = next(row.busy_ns for row in step.ranks if row.rank == number) / MS
        checks.near(ours, busy, 0.02 * busy, f"rank {number} busy, ms")
        worst = max(worst, abs(ours / busy - 1))
    begins = [begin for spans in truth for begin, _ in spans.values()]
    ends = [end for spans in truth for _, end in spans.values()]
    busy = sum(end - begin for spans in truth for begin, end in spans.values())
    bubble = 1 - busy / (len(truth) * (max(ends) - min(begins)))
    checks.near(step.bubble_fraction, bubble, 0.01, "bubble")
    checks.figure = (
        f"bubble {step.bubble_fraction:.1%}, Kineto's {bubble:.1%}; busy off by {worst:.2%} at most"
    )


def same(device: str, checks: Checks) -> None:
    """Healthy layouts are the reference's computation; of a mistake the first tensor is named."""
    names = ("ddp-2", "fsdp-2", "tensor-2", "one-f-one-b-2", "tensor-not-reduced-1-2",
             "ddp-doubled-2")  # fmt: skip
    cases = [c for c in (*layouts.HEALTHY, *layouts.PLANTED) if c.title in names]
    checks.some(cases, len(names), "layouts")
    with changed(SAME_DEVICE=device), tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        reference = layouts.recorded(layouts.Case("plain", 1), Path(folder))
        for case in cases:
            told = layouts.answer(reference, layouts.recorded(case, Path(folder)))
            wrong = layouts.verdict(case, told)
            checks.that(not wrong, f"{case.title}: {wrong}")
    checks.figure = f"{checks.num - 1 - len(checks.failed)} of {len(cases)} layouts told rightly"


@contextmanager
def changed(**env: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in env}
    os.environ.update(env)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def long_pause(device: str, checks: Checks) -> None:
    """Held at a cut for twice the limit of its groups: GPU_LIMIT_S (30; 360 is twelve minutes)."""
    limit_s, steps = float(os.environ.get("GPU_LIMIT_S", "30")), 12
    job = torchrun_argv("-m", "tests.gpu.programs.held", device, str(limit_s), str(steps), nproc=2)
    kept: Any = {name: os.environ[name] for name in ("PARDBG_NATIVE", "PARDBG_HOOKS", "PARDBG_SIM")
                 if name in os.environ}  # fmt: skip
    plain = run_argv(job, env=rank_env(kept), timeout_s=120)
    expected = losses(plain.out)
    checks.some(expected, steps, "losses of the plain run")
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder, ExitStack() as stack:
        held = start_job(stack, "held", job, rank_env(kept), Path(folder), "step==3")
        stopped(held)
        hold([held], 2 * limit_s)
        wrong = finish(held, expected, limit_s)
    checks.that(not wrong, "; ".join(wrong))
    checks.figure = f"held {held.held_s:.0f} s, groups' timeout {limit_s:g} s, losses equal"
