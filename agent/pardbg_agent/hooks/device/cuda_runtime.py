"""Calls of the CUDA or HIP runtime that torch has no name for, on the library that it loaded."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, Final

import torch

NON_BLOCKING: Final = 1
"""cudaStreamNonBlocking: no implicit waits between this stream and the default stream."""
RELAXED: Final = 2
"""cudaStreamCaptureModeRelaxed"""
PRIORITY: Final = -2
HIP_PRIORITY: Final = 1
"""Priority of our streams: one that neither torch's nor NCCL's usual streams have. Streams of a
priority share hardware queues, and work queued behind a wait waits too."""
QUEUES: Final = 8
"""CUDA's default number of hardware queues."""


class CudaRuntime:
    """CUDA or HIP runtime of this torch. Raises OSError or AttributeError if there is none."""

    def __init__(self) -> None:
        version: Any = torch.version
        major = str(version.hip or version.cuda).partition(".")[0]
        name, prefix = ("libamdhip64.so", "hip") if version.hip else ("libcudart.so", "cuda")
        self._priority = HIP_PRIORITY if version.hip else PRIORITY
        library = _loaded(f"{name}.{major}", name)
        self._create = getattr(library, f"{prefix}StreamCreateWithPriority")
        self._is_capturing = getattr(library, f"{prefix}StreamIsCapturing")
        self._last_error = getattr(library, f"{prefix}GetLastError")
        self._exchange = getattr(library, f"{prefix}ThreadExchangeStreamCaptureMode")

    def new_stream(self) -> Any:
        """Return a stream of the current device from outside of torch's pool."""
        handle = ctypes.c_void_p()
        with self.relaxed():
            code = self._create(ctypes.byref(handle), NON_BLOCKING, self._priority)
        if code:
            raise RuntimeError(f"no stream: error {code}")
        return torch.cuda.ExternalStream(handle.value)

    @property
    def addresses(self) -> tuple[int, int]:
        """Addresses of ``int is_capturing(stream, int* status)`` and ``int last_error()``."""
        found = (ctypes.cast(f, ctypes.c_void_p) for f in (self._is_capturing, self._last_error))
        is_capturing, last_error = (int(address.value or 0) for address in found)
        return is_capturing, last_error

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """Allow this thread, while another thread captures a graph, calls that a capture forbids to
        all threads of the process, such as querying an event: such a call would end the capture."""
        mode = ctypes.c_int(RELAXED)
        self._exchange(ctypes.byref(mode))
        try:
            yield
        finally:
            self._exchange(ctypes.byref(mode))


def _loaded(*names: str) -> ctypes.CDLL:
    """Return a library that this process has loaded. A second copy would have a current device of
    its own. Raises OSError if none of the names is loaded."""
    for name in names:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    raise OSError(f"{names[0]} is not loaded")


@cache
def of(device: str) -> CudaRuntime | None:
    """Return the runtime of a device type; None: neither CUDA nor HIP, or not found."""
    try:
        return CudaRuntime() if device == "cuda" else None
    except (OSError, AttributeError):
        return None


def waits_beside() -> bool:
    """Return whether a stream of ours may wait for an op without holding up the program's kernels.
    False where streams share few queues: with one (Megatron's rule before Blackwell) a GEMM that is
    launched after the op would wait for the op's end, and nothing would overlap."""
    said = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "").strip()
    return not said.isdecimal() or int(said) >= QUEUES


def relaxed(device: str) -> AbstractContextManager[None]:
    """Return ``CudaRuntime.relaxed`` of a device type; no-op without a CUDA or HIP runtime."""
    runtime = of(device)
    return nullcontext() if runtime is None else runtime.relaxed()


@contextmanager
def using(device: torch.device) -> Iterator[None]:
    """Make ``device`` this thread's current device, and allow calls that captures forbid.

    A new thread's current device is 0, and an event that is recorded, read or destroyed from there
    switches back to device 0 by a call that makes a context: hundreds of MB on the first rank's
    GPU."""
    module: Any = torch.get_device_module(device)
    exchange = getattr(module, "_exchange_device", None)
    before = None if exchange is None else exchange(device.index)
    try:
        with relaxed(device.type):
            yield
    finally:
        if before is not None:
            module._maybe_exchange_device(before)
