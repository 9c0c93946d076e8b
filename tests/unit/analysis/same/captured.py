"""Runs with captured tensors, made by hand: a small model, ranks with parts of it, mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pardbg.session.writer import RunFacts, SessionWriter
from pardbg.store.store import Store
from pardbg_agent import wire
from tests.unit.trace_builder import Trace, ns

Array = NDArray[np.float64]
MODEL = {
    "embed.weight": (32, 8), "blocks.0.weight": (8, 8), "blocks.0.norm": (24,),
    "blocks.1.weight": (8, 8), "blocks.1.norm": (24,), "head.weight": (8, 32),
}  # fmt: skip
RATE = 0.1
_DRAWN = np.random.default_rng(11)
_BUCKETS = _DRAWN.integers(0, 256, 1 << 16)
_SIGNS = _DRAWN.choice([-1.0, 1.0], 1 << 16)


def sketch(part: Array, shape: Sequence[int], offset: Sequence[int]) -> Array:
    """A count sketch, by a table for the index of an element in the whole tensor."""
    box = tuple(slice(o, o + s) for o, s in zip(offset, part.shape, strict=True))
    index = np.arange(int(np.prod(shape))).reshape(shape)[box].ravel()
    values = np.where(np.isfinite(part), part, 0.0).ravel()
    return np.bincount(_BUCKETS[index], _SIGNS[index] * values, minlength=256)


def fields(whole: Array, offset: Sequence[int], size: Sequence[int]) -> dict[str, Any]:
    """A definition's fields of a rank's part of a tensor."""
    box = tuple(slice(o, o + s) for o, s in zip(offset, size, strict=True))
    part = whole[box]
    finite = part[np.isfinite(part)]
    bits = int(np.ascontiguousarray(part, dtype=np.float32).view(np.int32).astype(np.int64).sum())
    return {
        "shape": list(whole.shape), "offset": list(offset), "size": list(part.shape),
        "count": part.size, "most": float(np.abs(finite).max(initial=0.0)),
        "bad": part.size - finite.size, "bits": bits,
        "sketch": sketch(part, whole.shape, offset).astype("<f8").tobytes(),
    }  # fmt: skip


def noisy(value: Array, seed: int, size: float = 2e-7) -> Array:
    return value * (1 + size * np.random.default_rng(seed).normal(size=value.shape))


@dataclass
class Run:
    """Values of a run, to be changed before it is told: (step, what, name) -> whole tensor."""

    num_ranks: int = 1
    shard: bool = False
    """Ranks have rows of each matrix; else replicas, as DistributedDataParallel has them."""
    dtype: str = "float32"
    steps: int = 2
    values: dict[tuple[int, str, str], Array] = field(default_factory=dict)
    own: dict[tuple[int, str, str, int], Array] = field(default_factory=dict)
    """What one rank has instead."""
    inputs: Mapping[int, Iterable[int]] | None = None
    """rank -> samples; without it ranks share out 8 samples a step."""
    hidden: set[tuple[int, str, str, int]] = field(default_factory=set)
    """(step, what, name, rank) that is not told."""
    over: Callable[[int], list[int]] | None = None
    ended: bool = False
    """Its first step has a record: the optimizer has stepped."""

    def trace(self) -> Trace:
        trace = Trace(self.num_ranks)
        everyone = list(range(self.num_ranks))
        for rank, proc in enumerate(trace.ranks):
            proc.group("world")
            if self.ended:
                proc.step(0, 0, 1)
                proc.flush()
            for step in range(self.steps):
                rows = range(step * 8 + rank, step * 8 + 8, self.num_ranks)
                told = list(rows if self.inputs is None else self.inputs.get(rank, ()))
                if told:
                    proc.define(
                        wire.DefKind.TENSOR, step=step, what="input", name="0", order=0,
                        dtype="int64", shape=[len(told), 4], samples=told,
                    )  # fmt: skip
            for (step, what, name), whole in self.values.items():
                if (step, what, name, rank) in self.hidden:
                    continue
                whole = self.own.get((step, what, name, rank), whole)
                offset, size = [0] * whole.ndim, list(whole.shape)
                if self.shard and whole.ndim == 2:
                    each = len(whole) // self.num_ranks
                    offset[0], size[0] = rank * each, each
                proc.define(
                    wire.DefKind.TENSOR, step=step, what=what, name=name, dtype=self.dtype,
                    order=[*MODEL].index(name) if name in MODEL else 99,
                    over=everyone if self.over is None else self.over(rank),
                    **fields(whole, offset, size),
                )  # fmt: skip
        return trace

    def store(self) -> Store:
        return self.trace().store()

    def file(self, path: Path) -> Path:
        """Write the run as a session."""
        facts = RunFacts(path.stem, path.stem, "host", ("python", "t.py"), "/", "", ns(0), 1 << 60)
        writer = SessionWriter(path, facts)
        for message in self.trace().messages:
            writer.write(message.key, message.payload, message.received_ns)
        writer.close(0)
        return path


def run(num_ranks: int = 1, seed: int | None = None, noise: float = 2e-7, **more: Any) -> Run:
    """A healthy run of the model; with a seed its gradients have the rounding of other sums."""
    made = Run(num_ranks, **more)
    drawn = np.random.default_rng(7)
    weights = {name: drawn.normal(size=shape) for name, shape in MODEL.items()}
    for step in range(made.steps):
        for at, (name, shape) in enumerate(MODEL.items()):
            grad = drawn.normal(size=shape) * 10.0 ** (-at % 3)
            made.values[step, "grad", name] = (
                grad if seed is None else noisy(grad, seed * 100 + at, noise)
            )
    for name, value in weights.items():
        made.values[0, "init", name] = value
    retrain(made)
    return made


def retrain(made: Run) -> Run:
    """Make the parameters after each step anew from the gradients."""
    for name in MODEL:
        value = made.values[0, "init", name]
        for step in range(made.steps):
            grad = made.values.get((step, "grad", name))
            value = value - (0 if grad is None else RATE * grad)
            made.values[step, "param", name] = value
    return made


def changed(made: Run, how: Callable[[Array], Array], *names: str, step: int = 0) -> Run:
    """A run whose gradients are changed, from which its parameters follow."""
    for name in names or MODEL:
        made.values[step, "grad", name] = how(made.values[step, "grad", name])
    return retrain(made)
