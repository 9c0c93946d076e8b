"""One process on the simulated accelerator: what its time, memory, streams and events do.

Each case stops the stream first and releases it at a stated time, so that the host's load is in no
figure. Times are in ms from that moment.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import pardbg.lab.sim.device as sim

MS = 1_000_000


def from_here(work: Callable[[], Any]) -> tuple[list[list[Any]], Any]:
    """Run ``work`` on a stopped stream: (name, stream, begin, end) of its launches, and its
    result."""
    sim.take_log()
    stop = sim.hold()
    result = work()
    at = sim.native.now()
    sim.release(stop, at)
    torch.sim.synchronize()
    log = sim.take_log()
    return [[name, s, (b - at) / MS, (e - at) / MS] for name, s, _, _, b, e in log], result


def ahead() -> Any:
    """Three products of 5 ms and one of another kernel behind them; no call waits."""
    a, syncs = torch.ones(4, 4, device="sim"), sim.counts()["syncs"]

    def work() -> int:
        for _ in range(3):
            a @ a
        sim.spend(2.5, "other")
        return sim.counts()["syncs"] - syncs

    return from_here(work)


def slow() -> Any:
    sim.settings.speed = 1.5
    spans, _ = from_here(lambda: torch.ones(4, 4, device="sim").mm(torch.ones(4, 4, device="sim")))
    sim.settings.speed = 1.0
    return spans[-1]


def streams() -> Any:
    """A side stream runs beside the default one; a third waits for it."""
    side, third = torch.sim.own_stream(), torch.sim.own_stream()

    def work() -> tuple[int, int]:
        side.wait_stream(torch.accelerator.current_stream())
        third.wait_stream(torch.accelerator.current_stream())
        sim.spend(10, "default")
        with side:
            sim.spend(4, "side")
        third.wait_stream(side)
        with third:
            sim.spend(1, "third")
        return side.stream_id, third.stream_id

    spans, own = from_here(work)
    pool = {torch.Stream("sim").stream_id for _ in range(40)}
    return spans, own, [min(pool), max(pool), len(pool)]


def events() -> Any:
    """Elapsed times over 1 s: exact, and on a clock that is 100 ppm fast."""
    before = sim.counts()["live_events"]

    def work() -> tuple[Any, Any]:
        first, last = (torch.Event("sim", enable_timing=True) for _ in range(2))
        first.record()
        sim.spend(200)
        last.record()
        return first, last

    _, (first, last) = from_here(work)
    exact = first.elapsed_time(last)
    sim.settings.drift = 1e-4
    fast = first.elapsed_time(last)
    sim.settings.drift = 0.0
    alive = sim.counts()["live_events"] - before
    del first, last
    return exact, fast, alive, sim.counts()["live_events"] - before


def latency() -> Any:
    """An event that is done is seen by a query 30 ms later."""
    event = torch.Event("sim", enable_timing=True)
    sim.settings.query_ns = 10_000 * MS
    event.record()
    hidden = event.query()
    sim.settings.query_ns = 0
    return hidden, event.query()


def full_queue() -> Any:
    """A queue of 10: the 30th launch is issued when the 19th has ended."""
    sim.take_log()
    sim.settings.queue = 10
    for _ in range(30):
        sim.spend(2)
    sim.settings.queue = 0
    log = sim.take_log()
    return [log[i][2] >= log[max(0, i - 11)][5] for i in range(11, 30)], log[10][2] < log[0][5]


def waits() -> Any:
    """``item`` and a copy to the host return when the device has computed their value."""
    a, before = torch.ones(4, 4, device="sim"), sim.counts()["syncs"]
    returned = []
    for read in (lambda t: t.sum().item(), lambda t: t.cpu(), lambda t: bool((t > 0).all())):
        read(a @ a)
        product = next(x for x in reversed(sim.take_log()) if x[0] == "aten::mm")
        returned.append(sim.native.now() >= product[5])
    return returned, sim.counts()["syncs"] - before


def memory() -> Any:
    """A device of 1 MB: what is refused, and what fits once the first block is given back."""
    torch.accelerator.empty_cache()
    start = torch.accelerator.memory_reserved()
    sim.settings.memory = start + 1_000_000
    told: list[tuple[int, ...]] = []
    torch.sim.attach_out_of_memory_observer(lambda *seen: told.append(seen[1:]))
    kept = torch.empty(600_000, dtype=torch.uint8, device="sim")
    try:
        torch.empty(600_000, dtype=torch.uint8, device="sim")
        refused = ""
    except torch.OutOfMemoryError as error:
        refused = str(error)
    del kept
    again = torch.empty(900_000, dtype=torch.uint8, device="sim").numel()
    sim.settings.memory = 0
    return refused, [[asked, limit - start, free] for asked, limit, free in told], again


def fragments() -> Any:
    """Four blocks of 250 kB fill a device; without the first and the third, 500 kB do not fit."""
    torch.accelerator.empty_cache()
    sim.settings.memory = torch.accelerator.memory_reserved() + 1_000_000
    before = torch.accelerator.memory_stats()["num_ooms"]
    blocks = [torch.empty(250_000, dtype=torch.uint8, device="sim") for _ in range(4)]
    blocks[0] = blocks[2] = None  # type: ignore[call-overload]
    fits = []
    for size in (250_000, 500_000):
        try:
            fits.append(torch.empty(size, dtype=torch.uint8, device="sim").numel())
        except torch.OutOfMemoryError:
            fits.append(0)
    stats = torch.accelerator.memory_stats()
    sim.settings.memory = 0
    inside = stats["reserved_bytes.all.current"] - stats["allocated_bytes.all.current"]
    return fits, stats["num_ooms"] - before, inside >= 500_000


def capture() -> Any:
    sim.settings.capturing = True
    try:
        torch.Event("sim", enable_timing=True).record()
        refused = False
    except RuntimeError:
        refused = True
    told = torch.sim.is_current_stream_capturing()
    torch.Event("sim", enable_timing=True).record(torch.sim.own_stream())
    sim.settings.capturing = False
    return refused, told


def values() -> Any:
    """Names of kernels whose results differ from the CPU's in a bit."""
    cases = {
        "conv2d": lambda x: F.conv2d(x.view(1, 4, 8, 8), x[:144].view(4, 4, 3, 3), padding=1),
        "layer_norm": lambda x: F.layer_norm(x.view(16, 16), (16,)),
        "group_norm": lambda x: F.group_norm(x.view(4, 4, 16), 2),
        "attention": lambda x: F.scaled_dot_product_attention(*3 * [x.view(1, 4, 8, 8)]),
        "softmax": lambda x: F.cross_entropy(x.view(16, 16), torch.arange(16, device=x.device)),
        "views": lambda x: torch.cat([x.view(16, 16).t()[::2], x.view(16, 16)[1::2]]).sin(),
        "write": lambda x: x.clone().index_fill_(0, torch.tensor([3], device=x.device), 2.0),
        "sort": lambda x: x.sort().values[x.argsort()].cumsum(0),
        "embedding": lambda x: F.embedding(torch.arange(4, device=x.device), x.view(16, 16)),
        "random": lambda x: x + torch.randn(256, device=x.device),
        "half": lambda x: _half(x),
    }  # fmt: skip
    return [name for name, case in cases.items() if not _same(case)]


def _half(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast(x.device.type, torch.bfloat16):
        return nn.Linear(16, 16, device=x.device).requires_grad_(False)(x.view(16, 16))


def _same(case: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    out = []
    for device in ("cpu", "sim"):
        torch.manual_seed(1)
        x = torch.randn(256).to(device).requires_grad_()
        y = case(x)
        if y.requires_grad:
            y.float().square().sum().backward()
        out.append((y.detach().cpu(), None if x.grad is None else x.grad.cpu()))
    (a, a_grad), (b, b_grad) = out
    same_grad = a_grad is b_grad or torch.equal(a_grad, b_grad)
    return a.dtype == b.dtype and torch.equal(a, b) and same_grad


CASES = (
    ahead,
    slow,
    streams,
    events,
    latency,
    full_queue,
    waits,
    memory,
    fragments,
    capture,
    values,
)


def main() -> None:
    warnings.filterwarnings("ignore")
    sim.settings.op_ns = {"aten::mm": 5 * MS}
    torch.backends.cuda.enable_flash_sdp(False)  # the CPU takes the device's path
    print(json.dumps({case.__name__: case() for case in CASES}))


if __name__ == "__main__":
    main()
