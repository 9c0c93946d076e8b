"""A process's records as slices of a trace: where each is drawn, its name, its arguments; slices
that overlap are spread over rows in which they nest, which is what trace viewers draw.

Names and whatever many slices share are made once per combination (``heads``); only what differs
from slice to slice is formatted per slice (``bodies``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pardbg.analysis.comm.ops import UNKNOWN_OP, source_of
from pardbg.store.intake import TABLE_NAMES
from pardbg.store.process import Process
from pardbg.store.table import Table
from pardbg_agent.wire import NO_GROUP, Flag

LANES: Final = {
    1: "steps", 2: "phases", 3: "compute", 4: "shards", 5: "collectives", 6: "p2p",
    7: "waits", 8: "issuing", 9: "user", 10: "held", 11: "other", 12: "launches",
}  # fmt: skip
_LANE_OF: Final = {
    "step": 1, "phase": 2, "action": 3, "fsdp": 4, "done": 5, "done_p2p": 6, "wait": 7,
    "issue": 8, "issue_p2p": 8, "span": 9, "held": 10, "launch": 12,
}  # fmt: skip
_NO_SLICES: Final = ("memory", "metric", "reached")
"""Counters; what other tables have, too."""
_RECOMPUTE: Final = int(Flag.RECOMPUTE)
_FAILED: Final = int(Flag.FAILED)


@dataclass(frozen=True, slots=True)
class Slices:
    """Slices of one lane of one process."""

    lane: int
    t0_ns: Array
    t1_ns: Array
    head_of: Array
    """Index into ``heads`` per slice."""
    heads: list[str]
    """``"name":…,"cat":…,"args":{…`` as JSON."""
    bodies: list[str]
    """The rest of the arguments, per slice."""
    is_ops: bool = False


def slices(process: Process, end_ns: int) -> list[Slices]:
    """Return everything with a begin and an end, a lane each; open ops last until ``end_ns``."""
    lanes: dict[int, list[Slices]] = {}
    for part in _parts(process, end_ns):
        lanes.setdefault(part.lane, []).append(part)
    return [_joined(parts) for _, parts in sorted(lanes.items())]


def _joined(parts: list[Slices]) -> Slices:
    if len(parts) == 1:
        return parts[0]
    firsts = np.cumsum([0, *(len(part.heads) for part in parts[:-1])])
    return Slices(
        parts[0].lane,
        np.concatenate([part.t0_ns for part in parts]),
        np.concatenate([part.t1_ns for part in parts]),
        np.concatenate([p.head_of + first for p, first in zip(parts, firsts, strict=True)]),
        [head for part in parts for head in part.heads],
        [body for part in parts for body in part.bodies],
        parts[0].is_ops,
    )


def _parts(process: Process, end_ns: int) -> Iterator[Slices]:
    for name in TABLE_NAMES:
        table = process.table(name)
        if not len(table) or name in _NO_SLICES:
            continue
        if name.startswith(("issue", "done")):
            yield _ops(process, table, _LANE_OF[name], name.startswith("done"))
            open_rows = _open_rows(process, name)
            if len(open_rows):
                done_lane = _LANE_OF[name.replace("issue", "done")]
                yield _open_ops(process, table, open_rows, done_lane, end_ns)
        else:
            yield _plain(process, table, name)


def _plain(process: Process, table: Table, name: str) -> Slices:
    describe = _DESCRIBE.get(name, _named)
    fields = {"action": ("name_id", "stage", "microbatch"), "step": ("step",),
              "wait": ("group_id",)}.get(name, ("name_id", "step"))  # fmt: skip
    head_of, keys = _combined(table, fields)
    heads = [describe(process, name, *key) for key in keys]
    return Slices(
        _LANE_OF.get(name, 11), table.col("t0_ns"), table.col("t1_ns"), head_of, heads,
        _bodies(table, name),
    )  # fmt: skip


def _combined(table: Table, fields: tuple[str, ...]) -> tuple[Array, list[tuple[int, ...]]]:
    columns = [table.col(name).astype(np.int64) for name in fields]
    packed, room = np.zeros(len(table), np.int64), 1
    for column in columns:
        least, span = int(column.min()), int(column.max()) - int(column.min()) + 1
        packed, room = packed * span + (column - least), room * span
    if room >= 1 << 62:  # odd ids: the slow way
        _, first, inverse = np.unique(
            np.stack(columns, axis=1), axis=0, return_index=True, return_inverse=True
        )
    else:
        _, first, inverse = np.unique(packed, return_index=True, return_inverse=True)
    found = zip(*(column[first].tolist() for column in columns), strict=True)
    return inverse.reshape(-1), list(found)


def _bodies(table: Table, name: str) -> list[str]:
    if name == "action":
        return [
            f',"step":{step}'
            + (f',"activation_bytes":{a}' if a else "")
            + (',"recompute":true' if flags & _RECOMPUTE else "")
            for step, a, flags in table.tuples(slice(None), "step", "a", "flags")
        ]
    if name == "step":
        rows = table.tuples(slice(None), "a", "b")
        return [f',"hook_ns":{a},"hook_calls":{b}' for a, b in rows]
    if name == "wait":
        return [f',"seq":{seq}' for seq in table.col("seq").tolist()]
    if name == "fsdp":
        return [f',"bytes":{a}' for a in table.col("a").tolist()]
    return [""] * len(table)


def _ops(process: Process, table: Table, lane: int, done: bool) -> Slices:
    head_of, keys = _combined(table, ("name_id", "group_id", "peer", "microbatch", "flags"))
    heads = [_op_head(process, *key, done=done) for key in keys]
    bodies = [
        f',"seq":{seq},"step":{step},"bytes_in":{a},"bytes_out":{b}'
        for seq, step, a, b in table.tuples(slice(None), "seq", "step", "a", "b")
    ]
    return Slices(lane, table.col("t0_ns"), table.col("t1_ns"), head_of, heads, bodies, done)


def _open_rows(process: Process, name: str) -> Array:
    """Rows of an issue table whose op has no completion."""
    if not name.startswith("issue"):
        return np.empty(0, np.int64)
    issued, done = process.table(name), process.table(name.replace("issue", "done"))
    return np.flatnonzero(~np.isin(_op_keys(issued), _op_keys(done)))


def _op_keys(table: Table) -> Array:
    return table.col("group_id").astype(np.int64) << 32 | table.col("seq").astype(np.int64)


def _open_ops(process: Process, table: Table, rows: Array, lane: int, end_ns: int) -> Slices:
    whole = _ops(process, table, lane, done=True)
    begun = whole.t0_ns[rows]
    bodies = [whole.bodies[row] + ',"completed":false' for row in rows.tolist()]
    ends = np.maximum(begun, end_ns)
    return Slices(lane, begun, ends, whole.head_of[rows], whole.heads, bodies, True)


def _op_head(
    process: Process, name_id: int, group_id: int, peer: int, mb: int, flags: int, *, done: bool
) -> str:
    op = process.ops.get(name_id, UNKNOWN_OP)
    group = process.groups.get(group_id)
    args: dict[str, Any] = {"dtype": op.dtype, "group": group.key if group else f"#{group_id}"}
    words = [op.op]
    if flags & Flag.P2P:
        words.append(f"{'to' if flags & Flag.SEND else 'from'} {peer}")
        args |= {"peer": peer, "tag": op.tag}
        if mb >= 0:
            words.append(f"{op.reduce} mb{mb}".strip())
            args["microbatch"] = mb
    else:
        words.append(group.axis or group.name if group else f"#{group_id}")
        args["reduce"] = op.reduce
    if done:
        args["source"] = source_of(flags)
    if flags & _FAILED:
        args["failed"] = True
    return _head(" ".join(words), "p2p" if flags & Flag.P2P else "collective", args)


def _action(process: Process, _kind: str, name_id: int, stage: int, mb: int) -> str:
    text = f"{stage}{process.name(name_id)}{mb if mb >= 0 else ''}"
    return _head(text, process.name(name_id), {"stage": stage, "microbatch": mb})


def _wait(process: Process, _kind: str, group_id: int) -> str:
    group = process.groups.get(group_id)
    named = "" if group is None and group_id == NO_GROUP else f"#{group_id}"
    return _head("wait", "wait", {"group": group.key if group is not None else named})


def _named(process: Process, kind: str, name_id: int, step: int) -> str:
    return _head(process.name(name_id), kind, {"step": step})


def _head(name: str, category: str, args: dict[str, Any]) -> str:
    return f'"name":{json.dumps(name)},"cat":{json.dumps(category)},"args":{json.dumps(args)[:-1]}'


_DESCRIBE: Final[dict[str, Callable[..., str]]] = {
    "action": _action,
    "step": lambda _process, _kind, step: _head(f"step {step}", "step", {"step": step}),
    "wait": _wait,
}


Array = NDArray[Any]
MAX_ROWS = 16
"""Maximum number of rows; further slices share the last."""


def nesting_rows(begins: Array, ends: Array) -> tuple[Array, list[int]]:
    """Return (order by begin, the row of each in that order).

    In one row a slice begins after the one before it has ended, or lies whole within it.
    """
    order = np.lexsort((-ends, begins))
    t0, t1 = begins[order], ends[order]
    if not bool((t0[1:] < t1[:-1]).any()):
        return order, [0] * len(order)
    return order, _spread(t0.tolist(), t1.tolist())


def _spread(begins: Sequence[int], ends: Sequence[int]) -> list[int]:
    """First row that fits; each row keeps the ends of what is still open in it, innermost last."""
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
