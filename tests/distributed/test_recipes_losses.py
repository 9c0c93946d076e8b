"""Every recipe trains what the single process trains: the losses say so."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from pardbg.recipes.catalogue import RECIPES, command
from tests.processes import rank_env, run_argv, run_ranks

PROGRAM = Path(__file__).parent / "programs" / "recipes_twice.py"
STEPS = 10
# One torchrun start and 80 steps of 4 ranks, in the first test that asks: slow where cores are few.
pytestmark = pytest.mark.timeout(150)

Losses = dict[str, dict[str, list[str]]]
"""recipe → "first" or "again" → the losses as printed: nine digits, so equal text is equal bits."""


@pytest.fixture(scope="module")
def single() -> list[float]:
    argv = [sys.executable, "-m", "pardbg.recipes.single", "--steps", str(STEPS)]
    done = run_argv(argv, env=rank_env(), timeout_s=50)
    assert done.code == 0, done.err
    return [float(line.split()[-1]) for line in done.out.splitlines()]


@pytest.fixture(scope="module")
def losses() -> Losses:
    options = ("--steps", str(STEPS), "--pace", "0")
    done = run_ranks(str(PROGRAM), *options, nproc=4, timeout_s=120)
    assert done.code == 0, done.err
    found: Losses = {name: {"first": [], "again": []} for name in RECIPES}
    for rank in range(4):
        name = turn = ""
        for line in done.lines(rank):
            if match := re.fullmatch(r"step \d+ loss (\S+)", line):
                found[name][turn].append(match[1])
            else:
                name, turn = line.split()
    return found


@pytest.mark.parametrize("name", RECIPES)
def test_losses_follow_the_single_process(
    name: str, single: list[float], losses: Losses
) -> None:
    assert len(single) == STEPS
    # Guessing costs log 256 = 5.55 nats and a bit; ten steps learn which bytes are frequent.
    assert 5.4 < single[0] < 6.0 and single[-1] < 4.7
    assert [float(text) for text in losses[name]["first"]] == pytest.approx(single, rel=1e-4)


@pytest.mark.parametrize("name", RECIPES)
def test_a_rerun_is_the_same_to_the_last_bit(name: str, losses: Losses) -> None:
    assert len(losses[name]["again"]) == STEPS
    assert losses[name]["again"] == losses[name]["first"]


@pytest.mark.parametrize("name", ["ddp", "interleaved"])
def test_the_catalogues_command_runs_paced_and_ends_clean(name: str) -> None:
    argv = command(name, nproc=2, steps=2)
    done = run_argv(argv, env=rank_env(), timeout_s=50)
    assert done.code == 0, done.err
    assert "Traceback" not in done.err and "Warning" not in done.err, done.err
    assert done.lines(0)[0] == "compute is paced: each block sleeps 5 ms in forward"
    reporter = 0 if name == "ddp" else 1  # a pipeline's last rank computes the loss
    steps = [line for line in done.lines(reporter) if line.startswith("step ")]
    assert [line.split()[1] for line in steps] == ["0", "1"]


@pytest.mark.parametrize(
    ("module", "world", "says"),
    [
        ("onef1b", None, "pardbg demo 1f1b"),
        ("onef1b", "9", "take 2 to 8 ranks"),
        ("ddp", "3", "take 1, 2, 4, 8, 16"),
    ],
)
def test_a_world_that_does_not_fit_is_one_line_and_exit_2(
    module: str, world: str | None, says: str
) -> None:
    env = rank_env({"RANK": "0", "WORLD_SIZE": world} if world else None)
    argv = [sys.executable, "-m", f"pardbg.recipes.{module}"]
    done = run_argv(argv, env=env, timeout_s=50)
    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1 and says in done.err, done.err
