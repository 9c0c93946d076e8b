"""The ranks of the rows: ``ranks DEVICE CASE``. Each prints what it knows, as JSON."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from pardbg.lab.recipes.launch import share_gpus
from pardbg_agent import core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks.device import cuda_runtime
from pardbg_agent.hooks.device.device_spans import DeviceTimes, NativeTimes, numbered
from pardbg_agent.hooks.device.late_numbers import LateNumbers
from pardbg_agent.hooks.ops import native_way
from tests.gpu.devices import Device, device
from tests.processes import wait_until

SPANS, STEPS, WARM = 200, 6, 3
LONG_MS, STREAMS = 2000, 16
WAITS, LATE_MS, BESIDE_MS = 4, 100, 20
NUMBERS = 500
AHEAD_MS = 400
SPOILT = int(os.environ.get("GPU_SPOILT", "4"))
"""Of a first kernel: behind it the host is ahead, so a span begins when the kernel before ends."""


def polled(times: Any, every_s: float = 0.01) -> threading.Event:
    """Poll in a thread, as the agent does; set the result to stop."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(every_s):
            with cuda_runtime.using(times.place):
                times.poll()

    threading.Thread(target=run, daemon=True).start()
    return over


def begin(times: Any) -> Any:
    """Begin a span at what comes next on the current stream."""
    return times.begin(now_ns(), None)


def warm(there: Device) -> Any:
    """Return device times, of the way that ops are seen, with two anchors at least, so that the
    rate of the clock is known."""
    in_cpp = os.environ.get("PARDBG_HOOKS") != "dispatcher" and native_way.usable()
    device = numbered(torch.device(there.name))
    times: Any = NativeTimes(device, native_way.module()) if in_cpp else DeviceTimes(device)
    times.place = device
    for _ in range(200):
        times.poll()
        time.sleep(0.01)  # 2 s: several anchors
    return times


def spans(there: Device) -> dict[str, Any]:
    """Kernels of drawn lengths, each a span, with the host far ahead."""
    times, draw = warm(there), random.Random(1)
    found: list[Any] = []
    with there.truth() as truth:
        over = polled(times)
        there.spin(AHEAD_MS)
        for _ in range(SPANS):
            found.append(begin(times))
            there.spin(draw.uniform(0.3, 3))
            times.end(found[-1])
        wait_until(lambda: all(span.end_ns for span in found), what="all spans")
        over.set()
    ours = sorted((s.begin_ns, s.end_ns, s.error_ns) for s in found)
    return {"spans": ours, "truth": truth[1:], "left_out": times.num_left_out}


def anchors(there: Device) -> dict[str, Any]:
    """An event whose moment the host brackets, now and then: (below, above, said, error)."""
    times, seen = warm(there), []
    over, until = polled(times), time.monotonic() + float(os.environ["GPU_SECONDS"])
    while time.monotonic() < until:
        event = times.new_event()
        before = now_ns()
        event.record(torch.accelerator.current_stream())
        event.synchronize()
        after = now_ns()
        said, error = times.clock.host_time(event) or (0, 0)
        seen.append((before, after, said, error))
        time.sleep(0.05)
    over.set()
    return {"seen": seen}


def streams(there: Device) -> dict[str, Any]:
    """Spans on 32 streams at once: each is as long as its own kernel."""
    times, found = warm(there), list[Any]()
    with there.truth() as truth:
        for at in range(32):
            with torch.Stream(there.name):
                found.append(begin(times))
                there.spin(30 + at % 4)
                times.end(found[-1])
        over = polled(times)
        wait_until(lambda: all(span.end_ns for span in found), what="all streams")
        over.set()
    return {"spans": [(s.begin_ns, s.end_ns, s.error_ns) for s in found], "truth": truth}


def graphs(there: Device) -> dict[str, Any]:
    """A captured graph is a counted gap, and replays; meanwhile the agent reads what is in flight,
    and takes anchors, which a capture forbids to all threads that are not relaxed."""
    times, kept = warm(there), torch.ones(8, device=there.name)
    graph = torch.cuda.CUDAGraph()
    over, beside, found = polled(times, 0.001), torch.cuda.Stream(), []

    def run_beside() -> None:
        with torch.cuda.stream(beside):
            found.append(begin(times))
            there.spin(800)
            times.end(found[0])

    thread = threading.Thread(target=run_beside)
    with torch.cuda.graph(graph, capture_error_mode="global"):
        span = begin(times)
        kept += 1
        thread.start()
        time.sleep(1.5)  # two anchors are due
        thread.join()
    graph.replay()
    torch.cuda.synchronize()
    wait_until(lambda: found[0].end_ns, what="the span beside it")
    over.set()
    return {
        "span": span is None, "captured": times.num_left_out, "value": float(kept[0]),
        "beside_ms": (found[0].end_ns - found[0].begin_ns) / 1e6,
    }  # fmt: skip


def beside(there: Device) -> dict[str, Any]:
    """Streams of the agent wait for a long kernel, as for an op's end; others, launched after that
    on a stream of the program's, are to end before it."""
    times = warm(there)
    there.spin(1)
    with torch.Stream(there.name) as long:
        there.spin(LONG_MS)
        over = long.record_event()
    for key in range(STREAMS):
        own = times.streams.of(key)
        own.wait_event(over)
        times.new_event().record(own)
    begun = time.monotonic()
    for _ in range(10):
        there.spin(1)
    torch.accelerator.current_stream().synchronize()
    spent_ms = (time.monotonic() - begun) * 1e3
    torch.accelerator.synchronize()
    return {"ms": spent_ms}


def contexts(there: Device) -> dict[str, Any]:
    """Ops, and anchors that are taken in a thread whose current device is another one."""
    found = ops(there)
    wait_until(lambda: core.CURRENT.device.times.clock.error_ns is not None, what="an anchor")
    return found | {"own": torch.accelerator.current_device_index(), "all": there.contexts()}


def ops(there: Device) -> dict[str, Any]:
    """Ops on the device, without and with a Work."""
    tensor = torch.ones(1 << 16, device=there.name)
    for is_async in (False, True) * 4:
        work = dist.all_reduce(tensor, async_op=is_async)
        if is_async:
            work.wait()
    torch.accelerator.synchronize()
    time.sleep(1)
    return {"on_device": core.CURRENT.device is not None}


def numbers(there: Device) -> dict[str, Any]:
    """Numbers read while the host is ahead of the device: the time to ask for them, in ms; what was
    read, and what it should be."""
    times, read = warm(there), list[list[Any]]()
    late = LateNumbers(times.place, times.new_event)
    losses = torch.rand(NUMBERS, device=there.name)
    sums = torch.arange(NUMBERS, device=there.name) * (1 << 40)
    there.spin(1)
    torch.accelerator.synchronize()
    syncs, begun = there.syncs(), now_ns()
    there.spin(AHEAD_MS)
    for at in range(NUMBERS):
        late.read(losses[at : at + 1], read.append)
    late.read(sums, read.append)
    asked_ms, early = (now_ns() - begun) / 1e6, late.poll() and len(read)
    syncs = None if syncs is None else (there.syncs() or 0) - syncs
    wait_until(lambda: not late.poll(), what="all numbers")
    expected = [*([one] for one in losses.tolist()), sums.tolist()]
    return {
        "asked_ms": asked_ms, "ahead_ms": AHEAD_MS, "number": NUMBERS, "early": early,
        "syncs": syncs, "right": read == expected,
    }  # fmt: skip


def inputs(there: Device) -> dict[str, Any]:
    """Sums of gradients in six steps, of which one is NaN in step SPOILT."""
    weight = torch.nn.Parameter(torch.ones(1 << 14, device=there.name))
    optimizer, syncs = torch.optim.SGD([weight], lr=0.1), 0
    for step in range(6):
        weight.grad = torch.full_like(weight, float("nan") if step == SPOILT else 1.0)
        dist.all_reduce(weight.grad)
        optimizer.step()
        syncs = there.syncs() if step == 0 else syncs
    syncs = None if syncs is None else (there.syncs() or 0) - syncs
    torch.accelerator.synchronize()
    time.sleep(1)
    return {"syncs": syncs}


def stands(there: Device) -> dict[str, Any]:
    """Waits for asynchronous ops, to which rank 1 comes late, behind a kernel that runs beside
    them: how long the stream stood between that and the next kernel, in ns."""
    tensor = torch.ones(4, device=there.name)
    for _ in range(2):
        dist.all_reduce(tensor, async_op=True).wait()
    torch.accelerator.synchronize()
    time.sleep(0.3)  # the agent's thread takes anchors
    with there.truth() as truth:
        for _ in range(WAITS):
            if dist.get_rank() == 1:
                there.spin(LATE_MS)
            work = dist.all_reduce(tensor, async_op=True)
            there.spin(BESIDE_MS)
            work.wait()
            there.spin(1)
    time.sleep(0.5)
    each = len(truth) // WAITS
    pairs = zip(truth[each - 2 :: each], truth[each - 1 :: each], strict=True)
    return {"stood": [begin - end for (_, end), (begin, _) in pairs]}


def graph_ops(there: Device) -> dict[str, Any]:
    """Ops in a captured graph, without and with a Work, while the agent looks for ended ops."""
    tensor = torch.ones(4, device=there.name)
    for is_async in (False, True):  # communicators are made before
        work = dist.all_reduce(tensor, async_op=is_async)
        if is_async:
            work.wait()
    torch.accelerator.synchronize()
    tensor.fill_(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, async_op=True).wait()
        time.sleep(0.5)
    for _ in range(2):
        graph.replay()
    torch.accelerator.synchronize()
    time.sleep(0.5)
    return {"value": float(tensor[0])}


def train(there: Device) -> dict[str, Any]:
    """Steps of DDP: losses, synchronizing calls, and the allocator's own figures at the end."""
    torch.manual_seed(1)
    width = int(os.environ.get("GPU_WIDTH", "256"))
    layers = (nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
    model: Any = DDP(nn.Sequential(*layers).to(there.name))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, losses, spent, syncs = torch.randn(2 * width, width), [], [], there.syncs()
    x = x.to(there.name)
    if os.environ.get("GPU_COMPILE"):
        model = torch.compile(model)
    for step in range(int(os.environ.get("GPU_STEPS", STEPS))):
        if step == WARM and os.environ.get("GPU_SYNC_DEBUG"):
            torch.cuda.set_sync_debug_mode("error")
        begun = time.perf_counter_ns()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if os.environ.get("GPU_SYNC_STEPS"):
            torch.accelerator.synchronize()
        spent.append(time.perf_counter_ns() - begun)
    if os.environ.get("GPU_SYNC_DEBUG"):
        torch.cuda.set_sync_debug_mode("default")
    after = there.syncs()
    stats = torch.accelerator.memory_stats()
    kinds = ("allocated", "reserved")
    return {
        "losses": [float(loss).hex() for loss in losses], "ns": sorted(spent)[len(spent) // 2],
        "syncs": None if after is None else after - (syncs or 0),
        "memory": {kind: stats[f"{kind}_bytes.all.current"] for kind in kinds},
    }  # fmt: skip


def oom(there: Device) -> dict[str, Any]:
    """A request that does not fit, caught by the program."""
    dist.all_reduce(torch.ones(4, device=there.name))
    there.limit_memory(8 << 20)
    asked = 1 << 40
    try:
        torch.empty(asked, dtype=torch.uint8, device=there.name)
        raised = False
    except torch.OutOfMemoryError:
        raised = True
    there.limit_memory(None)
    again = torch.ones(1 << 20, device=there.name).sum().item()
    return {"raised": raised, "asked": asked, "again": again}


def hang(there: Device) -> dict[str, Any]:
    """Rank 1's device is busy for long before an op that the others have reached."""
    tensor = torch.ones(4, device=there.name)
    dist.all_reduce(tensor)
    torch.accelerator.synchronize()
    time.sleep(0.3)
    if dist.get_rank() == 1:
        there.spin(2000)
    at = now_ns()
    work = dist.all_reduce(tensor, async_op=True)
    time.sleep(1)
    work.wait()
    torch.accelerator.synchronize()
    time.sleep(0.5)
    return {"at": at}


CASES = {
    case.__name__: case
    for case in (
        spans, anchors, streams, beside, graphs, graph_ops, ops, numbers, stands, contexts, train,
        inputs, oom, hang,
    )
}  # fmt: skip
BACKENDS = {"sim": "cpu:gloo,sim:sim", "cuda": "cpu:gloo,cuda:nccl"}
"""GPU_BACKEND names another."""


def agents_thread() -> None:
    """There is no hub, so nobody else polls."""
    while True:
        for poll in list(core.CURRENT.pollers) if core.CURRENT else ():
            poll()
        time.sleep(0.01)


def main() -> None:
    warnings.filterwarnings("ignore")
    kind, case = sys.argv[1:3]
    there = device(kind)
    share_gpus()
    dist.init_process_group(os.environ.get("GPU_BACKEND") or BACKENDS[kind])
    threading.Thread(target=agents_thread, daemon=True).start()
    print(json.dumps(CASES[case](there)), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
