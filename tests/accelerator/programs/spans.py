"""The agent's device spans on a simulated accelerator, against its log of the truth.

    python -m tests.accelerator.programs.spans WAY NUM_SPANS

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
from pardbg_agent.hooks.device import event_queue
from pardbg_agent.hooks.device.device_spans import DeviceTimes, NativeTimes
from pardbg_agent.hooks.ops import native_way
from tests.processes import wait_until

MS = 1_000_000
POLL_S = 0.02
Times = Any
"""DeviceTimes, or NativeTimes: they have the same methods."""


Span = tuple[Any, Any, Any]
"""A span, and the device's moments of its begin and of its end."""


def checked(spans: list[Span]) -> dict[str, Any]:
    """Compare the times of spans with the truth."""
    wrong = worst = worst_told = unread = 0
    for span, *moments in spans:
        for at, moment in zip((span.begin_ns, span.end_ns), moments, strict=True):
            off = abs(at - sim.time_of(moment))
            wrong += off > span.error_ns
            worst, worst_told = max(worst, off), max(worst_told, span.error_ns)
            unread += at == 0
    return {
        "spans": len(spans), "events": 2 * len(spans) - unread, "wrong": wrong, "worst_ns": worst,
        "worst_told_ns": worst_told,
        "backwards": sum(span.end_ns < span.begin_ns for span, *_ in spans),
    }  # fmt: skip


class Agent:
    """A thread that polls, as the agent's does."""

    def __init__(self, times: Times) -> None:
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


def many(times: Times, num: int) -> dict[str, Any]:
    """Spans on the default stream, a side stream, and of ops with and without a Work."""
    choose, found = random.Random(1), list[Span]()
    side, tensor = torch.Stream("sim"), torch.ones(4, device="sim")
    before = sim.counts()
    spent_ns = 0
    with Agent(times):
        for _ in range(num):
            kind = choose.randrange(4)
            while times.num_in_flight > 4000:
                time.sleep(0.001)
            if kind == 1:
                torch.accelerator.set_stream(side)
            begun = now_ns()
            span = times.begin(begun)
            spent_ns += now_ns() - begun
            begin = sim.last_event()
            if kind < 2:
                sim.spend(choose.random() * 0.05)
                work = None
            else:
                work = dist.all_reduce(tensor, async_op=kind == 3)
            begun = now_ns()
            ended = times.end(span) if work is None else times.end_with(span, work, 0, -1)
            spent_ns += now_ns() - begun
            assert ended
            found.append((span, begin, sim.last_event()))
            if kind == 1:
                torch.accelerator.set_stream(torch.sim.default_stream())
    wait_until(lambda: not times.poll(), what="all spans read")
    return checked(found) | {
        "syncs": sim.counts()["syncs"] - before["syncs"], "in_flight": times.num_in_flight,
        "refused": times.num_left_out, "ns_per_span": spent_ns / num,
    }  # fmt: skip


def ahead(times: Times) -> list[list[float]]:
    """Host far ahead: begin, end and lead (ms) of three kernels and an op, from one moment."""
    found, sync = list[Any](), torch.ones(4, device="sim")
    sim.settings.comm_default_ns = 3 * MS
    stop = sim.hold()
    for ms in (5, 10, 2.5):
        span = times.begin(now_ns())
        sim.spend(ms)
        times.end(span)
        found.append(span)
    for is_async in (False, True):
        span = times.begin(now_ns())
        found.append(span)
        work = dist.all_reduce(sync, async_op=is_async)
        if is_async:
            times.end_with(span, work, 0, -1)
            work.wait()
        else:
            times.end(span)
    at = now_ns()
    sim.release(stop, at)
    wait_until(lambda: not times.poll(), what="all spans read")
    return [
        [(s.begin_ns - at) / MS, (s.end_ns - at) / MS, s.lead_ns >= s.begin_ns - at, s.error_ns]
        for s in found
    ]


def beside(times: Times, num: int = 64) -> tuple[int, int]:
    """Side streams of the pool beside async ops: (ends read late, side kernels delayed)."""
    late = delayed = 0
    sim.settings.comm_default_ns, tensor = 5 * MS, torch.ones(4, device="sim")
    for _ in range(num):
        torch.sim.synchronize()
        sim.take_log()
        stop, side = sim.hold(), torch.Stream("sim")
        at = now_ns()
        with side:
            hold_side = sim.hold()
            sim.spend(20, "side")
        span = times.begin(at)
        work = dist.all_reduce(tensor, async_op=True)
        times.end_with(span, work, 0, -1)
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
        late += abs(span.end_ns - log["all_reduce"][5]) > span.error_ns
        delayed += not shared and log["behind"][4] != log["side"][5]
    return late, delayed


def stopped(times: Times, num: int = 5000) -> dict[str, Any]:
    """A device that stands while spans are issued, and goes on."""
    stop, refused = sim.hold(), times.num_left_out
    for _ in range(num):
        span = times.begin(now_ns())
        if span is not None:
            times.end(span)
    times.poll()
    held = times.num_in_flight
    sim.release(stop, now_ns())
    wait_until(lambda: not times.poll(), what="all spans read")
    _, gap = times.take_gaps()
    return {
        "in_flight": held, "refused": times.num_left_out - refused, "left": times.num_in_flight,
        "marked": bool(gap[0]),
    }  # fmt: skip


def captured(times: Times) -> tuple[bool, int, int]:
    before, left_out = times.num_in_flight, times.num_left_out
    sim.settings.capturing = True
    span = times.begin(now_ns())
    sim.settings.capturing = False
    return span is None, times.num_left_out - left_out, times.num_in_flight - before


def main() -> None:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    way, num = sys.argv[1], int(sys.argv[2])
    event_queue.MAX_EVENTS = 6000  # type: ignore[misc]
    dist.init_process_group(sim.GROUP)
    sim.settings.comm_default_ns = 20_000
    sim.settings.drift = 1e-4
    sim.settings.record_ns, sim.settings.query_ns = 2_000, 5_000
    device = torch.device("sim:0")
    times: Times = (
        NativeTimes(device, native_way.module()) if way == "native" else DeviceTimes(device)
    )
    many(times, 200)  # the first ones make events, streams and the second anchor
    found = {"many": many(times, num)}
    found["anchor_ns"] = times.clock.error_ns
    cases = (ahead, beside, captured, stopped)
    print(json.dumps(found | {case.__name__: case(times) for case in cases}), flush=True)


if __name__ == "__main__":
    main()
