"""Initial parameters of one run for another (``--init-to``, ``--init-from``), so that ``pardbg
same`` can compare layouts that draw unlike numbers.

Each rank of the first run writes its parts of the parameters of all modules that exist at the first
forward in training; each rank of the second copies its parts from those files. A program's numbers
change only by the user's request: nothing is hooked without the variables, nor from that forward
on."""

from __future__ import annotations

import math
import os
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from pardbg_agent import core as _core
from pardbg_agent.hooks.patching import Patches
from pardbg_agent.hooks.tensors import local_part
from pardbg_agent.hooks.watch.framework_places import Axis, Placed
from pardbg_agent.hooks.watch.tensor_names import Models, Named, place
from pardbg_agent.settings import complain
from pardbg_agent.wire import ENV_INIT_FROM, ENV_INIT_NOISE, ENV_INIT_TO

HOOK: Final = "initial_values"
_MAX_SAID: Final = 3


class Piece(NamedTuple):
    """Part of a parameter, as stored in a file."""

    shape: list[int]
    offset: list[int]
    values: torch.Tensor


def install(patches: Patches, late: Any) -> tuple[Any, ...]:
    """Hook the first forward."""
    to, of = (os.environ.get(name, "").strip() for name in (ENV_INIT_TO, ENV_INIT_FROM))
    return (InitialValues(to, of),) if to or of else ()


class InitialValues:
    """Initial values of one process."""

    def __init__(self, to: str, of: str) -> None:
        self._to, self._from = to, of
        self._noise = os.environ.get(ENV_INIT_NOISE, "")
        self._known: dict[str, list[Piece]] = {}
        self._handle = register_module_forward_pre_hook(self._called)

    def remove(self) -> None:
        """Remove the forward hook."""
        self._handle.remove()

    def _called(self, module: nn.Module, args: Any) -> None:
        c = _core.CURRENT
        if torch.compiler.is_compiling() or not module.training or not torch.is_grad_enabled():
            return
        if all(p.is_meta for p in module.parameters()):
            return
        self.remove()  # at once: code compiled later would have the hook in its guards
        if c is not None and c.run is not None:
            c.guard.call(HOOK, self._begin, c)

    def _begin(self, c: _core.Core) -> None:
        models = Models()
        named = models.named([p for root in models.outermost() for p in root.parameters()])
        if self._from:
            self._set(c, named)
        if self._to:
            self._write(c, plain(named))

    def _write(self, c: _core.Core, named: list[Named]) -> None:
        rank = c.identity.rank
        found: list[tuple[str, list[int], list[int], torch.Tensor]] = []
        for one in named:
            at, part = _placed(one)
            copy = not hasattr(one.tensor, "placements") and one.over and rank != min(one.over)
            for (shape, offset), block in () if copy else _blocks(at, part):
                found.append((one.name, shape, offset, block.detach().cpu().clone()))
        folder = Path(self._to)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"rank-{rank}.pt"
        torch.save(found, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)

    def _set(self, c: _core.Core, named: list[Named]) -> None:
        self._known = read(Path(self._from))
        clear = {id(one.tensor) for one in plain(named)}
        lacking = [one.name for one in named if id(one.tensor) not in clear or not self._fill(one)]
        if lacking:
            names = ", ".join(lacking[:_MAX_SAID]) + (" …" if len(lacking) > _MAX_SAID else "")
            complain(
                f"--init-from: rank {c.identity.rank} keeps its own values of {len(lacking)} of "
                f"{len(named)} parameters, which {self._from} does not have in this shape: {names}"
            )

    def _fill(self, one: Named) -> bool:
        """Set a parameter; return whether all of it was in the files."""
        at, part = _placed(one)
        pieces = self._known.get(one.name, [])
        if not at.stated and pieces and at.shape != pieces[0].shape:
            at = _slice(one.axes, part, pieces[0].shape)
        with torch.no_grad():
            made = torch.empty_like(part)
            found = [_copied(block, *place, pieces) for place, block in _blocks(at, made)]
            if not found or not all(found):
                return False
            part.copy_(moved(made, one.name, self._noise))
            mapping = getattr(one.tensor, "_hp_mapping", None)
            if mapping is not None:
                mapping.update_hp()  # the copy that DeepSpeed's optimizer steps
        return True


def plain(named: list[Named]) -> list[Named]:
    """Return the parameters without those whose name two models of the rank share: which model is
    the reference's is not known."""
    models: dict[str, set[int]] = defaultdict(set)
    for one in named:
        models[one.name].add(one.model)
    return [one for one in named if len(models[one.name]) == 1]


def moved(values: torch.Tensor, name: str, dtype: str) -> torch.Tensor:
    """Return each value moved up or down by one rounding of a dtype (``own``: the values'; empty:
    none), the same way on every rank that has parameter ``name``."""
    of = values.dtype if dtype == "own" else getattr(torch, dtype, None)
    if not isinstance(of, torch.dtype) or not values.is_floating_point():
        return values
    draw = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    signs = torch.randint(0, 2, values.shape, generator=draw).to(values.device) * 2 - 1
    return (values.double() * (1 + signs * torch.finfo(of).eps)).to(values.dtype)


def read(folder: Path) -> dict[str, list[Piece]]:
    """Return the stored parts of parameters in a folder, by name. Raises OSError."""
    found: dict[str, list[Piece]] = defaultdict(list)
    for path in sorted(folder.glob("rank-*.pt")):
        for name, *piece in torch.load(path, mmap=True, weights_only=True):
            found[name].append(Piece(*piece))
    return found


def _placed(one: Named) -> tuple[Placed, torch.Tensor]:
    part = local_part(one.tensor)
    return one.placed or place(one.tensor, one.tensor, part), part


def _blocks(
    at: Placed, part: torch.Tensor
) -> Iterator[tuple[tuple[list[int], list[int]], torch.Tensor]]:
    """Yield ((shape of the whole, offset), block) of a part; nothing if its place is not known."""
    if at.blocks is not None:
        dim, parts, index, number = at.blocks
        for block, piece in enumerate(part.chunk(number, dim)):
            begin = (block * parts + index) * piece.shape[dim]
            yield (at.shape, [begin if d == dim else 0 for d in range(part.dim())]), piece
    elif len(at.offset) == len(at.shape):
        yield (at.shape, at.offset), part


def _slice(axes: list[Axis], part: torch.Tensor, shape: list[int]) -> Placed:
    """Return the place of an unstated slice, along the only group that fits the shape."""
    fitting = {
        (dim, index)
        for dim in range(part.dim())
        for parts, index in axes
        if shape == [n * (parts if d == dim else 1) for d, n in enumerate(part.shape)]
    }
    if len(fitting) != 1:
        return Placed(shape, [0] * (len(shape) + 1))
    ((dim, index),) = fitting
    return Placed(shape, [n * index if d == dim else 0 for d, n in enumerate(part.shape)])


def _copied(into: torch.Tensor, shape: list[int], offset: list[int], pieces: list[Piece]) -> bool:
    """Copy the stored pieces into the part at ``offset`` of a whole of ``shape``; return whether
    they cover all of it."""
    left = into.numel()
    done: set[tuple[int, ...]] = set()
    for one in pieces:
        piece = _flat(one) if len(shape) == 1 else one
        if piece.shape != shape or tuple(piece.offset) in done:
            continue
        done.add(tuple(piece.offset))
        low = [max(a, b) for a, b in zip(piece.offset, offset, strict=True)]
        high = [
            min(a + n, b + m)
            for a, n, b, m in zip(piece.offset, piece.values.shape, offset, into.shape, strict=True)
        ]
        if all(a < b for a, b in zip(low, high, strict=True)):
            to = into[_box(low, high, offset)]
            to.copy_(piece.values[_box(low, high, piece.offset)])
            left -= math.prod(b - a for a, b in zip(low, high, strict=True))
    return left == 0


def _flat(piece: Piece) -> Piece:
    """Return a piece of a whole parameter flattened, as ZeRO and FSDP1 cut it; else as is."""
    number = math.prod(piece.shape)
    whole = piece.values.numel() == number
    return Piece([number], [0], piece.values.flatten()) if whole else piece


def _box(low: list[int], high: list[int], offset: list[int]) -> tuple[slice, ...]:
    return tuple(slice(a - o, b - o) for a, b, o in zip(low, high, offset, strict=True))
