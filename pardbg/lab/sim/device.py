"""Registers the simulated accelerator when imported: torch.sim, device "sim", backend "sim".

Training code changes in its device's name alone; a group takes ``"cpu:gloo,sim:sim"``. Costs are
set in ``settings`` (moments.hpp lists them); ``take_log`` gives the truth: for each launch (name,
stream, host issue, arrival, begin, end), in ns of the monotonic clock, None where not known yet,
from its first call on. Raises pardbg_agent.native.Unusable where the extension cannot be built.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import types
from collections.abc import Iterator
from typing import Any, Final

import torch
import torch.distributed as dist

from pardbg.lab.sim import extension

NAME: Final = "sim"
GROUP: Final = "cpu:gloo,sim:sim"
"""Backend string of a process group for tensors on the device and on the host."""

utils: Final[Any] = torch.utils
utils.rename_privateuse1_backend(NAME)  # the extension names its device so
native: Final = extension.load()
settings, counts, take_log = native.settings(), native.counts, native.take_log
last_event, time_of, hold, release = (
    native.last_event, native.time_of, native.hold, native.release,
)  # fmt: skip
"""``time_of(last_event())``: time, ns, of the event that this thread recorded last. ``hold()``:
stops the current stream; ``release(it, ns)`` continues it as if it had continued at that time."""
acc: Final = torch.accelerator
_C: Final[Any] = torch._C
_exchange, _maybe_exchange = _C._accelerator_exchangeDevice, _C._accelerator_maybeExchangeDevice


def spend(ms: float, name: str = "spend") -> None:
    """Launch a kernel of this duration on the current stream."""
    native.spend(round(ms * 1e6), name)


# ---- torch.sim: what DDP, FSDP2, DTensor, pipelining and optimizers ask of a device's module


@contextlib.contextmanager
def stream(chosen: torch.Stream | None) -> Iterator[None]:
    before = acc.current_stream()
    acc.set_stream(before if chosen is None else chosen)
    try:
        yield
    finally:
        acc.set_stream(before)


class device(contextlib.ContextDecorator):
    """Make a device current, as torch.cuda.device does."""

    def __init__(self, which: Any) -> None:
        self.index = _index(which)

    def __enter__(self) -> None:
        self.before = _exchange(self.index)

    def __exit__(self, *error: object) -> None:
        _maybe_exchange(self.before)


def own_stream() -> torch.Stream:
    """Return a stream outside of the pool of 32 that torch.Stream() takes from."""
    return _stream(native.own_stream(), acc.current_device_index())


def _stream(number: int, index: int) -> torch.Stream:
    kind: Any = _C._autograd.DeviceType.PrivateUse1
    return torch.Stream(stream_id=number, device_index=index, device_type=int(kind))


def _index(which: Any = None) -> int:
    if isinstance(which, int):
        return which
    index = None if which is None else torch.device(which).index
    return acc.current_device_index() if index is None else index


def _on_index(function: Any) -> Any:
    return lambda which=None: function(_index(which))


def _module() -> types.ModuleType:
    module = types.ModuleType("torch.sim")
    host = torch.default_generator
    # torch.accelerator asks the module for these two: asking it back would never end.
    count = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    module.__dict__.update(
        device_count=lambda: count, is_available=lambda: True,
        Stream=torch.Stream, Event=torch.Event, stream=stream, StreamContext=stream, device=device,
        _exchange_device=_exchange, _maybe_exchange_device=_maybe_exchange,
        is_initialized=lambda: True, init=lambda: None, _lazy_init=lambda: None,
        _is_in_bad_fork=lambda: False, current_device=acc.current_device_index,
        set_device=_on_index(acc.set_device_index), set_stream=acc.set_stream,
        current_stream=_on_index(acc.current_stream),
        default_stream=_on_index(lambda index: _stream(0, index)), own_stream=own_stream,
        synchronize=_on_index(acc.synchronize), memory_allocated=_on_index(acc.memory_allocated),
        max_memory_allocated=_on_index(acc.max_memory_allocated),
        memory_reserved=_on_index(acc.memory_reserved),
        max_memory_reserved=_on_index(acc.max_memory_reserved),
        memory_stats=_on_index(acc.memory_stats), mem_get_info=_on_index(acc.get_memory_info),
        reset_peak_memory_stats=_on_index(acc.reset_peak_memory_stats),
        empty_cache=acc.empty_cache, manual_seed=host.manual_seed, manual_seed_all=host.manual_seed,
        seed_all=host.seed, initial_seed=host.initial_seed,
        get_rng_state=lambda which=None: host.get_state(),
        set_rng_state=lambda state, which=None: host.set_state(state.cpu()),
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
        get_device_name=lambda which=None: NAME, get_device_capability=lambda which=None: (0, 0),
        attach_out_of_memory_observer=native.attach_out_of_memory_observer,
        is_bf16_supported=lambda: True, is_current_stream_capturing=lambda: settings.capturing,
    )  # fmt: skip
    return module


def _backend(store: Any, rank: int, size: int, timeout: datetime.timedelta) -> Any:
    gloo, prefix = dist.ProcessGroupGloo, torch._C._distributed_c10d.PrefixStore
    for_ever = datetime.timedelta(days=7)
    gloos = [
        gloo(prefix(f"{name}/", store), rank, size, timeout=limit)
        for name, limit in (("data", timeout), ("clock", for_ever))
    ]
    return native.new_backend(*gloos, rank, size)


sys.modules["torch.sim"] = _module()
torch._register_device_module(NAME, sys.modules["torch.sim"])
utils.generate_methods_for_privateuse1_backend()
dist.Backend.register_backend(NAME, _backend, devices=[NAME])
