"""Streams of our own, on which no work of the program runs.

``torch.Stream()``, NCCL's streams and those of a Future's callbacks come from one pool of 32: an
event recorded on a pool stream is read late where the program's kernels are queued before it, and a
wait there delays the program's kernels. Our streams lie outside of the pool where possible."""

from __future__ import annotations

from typing import Any, Final

import torch

from pardbg_agent.hooks.device import cuda_runtime

MAX_STREAMS: Final = 64


class OwnStreams:
    """One stream per internal stream of the backend, by any key; made when first asked for, on the
    current device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._by_key: dict[Any, Any] = {}

    def of(self, key: Any) -> Any | None:
        """Return the stream of a key; None if there are too many streams."""
        found = self._by_key.get(key)
        if found is None and len(self._by_key) < MAX_STREAMS:
            found = self._by_key[key] = self.new()
        return found

    def new(self) -> Any:
        """Return a new stream, from the pool (whose ends may be read late) as a last resort."""
        runtime = cuda_runtime.of(self._device.type)
        module: Any = torch.get_device_module(self._device)
        make = getattr(module, "own_stream", None) if runtime is None else runtime.new_stream
        try:
            return make() if make is not None else torch.Stream(self._device)
        except RuntimeError:
            return torch.Stream(self._device)
