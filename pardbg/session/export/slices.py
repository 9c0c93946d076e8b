"""A process's records as slices of a trace: the lane of each, its name, its arguments; overlapping
slices are spread over rows in which they nest, as trace viewers require.

Names and other texts that many slices share are made once per combination (``heads``); only what
differs from slice to slice is formatted per slice (``bodies``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from pardbg.analysis.comm.ops import UNKNOWN_OP, source_of
from pardbg.session.export.gathered import Array, Gathered
from pardbg.store.intake import TABLE_NAMES
from pardbg.store.process import Process
from pardbg.words import message
from pardbg_agent.wire import NO_GROUP, Flag

LANES: Final = {
    1: "steps", 2: "phases", 3: "compute", 4: "shards", 5: "collectives", 6: "p2p",
    7: "waits", 8: "issuing", 9: "user", 10: "held", 11: "other", 12: "launches", 13: "stands",
}  # fmt: skip
_LANE_OF: Final = {
    "step": 1, "phase": 2, "action": 3, "fsdp": 4, "done": 5, "done_p2p": 6, "wait": 7,
    "issue": 8, "issue_p2p": 8, "span": 9, "held": 10, "launch": 12, "stood": 13,
}  # fmt: skip
OP_LANES: Final = (_LANE_OF["done"], _LANE_OF["done_p2p"])
_NO_SLICES: Final = ("memory", "metric", "reached")
"""Record kinds without slices: counters, and kinds contained in other tables."""
_RECOMPUTE: Final = int(Flag.RECOMPUTE)
_FAILED: Final = int(Flag.FAILED)


@dataclass(frozen=True, slots=True)
class Slices:
    """Slices of some processes."""

    who: Array
    """Index of the process, per slice."""
    lane: Array
    t0_ns: Array
    t1_ns: Array
    head_of: Array
    """Index into ``heads`` per slice."""
    heads: list[str]
    """``"name":…,"cat":…,"args":{…`` as JSON."""
    bodies: list[str]
    """Remaining arguments of each slice, as JSON."""


def slices(processes: Sequence[Process], end_ns: int) -> Slices | None:
    """Return slices for all with a begin and an end; open ops last until ``end_ns``. None: none."""
    parts = list(_parts(processes, end_ns))
    if len(parts) < 2:
        return parts[0] if parts else None
    firsts = np.cumsum([0, *(len(part.heads) for part in parts[:-1])])
    return Slices(
        np.concatenate([part.who for part in parts]),
        np.concatenate([part.lane for part in parts]),
        np.concatenate([part.t0_ns for part in parts]),
        np.concatenate([part.t1_ns for part in parts]),
        np.concatenate([p.head_of + first for p, first in zip(parts, firsts, strict=True)]),
        [head for part in parts for head in part.heads],
        [body for part in parts for body in part.bodies],
    )


def gathered(processes: Sequence[Process], name: str) -> tuple[Gathered, Array]:
    """Return a table of these processes' records, and the index of each row's process."""
    tables = [process.table(name) for process in processes]
    there = [at for at, table in enumerate(tables) if len(table)]
    rows = Gathered([(processes[at], tables[at]) for at in there])
    return rows, rows.each(there)


def _parts(processes: Sequence[Process], end_ns: int) -> Iterator[Slices]:
    for name in TABLE_NAMES:
        if name in _NO_SLICES:
            continue
        rows, who = gathered(processes, name)
        if not len(rows):
            continue
        if name.startswith(("issue", "done")):
            done = name.startswith("done")
            yield _ops(rows, who, _LANE_OF[name], done)
            if not done:
                yield from _open_ops(processes, name, rows, who, end_ns)
        else:
            yield _plain(rows, who, name)


def _plain(rows: Gathered, who: Array, name: str) -> Slices:
    describe = _DESCRIBE.get(name, _named)
    fields = {"action": ("name_id", "stage", "microbatch"), "step": ("step",),
              "wait": ("group_id",)}.get(name, ("name_id", "step"))  # fmt: skip
    head_of, keys = rows.combined(*fields)
    heads = [describe(rows.processes[at], name, *key) for at, *key in keys]
    return _slices(rows, who, _LANE_OF.get(name, 11), head_of, heads, _bodies(rows, name))


def _slices(
    rows: Gathered, who: Array, lane: int, head_of: Array, heads: list[str], bodies: list[str]
) -> Slices:
    t0, t1 = rows.col("t0_ns"), rows.col("t1_ns")
    return Slices(who, np.full(len(who), lane), t0, t1, head_of, heads, bodies)


def _bodies(rows: Gathered, name: str) -> list[str]:
    if name == "action":
        return [
            f',"step":{step}'
            + (f',"activation_bytes":{a}' if a else "")
            + (',"recompute":true' if flags & _RECOMPUTE else "")
            for step, a, flags in rows.tuples("step", "a", "flags")
        ]
    if name == "step":
        return [f',"hook_ns":{a},"hook_calls":{b}' for a, b in rows.tuples("a", "b")]
    if name == "wait":
        return [f',"seq":{seq}' for seq in rows.col("seq").tolist()]
    if name == "fsdp":
        return [f',"bytes":{a}' for a in rows.col("a").tolist()]
    return [""] * len(rows)


def _ops(rows: Gathered, who: Array, lane: int, done: bool) -> Slices:
    head_of, keys = rows.combined("name_id", "group_id", "peer", "microbatch", "flags")
    heads = [_op_head(rows.processes[at], *key, done=done) for at, *key in keys]
    bodies = [
        f',"seq":{seq},"step":{step},"bytes_in":{a},"bytes_out":{b}'
        for seq, step, a, b in rows.tuples("seq", "step", "a", "b")
    ]
    return _slices(rows, who, lane, head_of, heads, bodies)


def _open_ops(
    processes: Sequence[Process], name: str, rows: Gathered, who: Array, end_ns: int
) -> Iterator[Slices]:
    """Yield slices of ops that were issued and not completed."""
    name = name.replace("issue", "done")
    open_rows = _without(rows, who, *gathered(processes, name))
    if not len(open_rows):
        return
    whole = _ops(rows, who, _LANE_OF[name], done=True)
    begun = whole.t0_ns[open_rows]
    bodies = [whole.bodies[row] + ',"completed":false' for row in open_rows.tolist()]
    ends, head_of = np.maximum(begun, end_ns), whole.head_of[open_rows]
    yield Slices(who[open_rows], whole.lane[open_rows], begun, ends, head_of, whole.heads, bodies)


def _without(issued: Gathered, of_issued: Array, done: Gathered, of_done: Array) -> Array:
    """Return the rows of issued ops that are not among the completed ones."""
    ids = [(rows.col("group_id").astype(np.int64) << 32 | rows.col("seq").astype(np.int64), who)
           for rows, who in ((issued, of_issued), (done, of_done))]  # fmt: skip
    keys = np.concatenate([key for key, _ in ids])
    _, packed = np.unique(keys, return_inverse=True)
    packed = packed.reshape(-1) + np.concatenate([who for _, who in ids]) * (len(keys) + 1)
    return np.flatnonzero(~np.isin(packed[: len(issued)], packed[len(issued) :]))


def _op_head(
    process: Process, name_id: int, group_id: int, peer: int, mb: int, flags: int, *, done: bool
) -> str:
    op = process.ops.get(name_id, UNKNOWN_OP)
    group = process.groups.get(group_id)
    key, shown = (group.key, group.axis or group.name) if group else (f"#{group_id}",) * 2
    return _op_text(op.op, op.dtype, op.reduce, op.tag, key, shown, peer, mb, flags, done)


@lru_cache(maxsize=4096)
def _op_text(
    op: str, dtype: str, reduce: str, tag: int, key: str, shown: str, peer: int, mb: int,
    flags: int, done: bool,
) -> str:  # fmt: skip
    """Return the JSON head of an op; cached, since ranks that do the same share it."""
    args: dict[str, Any] = {"dtype": dtype, "group": key}
    if flags & Flag.P2P:
        text = message(op, bool(flags & Flag.SEND), peer, f"{reduce}{mb}" if mb >= 0 else "")
        args |= {"peer": peer, "tag": tag} | ({"microbatch": mb} if mb >= 0 else {})
    else:
        text = f"{op} {shown}"
        args["reduce"] = reduce
    if done:
        args["source"] = source_of(flags)
    if flags & _FAILED:
        args["failed"] = True
    return _head(text, "p2p" if flags & Flag.P2P else "collective", args)


def _action(process: Process, _kind: str, name_id: int, stage: int, mb: int) -> str:
    return _action_text(process.name(name_id), stage, mb)


@lru_cache(maxsize=4096)
def _action_text(name: str, stage: int, mb: int) -> str:
    text = f"{stage}{name}{mb if mb >= 0 else ''}"
    return _head(text, name, {"stage": stage, "microbatch": mb})


def _wait(process: Process, _kind: str, group_id: int) -> str:
    group = process.groups.get(group_id)
    named = "" if group is None and group_id == NO_GROUP else f"#{group_id}"
    return _head("wait", "wait", {"group": group.key if group is not None else named})


def _named(process: Process, kind: str, name_id: int, step: int) -> str:
    return _named_text(process.name(name_id) or "step", kind, step)


@lru_cache(maxsize=4096)
def _named_text(name: str, kind: str, step: int) -> str:
    return _head(name, kind, {"step": step})


def _head(name: str, category: str, args: dict[str, Any]) -> str:
    return f'"name":{json.dumps(name)},"cat":{json.dumps(category)},"args":{json.dumps(args)[:-1]}'


_DESCRIBE: Final[dict[str, Callable[..., str]]] = {
    "action": _action,
    "step": lambda _process, _kind, step: _named_text(f"step {step}", "step", step),
    "wait": _wait,
}


MAX_ROWS = 16
"""Maximum number of rows of a lane; further slices share the last row."""


def nesting_rows(begins: Array, ends: Array, apart: Array) -> tuple[Array, Array]:
    """Return (order by begin, the row of each slice in that order), for each number in ``apart``.

    In a row a slice begins after the one before it has ended, or lies within it.
    """
    order = np.lexsort((-ends, begins, apart))
    t0, t1, groups = begins[order], ends[order], apart[order]
    rows = np.zeros(len(order), np.int64)
    overlap = (t0[1:] < t1[:-1]) & (groups[1:] == groups[:-1])
    for group in np.unique(groups[1:][overlap]):
        lo, hi = np.searchsorted(groups, group), np.searchsorted(groups, group, side="right")
        rows[lo:hi] = _spread(t0[lo:hi].tolist(), t1[lo:hi].tolist())
    return order, rows


def _spread(begins: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Return each slice's first row with room; rows keep the ends of slices still open."""
    rows: list[list[int]] = [[]]
    placed = []
    for t0, t1 in zip(begins, ends, strict=True):
        at = next((i for i, row in enumerate(rows) if _fits(row, t0, t1)), len(rows))
        if at == len(rows) < MAX_ROWS:
            rows.append([])
        at = min(at, len(rows) - 1)
        rows[at].append(t1)
        placed.append(at)
    return placed


def _fits(row: list[int], t0: int, t1: int) -> bool:
    while row and row[-1] <= t0:
        row.pop()
    return not row or t1 <= row[-1]
