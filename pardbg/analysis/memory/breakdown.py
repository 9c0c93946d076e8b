"""Memory of each rank by category, beside the size that its ZeRO level implies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.memory.sharding import gathered_peak
from pardbg.analysis.pipeline.in_flight import peak_bytes
from pardbg.store.definitions import FailedRequest, ModelDef
from pardbg.store.process import Process
from pardbg.store.table import Array, Table


@dataclass(frozen=True, slots=True)
class ZeroModel:
    """Sizes of a model's parameters, gradients and optimizer state, and number of their shards."""

    level: int
    """ZeRO level that holds between steps."""
    in_step: int
    """ZeRO level within a step, where units are gathered and kept."""
    shards: int
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    """Bytes of the optimizer state, like all sizes of the whole model."""
    parameters: int = 0
    """Number Φ of parameters; 0: not known."""

    def parts(self, level: int) -> tuple[float, float, float]:
        """Return the bytes of P, G and O on a rank at a ZeRO level."""
        whole = self.parameters_bytes, self.gradients_bytes, self.optimizer_bytes
        cut = level >= 3, level >= 2, level >= 1
        p, g, o = (size / self.shards if is_cut else size
                   for size, is_cut in zip(whole, cut, strict=True))  # fmt: skip
        return p, g, o

    def bytes_at(self, level: int) -> int:
        """Return the bytes of a rank between steps: ZeRO 0: P+G+O; 1: P+G+O/N; 2: P+(G+O)/N; 3:
        (P+G+O)/N."""
        return round(sum(self.parts(level)))


@dataclass(frozen=True, slots=True)
class MemoryRow:
    rank: int
    parameters_bytes: int | None
    gradients_bytes: int | None
    optimizer_bytes: int | None
    activations_bytes: int | None
    """Newest sampled; None if they differ between steps and the newest step was not sampled."""
    activations_peak_bytes: int | None
    unattributed_bytes: int | None
    total_bytes: int | None
    """Bytes allocated on the device, else the resident set size."""
    total_kind: str
    """Kind of ``total_bytes``: ``allocated`` or ``rss``."""
    expected_bytes: int | None
    """Expected bytes of parameters, gradients and optimizer state between steps."""
    history: tuple[tuple[int, int], ...]
    """(t_ns, total bytes), at most 256 points."""
    zero: ZeroModel | None = None
    """Model from which ``expected_bytes`` follows."""
    gathered_peak_bytes: int | None = None
    """Peak bytes of gathered parameters in the last step, if parameters are sharded."""
    activations_least_bytes: int | None = None
    """Least bytes kept by a recent sampled forward; some steps may recompute."""
    limit_bytes: int | None = None
    """Limit of the rank's device, or of its cgroup, shared with others; None: there is none."""
    reserved_bytes: int | None = None
    """Bytes of the device reserved by the allocator; those beyond ``total_bytes`` are unused."""
    peak_bytes: int | None = None
    """Most bytes ever allocated on the device, within steps too."""
    failed: FailedRequest | None = None
    """Last request that the device's allocator could not serve; None: none failed."""
    course: tuple[tuple[str, tuple[tuple[int, int], ...]], ...] = ()
    """(category, (t_ns, bytes) at the times of ``history``) of measured categories."""
    steps: tuple[int, ...] = ()
    """Training step of each point of ``history``; empty if steps do not increase."""


HISTORY: Final = 256
_TAIL_ROWS: Final = 4096
_TOTALS: Final = ("allocated", "rss")
_CATEGORIES: Final = ("parameters", "gradients", "optimizer", "activations")
_STATES_PER_PARAMETER: Final = {
    "adam": 2, "adamw": 2, "nadam": 2, "radam": 2, "adamax": 2, "adadelta": 2,
    "adagrad": 1, "rmsprop": 1, "adafactor": 0, "sgd": 0,
}  # fmt: skip
_BYTES: Final = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_BLOCK: Final = 4096
_LAST: Final = -1
_NO_STEP: Final = 1 << 31
"""Step numbers from which on a record has no step."""
_FEW: Final = 32
Newest = dict[tuple[int, int], tuple[int, int, int]]
"""(name id, stage) -> (newest bytes, its peak, largest value of either so far)"""
Latest = dict[str, tuple[int, int]]
"""name -> (bytes, peak of the step), summed over stages"""


def memory_rows(view: View, kept: Mapping[int, MemoryRow] | None = None) -> tuple[MemoryRow, ...]:
    """Return a row per rank with the newest values at the cursor; rows in ``kept`` are reused."""
    kept = kept or {}
    return tuple(
        kept.get(rank) or _row(view, rank, process) for rank, process in view.ranks.items()
    )


def _row(view: View, rank: int, process: Process) -> MemoryRow:
    latest = latest_bytes(view, process)
    kind = next((name for name in _TOTALS if latest.get(name, (0, 0))[0] > 0), "rss")
    total = latest[kind][0] if kind in latest else None
    parts = [latest.get(n) for n in _CATEGORIES]
    values = [part[0] if part is not None else None for part in parts]
    least, unsampled = _activations_least(view, process, kind)
    values[3] = None if unsampled else values[3]
    counted = values[:3] if kind == "allocated" else values  # between steps A is freed
    known = sum(value for value in counted if value is not None)
    peak = _activations_peak(view, rank, process)
    totals, steps = history(view, process, kind), steps_of(view, process, kind)
    zero = zero_model(process.model, values[2])
    return MemoryRow(
        rank=rank,
        parameters_bytes=values[0],
        gradients_bytes=values[1],
        optimizer_bytes=values[2],
        activations_bytes=peak if values[3] is None and not unsampled else values[3],
        activations_peak_bytes=peak,
        unattributed_bytes=max(0, total - known) if total is not None else None,
        total_bytes=total,
        total_kind=kind,
        expected_bytes=None if zero is None else zero.bytes_at(zero.level),
        history=totals,
        zero=zero,
        gathered_peak_bytes=gathered_peak(view, process),
        activations_least_bytes=least,
        limit_bytes=latest["limit"][0] if "limit" in latest else None,
        reserved_bytes=latest["reserved"][0] if "reserved" in latest else None,
        peak_bytes=latest["allocated"][1] if kind == "allocated" else None,
        failed=_failed(view, process),
        course=_course(view, process, [t_ns for t_ns, _ in totals]),
        steps=steps,
    )


def _failed(view: View, process: Process) -> FailedRequest | None:
    seen = (request for request in process.failed_requests if request.t_ns <= view.t_ns)
    return max(seen, key=lambda request: request.t_ns, default=None)


@per_view
def latest_bytes(view: View, process: Process) -> Latest:
    """Return name -> newest (bytes, peak) as of the cursor."""
    sums: Latest = defaultdict(lambda: (0, 0))
    for (name_id, _stage), (value, peak, _) in _newest(view, process).items():
        name = process.name(name_id)
        sums[name] = (sums[name][0] + value, sums[name][1] + peak)
    return dict(sums)


def _activations_peak(view: View, rank: int, process: Process) -> int | None:
    """Return the peak bytes of activations: by peaks of steps if known, else by values; in a
    pipeline those that the microbatches in flight keep."""
    newest = _newest(view, process)
    found = [top for (i, _), (_, _, top) in newest.items() if process.name(i) == "activations"]
    return sum(found) if found else peak_bytes(view, rank)


def _activations_least(view: View, process: Process, total: str) -> tuple[int | None, bool]:
    """Return the least bytes of activations that one of the last sampled forwards kept, and whether
    they differ and the step of the newest ``total`` was not sampled."""
    table, rows = rows_named(view, process, "activations", _TAIL_ROWS)
    rows = rows[table.col("stage")[rows] < 0]
    if not len(rows):
        return None, False
    values, steps = table.col("a")[rows], table.col("step")
    _, totals = rows_named(view, process, total, _FEW)
    later = bool(len(totals)) and steps[rows[-1]] < steps[totals[-1]] < _NO_STEP
    return int(values.min()), bool(later and np.ptp(values))


@per_view
def _newest(view: View, process: Process) -> Newest:
    table, visible = view.rows(process, "memory")
    cache = view.memo("memory")
    end = table.base + visible
    at = 0
    found: Newest = {
        key: (a, b, max(a, b))
        for key, (t1, a, b) in process.memory_evicted.items()
        if t1 <= view.t_ns
    }
    known = end // _BLOCK * _BLOCK
    while known > 0 and (process.proc, known) not in cache:
        known -= _BLOCK
    if known > 0:
        at, found = known, dict(cache[process.proc, known])
    last: tuple[int, Newest] = cache.get((process.proc, _LAST), (0, {}))
    if at < last[0] <= end:  # of a run that is followed a few rows are new
        at, found = last[0], dict(last[1])
    while at < end:
        stop = min(end, (at // _BLOCK + 1) * _BLOCK)
        _take_rows(found, table, max(0, at - table.base), stop - table.base)
        at = stop
        if at % _BLOCK == 0:
            cache[process.proc, at] = dict(found)
    cache[process.proc, _LAST] = end, found
    return found


def _take_rows(found: Newest, table: Table, lo: int, hi: int) -> None:
    """Add the last (a, b) per (name, stage) of rows lo..hi, and the largest value of either."""
    if hi - lo <= _FEW:
        for *place, of, most in table.tuples(slice(lo, max(lo, hi)), "name_id", "stage", "a", "b"):
            top = found.get((place[0], place[1]), (0, 0, 0))[2]
            found[place[0], place[1]] = of, most, max(of, most, top)
        return
    names, stages, a, b = (table.col(c)[lo:hi] for c in ("name_id", "stage", "a", "b"))
    keys = names.astype(np.int64) << 16 | (stages.astype(np.int64) & 0xFFFF)
    unique, first, inverse = np.unique(keys[::-1], return_index=True, return_inverse=True)
    tops = np.zeros(len(unique), np.int64)
    np.maximum.at(tops, inverse, np.maximum(a, b)[::-1])
    for key, back, top in zip(unique.tolist(), first.tolist(), tops.tolist(), strict=True):
        row = hi - lo - 1 - back
        place = (key >> 16, int(stages[row]))
        before = found.get(place, (0, 0, 0))[2]
        found[place] = (int(a[row]), int(b[row]), max(top, before))


def named(process: Process, name_ids: Array, wanted: str) -> NDArray[np.bool_]:
    """Return a mask of the ids that stand for a name in a process; mostly it has one id."""
    ids = process.ids(wanted)
    return name_ids == ids[0] if len(ids) == 1 else np.isin(name_ids, ids)


@per_view
def history(view: View, process: Process, kind: str) -> tuple[tuple[int, int], ...]:
    """Return (t, bytes) of the total, thinned to HISTORY points."""
    table, rows = _thinned(view, process, kind)
    return tuple(table.tuples(rows, "t1_ns", "a"))


def steps_of(view: View, process: Process, kind: str) -> tuple[int, ...]:
    """Return the step of each point of `history`; empty if a step has several points or none."""
    table, rows = _thinned(view, process, kind)
    steps = table.col("step")[rows].astype(np.int64)
    counts = bool((np.diff(steps) > 0).all()) and not bool((steps >> 31).any())  # none: all ones
    return tuple(steps.tolist()) if counts else ()


def _thinned(view: View, process: Process, kind: str) -> tuple[Table, Array]:
    table, rows = rows_named(view, process, kind, _TAIL_ROWS)
    if len(rows) > HISTORY:
        rows = rows[np.linspace(0, len(rows) - 1, HISTORY).astype(np.int64)]
    return table, rows


def rows_named(view: View, process: Process, name: str, most: int) -> tuple[Table, Array]:
    """Return the memory table, and the indices of its last ``most`` rows with this name."""
    table, visible = view.rows(process, "memory")
    lo = max(0, visible - most)
    return table, np.flatnonzero(named(process, table.col("name_id")[lo:visible], name)) + lo


def _course(
    view: View, process: Process, times: Sequence[int]
) -> tuple[tuple[str, tuple[tuple[int, int], ...]], ...]:
    """Return each category's newest value at these times, summed over stages; one that differs
    between sampled steps (recomputation, lengths) only where it was sampled."""
    table, visible = view.rows(process, "memory")
    tail = slice(max(0, visible - _TAIL_ROWS), visible)
    names, stages, when, values = (table.col(c)[tail] for c in ("name_id", "stage", "t1_ns", "a"))
    found = []
    for category in _CATEGORIES:
        own = named(process, names, category)
        sums, samples = np.zeros(len(times), np.int64), np.zeros(len(times), np.int64)
        at_stages = stages[own]
        one = bool(len(at_stages)) and bool((at_stages == at_stages[0]).all())
        for stage in (at_stages[0],) if one else np.unique(at_stages):
            rows = own if one else own & (stages == stage)
            at = when[rows].searchsorted(times, side="right")
            sums += np.concatenate(([0], values[rows]))[at]
            samples += at
        varies = category == "activations" and one and bool(np.ptp(values[own]))
        known = np.diff(samples, prepend=0) > 0 if varies else samples > 0
        if known.any():
            when_known = np.asarray(times)[known].tolist()
            found.append((category, tuple(zip(when_known, sums[known].tolist(), strict=True))))
    return tuple(found)


def zero_model(model: ModelDef | None, optimizer_bytes: int | None) -> ZeroModel | None:
    """Return the model of a rank's exact bytes between steps; None for an unknown optimizer.

    G is as large as P. ``fully_shard`` without resharding after forward is ZeRO 2 during a step: it
    gathers all parameters and frees them in backward. Between steps it holds (P+G+O)/N;
    ``gathered_peak_bytes`` is what a step gathers beyond that. O follows from the optimizer's
    states per parameter. SGD has none, with momentum one: the measured bytes tell which.
    """
    if model is None or model.zero is None or model.parameters_bytes <= 0:
        return None
    name = model.optimizer.lower()
    if name not in _STATES_PER_PARAMETER:
        return None
    parameters = model.parameters_bytes
    states = _STATES_PER_PARAMETER[name]
    if name == "sgd" and optimizer_bytes and optimizer_bytes * 4 * model.shards > parameters:
        states = 1
    level = 3 if model.parameters_sharded and model.zero else model.zero
    optimizer = states * (model.master_bytes or parameters) + model.master_bytes
    number = parameters // size if (size := _BYTES.get(model.dtype)) else 0
    return ZeroModel(level, model.zero, model.shards, parameters, parameters, optimizer, number)
