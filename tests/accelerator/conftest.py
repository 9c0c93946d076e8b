"""The simulated accelerator, built once for all tests, and programs that run on it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from pardbg.lab.sim import extension
from pardbg_agent import native
from tests.conftest import ROOT
from tests.forked import Job, run_jobs
from tests.hook_ways import NATIVE

Run = Callable[..., list[dict[str, Any]]]
"""``run("alone", nproc=2)``: what each rank of tests.accelerator.programs.alone printed."""


@pytest.fixture(scope="session")
def simulated() -> str:
    """The folder of the built extension; tests are skipped where it cannot be built."""
    folder = os.environ["PARDBG_SIM"] = str(ROOT / ".native")
    try:
        extension.built()
    except (native.Unusable, OSError) as error:
        pytest.skip(f"no simulated accelerator: {error}")
    return folder


@pytest.fixture(scope="session")
def run(simulated: str) -> Run:
    def run_program(name: str, *argv: str, nproc: int = 1) -> list[dict[str, Any]]:
        module = f"tests.accelerator.programs.{name}"
        done = run_jobs(
            [Job("job", nproc, (module, *argv))],
            env={"PARDBG_SIM": simulated, "PARDBG_NATIVE": NATIVE}, timeout_s=150,
        )["job"]  # fmt: skip
        assert not any(done.codes), done.whole.err[-3000:]
        return [json.loads(out.splitlines()[-1]) for out in done.out]

    return run_program
