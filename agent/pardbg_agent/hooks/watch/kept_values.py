"""Elements of the tensors that ``PARDBG_FULL`` names, sent beside their sketches.

A name is a shell pattern for parameters or modules, with the kind of tensor before it if one is
meant: ``grad:blocks.*.up.weight``. A tensor is kept from its first element on, as far as there is
room."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Final

import torch

from pardbg_agent.wire import ENV_FULL

MAX_BYTES: Final = 32 << 20
"""Maximum bytes that a process keeps in all."""
PIECE: Final = 1 << 20
"""Maximum bytes of values in one definition."""


class Kept:
    """Elements that a process keeps, within MAX_BYTES."""

    def __init__(self) -> None:
        self._wanted = [text.strip().rpartition(":") for text in _names()]
        self._left = MAX_BYTES

    def of(self, what: str, name: str, part: torch.Tensor) -> bytes:
        """Return the first elements of a part as bytes: empty if the part is not wanted, or there
        is no room. Waits for the device."""
        if not any(
            kind in ("", what) and fnmatchcase(name, pattern) for kind, _, pattern in self._wanted
        ):
            return b""
        number = min(part.numel(), self._left // max(1, part.element_size()))
        self._left -= number * part.element_size()
        some = part.detach().reshape(-1)[:number].cpu().contiguous()
        return some.view(torch.uint8).numpy().tobytes() if number else b""


def pieces(values: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (offset of the first byte, bytes) in pieces that fit into a message."""
    for at in range(0, len(values), PIECE):
        yield at, values[at : at + PIECE]


def _names() -> list[str]:
    return [text for text in os.environ.get(ENV_FULL, "").split(",") if text.strip()]
