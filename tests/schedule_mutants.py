"""Schedules with one thing changed, drawn from a seed, and how torch really ends them."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pardbg.analysis.whatif import plans
from pardbg.lab.schedules.lint import Verdict, lint
from pardbg.lab.schedules.schedule_table import Cell, Table, dump, from_plan, parse
from pardbg.lab.schedules.transports import lower
from tests.forked import Ended, Job

PROGRAM = "tests.distributed.programs.run_schedule"
BASES = (("1F1B", 1), ("GPipe", 1), ("Interleaved1F1B", 2), ("LoopedBFS", 2),
         ("InterleavedZeroBubble", 2), ("ZBVZeroBubble", 2))  # fmt: skip
HANG_S = 10
LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
ENDS = {0: "good", 1: "wrong", 3: "wrong", 4: "refused", 5: "no order", 6: "deadlock"}
"""Exit code of a rank (run_schedule) -> how the job ended."""
Rows = list[list[Cell]]


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    table: Table
    form: str
    """torch's: compute_only or compute_comms."""
    num_stages: int
    num_microbatches: int

    def verdict(self) -> Verdict:
        return lint(self.table, self.num_microbatches)

    def expected(self) -> str:
        """As torch on gloo ends it, by lint: refused or no order (when it is loaded), wrong (it
        fails, or gives other gradients), deadlock or good."""
        verdict = self.verdict()
        if verdict.load != "loads":
            return verdict.load
        if verdict.wrong:
            return "deadlock" if verdict.hangs else "wrong"
        return "deadlock" if verdict.deadlocks("buffered") else "good"

    def job(self, folder: Path) -> Job:
        path = folder / f"{self.name}.csv"
        path.write_text(dump(self.table))
        argv = (PROGRAM, str(path), self.form, str(self.num_stages), str(self.num_microbatches))
        return Job(self.name, len(self.table.rows), (*argv, str(HANG_S)))


def really(ended: Ended) -> str:
    """How torch ended it. What a rank found by itself counts; who lost its connection to one that
    had ended, or was ended with it, only waited."""
    ends = zip(ended.codes, ended.err, strict=True)
    own = {ENDS.get(code, f"exit code {code}") for code, text in ends
           if code != -signal.SIGTERM
           and not (code == 1 and any(lost in text for lost in LOST))}  # fmt: skip
    for end in ("wrong", "deadlock"):  # the others of either ran to their ends
        if end in own and own <= {end, "good", "deadlock"}:
            return end
    return " and ".join(sorted(own)) or "nobody's end"


def mutants(count: int, seed: int, num_ranks: int = 4) -> Iterator[Mutant]:
    """``count`` of them, half with messages written out, every tenth unchanged."""
    rng = random.Random(seed)
    for number in range(count):
        schedule, virtual = rng.choice(BASES)
        mbs = num_ranks * rng.choice((1, 2))
        base = from_plan(plans.plan(schedule, num_ranks, virtual, mbs))
        form = "compute_only"
        if number % 2:
            base, form = Table(lower(base).rows), "compute_comms"
        rows = [list(row) for row in base.rows]
        how = "same" if number % 10 == 0 else _change(rows, rng)
        table = parse(dump(Table(tuple(map(tuple, rows)))))
        name = f"{number:03}-{schedule}-{form}-{how}"
        yield Mutant(name, table, form, base.num_stages, base.num_microbatches)


def _change(rows: Rows, rng: random.Random) -> str:
    how = rng.choice(("swap", "swap", "far", "far", "drop", "twice", "rank", "kind", "split", "mb"))
    row = rng.choice(rows)
    at = rng.randrange(len(row) - 1)
    cell = row[at]
    if how == "swap":
        row[at], row[at + 1] = row[at + 1], row[at]
    elif how == "far":
        row.insert(rng.randrange(len(row)), row.pop(at))
    elif how == "drop":
        del row[at]
    elif how == "twice":
        row.insert(rng.randrange(len(row)), cell)
    elif how == "rank":
        rng.choice([other for other in rows if other is not row]).insert(at, row.pop(at))
    elif how == "kind" and cell.ops[0].is_compute:
        row[at] = _with(cell, kind=rng.choice("FBIW"))
    elif how == "mb":
        row[at] = _with(cell, microbatch=max(0, cell.ops[0].microbatch + rng.choice((-1, 1))))
    elif how == "split":
        whole = [i for i, c in enumerate(row) if c.ops[0].kind == "B"]
        if whole:
            i = rng.choice(whole)
            b = row[i]
            row[i] = _with(b, kind="I")
            row.insert(rng.randrange(i + 1, len(row) + 1), _with(b, kind="W"))
    return how


def _with(cell: Cell, **changed: object) -> Cell:
    return Cell((cell.ops[0]._replace(**changed),), -1)  # type: ignore[arg-type]
