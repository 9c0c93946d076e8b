"""Issued ops of all ranks, with their completions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from pardbg.analysis.base.asof import View, per_view
from pardbg.store.definitions import GroupDef, OpDef
from pardbg.store.process import Process
from pardbg.store.table import Array, Table
from pardbg.words import rank_set
from pardbg_agent import wire

UNKNOWN_OP: Final = OpDef("op", "", "", None, 0)
ISSUED: Final = (
    "name_id", "group_id", "seq", "t0_ns", "a", "b", "peer", "flags", "step", "stage", "microbatch",
)  # fmt: skip
"""Columns of a record of an issued op."""
_SEND: Final = int(wire.Flag.SEND)
_FAILED: Final = int(wire.Flag.FAILED)
_SOURCES: Final = (
    (wire.Flag.DONE_POLLED, "polled"),
    (wire.Flag.DONE_COMPLETED, "completed"),
    (wire.Flag.DONE_DEVICE, "device"),
    (wire.Flag.DONE_WAITED, "waited"),
)


class Issue(NamedTuple):  # many are made for each frame: a dataclass costs four times as much
    """An op as issued by one rank."""

    rank: int
    group: GroupDef
    seq: int
    op: OpDef
    t0_ns: int
    done_ns: int | None
    source: str
    a: int
    b: int
    peer: int
    """Peer; a receive from any rank has it once it is complete, and -1 until then."""
    send: bool
    step: int
    stage: int
    microbatch: int
    failed: bool
    from_any: bool = False
    """Whether the op is a receive that named no sender."""

    @property
    def bytes(self) -> int:
        """Return the larger of input and output, in bytes."""
        return max(self.a, self.b, 0)


@lru_cache(maxsize=1 << 12)
def source_of(flags: int) -> str:
    """Return the source of a completion time; times of different sources are never mixed."""
    return next((name for flag, name in _SOURCES if flags & flag), "")


def done_table(name: str) -> str:
    """Return the name of the table with the completions of a table of issued ops."""
    return "call" if name == "call_begin" else name.replace("issue", "done")


def tail_start(view: View, name: str, rows: int | None) -> int:
    """Return the time since which all ranks issued about ``rows`` ops together; 0: the start."""
    if rows is None:
        return 0
    seen = view.all(name)
    if int(seen.counts.sum()) <= rows:
        return 0
    times = seen.take(("t0_ns",), np.maximum(seen.counts - rows, 0))["t0_ns"]
    if len(times) <= rows:
        return 0
    return int(np.partition(times, len(times) - rows)[len(times) - rows])


def issues(view: View, name: str, since_ns: int) -> list[Issue]:
    """Return the ops of all ranks in table ``issue`` or ``issue_p2p`` since a time."""
    found: list[Issue] = []
    for rank, process in view.having(name):
        table, visible = view.rows(process, name)
        lo = int(np.searchsorted(table.when[:visible], since_ns, side="left"))
        if visible > lo:
            found += issues_at(view, rank, name, np.arange(lo, visible))
    return found


def issues_at(view: View, rank: int, name: str, at: Array) -> Iterable[Issue]:
    """Return a rank's ops in these rows, oldest first.

    Completed ops are cached: they do not change any more, and a frame needs thousands of which few
    are new.
    """
    process, done_name = view.ranks[rank], done_table(name)
    table, kept = process.table(name), view.memo(f"issues {process.proc} {done_name}")
    groups = process.groups
    keys = list(table.tuples(at, "group_id", "seq", "t0_ns"))
    found: list[Issue | None] = [kept.get(key) for key in keys] if kept else [None] * len(keys)
    fresh = [
        i for i, one in enumerate(found)
        if one is None or (one.done_ns or 0) > view.t_ns or one.group is not groups.get(keys[i][0])
    ]  # fmt: skip
    if fresh:
        rows = at[fresh]
        for i, issue in zip(
            fresh, _issues_of(view, rank, process, table, rows, done_name), strict=True
        ):
            found[i] = issue
            if issue.done_ns is not None and keys[i][0] in groups:
                kept[keys[i]] = issue
    return [one for one in found if one is not None]


def _issues_of(
    view: View, rank: int, process: Process, table: Table, part: Array, done_name: str
) -> Iterable[Issue]:
    done = _completions(view, process, done_name, int(table.when[part[0]]))
    rows = table.tuples(part, *ISSUED)
    issue = Issue._make  # half the cost of Issue(...)
    for op_id, gid, seq, t0, a, b, peer, flags, step, stage, mb in rows:
        group = process.groups.get(gid)
        if group is None:
            group = unknown_group(process, gid)
        done_ns, done_flags, source = done.get((gid, seq), (None, 0, wire.NONE))
        yield issue((
            rank, group, seq, process.ops.get(op_id, UNKNOWN_OP), t0, done_ns,
            source_of(done_flags), a, b, source if peer < 0 else peer, bool(flags & _SEND), step,
            stage, mb, bool((flags | done_flags) & _FAILED), peer < 0,
        ))  # fmt: skip


def unknown_group(process: Process, group_id: int) -> GroupDef:
    """Return a stand-in, named by the process's own id, for a group without a definition."""
    name = f"#{group_id}"
    return GroupDef(f"{process.proc}/{name}", name, None, (), "", process.epoch)


def group_label(view: View, group: GroupDef) -> str:
    """Return the group's name, with its ranks if another group of the run has the same name."""
    name = group.axis or group.name
    alike = len(_ranks_by_name(view).get(name, ())) > 1
    return f"{name}[{rank_set(group.ranks)}]" if alike else name


@per_view
def _ranks_by_name(view: View) -> dict[str, set[tuple[int, ...]]]:
    names: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for (epoch, _), known in view.store.groups.items():
        if epoch == view.epoch:
            names[known.axis or known.name].add(known.ranks)
    return names


def is_undefined(group: GroupDef) -> bool:
    """Return whether the group is a stand-in by `unknown_group`, whose members are not known."""
    return not group.ranks and not group.backend and group.name.startswith("#")


def is_unrecorded(process: Process, t_ns: int, now_ns: int) -> bool:
    """Return whether ops that the process issued between ``t_ns`` and ``now_ns`` may be missing:
    its records begin later, recording was off for a time, or its groups were never defined."""
    if process.missed_before and (process.first_ns is None or process.first_ns > t_ns):
        return True
    return bool(process.undefined_groups) or process.unrecorded_since(t_ns, now_ns)


def _completions(
    view: View, process: Process, name: str, since_ns: int
) -> dict[tuple[int, int], tuple[int, int, int]]:
    """Return (group id, seq) -> (completion, flags, peer) of ops completed since a time."""
    table, visible = view.rows(process, name)
    lo = int(np.searchsorted(table.when[:visible], since_ns, side="left"))
    done = table.tuples(slice(lo, visible), "group_id", "seq", "t1_ns", "flags", "peer")
    return {(gid, seq): (t1, flags, peer) for gid, seq, t1, flags, peer in done}
