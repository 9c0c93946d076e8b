"""Healthy jobs of many kinds under ``--on-hang``: none is bundled, told of or ended."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

from pardbg.lab.recipes import catalogue
from pardbg.lab.recipes.catalogue import RecipeError
from tests.forked import forked
from tests.harness import Found, Tried, campaign, pardbg_run
from tests.processes import end_tree, torchrun_argv

LIMIT_S = 120.0
AFTER = ("2s", "3s", "5s")
RANKS, STEPS, PACES = (2, 3, 4), (10, 20, 60), ("0", "2", "5")
ODD = ("long", "pause", "fine")
"""Programs that look like a hang and are none (tests.faults.programs.hanging)."""
NO_GPU = ("dp",)


def run(seed: int, count: int, seconds: float) -> Found:
    """Begin no job after so many seconds."""
    return campaign("healthy", _job, range(seed, seed + count), seconds)


def _job(_seed: int, draw: random.Random, folder: Path) -> Tried:
    name, argv = _recipe(draw) if draw.random() < 0.8 else _odd(draw, folder)
    # Of the odd ones a rank may sleep for 2 s, in a checkpoint.
    after = draw.choice(AFTER[1:] if name in ODD else AFTER)
    told = folder / "told"
    options = ["--on-hang", "bundle,abort", "--after", after, "--notify", f"tee -a {told}"]
    job = pardbg_run(argv, folder, *options)
    try:
        code = job.wait(LIMIT_S)
    except subprocess.TimeoutExpired:  # too slow for this machine, and healthy so far
        code, name = 0, f"{name}, cut off"
    finally:
        end_tree(job.pid)
        job.wait()
    bad = [f"exit code {code}: {(folder / 'err').read_text()[-300:]}"] if code else []
    bad += [f"told: {told.read_text()[:300]}"] if told.exists() else []
    bad += [f"a bundle: {bundle.name}" for bundle in folder.glob("*.zst")]
    return Tried(bad, f"{name} --after {after}: {' '.join(argv[-12:])}", [name])


def _recipe(draw: random.Random) -> tuple[str, list[str]]:
    names = [name for name in catalogue.RECIPES if ":" not in name and name not in NO_GPU]
    while True:
        name, ranks = draw.choice(names), draw.choice(RANKS)
        try:
            argv = catalogue.command(name, ranks, draw.choice(STEPS), ())
        except RecipeError:
            continue  # these do not go together
        return name, [*forked(argv), "--pace", draw.choice(PACES)]


def _odd(draw: random.Random, folder: Path) -> tuple[str, list[str]]:
    kind = draw.choice(ODD)
    program = ["-m", "tests.faults.programs.hanging", kind, str(folder)]
    return kind, torchrun_argv(*program, nproc=4)
