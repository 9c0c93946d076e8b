"""Recipes on the simulated accelerator."""

from __future__ import annotations

import pytest

from pardbg.lab.recipes import catalogue
from tests.forked import Job, run_jobs


@pytest.mark.timeout(200)
def test_a_recipe_trains_there_as_on_the_cpu(simulated: str) -> None:
    module, options = "pardbg.lab.recipes.pipeline", ("--steps", "2", "--pace", "0.1")
    jobs = [
        Job(device, 4, (module, "1f1b", *options, "--device", device))
        for device in ("auto", "sim")
    ]  # fmt: skip
    norm = Job("norm", 2, ("pardbg.lab.recipes.ddp_syncbn", *options, "--device", "sim"))
    done = run_jobs(
        [*jobs, norm],
        env={"PARDBG_SIM": simulated, "TORCH_CPP_LOG_LEVEL": "ERROR"}, timeout_s=150,
    )  # fmt: skip
    losses = {}
    for device, job in done.items():
        assert not any(job.codes), job.whole.err[-2000:]
        lines = "".join(job.out).splitlines()  # one rank prints them
        losses[device] = [float(line.split()[-1]) for line in lines if " loss " in line]
    assert [len(found) for found in losses.values()] == [2, 2, 2]
    # Not to the bit: attention takes another path than the CPU's.
    assert losses["sim"] == pytest.approx(losses["auto"], rel=1e-5)
    assert "simulated" in done["sim"].out[0]


@pytest.mark.parametrize("name", ["ps-async", "tour"])
def test_recipes_that_need_the_cpu_say_so(name: str) -> None:
    with pytest.raises(catalogue.RecipeError, match="--device"):
        catalogue.command(name, device="sim")
