"""Tensors of captured steps, as ranks have told them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pardbg.events import fields
from pardbg_agent import wire

SKETCH_BYTES: Final = 8 * wire.SKETCH
MAX_TENSORS: Final = 1 << 14
"""Of one process; 32 MiB of sketches."""
_MAX_NUMBERS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class TensorDef:
    """What a rank had of a tensor in a captured step: its sketch, which is linear."""

    step: int
    what: str
    """``init``, ``grad``, ``param``, ``input``; ``random``: a layer that draws numbers."""
    name: str
    order: int
    """Of the parameter in its model."""
    dtype: str
    shape: tuple[int, ...]
    """Of the whole tensor."""
    offset: tuple[int, ...]
    size: tuple[int, ...]
    """The rank's part of it."""
    over: tuple[int, ...]
    """Ranks whose equal parts are replicas, as a wrapper or a mesh says; else the rank alone."""
    count: int
    most: float
    """Largest finite magnitude."""
    bad: int
    """Elements that are not finite."""
    bits: int
    """Sum of the elements' bits: equal parts have equal ones."""
    sketch: bytes
    """wire.SKETCH float64; of an input empty."""
    samples: tuple[int, ...]
    """Of an input: a hash of each row."""


def tensor_def(values: Mapping[Any, Any]) -> TensorDef:
    """Return a captured tensor's facts."""

    def numbers(key: str) -> tuple[int, ...]:
        found = values.get(key)
        items = found if isinstance(found, list) else []
        return tuple(n for n in items[:_MAX_NUMBERS] if isinstance(n, int))

    most, sketch = values.get("most"), values.get("sketch")
    return TensorDef(
        fields.integer(values, "step", 0), fields.text(values, "what"),
        fields.text(values, "name"), fields.integer(values, "order", 0),
        fields.text(values, "dtype"), numbers("shape"), numbers("offset"), numbers("size"),
        numbers("over"),
        fields.integer(values, "count", 0),
        float(most) if isinstance(most, int | float) else 0.0, fields.integer(values, "bad", 0),
        fields.integer(values, "bits", 0),
        sketch if isinstance(sketch, bytes) and len(sketch) == SKETCH_BYTES else b"",
        numbers("samples"),
    )  # fmt: skip
