"""Times on a device, both ways, on the simulated accelerator: how true they are, and their cost.

100,000 spans on a device whose clock is 100 ppm fast: events whose time is off by more than the
error that is told. An op with its two events (an asynchronous one: three, and a stream that waits
for its end): blocks of bare and hooked calls alternate in one process. The CPU time of the thread
is taken, without the reading of events, which is the agent's thread's. In it is what the simulator
takes to record, measured beside: the rest is the agent's. ``span`` is an action's or a phase's two
events alone, called from Python.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.bench.figures import Figure
from tests.processes import rank_env

SPANS = int(os.environ.get("PARDBG_BENCH_SPANS", "100000"))
LATENCY_US = 4.0
"""Of recording two events, as tests.accelerator.programs.spans sets it."""
BLOCKS, CALLS = 30, 300
ROOT = Path(__file__).parents[2]


def worker() -> None:
    """Print the microseconds that an op takes longer with the agent, and that a span takes; and
    how many of them are the simulator's."""
    import torch
    import torch.distributed as dist

    import pardbg.lab.sim.device as sim
    from pardbg_agent import core, hooks

    torch.set_num_threads(1)
    dist.init_process_group(sim.GROUP)
    sim.settings.comm_default_ns = 0
    tensor = torch.ones(4, device="sim")

    def per_call_us(call: Callable[[], object]) -> float:
        begun = time.thread_time_ns()
        for _ in range(CALLS):
            call()
        spent = time.thread_time_ns() - begun
        torch.sim.synchronize()
        for poll in list(core.ensure().pollers):  # as the agent's thread, which is not there
            while poll():
                time.sleep(0.001)
        return spent / CALLS / 1000

    def low(us: Sequence[float]) -> float:
        """Return the tenth percentile: other processes make blocks slower."""
        return statistics.quantiles(us, n=10)[0]

    here, unused = torch.accelerator.current_stream(), torch.Event("sim", enable_timing=True)
    event = torch.Event("sim", enable_timing=True)

    def record(times: int) -> None:
        for _ in range(times):
            event.record()

    def record_and_wait() -> None:
        record(3)
        here.wait_event(event)

    def cost_us(call: Callable[[], object], events: Callable[[], object], num: int) -> list[float]:
        """Return what the agent adds to a call, and what the simulator takes for that."""
        bare, hooked, own, called = [], [], [], []
        for _ in range(BLOCKS):
            bare.append(per_call_us(call))
            hooks.install()
            for _ in range(3):
                call()
            hooked.append(per_call_us(call))
            hooks.uninstall()
            own.append(per_call_us(events))
            called.append(per_call_us(unused.query))  # a call of Python's, no more
        return [low(hooked) - low(bare), low(own) - num * low(called)]

    def span() -> None:
        on_device = core.ensure().device
        on_device.ended(on_device.begin(0), 2, 1)

    found = {
        "sync op": cost_us(lambda: dist.all_reduce(tensor), lambda: record(2), 2),
        "async op": cost_us(
            lambda: dist.all_reduce(tensor, async_op=True).wait(), record_and_wait, 4
        ),
    }  # fmt: skip
    hooks.install()
    dist.all_reduce(tensor)
    per_call_us(span)
    spent = [(per_call_us(span), per_call_us(lambda: record(2))) for _ in range(BLOCKS)]
    found["span"] = [low(us) for us in zip(*spent, strict=True)]
    device = core.ensure().device
    left_out, way = device.times.num_left_out, type(device).__name__
    sys.stdout.write(json.dumps({"us": found, "left_out": left_out, "way": way}) + "\n")


def _ran(way: str, *argv: str) -> dict[str, Any]:
    from tests.hook_ways import NATIVE  # it turns the native way off in its own process

    with tempfile.TemporaryDirectory(prefix="pdbb-", dir="/tmp") as name:
        facts = {"v": 1, "run": "bench", "ring_dir": f"{name}/rings"}
        Path(name, "run.json").write_text(json.dumps(facts))
        env = rank_env({
            "PARDBG_RUN_DIR": name, "PARDBG_HOOKS": way, "PARDBG_NATIVE": NATIVE,
            "PARDBG_SIM": os.environ.get("PARDBG_SIM", str(ROOT / ".native")),
            "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0",
        })  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", *argv], env=env, capture_output=True, text=True, timeout=500,
            check=False, cwd=ROOT,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> list[Figure]:
    from tests.hook_ways import WHY_NO_NATIVE

    out = []
    for way in ("dispatcher", *([] if WHY_NO_NATIVE else ["native"])):
        many = _ran(way, "tests.accelerator.programs.spans", way, str(SPANS))["many"]
        note = f"of {2 * SPANS} events; worst {many['worst_ns']} of {many['worst_told_ns']} ns told"
        out.append(Figure(f"device, {way}: events off", many["wrong"], "", 0, note=note))
        left = many["in_flight"] + many["refused"] + many["syncs"]
        note = "events in flight at the end, spans refused, synchronizing calls"
        out.append(Figure(f"device, {way}: left", left, "", 0, note=note))
        cost = many["ns_per_span"] / 1000 - LATENCY_US
        note = "with others on the machine, called from Python, without the device's latency"
        out.append(Figure(f"device, {way}: span, mean of all", cost, "us", note=note))
        found = _ran(way, "tests.bench.bench_device", "--worker")
        assert found["left_out"] == 0
        for what, (us, own) in found["us"].items():
            budget = 3.0 if way == "native" and "op" in what else None
            note = f"{found['way']}; beside it the simulator's own events take {own:.2f}"
            out.append(Figure(f"device, {way}: {what}", us - own, "us", budget, note=note))
    return out


if __name__ == "__main__":
    os.environ["PARDBG"] = os.environ["PARDBG_RUN_DIR"]
    worker()
