"""The agent's device spans on a simulated accelerator, against its log of the truth.

    python -m tests.accelerator.programs.spans NUM_SPANS

The device's clock is 100 ppm fast; recording an event takes 2 us, and a query sees it 5 us late.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from typing import Any

import torch
import torch.distributed as dist

import pardbg.lab.sim.device as sim
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks.device.device_spans import DeviceSpan, DeviceTimes
from tests.processes import wait_until

MS = 1_000_000
POLL_S = 0.02


class Checked(DeviceTimes):
    """Compares each event's time with the truth when it is read."""

    def __init__(self) -> None:
        super().__init__(torch.device("sim"))
        self.num = self.num_wrong = 0
        self.worst_ns = self.worst_told_ns = 0

    def _seen(self, event: Any, meaning: Any) -> None:
        truth = sim.event_time(event.event_id)
        at, told = self.clock.host_time(event) or (0, 0)
        self.num += 1
        self.num_wrong += abs(at - truth) > told
        self.worst_ns = max(self.worst_ns, abs(at - truth))
        self.worst_told_ns = max(self.worst_told_ns, told)
        super()._seen(event, meaning)


class Agent:
    """A thread that polls, as the agent's does."""

    def __init__(self, times: DeviceTimes) -> None:
        self.times, self.left = times, True
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(POLL_S):
            self.left = self.times.poll()

    def __enter__(self) -> Agent:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()


def many(times: Checked, num: int) -> dict[str, Any]:
    """Spans on the default stream, a side stream, and of ops with and without a Work."""
    choose, found = random.Random(1), list[DeviceSpan]()
    side, tensor = torch.Stream("sim"), torch.ones(4, device="sim")
    before = sim.counts()
    spent_ns, issued = 0, 0
    with Agent(times) as agent:
        for _ in range(num):
            kind = choose.randrange(4)
            while times.pool.num_in_flight > 4000:
                time.sleep(0.001)
            if kind == 1:
                torch.accelerator.set_stream(side)
            begun = now_ns()
            span = times.begin(begun, found.append)
            spent_ns += now_ns() - begun
            assert span is not None
            if kind < 2:
                sim.spend(choose.random() * 0.05)
                work = None
            else:
                work = dist.all_reduce(tensor, async_op=kind == 3)
            begun = now_ns()
            if work is not None:
                assert times.end_with(span, work, "group")
            else:
                times.end(span)
            spent_ns += now_ns() - begun
            issued += 1
            if kind == 1:
                torch.accelerator.set_stream(torch.sim.default_stream())
        wait_until(lambda: not agent.left and not times.queue.heads(), what="all spans read")
    after = sim.counts()
    return {
        "spans": len(found), "backwards": sum(s.end_ns < s.begin_ns for s in found),
        "issued": issued, "events": times.num, "wrong": times.num_wrong,
        "worst_ns": times.worst_ns, "worst_told_ns": times.worst_told_ns,
        "syncs": after["syncs"] - before["syncs"],
        "in_flight": times.pool.num_in_flight, "refused": times.pool.refused,
        "ns_per_span": spent_ns / num,
    }  # fmt: skip


def ahead(times: DeviceTimes) -> list[list[float]]:
    """Host far ahead: begin, end and lead (ms) of three kernels and an op, from one moment."""
    found, sync = list[DeviceSpan](), torch.ones(4, device="sim")
    sim.settings.comm_default_ns = 3 * MS
    stop = sim.hold()
    for ms in (5, 10, 2.5):
        span = times.begin(now_ns(), found.append)
        sim.spend(ms)
        times.end(span)
    for is_async in (False, True):
        span = times.begin(now_ns(), found.append)
        work = dist.all_reduce(sync, async_op=is_async)
        if is_async:
            times.end_with(span, work, "group")
            work.wait()
        else:
            times.end(span)
    at = now_ns()
    sim.release(stop, at)
    wait_until(lambda: not times.poll(), what="all spans read")
    return [
        [(s.begin_ns - at) / MS, (s.end_ns - at) / MS, s.lead_ns >= s.begin_ns - at, s.error_ns]
        for s in sorted(found, key=lambda s: s.end_ns)
    ]


def beside(times: DeviceTimes, num: int = 64) -> tuple[int, int]:
    """Side streams of the pool beside async ops: (ends read late, side kernels delayed)."""
    late = delayed = 0
    sim.settings.comm_default_ns, tensor = 5 * MS, torch.ones(4, device="sim")
    for _ in range(num):
        torch.sim.synchronize()
        sim.take_log()
        found, stop, side = list[DeviceSpan](), sim.hold(), torch.Stream("sim")
        at = now_ns()
        with side:
            hold_side = sim.hold()
            sim.spend(20, "side")
        span = times.begin(at, found.append)
        work = dist.all_reduce(tensor, async_op=True)
        times.end_with(span, work, "group")
        with side:
            sim.spend(1, "behind")
        work.wait()
        at = now_ns()
        sim.release(stop, at)
        sim.release(hold_side, at)
        torch.sim.synchronize()
        wait_until(lambda: not times.poll(), what="the op's times")
        log = {entry[0]: entry for entry in sim.take_log()}
        shared = log["all_reduce"][1] == side.stream_id  # torch's own doing: the pool is small
        late += abs(found[0].end_ns - log["all_reduce"][5]) > found[0].error_ns
        delayed += not shared and log["behind"][4] != log["side"][5]
    return late, delayed


def captured(times: DeviceTimes) -> tuple[bool, int, int]:
    before = times.pool.num_in_flight
    sim.settings.capturing = True
    span = times.begin(now_ns(), lambda span: None)
    sim.settings.capturing = False
    return span is None, times.num_captured, times.pool.num_in_flight - before


def main() -> None:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group(sim.GROUP)
    sim.settings.comm_default_ns = 20_000
    sim.settings.drift = 1e-4
    sim.settings.record_ns, sim.settings.query_ns = 2_000, 5_000
    times = Checked()
    many(times, 200)  # the first ones make events, streams and the second anchor
    times.num = times.num_wrong = times.worst_ns = times.worst_told_ns = 0
    made = {"many": many(times, int(sys.argv[1]))}
    made["anchor_ns"] = times.clock.error_ns
    cases = (ahead, beside, captured)
    print(json.dumps(made | {case.__name__: case(times) for case in cases}), flush=True)


if __name__ == "__main__":
    main()
