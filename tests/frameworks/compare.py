"""Run a case plain and watched, and say what differs from the truth."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.frameworks.cases import Case
from tests.processes import Finished, rank_env, run_argv

PROGRAMS = Path(__file__).parent / "programs"
PYTHON = os.environ.get("PARDBG_FRAMEWORKS_PYTHON", sys.executable)
"""An interpreter that has torch and the frameworks."""
PATHS = os.environ.get("PARDBG_FRAMEWORKS_PATH", "")
"""Sources of frameworks that are not installed, as a search path."""
TIMEOUT_S = 170
_ACTION = re.compile(r"(\d+)([A-Z]+)(\d+)")
_LOSS = re.compile(r"loss['\"]?[:=]? *([0-9.]+(?:e[+-]?\d+)?)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Compared:
    """A case as it ran."""

    plain: Finished
    watched: Finished
    report: dict[str, Any]
    wrong: tuple[str, ...]
    """What is not so; empty: all is right."""


def lacking(case: Case) -> str:
    """The first module the case needs and does not find; empty if it has all."""
    return next((name for name in case.needs if not _has(name)), "")


@functools.cache
def _has(module: str) -> bool:
    """Found without importing it."""
    code = (
        f"import sys; sys.path[:0] = {PATHS.split(':')!r}; "
        f"import importlib.util as u; sys.exit(u.find_spec({module!r}) is None)"
    )
    return subprocess.run([PYTHON, "-c", code], capture_output=True, timeout=60).returncode == 0


def environment(case: Case) -> dict[str, str]:
    """What its ranks need beside what torchrun sets."""
    return {
        **case.env, "PARDBG_FRAMEWORKS_PATH": PATHS, "DS_ACCELERATOR": "cpu",
        "PYTHONWARNINGS": "ignore", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip


def command(case: Case) -> list[str]:
    """Its argv."""
    return [
        PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case.nproc),
        *case.torchrun, str(PROGRAMS / f"{case.program}.py"),
    ]  # fmt: skip


def compare(case: Case, folder: Path) -> Compared:
    """Both runs and the report; ``folder`` keeps the session."""
    env, argv = rank_env(environment(case)), command(case)
    session = folder / f"{re.sub('[^a-z0-9]+', '-', case.name)}.mcap"
    pardbg = [sys.executable, "-m", "pardbg.cli"]
    plain = run_argv(argv, env=env, timeout_s=TIMEOUT_S)
    watched = run_argv(
        [*pardbg, "run", "--force", "-o", str(session), "--", *argv], env=env, timeout_s=TIMEOUT_S
    )
    said = run_argv([*pardbg, "report", str(session), "--json"], env=env, timeout_s=60)
    report = json.loads(said.out) if said.code == 0 else {}
    return Compared(plain, watched, report, tuple(_wrong(case, plain, watched, report)))


def losses(out: str) -> list[str]:
    """The losses that are printed, as they are written (beside some stand times)."""
    return _LOSS.findall(out)


def _wrong(case: Case, plain: Finished, watched: Finished, report: dict[str, Any]) -> list[str]:
    if plain.code or plain.timed_out:
        return [f"plain run: exit code {plain.code}: {plain.err[-300:]}"]
    if watched.code or not report:
        return [f"watched run: exit code {watched.code}: {watched.err[-300:]}"]
    wrong = []
    if sorted(losses(plain.out)) != sorted(losses(watched.out)):
        wrong.append("losses differ with and without pardbg")
    if len(report["ranks"]) != case.nproc:
        wrong.append(f"{len(report['ranks'])} ranks")
    counted = {row["num_steps"] for row in report["ranks"]}
    if case.steps is not None and counted != {case.steps}:
        wrong.append(f"{sorted(counted)} steps, not {case.steps}")
    return wrong + _pipeline(case, report) + _figures(case, watched.out, report)


def _pipeline(case: Case, report: dict[str, Any]) -> list[str]:
    pipeline = report["pipeline"]
    if case.schedule is None or pipeline is None:
        there = pipeline is not None
        return [] if there == (case.schedule is not None) else [f"pipeline seen: {there}"]
    wrong = [
        f"{name} is {pipeline[name]!r}, not {true!r}"
        for name, true in (("schedule", case.schedule), ("num_stages", case.stages),
                           ("num_microbatches", case.microbatches))
        if pipeline[name] != true
    ]  # fmt: skip
    meant = sorted((stage, mb) for stage in range(case.stages) for mb in range(case.microbatches))
    for step in pipeline["steps"]:
        ran = [_ACTION.match(said) for row in step["ranks"] for said in row["actions"]]
        for verbs in ("F", "BI"):
            seen = sorted((int(m[1]), int(m[3])) for m in ran if m and m[2] in verbs)
            if seen != meant:
                wrong.append(f"step {step['step']}: {verbs} are {seen}")
    return wrong


def _figures(case: Case, out: str, report: dict[str, Any]) -> list[str]:
    wrong = []
    for step in report["steps"]:
        named = {k: v for k, v in step["phases"].items() if k != "recompute"}
        if sum(named.values()) > 1.001 * step["duration_ns"]:
            wrong.append(f"step {step['step']}: phases are more than the step: {named}")
    if case.loss:
        printed = losses(out)
        shown = [step["loss"] for step in report["steps"] if step["loss"] is not None]
        if not shown or not printed or abs(shown[-1] - float(printed[-1])) > 1e-3:
            wrong.append(f"loss {shown[-1:]}, the program says {printed[-1:]}")
    if (steps := tuple(part["num_steps"] for part in report["parts"])) != case.parts:
        wrong.append(f"parts of {steps} steps, not {case.parts}")
    names = ("parameters", "gradients", "optimizer", "expected")
    for row in report["memory"] if case.memory else ():
        counted = tuple(row[f"{name}_bytes"] for name in names)
        if counted != case.memory:
            wrong.append(f"memory of rank {row['rank']}: {counted}, not {case.memory}")
    found = {f["kind"] for f in report["findings"] if f.get("severity") in ("warning", "error")}
    if found - set(case.findings):
        wrong.append(f"false findings: {sorted(found - set(case.findings))}")
    if set(case.findings) - found:
        wrong.append(f"not found: {sorted(set(case.findings) - found)}")
    return wrong
