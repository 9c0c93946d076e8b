"""Boxes of the timeline: spans in a window, found by search on columns, narrow ones merged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.hangs.waitgraph import PATIENCE_NS, open_ops
from pardbg.analysis.memory.sharding import split_name
from pardbg.analysis.pipeline.pipelines import running_action, states
from pardbg.events import fields
from pardbg.store.process import Process
from pardbg.store.store import Store
from pardbg.store.table import Table
from pardbg.words import message
from pardbg_agent import wire


@dataclass(frozen=True, slots=True)
class LaneSpan:
    """Box of the timeline."""

    t0_ns: int
    t1_ns: int
    label: str
    style: str
    """Token of a render style: ``action.F``, ``phase.forward``, ``comm.all_reduce``, ``wait``."""
    number: int = 1
    """Number of narrow spans that the box stands for."""
    is_open: bool = False
    """Whether the box is of an op that has not ended."""


LANES: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("step", ("step",)),
    ("phase", ("phase",)),
    ("recomp.", ("phase",)),
    ("compute", ("action",)),
    ("launch", ("launch",)),
    ("comm", ("done", "done_p2p")),
    ("stands", ("stood",)),
    ("wait", ("wait",)),
    ("fsdp", ("fsdp",)),
    ("user", ("span",)),
    ("gate", ("held",)),
)
"""Lane name -> tables drawn in it."""
_AGAIN: Final = "recomp."
"""Lane of forwards that run again inside a backward; in the lane of phases they would cover it."""
_RECOMPUTE: Final = int(wire.Flag.RECOMPUTE)
MAX_SPANS: Final = 4096
"""Maximum number of boxes per lane, however many spans overlap."""
Rows = slice | NDArray[np.int64]
"""Rows of a table: a slice if they are contiguous, which copies nothing; else indices."""


def lanes(
    store: Store, t0_ns: int, t1_ns: int, columns: int, ranks: Sequence[int] | None = None,
    now_ns: int | None = None,
) -> dict[int, dict[str, tuple[LaneSpan, ...]]]:  # fmt: skip
    """Return {rank: {lane: boxes by begin}} of a window drawn ``columns`` wide, without empty
    lanes. ``now_ns``: the cursor, if the window ends before it.

    Spans narrower than a column are merged with their neighbours in it: the box has the style that
    takes most time there, and the label ``×n``.
    """
    store.settle()
    if t1_ns <= t0_ns or columns <= 0:
        return {}
    found: dict[int, dict[str, tuple[LaneSpan, ...]]] = {}
    view = View(store, t1_ns)
    now = view if now_ns is None or now_ns <= t1_ns else View(store, now_ns)
    for rank, process in view.ranks.items():
        if ranks is None or rank in ranks:
            by_rank = {
                name: _lane(process, name, tables, t0_ns, t1_ns, columns) for name, tables in LANES
            }
            for name, still in _still(now, rank, process):
                begun = [span for span in still if span.t0_ns < min(t1_ns, now.t_ns)]
                by_rank[name] = _with(by_rank[name], begun)
            found[rank] = {name: spans for name, spans in by_rank.items() if spans}
    return found


def _still(now: View, rank: int, process: Process) -> Iterator[tuple[str, list[LaneSpan]]]:
    """Yield (lane, boxes) of what has gone on for long at the cursor: in a hang only the begin of
    an op is recorded, and none of an action; a recording has their later end, too. All records of a
    recording are there: where one rank waits for long, the ops of those that came later are drawn
    as well."""
    if now.ranks.get(rank) is not process:
        return
    patience_ns = 0 if not now.store.live and _is_waited_in(now) else PATIENCE_NS
    ops = [op for op in open_ops(now, rank, process, patience_ns) if not op.call]
    boxes = (
        LaneSpan(op.since_ns, now.t_ns, f"{op.text} …", f"comm.{op.op.op}", is_open=True)
        for op in ops if now.t_ns - op.since_ns >= patience_ns
    )  # fmt: skip
    yield "comm", list(boxes)
    running, said = running_action(now, rank), states(now).get(process.proc, {})
    if running is not None:
        action = running[1]
        box = LaneSpan(action.t0_ns, now.t_ns, action.text, f"action.{action.kind}", is_open=True)
        lane, ended = "compute", False
    else:
        phase, since_ns = fields.text(said, "phase"), fields.integer(said, "since_ns", 0)
        box = LaneSpan(since_ns, now.t_ns, phase, f"phase.{phase}", is_open=True)
        # a phase around actions began before the last of them, when is not known
        lane, ended = "phase", not phase or len(process.table("action")) > 0
    gone = bool(said.get("held")) or now.proc_end(process) is not None
    if not ended and not gone and 0 < box.t0_ns <= now.t_ns - PATIENCE_NS:
        yield lane, [box]


@per_view
def _is_waited_in(view: View) -> bool:
    """Return whether a rank has waited for long at the cursor."""
    oldest = (open_ops(view, rank, process)[:1] for rank, process in view.ranks.items())
    return any(op.since_ns <= view.t_ns - PATIENCE_NS for ops in oldest for op in ops)


def _with(done: tuple[LaneSpan, ...], still: Sequence[LaneSpan]) -> tuple[LaneSpan, ...]:
    """Return the boxes with those that are open at the cursor instead of their later ends."""
    since = {span.t0_ns for span in still}
    known = (span for span in done if span.number > 1 or span.t0_ns not in since)
    return tuple(sorted((*known, *still), key=lambda span: span.t0_ns)) if still else done


def _lane(
    process: Process, lane: str, tables: Sequence[str], t0_ns: int, t1_ns: int, columns: int
) -> tuple[LaneSpan, ...]:
    spans: list[LaneSpan] = []
    for name in tables:
        table = process.table(name)
        rows = _overlapping(table, t0_ns, t1_ns)
        if rows is not None and name == "phase":
            rows = _again(table, rows, lane == _AGAIN)
        if rows is not None and name == "launch":
            rows = _launches(table, rows)
        if rows is not None and name == "stood":
            rows = _longer(table, rows)
        if rows is not None:
            spans += _boxes(process, name, table, rows, t0_ns, t1_ns, columns)
    if len(tables) > 1:
        spans.sort(key=lambda span: span.t0_ns)
    return tuple(spans[:MAX_SPANS])


def _overlapping(table: Table, t0_ns: int, t1_ns: int) -> Rows | None:
    """Return the rows that touch the window, sorted by end; none is longer than ``longest_ns``."""
    when = table.when
    lo = int(np.searchsorted(when, t0_ns, side="left"))
    hi = int(np.searchsorted(when, t1_ns + table.longest_ns, side="right"))
    if lo < hi and int(when[hi - 1]) <= t1_ns:
        return slice(lo, hi)
    rows = np.flatnonzero(table.col("t0_ns")[lo:hi] < t1_ns) + lo
    return rows if len(rows) else None


def _again(table: Table, rows: Rows, wanted: bool) -> Rows | None:
    """Return the rows that are recomputed forwards or, if not ``wanted``, the others."""
    again = (table.col("flags")[rows] & _RECOMPUTE) != 0
    if bool((again == wanted).all()):
        return rows
    every = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
    chosen: NDArray[np.int64] = every[again == wanted]
    return chosen if len(chosen) else None


def _launches(table: Table, rows: Rows) -> Rows | None:
    """Return the launches of actions, else of phases: launches of ops lie inside these."""
    every = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
    lanes = table.col("peer")[every]
    of = wire.Lane.COMPUTE if (lanes == wire.Lane.COMPUTE).any() else wire.Lane.PHASE
    chosen: NDArray[np.int64] = every[lanes == of]
    return chosen if len(chosen) else None


def _longer(table: Table, rows: Rows) -> Rows | None:
    """Return the waits in which a stream stood: for an op that was over it did not."""
    every = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
    chosen: NDArray[np.int64] = every[table.col("t1_ns")[every] > table.col("t0_ns")[every]]
    return chosen if len(chosen) else None


def _boxes(
    process: Process, name: str, table: Table, rows: Rows, t0_ns: int, t1_ns: int, columns: int
) -> list[LaneSpan]:
    begin, end = table.col("t0_ns")[rows], table.col("t1_ns")[rows]
    column = max(1, (t1_ns - t0_ns) // columns)
    wide = end - begin >= column
    place = np.clip(((begin - t0_ns) * columns) // (t1_ns - t0_ns), 0, columns - 1)
    wide |= np.bincount(place, minlength=columns)[place] == 1  # alone in its column
    if not wide.any():
        return _merged(process, name, table, rows, (t0_ns, t1_ns), columns)
    every = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
    boxes = _single(process, name, table, every[wide][:MAX_SPANS])
    if not wide.all():
        boxes += _merged(process, name, table, every[~wide], (t0_ns, t1_ns), columns)
        boxes.sort(key=lambda span: span.t0_ns)
    return boxes


def _single(process: Process, name: str, table: Table, rows: NDArray[np.int64]) -> list[LaneSpan]:
    columns = (table.col(c)[rows].tolist() for c in ("t0_ns", "t1_ns", *_Row._fields))
    boxes = []
    for t0, t1, *rest in zip(*columns, strict=True):
        row = _Row(*rest)
        boxes.append(LaneSpan(t0, t1, _label(process, name, row), _style(process, name, row[0])))
    return boxes


def _merged(
    process: Process, name: str, table: Table, rows: Rows, window: tuple[int, int], columns: int
) -> list[LaneSpan]:
    """Return merged boxes of narrow spans: one per run of equal style in touching columns."""
    begin, end = table.col("t0_ns")[rows], table.col("t1_ns")[rows]
    place = ((np.maximum(begin, window[0]) - window[0]) * columns) // (window[1] - window[0])
    np.clip(place, 0, columns - 1, out=place)
    ids, codes = _coded(table.col("name_id")[rows])
    weight = np.bincount(
        place * len(ids) + codes, weights=end - begin + 1,
        minlength=columns * len(ids),
    ).reshape(columns, len(ids))  # fmt: skip
    filled = np.flatnonzero(weight.sum(axis=1))
    main = weight[filled].argmax(axis=1)
    counts = np.bincount(place, minlength=columns)
    if (place[1:] < place[:-1]).any():
        order = np.argsort(place, kind="stable")
        place, begin, end = place[order], begin[order], end[order]
    cuts = np.searchsorted(place, filled)
    first = np.minimum.reduceat(begin, cuts)
    last = np.maximum.reduceat(end, cuts)
    new_run = np.ones(len(filled), bool)
    new_run[1:] = (main[1:] != main[:-1]) | (np.diff(filled) > 1)
    heads = np.flatnonzero(new_run)
    run_first = np.minimum.reduceat(first, heads).tolist()
    run_last = np.maximum.reduceat(last, heads).tolist()
    run_count = np.add.reduceat(counts[filled], heads).tolist()
    styles = [_style(process, name, int(i)) for i in ids]
    run_style = [styles[code] for code in main[heads].tolist()]
    return [
        LaneSpan(t0, t1, f"×{count}" if count > 1 else "", style, count)
        for t0, t1, count, style in zip(run_first, run_last, run_count, run_style, strict=True)
    ]


def _coded(names: NDArray[np.uint32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (distinct ids, each row's index into them); with too many ids all count as alike."""
    if int(names.max()) < 1 << 16:
        ids = np.flatnonzero(np.bincount(names))
        codes = np.zeros(int(ids[-1]) + 1, np.int64)
        codes[ids] = np.arange(len(ids))
        inverse = codes[names]
    else:
        ids, inverse = np.unique(names, return_inverse=True)
    if len(ids) > 256:
        return ids[:1], np.zeros(len(names), np.int64)
    return ids, inverse


def _style(process: Process, name: str, name_id: int) -> str:
    if name == "action":
        return f"action.{process.name(name_id)}"
    if name == "phase":
        return f"phase.{process.name(name_id)}"
    if name.startswith("done"):
        return f"comm.{process.name(name_id)}"
    if name == "fsdp":
        verb = split_name(process.name(name_id))[1]
        return f"fsdp.{verb.partition(' ')[0] or 'other'}"
    return {"span": "user", "held": "gate", "stood": "wait"}.get(name, name)


class _Row(NamedTuple):
    """Columns of which a box's label is made."""

    name_id: int
    stage: int
    microbatch: int
    step: int
    peer: int
    flags: int
    group_id: int
    seq: int


def _label(process: Process, table: str, row: _Row) -> str:
    if table == "step":
        return f"step {row.step}"
    name, mb = process.name(row.name_id), row.microbatch if row.microbatch >= 0 else ""
    if table == "span":
        return f"{name} c{mb}" if row.microbatch >= 0 else name
    if table == "action" or (table == "launch" and row.stage >= 0):
        return f"{row.stage}{name}{mb}"
    if table == "done":
        group = process.groups.get(row.group_id)
        return f"{name} {group.axis or group.name if group else ''} #{row.seq}"
    if table != "done_p2p":
        return name if row.name_id else ""
    op = process.ops.get(row.name_id)
    verb = op.op if op is not None else "send" if row.flags & wire.Flag.SEND else "recv"
    what = f"{op.reduce}{mb}" if op is not None and row.microbatch >= 0 else ""
    return message(verb, bool(row.flags & wire.Flag.SEND), row.peer, what)


_SEEN_NS: Final = 1_000_000
"""Maximum time from a wait to the record of its completion, in ns."""


Lanes = Mapping[int, Mapping[str, tuple[LaneSpan, ...]]]
"""rank -> lane -> boxes"""


@dataclass(frozen=True, slots=True)
class Spot:
    """Selection of a box in the timeline."""

    rank: int
    lane: str
    t0_ns: int

    def span(self, lanes: Lanes) -> LaneSpan | None:
        """Return the selected box as drawn now: the last one that begins at its time or before."""
        begun = (s for s in lanes.get(self.rank, {}).get(self.lane, ()) if s.t0_ns <= self.t0_ns)
        return max(begun, key=lambda span: span.t0_ns, default=None)


@dataclass(frozen=True, slots=True)
class WaitedFor:
    """Op and rank that a box waited for."""

    op: str
    """Op in words: ``all_reduce dp #43``, ``recv F2 from r1``."""
    bytes: int
    rank: int | None
    """Rank that arrived last, after the waiting rank; None: there was none."""
    came_ns: int | None
    """Arrival of the rank waited for, in ns; None: it has not arrived."""
    late_ns: int
    """Time from the waiting rank's arrival to the other rank's, in ns; without holds."""


def waited_for(snapshot: Snapshot, lanes: Lanes, spot: Spot) -> WaitedFor | None:
    """Return the box's matched op, for a wait the op that delayed it longest; None: not known."""
    rank, lane, span = spot.rank, spot.lane, spot.span(lanes)
    if lane not in ("comm", "stands", "wait") or span is None:
        return None
    found = [
        about
        for begun, done, about in (*_collectives(snapshot, rank), *_messages(snapshot, rank))
        if (begun == span.t0_ns if lane == "comm" else _within(span, begun, done))
    ]
    return max(found, key=lambda about: about.late_ns, default=None)


def _within(span: LaneSpan, begun: int, done: int | None) -> bool:
    """Return whether the op was under way during the wait, and the wait ended with it."""
    return begun <= span.t1_ns and (done is None or span.t0_ns < done <= span.t1_ns + _SEEN_NS)


Found = Iterator[tuple[int, int | None, WaitedFor]]
"""(issued, completed, op and rank waited for) of a rank's ops"""


def _collectives(snapshot: Snapshot, rank: int) -> Found:
    for row in snapshot.collectives:
        own = next((a for a in row.arrivals if a.rank == rank), None)
        if own is None or own.issued_ns is None or own.came_ns is None:
            continue
        op = f"{row.op} {row.label or row.group} #{row.seq}"
        last = max((a for a in row.arrivals if a.came_ns is not None), key=lambda a: a.came_ns or 0)
        about = WaitedFor(op, row.bytes, None, None, 0)
        if row.missing:
            about = WaitedFor(op, row.bytes, row.missing[0], None, snapshot.t_ns - own.issued_ns)
        elif (
            row.skew_ns is not None
            and last.rank != rank
            and (late := (last.came_ns or 0) - own.came_ns) > 0
        ):
            about = WaitedFor(op, row.bytes, last.rank, last.issued_ns, late)
        yield own.issued_ns, own.completed_ns, about


def _messages(snapshot: Snapshot, rank: int) -> Found:
    for row in snapshot.p2p:
        if rank not in (row.src, row.dst):
            continue
        sends = rank == row.src
        own, peers = (row.send_ns, row.recv_ns) if sends else (row.recv_ns, row.send_ns)
        if own is None:
            continue
        peer = row.dst if sends else row.src
        op = message("send" if sends else "recv", sends, peer, row.label)
        late = (snapshot.t_ns if peers is None else peers) - own
        if not sends and row.waited_ns is not None:
            late = row.waited_ns
        if snapshot.run.times == "host" and peers is not None:
            late = 0
        about = WaitedFor(op, row.bytes, peer, peers, late)
        yield own, row.done_ns, about if late > 0 else WaitedFor(op, row.bytes, None, None, 0)
