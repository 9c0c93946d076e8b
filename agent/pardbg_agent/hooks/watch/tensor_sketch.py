"""Sketches of tensors: 256 numbers that stand for all elements, whatever parts ranks have of them.

Each element is added to one of 256 buckets, with a sign; both follow from a hash of its index in
the whole tensor (a count sketch: Charikar, Chen and Farach-Colton, 2002). So sketches of disjoint
parts add up to that of the whole, and the norm of a difference is about that of the sketches'.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

from pardbg_agent.hooks.comm import groups
from pardbg_agent.hooks.tensors import bits_sum
from pardbg_agent.wire import SKETCH

_SPREAD: Final = 0x9E3779B97F4A7C15 - (1 << 64), 0xD1B54A32D192ED03 - (1 << 64)
"""Odd factors of 64 bits, as int64."""
_MAPPED: Final = 1 << 21
"""Maximum elements of a part whose map of buckets is kept."""
_MAPS: Final = 1 << 23
"""Maximum elements of all maps that are kept: 128 MiB."""
_SOME: Final = 1 << 20
"""Elements mapped at a time in larger parts: 30 MiB of temporaries."""
_AT_ONCE: Final = 1 << 22
"""Elements of several rows that are summed at once on a device."""
Map = tuple[torch.Tensor, torch.Tensor, int]
"""(buckets int64, signs float64, first element) of consecutive elements of a flattened part"""
Seen = tuple[Any, Any]
"""(largest finite magnitude, number of elements that are not finite): numbers, or tensors"""


class Maps:
    """Maps from elements to buckets, shared by layers of one shape."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Any, tuple[torch.Tensor, torch.Tensor]] = OrderedDict()

    def clear(self) -> None:
        """Drop all maps."""
        self._kept.clear()

    def of(self, part: torch.Tensor, shape: Sequence[int], offset: Sequence[int]) -> Iterator[Map]:
        """Yield the maps of a part that begins at ``offset`` of a whole of ``shape``."""
        number, size = part.numel(), tuple(part.shape)
        if number <= _MAPPED:
            if number:
                yield *self._known(part, size, tuple(shape), tuple(offset)), 0
            return
        step = max(1, _SOME * size[0] // number)
        for begin in range(0, size[0], step):
            some = part[begin : begin + step]
            found = bucket_and_sign(mixed(indices(some, begin, shape, offset)))
            yield *found, begin * (number // size[0])

    def _known(
        self, part: torch.Tensor, size: tuple[int, ...], *place: tuple[int, ...]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        key = size, place, part.device
        found = self._kept.get(key)
        if found is None:
            found = bucket_and_sign(mixed(indices(part, 0, *place)))
            self._kept[key] = found
            while sum(len(buckets) for buckets, _ in self._kept.values()) > _MAPS:
                self._kept.popitem(last=False)
        if key in self._kept:
            self._kept.move_to_end(key)
        return found


def sketch(
    maps: Maps, part: torch.Tensor, shape: Sequence[int], offset: Sequence[int]
) -> dict[str, Any]:
    """Return "count", "most", "bad", "bits" and "sketch" of a rank's part, which begins at
    ``offset`` of a tensor of ``shape``. Waits for the device."""
    with torch.no_grad():
        mine = part.detach()
        sums, seen = sketch_rows(maps, mine.unsqueeze(0), shape, offset)
        most, bad = seen or seen_in(mine)
        if bad:
            most = mine.to(torch.float64).nan_to_num(0.0, 0.0, 0.0).abs().amax()
        return {
            "count": mine.numel(), "most": float(most), "bad": int(bad),
            "bits": int(bits_sum(part)) & (1 << 61) - 1 if mine.numel() else 0,
            "sketch": sums.cpu().numpy().tobytes(),
        }  # fmt: skip


def seen_in(values: torch.Tensor) -> Seen:
    """Return the largest magnitude and the number of elements that are not finite, without waiting
    for a device; if there are any, the magnitude may be one of them."""
    if not values.numel():
        return 0.0, 0
    values = values.float() if values.element_size() == 1 else values  # float8 has no order
    low, high = torch.aminmax(values)
    most = torch.maximum(low.abs(), high.abs()).to(torch.float64)
    finite = values.is_cpu and math.isfinite(most)
    return most, 0 if finite else values.isfinite().logical_not_().sum()


def sliced(maps: Maps, part: torch.Tensor, dim: int, parts: int, at: int, blocks: int = 1) -> bytes:
    """Return the sketch of a part that is the ``at``-th of ``parts`` equal slices along ``dim``,
    within each of the whole tensor's ``blocks`` along ``dim``."""
    shape = [n * (parts if d == dim else 1) for d, n in enumerate(part.shape)]
    sums = torch.zeros(1, SKETCH, dtype=torch.float64, device=part.device)
    with torch.no_grad():
        for block, piece in enumerate(part.detach().chunk(blocks, dim)):
            long = piece.shape[dim]
            offset = [(block * parts + at) * long if d == dim else 0 for d in range(part.dim())]
            sums += sketch_rows(maps, piece.unsqueeze(0), shape, offset)[0]
    return sums.cpu().numpy().tobytes()


def sketch_rows(
    maps: Maps, rows: torch.Tensor, shape: Sequence[int], offset: Sequence[int]
) -> tuple[torch.Tensor, Seen | None]:
    """Return the sketch of each of ``rows``, which begins at ``offset`` of a row of ``shape``:
    float64, (rows, SKETCH); and the Seen of all rows from C++, None without C++."""
    own = torch.zeros(len(rows), SKETCH, dtype=torch.float64, device=rows.device)
    quick = _quick(rows) if len(shape) == rows.dim() - 1 <= len(offset) else None
    if quick is not None:
        return own, quick.sketch(rows.contiguous(), shape, offset, own)
    flat = rows.reshape(len(rows), -1)
    for buckets, signs, begin in maps.of(rows[0], shape, offset):
        at_once = 1 if rows.is_cpu else max(1, _AT_ONCE // len(buckets))
        for at in range(0, len(rows), at_once):
            values = flat[at : at + at_once, begin : begin + len(buckets)].to(torch.float64)
            finite = torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
            add_to(own[at : at + at_once], buckets, finite.mul_(signs))
    return own, None


def turned(own: torch.Tensor, hashes: torch.Tensor) -> torch.Tensor:
    """Return the sum of rows' own sketches, each rotated by the hash of its sample."""
    quick = _quick(own)
    if quick is not None:
        sums = torch.zeros(SKETCH, dtype=torch.float64)
        quick.turn(own, hashes.contiguous(), sums)
        return sums
    by, signs = bucket_and_sign(hashes)
    places = torch.arange(SKETCH, device=own.device)
    return (own.gather(1, (places - by.unsqueeze(1)) % SKETCH) * signs.unsqueeze(1)).sum(0)


def _quick(tensor: torch.Tensor) -> Any:
    """Return the C++ module (native/sketch.hpp), if it is loaded and can sketch such tensors."""
    made = groups.PROCESS.module
    return made if made is not None and made.can_sketch(tensor) else None


def add_to(sums: torch.Tensor, buckets: torch.Tensor, values: torch.Tensor) -> None:
    """Add the values of each row (rows, elements) to its buckets (rows, SKETCH)."""
    if sums.is_cpu:  # several times faster; elsewhere it is not deterministic, and may raise
        for row, of in zip(sums, values, strict=True):
            row += torch.bincount(buckets, of, SKETCH)
    else:
        sums.index_add_(1, buckets, values)


def row_hashes(batch: torch.Tensor) -> torch.Tensor:
    """Return a hash of the contents of each row of a batch, int64."""
    with torch.no_grad():
        rows = _as_numbers(batch)
        places = mixed(torch.arange(1, rows.shape[1] + 1, device=rows.device)) | 1
        return mixed((rows * places).sum(1))


def row_sums(batch: torch.Tensor) -> torch.Tensor:
    """Return the sum of hashes of each row's elements, int64: the sums of a row's parts add up to
    the row's, wherever it was cut."""
    with torch.no_grad():
        return mixed(_as_numbers(batch)).sum(1)


def _as_numbers(batch: torch.Tensor) -> torch.Tensor:
    rows = batch.detach().flatten(1) if batch.dim() > 1 else batch.detach().unsqueeze(-1)
    if rows.is_floating_point():
        return rows.to(torch.float64).view(torch.int64)
    return rows.to(torch.int64)


def bucket_and_sign(hashes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the buckets, int64, and the signs, float64, for these (mixed) hashes."""
    return hashes >> 40 & SKETCH - 1, ((hashes >> 50 & 1) * 2 - 1).to(torch.float64)


def indices(
    rows: torch.Tensor, first: int, shape: Sequence[int], offset: Sequence[int]
) -> torch.Tensor:
    """Return the flat indices in the whole tensor of a part's rows from ``first`` on."""
    index = torch.zeros((), dtype=torch.int64, device=rows.device)
    for dim, size in enumerate(rows.shape if shape else ()):
        begin = offset[dim] + (0 if dim else first)
        along = torch.arange(begin, begin + size, device=rows.device)
        index = index.unsqueeze(-1) + along * math.prod(shape[dim + 1 :])
    return index.flatten()


def mixed(index: torch.Tensor) -> torch.Tensor:
    """Return a 64-bit hash of each number."""
    spread = (index + 1) * _SPREAD[0]
    return (spread ^ (spread >> 32)) * _SPREAD[1]
