"""Tensors of captured steps, as the ranks' agents reported them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pardbg.events import fields
from pardbg_agent import wire

SKETCH_BYTES: Final = 8 * wire.SKETCH
MAX_TENSORS: Final = 1 << 14
"""Maximum number of captured tensors of one process; 32 MiB of sketches."""
_STORED: Final = {
    name: np.dtype(of) for name, of in (
        ("float64", "<f8"), ("float32", "<f4"), ("float16", "<f2"), ("bfloat16", "<u2"),
    )
}  # fmt: skip
_MAX_NUMBERS: Final = 1 << 16
_MAX_CUTS: Final = 8
_MOST_PARTS: Final = 1 << 16


TensorKey = tuple[int, str, str, int]
"""(step, what, name, number of the model)"""


@dataclass(frozen=True, slots=True)
class Kept:
    """Elements of a rank's part of a tensor, contiguous from the first element on."""

    dtype: str
    rows: tuple[int, ...]
    """Positions of an activation's rows among those of the rank's step, …"""
    samples: tuple[int, ...]
    """… and a hash of each row's sample."""
    pieces: dict[int, bytes] = field(default_factory=dict)
    """Offset of a piece's first byte -> bytes."""

    def values(self) -> NDArray[np.float64]:
        """Return the elements up to the first gap; an empty array if the dtype is not known."""
        found, at = [], 0
        while some := self.pieces.get(at):
            found.append(some)
            at += len(some)
        stored = _STORED.get(self.dtype)
        if stored is None:
            return np.zeros(0)
        raw = np.frombuffer(b"".join(found)[: at - at % stored.itemsize], stored)
        if self.dtype == "bfloat16":  # the upper half of a float32
            raw = (raw.astype("<u4") << 16).view("<f4")
        return raw.astype(np.float64)


@dataclass(frozen=True, slots=True)
class CutDef:
    """Sketch for a possible cut of a tensor. Of a parameter without a declared placement: as if the
    rank's part is one of ``parts`` equal slices along dimension ``dim``; of an activation by
    sample: as if the part is such a slice of each sample's row."""

    dim: int
    parts: int
    at: int
    sketch: bytes
    """An activation's sketch by the contents of its samples: wire.SKETCH float64."""
    by_place: bytes
    """Sketch by the samples' positions among those of the rank's step; empty for a parameter."""


@dataclass(frozen=True, slots=True)
class TensorDef:
    """A rank's part of a tensor in a captured step; its sketch is linear."""

    step: int
    what: str
    """``init``, ``grad``, ``param``, ``buffer``, ``input``; ``random``: a layer that draws numbers;
    ``out``, ``d_out``: a module's output in the step, and the gradient of it."""
    name: str
    order: int
    """Position of the parameter in its model; of an activation, in the order of first calls."""
    model: int
    """Number of the outermost module on the rank."""
    dtype: str
    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    offset: tuple[int, ...]
    size: tuple[int, ...]
    """Shape of the rank's part of the tensor."""
    over: tuple[int, ...]
    """Ranks whose equal parts are declared replicas (by a wrapper or mesh); else the rank alone."""
    count: int
    most: float
    """Largest finite magnitude."""
    bad: int
    """Number of elements that are not finite."""
    bits: int
    """Sum of the elements' bits; parts with equal elements have equal sums."""
    sketch: bytes
    """Sketch of wire.SKETCH float64; empty for an input."""
    samples: tuple[int, ...]
    """A hash of each row of an input, …"""
    sums: tuple[int, ...]
    """… and the sum of the hashes of the row's elements; the sums of a row's parts add up to it."""
    kind: str
    """Class of the module that computed the activation, …"""
    place: str
    """… file:line of its forward; empty for torch's own modules …"""
    times: tuple[int, ...]
    """… and begin and end of each forward, or when each gradient came: ns of the host's clock."""
    cuts: tuple[CutDef, ...]
    """Possible cuts of an activation: ``shape`` is of one sample's row, ``count`` of samples."""
    summand: tuple[int, int] | None = None
    """(index, number of summands) if the part is a summand of the tensor's value at its place."""
    kept: Kept | None = field(default=None, compare=False)
    """The tensor's elements, if they were requested."""

    @property
    def vector(self) -> NDArray[np.float64]:
        """The sketch as an array of numbers."""
        return np.frombuffer(self.sketch, dtype="<f8")


def tensor_def(values: Mapping[Any, Any]) -> TensorDef:
    """Return a captured tensor's facts."""

    def numbers(key: str) -> tuple[int, ...]:
        return _numbers(values, key)

    most = values.get("most")
    return TensorDef(
        fields.integer(values, "step", 0), fields.text(values, "what"),
        fields.text(values, "name"), fields.integer(values, "order", 0),
        fields.integer(values, "model", 0),
        fields.text(values, "dtype"), numbers("shape"), numbers("offset"), numbers("size"),
        numbers("over"),
        fields.integer(values, "count", 0),
        float(most) if isinstance(most, int | float) else 0.0, fields.integer(values, "bad", 0),
        fields.integer(values, "bits", 0),
        _sketch(values.get("sketch")), numbers("samples"), numbers("sums"),
        fields.text(values, "module"), fields.text(values, "place"), numbers("times"),
        _cuts(values.get("cuts")), _summand(numbers("summand")),
    )  # fmt: skip


def add(
    tensors: dict[TensorDef, None], kept: dict[TensorKey, Kept], values: Mapping[Any, Any],
    room: int, keep: Callable[[int], None],
) -> None:  # fmt: skip
    """Add a process's definition of a captured tensor, or a piece of its elements. ``room``: bytes
    that elements may take; ``keep`` gets the bytes taken and raises if they are too many."""
    if values.get("k") == wire.DefKind.VALUES.value:
        keep(add_values(kept, values, room))
        return
    said = tensor_def(values)
    if said not in tensors and len(tensors) < MAX_TENSORS:
        keep(fields.weight(values))
        tensors[said] = None


def add_values(known: dict[TensorKey, Kept], values: Mapping[Any, Any], room: int) -> int:
    """Add a new piece of a tensor, if there is ``room``; return the bytes of memory it takes."""
    key = (
        fields.integer(values, "step", 0), fields.text(values, "what"),
        fields.text(values, "name"), fields.integer(values, "model", 0),
    )  # fmt: skip
    at, some = fields.integer(values, "at", -1), values.get("values")
    if at < 0 or not isinstance(some, bytes) or not some or fields.weight(values) > room:
        return 0
    dtype, rows = fields.text(values, "dtype"), _numbers(values, "rows")
    kept = known.setdefault(key, Kept(dtype, rows, _numbers(values, "samples")))
    new = at not in kept.pieces
    kept.pieces.setdefault(at, some)
    return fields.weight(values) if new else 0


def _numbers(values: Mapping[Any, Any], key: str) -> tuple[int, ...]:
    found = values.get(key)
    items = found if isinstance(found, list) else []
    return tuple(n for n in items[:_MAX_NUMBERS] if isinstance(n, int))


def _sketch(value: Any) -> bytes:
    return value if isinstance(value, bytes) and len(value) == SKETCH_BYTES else b""


def _summand(numbers: tuple[int, ...]) -> tuple[int, int] | None:
    return (numbers[0], numbers[1]) if len(numbers) == 2 and 0 <= numbers[0] < numbers[1] else None


def _is_place(number: Any) -> bool:
    return isinstance(number, int) and 0 <= number <= _MOST_PARTS


def _cuts(value: Any) -> tuple[CutDef, ...]:
    found = []
    for item in value[:_MAX_CUTS] if isinstance(value, list) else ():
        cut = item.get("cut") if isinstance(item, Mapping) else None
        if isinstance(cut, list) and len(cut) == 3 and all(map(_is_place, cut)):
            both = _sketch(item.get("sketch")), _sketch(item.get("by_place"))
            if both[0]:
                found.append(CutDef(cut[0], cut[1], cut[2], *both))
    return tuple(found)
