"""Calls of the CUDA or HIP runtime that torch has no name for, on the library that it loaded."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, Final

import torch

NON_BLOCKING: Final = 1
"""cudaStreamNonBlocking: it does not wait for the default stream, nor that for it."""
RELAXED: Final = 2
"""cudaStreamCaptureModeRelaxed"""


class CudaRuntime:
    """The runtime of this torch. Raises OSError or AttributeError where it has none."""

    def __init__(self) -> None:
        version: Any = torch.version
        major = str(version.cuda).partition(".")[0]
        name = "libamdhip64.so" if version.hip else f"libcudart.so.{major}"
        library, prefix = ctypes.CDLL(name), "hip" if version.hip else "cuda"
        self._create = getattr(library, f"{prefix}StreamCreateWithPriority")
        self._is_capturing = getattr(library, f"{prefix}StreamIsCapturing")
        self._last_error = getattr(library, f"{prefix}GetLastError")
        self._exchange = getattr(library, f"{prefix}ThreadExchangeStreamCaptureMode")

    def new_stream(self) -> Any:
        """Return a stream from outside of torch's pool."""
        handle = ctypes.c_void_p()
        if code := self._create(ctypes.byref(handle), NON_BLOCKING, 0):
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


@cache
def of(device: str) -> CudaRuntime | None:
    """Return the runtime of a type of device; None: neither CUDA's nor HIP's, or not found."""
    try:
        return CudaRuntime() if device == "cuda" else None
    except (OSError, AttributeError):
        return None


def relaxed(device: str) -> AbstractContextManager[None]:
    """Return ``CudaRuntime.relaxed`` of a type of device."""
    runtime = of(device)
    return nullcontext() if runtime is None else runtime.relaxed()
