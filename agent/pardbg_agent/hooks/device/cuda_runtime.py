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
"""cudaStreamNonBlocking: it does not wait for the default stream, nor that for it."""
RELAXED: Final = 2
"""cudaStreamCaptureModeRelaxed"""
PRIORITY: Final = -2
HIP_PRIORITY: Final = 1
"""Of our streams: one that neither torch's nor NCCL's usual streams have. Streams share queues of
the hardware, by priority, and what is behind a wait in a queue waits too."""
QUEUES: Final = 8
"""CUDA's default."""


class CudaRuntime:
    """The runtime of this torch. Raises OSError or AttributeError where it has none."""

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
        """Of ``int is_capturing(stream, int* status)`` and of ``int last_error()``, for C++."""
        found = (ctypes.cast(f, ctypes.c_void_p) for f in (self._is_capturing, self._last_error))
        is_capturing, last_error = (int(address.value or 0) for address in found)
        return is_capturing, last_error

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """Allow this thread, while any other captures a graph, the calls that a capture forbids to
        all threads of the process, as querying an event: else it would be the end of the capture.
        """
        mode = ctypes.c_int(RELAXED)
        self._exchange(ctypes.byref(mode))
        try:
            yield
        finally:
            self._exchange(ctypes.byref(mode))


def _loaded(*names: str) -> ctypes.CDLL:
    """Return a library that this process has. Another copy would have a current device of its own.
    Raises OSError."""
    for name in names:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    raise OSError(f"{names[0]} is not loaded")


@cache
def of(device: str) -> CudaRuntime | None:
    """Return the runtime of a type of device; None: neither CUDA's nor HIP's, or not found."""
    try:
        return CudaRuntime() if device == "cuda" else None
    except (OSError, AttributeError):
        return None


def waits_beside() -> bool:
    """Return whether a stream of ours may wait for an op without holding up the program's kernels.
    Not where streams have few queues to share: with one (Megatron's rule before Blackwell) a GEMM
    that is launched after the op would wait for the op's end, and nothing would overlap."""
    said = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "").strip()
    return not said.isdecimal() or int(said) >= QUEUES


def relaxed(device: str) -> AbstractContextManager[None]:
    """Return ``CudaRuntime.relaxed`` of a type of device."""
    runtime = of(device)
    return nullcontext() if runtime is None else runtime.relaxed()


@contextmanager
def using(device: torch.device) -> Iterator[None]:
    """Make it this thread's current device, and allow what captures forbid (``relaxed``).

    A new thread's current device is 0, and an event that is recorded, read or destroyed from there
    goes back to it by a call that makes a context: hundreds of MB on the first rank's device.
    """
    module: Any = torch.get_device_module(device)
    exchange = getattr(module, "_exchange_device", None)
    before = None if exchange is None else exchange(device.index)
    try:
        with relaxed(device.type):
            yield
    finally:
        if before is not None:
            module._maybe_exchange_device(before)
