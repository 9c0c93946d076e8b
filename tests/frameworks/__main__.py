"""``make frameworks``: the table of all programs. ``ONLY="megatron deepspeed"`` runs some."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.frameworks.cases import CASES, Case
from tests.frameworks.compare import Compared, compare, lacking

_HEAD = (
    "program",
    "code",
    "losses",
    "ranks",
    "ops",
    "steps",
    "pipeline",
    "loss",
    "phases",
    "wrong",
)
_WIDTHS = (26, 4, 6, 5, 6, 5, 32, 8, 6, 0)


def main(only: list[str]) -> int:
    """Exit code 1 if anything shown is not so."""
    bad = 0
    _print(_HEAD)
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            if only and not any(word in case.name for word in only):
                continue
            missing = lacking(case)
            if missing:
                print(f"{case.name:<26} skipped: no module {missing} here")
                continue
            made = compare(case, Path(folder))
            bad += bool(made.wrong)
            _print(_row(case, made))
    return 1 if bad else 0


def _row(case: Case, made: Compared) -> tuple[str, ...]:
    report = made.report
    if not report:
        return (case.name, str(made.watched.code), *[""] * 7, "; ".join(made.wrong))
    pipeline = report["pipeline"] or {}
    seen = "–"
    if pipeline:
        seen = f"{pipeline['schedule'] or 'inferred'} {pipeline['num_stages']}x"
        seen += str(pipeline["num_microbatches"])
    losses = [step["loss"] for step in report["steps"] if step["loss"] is not None]
    shares = [sum(s["phases"].values()) / max(1, s["duration_ns"]) for s in report["steps"]]
    counted = sorted({row["num_steps"] for row in report["ranks"]})
    return (
        case.name, str(made.watched.code), _same(made), str(len(report["ranks"])),
        str(len(report["collectives"]) + len(report["p2p"])), "/".join(map(str, counted)), seen,
        f"{losses[-1]:.4f}" if losses else "none",
        f"{100 * max(shares):.0f}%" if shares else "–", "; ".join(made.wrong) or "nothing",
    )  # fmt: skip


def _same(made: Compared) -> str:
    return "differ" if any("losses differ" in wrong for wrong in made.wrong) else "equal"


def _print(row: tuple[str, ...]) -> None:
    print(
        " ".join(f"{cell:<{width}}" for cell, width in zip(row, _WIDTHS, strict=True)), flush=True
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
