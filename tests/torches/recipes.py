"""Every recipe that this torch can run, few steps each, as one watched job:

    pardbg run -o S.mcap -- python -m tests.torches.recipes RESULTS.json [NAME …]

RESULTS.json: recipe -> "" (it ran), or why it did not.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from pardbg.lab.recipes.catalogue import RECIPES, Kind, Recipe
from tests.forked import Ended, Job, run_jobs

STEPS = 4
LIMIT_S = 120
"""A recipe that takes longer has hung: it costs itself, not those behind it."""


def runnable(names: Sequence[str]) -> dict[str, str | None]:
    """Return each recipe's (none named: all) reason not to run here; None: it runs."""
    found = {name: recipe for name, recipe in RECIPES.items() if recipe.kind is not Kind.FAULT}
    chosen = names or [name for name in found if name != "csv"]
    chosen_ones = (found[name] for name in chosen)
    return {one.name: one.misfit(one.nproc) or one.misfit_on_gloo() for one in chosen_ones}


def job(recipe: Recipe) -> Job:
    words = (recipe.module, *recipe.arguments, "--steps", str(STEPS), "--pace", "0")
    return Job(recipe.name, recipe.nproc, words, limit_s=LIMIT_S)


def reason(ended: Ended) -> str:
    """Return "" for a job that ended well, else the last line that a rank which failed printed."""
    if -signal.SIGKILL in ended.codes:
        return f"no end after {LIMIT_S} s"
    texts = [text for code, text in zip(ended.codes, ended.err, strict=True) if code]
    lines = [line for text in texts for line in text.strip().splitlines()[-1:]]
    return lines[0] if lines else "" if not any(ended.codes) else f"exit codes {ended.codes}"


def main(results: Path, *names: str) -> None:
    why = runnable(names)
    jobs = [job(RECIPES[name]) for name, misfit in why.items() if misfit is None]
    ended = run_jobs(jobs, at_once=2, timeout_s=LIMIT_S * len(jobs) + 300)
    said = {name: misfit or reason(ended[name]) for name, misfit in why.items()}
    results.write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
