"""The agent enters a program that runs: real optimizers, real pending calls, no launcher.

Each program enters itself, as code does that was brought in from outside, and steps on; the test
gives the orders.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pardbg_agent.life.entering import GONE, ORDERS_FILE
from tests.processes import rank_env, wait_until

PROGRAM = """
import os, signal, sys, time, torch
from pardbg_agent.life import entering
folder, wait_s, then = sys.argv[1], float(sys.argv[2]), sys.argv[3]
model = torch.nn.Linear(2, 2)
inner = torch.optim.SGD(model.parameters(), lr=0.1)

class Outer(torch.optim.Optimizer):  # steps another one inside, as ZeroRedundancyOptimizer does
    def __init__(self): super().__init__(model.parameters(), {})
    def step(self):
        inner.step()
        print("between", flush=True)

def leaves(number, frame): raise SystemExit(7)
signal.signal(signal.SIGTERM, leaves)
def again(*_): entering.enter(folder + "/second", os.environ["RUN_DIR"], wait_s, [])
signal.signal(signal.SIGUSR1, again)
optimizer = Outer() if then == "outer" else inner
entering.enter(folder, os.environ["RUN_DIR"], wait_s, [])
until = time.monotonic() + 40
while time.monotonic() < until and not os.path.exists(folder + "/stop"):
    model(torch.ones(2)).sum().backward()
    if then != "no step": optimizer.step()
    time.sleep(0.01)
from torch.optim.optimizer import _global_optimizer_post_hooks
print("hooks", len(_global_optimizer_post_hooks), "pardbg_agent.hooks" in sys.modules, flush=True)
"""


class Program:
    """One that enters."""

    def __init__(self, folder: Path, wait_s: float, then: str) -> None:
        env = rank_env({"RUN_DIR": str(folder / "run")})
        argv = [sys.executable, "-c", PROGRAM, str(folder), str(wait_s), then]
        self.folder = folder
        self.process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)

    def orders(self, turn: int = 0, go: bool = False, ready: bool = True) -> None:
        fresh = self.folder / "fresh"
        fresh.write_text(json.dumps({"turn": turn, "go": go, "ready": ready}))
        os.replace(fresh, self.folder / ORDERS_FILE)

    def said(self) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = json.loads(
                (self.folder / f"{self.process.pid}.json").read_bytes()
            )
            return found
        except OSError:
            return {}

    def comes_to(self, state: str, **more: Any) -> Mapping[str, Any]:
        expected = {"state": state, **more}

        def come() -> bool:
            with contextlib.suppress(FileNotFoundError):
                os.utime(self.folder / ORDERS_FILE)  # who attached is there
            return expected.items() <= self.said().items()

        wait_until(come, 60, f"{expected}")
        return self.said()

    def ends(self) -> list[str]:
        (self.folder / "stop").touch()
        out, _ = self.process.communicate(timeout=30)
        return str(out).split("\n")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    made: list[Program] = []

    def begin(wait_s: float = 60, then: str = "", ready: bool = True) -> Program:
        program = Program(tmp_path, wait_s, then)
        made.append(program)
        program.orders(ready=ready)
        return program

    yield begin
    for program in made:
        program.process.kill()
        program.process.communicate()


@pytest.mark.timeout(150)
def test_it_is_held_at_each_step_s_end_until_it_may_go(start: Callable[..., Program]) -> None:
    program = start()
    held = program.comes_to("held", turn=1)
    assert held["place"] == "<string>:23" and held["numbers"] == {}
    program.orders(turn=1)
    program.comes_to("held", turn=2)
    program.orders(turn=2, go=True)
    program.comes_to("failed")  # there is no run to enter
    assert program.ends()[-2].startswith("hooks")


@pytest.mark.timeout(150)
def test_it_is_not_held_before_all_are_ready(start: Callable[..., Program]) -> None:
    """Another rank may be slow to be reached: this one steps on meanwhile."""
    program = start(then="outer", ready=False)
    program.comes_to("ready")
    assert program.process.stdout is not None
    for _ in range(50):
        program.process.stdout.readline()  # a step each
    assert program.said()["state"] == "ready"
    program.orders()
    program.comes_to("held", turn=1)


@pytest.mark.timeout(150)
def test_who_attached_is_gone_and_it_runs_on(start: Callable[..., Program]) -> None:
    program = start()
    program.comes_to("held", turn=1)
    (program.folder / ORDERS_FILE).unlink()  # or it is not written anew, as of one that is killed
    program.comes_to("failed", why=GONE)
    assert program.ends()[-2] == "hooks 0 True"
    assert program.process.returncode == 0


@pytest.mark.timeout(150)
def test_without_a_step_it_is_left_alone(start: Callable[..., Program]) -> None:
    program = start(wait_s=4, then="no step")
    program.comes_to("failed")
    assert program.ends()[-2] == "hooks 0 True"


@pytest.mark.timeout(150)
def test_an_optimizer_that_steps_another_is_one_step(start: Callable[..., Program]) -> None:
    """It is held after the outer one: what comes between belongs to the step."""
    program = start(then="outer")
    program.comes_to("held", turn=1)
    assert program.process.stdout is not None and program.process.stdout.readline() == "between\n"
    program.orders(turn=1)
    program.comes_to("held", turn=2)


@pytest.mark.timeout(150)
def test_what_a_signal_s_handler_raises_is_the_program_s(start: Callable[..., Program]) -> None:
    """Here its own exit code."""
    program = start()
    program.comes_to("held", turn=1)
    program.process.send_signal(signal.SIGTERM)
    assert program.process.wait(30) == 7
    assert program.said()["state"] == "failed"


@pytest.mark.timeout(150)
def test_one_that_nobody_wants_any_more_gives_way(start: Callable[..., Program]) -> None:
    """Who attached was killed; who attaches next need not wait for the first one's end."""
    program = start(then="twice")
    program.comes_to("held", turn=1)
    (program.folder / ORDERS_FILE).unlink()
    second = program.folder / "second"
    second.mkdir()
    program.folder = second
    program.orders()
    program.process.send_signal(signal.SIGUSR1)
    program.comes_to("held", turn=1)
    program.orders(turn=1)
    program.comes_to("held", turn=2)
