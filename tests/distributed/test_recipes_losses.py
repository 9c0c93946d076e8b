"""Every recipe trains what the single process trains: the losses say so."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

import pytest
import torch

from pardbg.lab.recipes.catalogue import RECIPES, Kind, command
from tests.distributed.recorded import launched, recorded
from tests.forked import forked
from tests.processes import Finished, rank_env, run_argv, torchrun_argv

PROGRAM = "tests.distributed.programs.recipes_in_one"
STEPS = 5
WATCHED_STEPS = 3
"""Enough to see a difference in the last bit: the second step computes with the first one's."""
WATCHED = dict.fromkeys(("ddp-ring", "ps", "ddp-accum", "ddp-syncbn"), 5)
"""Steps of the recipes that test_recipes_data.py has recorded: here too, so that they run once."""
APART = ("dp", "tour", "ps-async", "3d")
"""Needs GPUs; trains nothing; nobody knows who is first; needs 8 ranks. Each has its own test."""
ALL = [r.name for r in RECIPES.values() if r.kind is not Kind.FAULT and r.name not in APART]
OWN = ("ddp-syncbn", "moe")
"""Their losses are not the single process's on the same data."""
FOLLOW = [name for name in ALL if name not in OWN]
# All steps of each recipe in one process group, in the first test that asks.
pytestmark = pytest.mark.timeout(240)

Losses = dict[str, list[str]]
"""recipe → its losses as printed: nine digits, so equal text is equal bits."""


@pytest.fixture(scope="module")
def single() -> list[float]:
    argv = [sys.executable, "-m", "pardbg.lab.recipes.single", "--steps", str(STEPS)]
    done = run_argv(argv, env=rank_env(), timeout_s=50)
    assert done.code == 0, done.err
    return [float(line.split()[-1]) for line in done.out.splitlines()]


@pytest.fixture(scope="module")
def plain() -> Losses:
    """Without an agent."""
    words = (",".join(ALL), "--steps", str(STEPS), "--pace", "0")
    job = forked(torchrun_argv("-m", PROGRAM, *words, nproc=4))
    return losses(run_argv(job, env=rank_env(), timeout_s=220))


def losses(done: Finished) -> Losses:
    assert done.code == 0, done.err
    found: Losses = {name: [] for name in ALL}
    for rank in range(4):
        name = ""
        for line in done.lines(rank):
            if match := re.fullmatch(r"step \d+ loss (\S+)", line):
                found[name].append(match[1])
            elif match := re.fullmatch(r"recipe (\S+)", line):
                name = match[1]
    return found


def follows(found: Sequence[str], single: list[float]) -> bool:
    return [float(text) for text in found] == pytest.approx(single, rel=1e-4)


@pytest.mark.parametrize("name", FOLLOW)
def test_losses_follow_the_single_process(name: str, single: list[float], plain: Losses) -> None:
    assert len(single) == STEPS
    # Guessing costs log 256 = 5.55 nats and a bit; five steps learn which bytes are frequent.
    assert 5.4 < single[0] < 6.0 and single[-1] < 4.7
    assert follows(plain[name], single)


@pytest.mark.parametrize("name", ALL)
def test_the_agent_changes_no_bit(name: str, plain: Losses) -> None:
    """The one has trained under pardbg, the other in a process without an agent."""
    steps = WATCHED.get(name, WATCHED_STEPS)
    watched = recorded(name, nproc=4 if name == "ddp-ring" else None, steps=steps)
    assert watched.exit_code == 0, watched.err
    assert len(watched.loss_texts) == steps
    assert watched.loss_texts == plain[name][:steps]


def test_three_dimensions_follow_the_single_process_too(single: list[float]) -> None:
    argv = [*launched("3d", None, STEPS), "--pace", "0"]
    done = run_argv(argv, env=rank_env(), timeout_s=120)
    assert done.code == 0, done.err
    alone = [line.split()[-1] for line in done.lines(2) if "loss" in line]
    assert follows(alone, single)
    assert recorded("3d", steps=WATCHED_STEPS).loss_texts == alone[:WATCHED_STEPS]


NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.mark.parametrize("name", ["ddp", "interleaved"])
def test_the_catalogues_command_runs_paced_and_ends_clean(name: str) -> None:
    """DDP's as it stands, by torchrun; of the other the launcher is the same."""
    argv = command(name, nproc=2, steps=2)
    argv = argv if name == "ddp" else forked(argv)
    done = run_argv(argv, env=rank_env(), timeout_s=50)
    assert done.code == 0, done.err
    assert "Traceback" not in done.err and "Warning" not in done.err, done.err
    assert done.lines(0)[0] == "compute is paced: each block takes 5 ms in forward"
    reporter = 0 if name == "ddp" else 1  # a pipeline's last rank computes the loss
    steps = [line for line in done.lines(reporter) if line.startswith("step ")]
    assert [line.split()[1] for line in steps] == ["0", "1"]


@pytest.mark.parametrize(
    ("module", "world", "says"),
    [
        ("pipeline 1f1b", None, "pardbg demo 1f1b"),
        ("pipeline 1f1b", "9", "take 2 to 8 ranks"),
        ("ddp", "3", "take 1, 2, 4, 8, 16"),
        pytest.param("ddp --device cuda", "2", "--device sim", marks=NO_GPU),
    ],
)
def test_a_world_that_does_not_fit_is_one_line_and_exit_2(
    module: str, world: str | None, says: str
) -> None:
    env = rank_env({"RANK": "0", "WORLD_SIZE": world} if world else None)
    argv = [sys.executable, "-m", *f"pardbg.lab.recipes.{module}".split()]
    done = run_argv(argv, env=env, timeout_s=50)
    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1 and says in done.err, done.err
