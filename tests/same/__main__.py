"""Healthy layouts and planted mistakes against one reference: ``python -m tests.same [NAME …]``.

Prints a line for each, and how many were told rightly: of a mistake the first tensor, and what it
looks like; of a healthy one that it is the same. With SAME_DTYPE=bfloat16 all is in that dtype, and
a recording from parameters that are a rounding away is the noise floor.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pardbg.analysis.same import comparison, module_rows
from pardbg.session.reader import load
from tests.forked import forked
from tests.processes import rank_env, torchrun_argv

PROGRAM = "tests.same.train"


@dataclass(frozen=True, slots=True)
class Case:
    layout: str
    ranks: int
    fault: str = ""
    block: int = -1
    what: str = ""
    """Kinds of tensor that may be named, by "|"; of a healthy one empty."""
    name: str = ""
    """Pattern of its name."""
    cause: str = ""
    """What it must look like, by "|"; empty: nothing that has a name."""
    factor: float = 1.0
    reference: str = "plain"
    """Layout of the run on one rank that it is compared with."""
    with_floor: bool = False
    """In float32 too the noise floor is recorded: later steps are judged."""
    step: int = 0
    """In which a mistake shows."""
    noise: bool = False
    """It begins a rounding away from the reference's parameters."""

    @property
    def words(self) -> tuple[str, ...]:
        block = (str(self.block),) if self.block >= 0 else ()
        return (self.layout, *((self.fault, *block) if self.fault else ()))

    @property
    def title(self) -> str:
        return "-".join((*self.words, str(self.ranks), *["noise"] * self.noise))


HEALTHY = [
    Case(layout, ranks)
    for layout, ranks in (
        ("plain", 1), ("threads", 1), ("accumulate", 1), ("again", 1), ("ddp", 2), ("ddp", 4),
        ("hand-dp", 2), ("owned", 2), ("owned", 3), ("fsdp", 2), ("fsdp", 4), ("zero1", 2),
        ("tensor", 2), ("tensor", 4),
        ("sequence", 2), ("sequence", 4), ("dtensor", 2), ("tensor-dp", 4), ("gpipe", 2),
        ("dtensor-sequence", 2), ("dtensor-sequence", 4),
        ("tensor-unsaid", 2), ("tensor-unsaid", 4), ("tensor-dp-unsaid", 4),
        ("one-f-one-b", 2),
        ("one-f-one-b", 4), ("interleaved", 2), ("pipeline-dp", 4), ("fsdp-tensor", 4),
        ("fsdp1", 2), ("fsdp1", 3), ("hsdp", 4), ("ddp-again", 2),
        ("zero-bubble", 2), ("looped", 2), ("three-d", 8),
        ("vocab", 2), ("vocab", 4), ("context", 2), ("context", 4), ("context-zigzag", 2),
        ("context-zigzag", 4), ("gathered", 2), ("gathered", 3),
    )
] + [
    *(Case("experts", ranks, reference="experts") for ranks in (2, 4)),
    *(Case("experts-local", ranks, reference="experts") for ranks in (2, 4)),
    *(Case("running-dp", ranks, reference="running") for ranks in (2, 3)),
]  # fmt: skip
GRADS, OUT, BACK = "grad", "out", "d_out"
PLANTED = [
    *(Case("tensor", ranks, "not-reduced", at, OUT, rf"blocks\.{at}(\.mlp)?", "sum")
      for ranks, at in ((2, 0), (2, 1), (4, 2))),
    *(Case("tensor", 2, "twice", at, OUT, rf"blocks\.{at}") for at in (0, 2)),
    *(Case("tensor", ranks, f"copy-{of}", at, BACK, rf"blocks\.{at}\.norm{n}", "sum")
      for ranks, of, n, at in ((2, "mlp", 2, 1), (4, "mlp", 2, 0), (2, "attn", 1, 2),
                               (4, "attn", 1, 1))),
    Case("tensor", 2, "copy-mlp", -1, BACK, r"blocks\.2\.norm2", "sum"),
    Case("tensor-unsaid", 2, "copy-mlp", 1, BACK, r"blocks\.1\.norm2", "sum"),
    Case("tensor-unsaid", 2, "not-reduced", 2, OUT, r"blocks\.2(\.mlp)?", "sum"),
    Case("tensor-dp", 4, "copy-mlp", 1, BACK, r"blocks\.1\.norm2", "sum"),
    Case("tensor-dp", 4, "not-reduced", 1, OUT, r"blocks\.1(\.mlp)?", "sum"),
    Case("sequence", 2, "copy-mlp", 1, BACK, r"blocks\.1\.norm2"),
    Case("sequence", 2, "norms", -1, GRADS, "norm.*", "sum"),
    Case("sequence", 4, "norms", -1, GRADS, "norm.*", "sum"),
    Case("plain", 1, "scaled", 1, OUT, r"blocks\.1"),
    Case("tensor", 2, "scaled", 1, OUT, r"blocks\.1"),
    Case("ddp", 2, "scaled", 0, OUT, r"blocks\.0"),
    Case("one-f-one-b", 2, "scaled", 2, OUT, r"blocks\.2"),
    Case("fsdp", 2, "no-residual", 2, OUT, r"blocks\.2"),
    Case("interleaved", 2, "no-residual", 1, OUT, r"blocks\.1"),
    *(Case(layout, 2, "labels", -1, "loss") for layout in ("ddp", "tensor", "gpipe")),
    *(Case(layout, 2, "labels-swapped", -1, "loss") for layout in ("one-f-one-b", "interleaved")),
    *(Case(layout, 2, "doubled", -1, GRADS, "head.weight", "factor", 2.0)
      for layout in ("ddp", "tensor", "fsdp", "zero1")),
    Case("ddp", 4, "loss-scaled", -1, GRADS, "head.weight", "factor", 4.0),
    Case("accumulate", 1, "not-divided", -1, GRADS, "head.weight", "factor", 4.0),
    *(Case("hand-dp", ranks, "summed", -1, GRADS, "head.weight", "factor", float(ranks))
      for ranks in (2, 4)),
    Case("hand-dp", 2, "averaged-twice", -1, GRADS, "head.weight", "factor", 0.5),
    Case("tensor-dp", 4, "averaged-twice", -1, GRADS, "head.weight", "factor", 0.5),
    Case("hand-dp", 2, "not-averaged-at-all", -1, GRADS, "head.weight", "mean"),
    Case("pipeline-dp", 4, "not-averaged-at-all", -1, GRADS, "head.weight", "mean"),
    Case("hand-dp", 4, "one-left-out", -1, GRADS, "head.weight", "mean"),
    Case("plain", 1, "zeroed", 1, GRADS, r"blocks\.1\..*", "zero"),
    Case("ddp", 2, "zeroed", 2, GRADS, r"blocks\.2\..*", "zero"),
    Case("ddp", 2, "bf16", -1, GRADS, "head.weight"),
    Case("plain", 1, "frozen", -1, "param", r"blocks\.1\..*", "stale"),
    Case("fsdp", 2, "frozen", -1, "param", r"blocks\.1\..*", "stale"),
    Case("hand-dp", 2, "skipped-on-one", -1, "param", ".*", "replicas|mean|sum"),
    *(Case("vocab", ranks, "mask", -1, "loss") for ranks in (2, 4)),
    *(Case("vocab", ranks, "gathered", -1, "loss-value", "", "log", float(ranks))
      for ranks in (2, 4)),
    *(Case(layout, 2, "not-summed", -1, GRADS, "head.weight", "sum")
      for layout in ("context", "context-zigzag")),
    *(Case(layout, ranks, "averaged", -1, GRADS, "head.weight", "factor", 1 / ranks)
      for layout, ranks in (("context", 2), ("context-zigzag", 4))),
    *(Case(layout, ranks, fault, -1, f"{GRADS}|loss|{OUT}|{BACK}", ".*") for layout, ranks, fault in
      (("context", 2, "edge"), ("context", 2, "order"), ("context-zigzag", 4, "order"),
       ("context-zigzag", 2, "edge"), ("context", 4, "local-tokens"))),
    *(Case(layout, 2, "experts-summed", -1, GRADS, r"blocks\.2\.mlp\.experts\..*", "factor", 2.0,
           reference="experts") for layout in ("experts", "experts-local")),
    Case("experts", 4, "experts-summed", -1, GRADS, r"blocks\.2\.mlp\.experts\..*", "factor", 4.0,
         reference="experts"),
    Case("experts", 2, "experts-frozen", -1, GRADS, r"blocks\.2\.mlp\.experts\..*", "no-gradient",
         reference="experts"),
    Case("experts", 2, "router", -1, GRADS, r"blocks\.2\.mlp\.router.*", "mean|replicas|sum",
         reference="experts"),
    *(Case("experts", 2, "next-expert", at, OUT, rf"blocks\.{at}(\.mlp)?", reference="experts")
      for at in (0, 1)),
    *(Case("gathered", ranks, "summed", -1, GRADS, "head.weight", "factor", float(ranks))
      for ranks in (2, 3)),
    *(Case("gathered", ranks, "not-gathered", -1, "used", "embed.*", "not-taken", step=1)
      for ranks in (2, 3)),
    *(Case("owned", ranks, "not-broadcast", -1, "used", ".*", "not-taken", step=1)
      for ranks in (2, 3)),
    Case("owned", 2, "averaged-twice", -1, GRADS, "head.weight", "factor", 0.5),
    Case("running-dp", 2, "mean-summed", -1, "buffer", r"norm\.0\.mean", "factor", 2.0,
         reference="running"),
]  # fmt: skip


def recorded(case: Case, folder: Path) -> Path:
    """Run a case, and return its session."""
    session = folder / f"{case.title}.mcap"
    job = torchrun_argv("-m", PROGRAM, *case.words, nproc=case.ranks)
    job = job if "SAME_DEVICE" in os.environ else forked(job)  # a device and forks do not go well
    words = [sys.executable, "-m", "pardbg", "run", "--tensors", "0-1", "-o", str(session)]
    if case.title == f"{case.reference}-1":
        words += ["--init-to", str(folder / f"init-{case.reference}")]
    elif "unsaid" in case.layout or case.noise:
        words += ["--init-from", str(folder / f"init-{case.reference}")]
    if case.noise:
        words += ["--init-noise", "own"]
    env = rank_env({"PARDBG_NATIVE": os.environ.get("PARDBG_NATIVE", "off")})
    done = subprocess.run(
        [*words, "--", *job], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return session


def answer(reference: Path, run: Path, floor: Path | None = None) -> dict[str, Any]:
    """Return what ``pardbg same --json`` prints."""
    second = None if floor is None else load(floor)
    return module_rows.as_dict(comparison.compare(load(reference), load(run), second))


def verdict(case: Case, told: dict[str, Any]) -> str:
    """Return what is wrong with an answer; empty: nothing."""
    if not case.fault:
        return "" if told["exit_code"] == 0 else str(told["reason"])
    if told["exit_code"] != 1:
        return f"exit code {told['exit_code']}: {told['reason']}"
    cause = told["hypothesis"] or {"cause": "", "factor": 1.0}
    place = told["what"] in case.what.split("|") and re.fullmatch(case.name, told["name"])
    if not place or told["step"] != case.step:
        return f"{told['what']} {told['name']} ({cause['cause']})"
    if cause["cause"] not in case.cause.split("|"):
        return f"looks like {cause['cause'] or 'nothing'}"
    off = abs(float(cause["factor"]) - case.factor) > 0.01 * case.factor
    return f"factor {cause['factor']}" if off else ""


def main(names: list[str]) -> int:
    folder = Path(tempfile.mkdtemp(prefix="same-"))
    low = os.environ.get("SAME_DTYPE", "float32") != "float32"
    cases = [c for c in (*HEALTHY, *PLANTED) if not names or any(n in c.title for n in names)]
    if low:  # in bfloat16 such gradients are right
        cases = [c for c in cases if c.fault != "bf16"]
    known: dict[str, Path] = {}

    def once(case: Case) -> Path:
        if case.title not in known:
            known[case.title] = recorded(case, folder)
        return known[case.title]

    wrong = 0
    for case in cases:
        reference, second = (
            Case(case.reference, 1, reference=case.reference, noise=noise)
            for noise in (False, True)
        )
        of, floor = once(reference), once(second) if low or case.with_floor else None
        fault = verdict(case, answer(of, once(case), floor))
        wrong += bool(fault)
        sys.stdout.write(f"{'✗' if fault else '✓'} {case.title:40} {fault}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{len(cases) - wrong} of {len(cases)} right, in {folder}\n")
    return wrong


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
