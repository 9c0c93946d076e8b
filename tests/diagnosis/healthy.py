"""Jobs that nothing is wrong with, drawn from a seed: recipes of every size, hand-written programs
and those of the frameworks, each beside a load that is drawn, too. Nothing may be said of them."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pardbg.lab.recipes import catalogue
from pardbg.lab.recipes.catalogue import RecipeError
from pardbg.lab.recipes.catalogue.recipe import Kind
from tests.diagnosis.cases import Case, torchrun
from tests.diagnosis.live import watch
from tests.frameworks.cases import CASES
from tests.frameworks.compare import command, environment, lacking

RANKS = (2, 3, 4, 4, 4, 6, 8)
EVEN = (2, 4, 8)
LOADS = (0, 0, 0, 1, 2, 4)
"""Processes that compute beside the job."""
SECONDS = (20.0, 75.0)
"""How long a job is watched that does not end by itself."""
MICROBATCHES = (2, 3, 4)
"""For each rank: with fewer a pipeline is not healthy."""
HOG = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"
STEPS = (6, 20, 60, 150)
"""Of programs that end by themselves."""
NO_GPU = ("dp",)
"""Recipes that need more than a CPU."""


def cases(seed: int, names: Sequence[str] = ()) -> Iterator[tuple[Case, int, float]]:
    """(job, processes beside it, how long it is watched in seconds), without an end."""
    draw = random.Random(seed)
    programs = [case for case in CASES if not case.findings and not lacking(case)]
    while True:
        sort = draw.choice(("recipe", "recipe", "program", "program", "diagnosis"))
        if sort == "recipe":
            case = _recipe(draw)
        elif sort == "program":
            of, steps = draw.choice(programs), draw.choice(STEPS)
            env = environment(of) | {"STEPS": str(steps), "OMP_NUM_THREADS": "1"}
            case = Case(f"{of.name} s{steps}", tuple(command(of)), (), env=tuple(env.items()))
        else:
            case = _program(draw)
        load, seconds = draw.choice(LOADS), draw.uniform(*SECONDS)
        if not names or any(name in case.name for name in names):
            yield case, load, seconds


def _recipe(draw: random.Random) -> Case:
    names = [name for name in catalogue.RECIPES if ":" not in name and name not in NO_GPU]
    while True:
        name, ranks, pace = draw.choice(names), draw.choice(RANKS), draw.choice((0, 2, 5, 10))
        if catalogue.RECIPES[name].kind == Kind.PIPELINE and ranks not in EVEN:
            continue  # cut unevenly, which is said, and rightly
        own: list[str] = []
        if any(option.name == "microbatches" for option in catalogue.RECIPES[name].options):
            own = ["--microbatches", str(ranks * draw.choice(MICROBATCHES))]
        try:
            argv = catalogue.command(name, ranks, 1_000_000, own)
        except RecipeError:
            continue  # these do not go together
        words = " ".join([f"n{ranks}", *own, f"pace {pace} ms"])
        return Case(f"{name} {words}", (*argv, "--pace", str(pace)), ())


def _program(draw: random.Random) -> Case:
    # Not `evaluates`: whom the others wait for so long is said, and rightly.
    what = draw.choice(("saves", "computes-long", "nothing", "healthy", "slow-import"))
    ranks = draw.choice((2, 3, 4, 6))
    of = "setup_programs" if what in ("healthy", "slow-import") else "programs"
    words = (f"tests.diagnosis.{of}", what, str(draw.randrange(ranks)), str(draw.randrange(2, 12)))
    seconds = {"saves": 6, "computes-long": 10}.get(what)
    more = () if seconds is None else (str(draw.randrange(3, seconds + 1)),)
    return Case(f"{what} n{ranks}", torchrun(ranks, *words, *more), ())


@contextmanager
def beside(number: int) -> Iterator[None]:
    """So many processes that compute."""
    busy = [subprocess.Popen([sys.executable, "-c", HOG]) for _ in range(number)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def run(seconds: float, seed: int, names: Sequence[str] = (), after: int = 0) -> int:
    """Watch jobs for so long together, but the first ``after``; how many had anything said of
    them."""
    watched, bad, number, alarms = 0.0, 0, 0, 0
    for case, load, patience_s in cases(seed, names):
        number += 1
        if number <= after:
            continue
        begun = time.monotonic()
        with beside(load):
            outcome = watch(case, patience_s=patience_s)
        watched += time.monotonic() - begun
        said = [*outcome.false.values(), *outcome.warned.values()]
        bad, alarms = bad + bool(said), alarms + len(said)
        print(f"{number:4} {case.name:44} load {load}  {outcome.lasted_s:4.0f} s  "
              f"{len(said) or 'nothing'}", flush=True)  # fmt: skip
        for finding in said:
            print(
                f"    {finding.severity} {finding.kind}: {finding.text} {outcome.kept}", flush=True
            )
        if watched >= seconds:
            break
    minutes = watched / 60
    print(f"{number - after} jobs, {minutes:.0f} min: {bad} with alarms, {alarms} alarms in all")
    return bad
