"""Streams of our own, which nothing of the program runs on.

``torch.Stream()``, NCCL's streams and those that a Future's callbacks run on come from one pool of
32: what is recorded on one of those is read late where the program's kernels are queued before it,
and what waits there delays the program's kernels. So ours lie outside of it where that can be had.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import torch

MAX_STREAMS: Final = 64
NON_BLOCKING: Final = 1
"""cudaStreamNonBlocking: it does not wait for the default stream, nor that for it."""


class OwnStreams:
    """One stream per internal stream of the backend, by any key; made when first asked for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._by_key: dict[Any, Any] = {}

    def of(self, key: Any) -> Any | None:
        """Return the stream of a key; None where there are too many."""
        found = self._by_key.get(key)
        if found is None and len(self._by_key) < MAX_STREAMS:
            found = self._by_key[key] = self.new()
        return found

    def new(self) -> Any:
        """Return another stream."""
        module: Any = torch.get_device_module(self._device)
        make = _cuda_stream if self._device.type == "cuda" else getattr(module, "own_stream", None)
        try:
            if make is not None:
                return make()
        except (OSError, AttributeError, RuntimeError):
            pass  # no such library or function in it: the pool's, whose ends may be read late
        return torch.Stream(self._device)


def _cuda_stream() -> Any:
    version: Any = torch.version
    if version.hip:
        create = ctypes.CDLL("libamdhip64.so").hipStreamCreateWithPriority
    else:
        major = str(version.cuda).partition(".")[0]
        create = ctypes.CDLL(f"libcudart.so.{major}").cudaStreamCreateWithPriority
    handle = ctypes.c_void_p()
    if code := create(ctypes.byref(handle), NON_BLOCKING, 0):
        raise RuntimeError(f"no stream: error {code}")
    return torch.cuda.ExternalStream(handle.value)
