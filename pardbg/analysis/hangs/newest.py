"""The newest collectives and messages, and older ones in which some rank still stands: of the
hundred groups of a thousand ranks one may hang while the others issue thousands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

import numpy as np

from pardbg.analysis.base.asof import View, per_look, per_store, per_view
from pardbg.analysis.comm.matching import LAST, collectives, ended_alike, match
from pardbg.analysis.comm.op_rows import CollectiveRow, P2PRow
from pardbg.analysis.comm.ops import Issue, issues_at
from pardbg.analysis.comm.p2p import all_fit, p2p_between, p2p_rows
from pardbg.analysis.hangs.waitgraph import TAIL, wait_graph
from pardbg.store.definitions import GroupDef

WHOLE: Final = 20_000
"""Maximum number of ops of an ended run, over all ranks, for which all ops are looked at."""
MOST: Final = 64
"""Maximum number of additional older ops; the newest are left out."""
Key = tuple[tuple[int, str], int]
"""((epoch, group key), seq)"""


@per_look
def standing_collectives(view: View) -> tuple[CollectiveRow, ...]:
    """Return `collectives`, preceded by older ones that some rank has stood in for long."""
    return _with(view, collectives(view), _open(view))


@per_look
def newest_collectives(view: View) -> tuple[CollectiveRow, ...]:
    """Return `standing_collectives` with the last collective of each rank, ended ones included."""
    return _with(view, standing_collectives(view), _issued_last(view))


def _with(
    view: View, rows: tuple[CollectiveRow, ...], more: Iterable[tuple[int, GroupDef, int]]
) -> tuple[CollectiveRow, ...]:
    here = {(row.key, row.seq) for row in rows}
    found: dict[Key, tuple[int, GroupDef]] = {}
    for since_ns, group, seq in more:
        key = (group.epoch, group.key), seq
        if key not in here and len(group.ranks) > 1:
            found[key] = min(
                found.get(key, (since_ns, group)), (since_ns, group), key=lambda of: of[0]
            )
    oldest = sorted(found.items(), key=lambda item: item[1][0])[:MOST]
    made = (_row(view, group, seq) for (_, seq), (_, group) in oldest)
    return (*(row for row in made if row is not None), *rows)


@per_view
def newest_messages(view: View) -> tuple[P2PRow, ...]:
    """Return `p2p_rows`, preceded by older messages between ranks that stand in a message."""
    rows = p2p_rows(view)
    here = {_which(row) for row in rows}
    pairs = {(min(op.rank, op.peer), max(op.rank, op.peer)): op for op in wait_graph(view).met}
    older = chain(*(p2p_between(view, *pair) for pair in list(pairs)[:MOST]))
    return (*(row for row in older if _which(row) not in here), *rows)


@per_store(lambda view: (view.revision, view.t_ns), most=2)
def passed_collectives(view: View) -> tuple[CollectiveRow, ...]:
    """Return the collectives of an ended run, before the newest ones, whose ranks disagreed: their
    backend let them pass, as it does a dtype mismatch."""
    if not _can_be_read(view, "issue"):
        return ()
    return tuple(row for row in collectives(view, None)[:-LAST] if row.verdict != "matched")


@per_store(lambda view: (view.revision, view.t_ns), most=2)
def judged_messages(view: View) -> tuple[P2PRow, ...]:
    """Return `newest_messages`, or all messages of an ended run, as its backend may have let one
    pass that its receiver expected larger. Empty if both sides of each fit."""
    if _can_be_read(view, "issue_p2p"):
        return () if all_fit(view, None) else p2p_rows(view, None)
    return () if all_fit(view) and not wait_graph(view).met else newest_messages(view)


def _can_be_read(view: View, name: str) -> bool:
    """Return whether the run has ended and is small enough for one frame to read all of its ops."""
    return view.run_end is not None and int(view.all(name).counts.sum()) <= WHOLE


def _which(row: P2PRow) -> tuple[object, ...]:
    return row.key, row.src, row.dst, row.tag, row.order


def _issued_last(view: View) -> Iterator[tuple[int, GroupDef, int]]:
    """Yield (time of issue, group, seq) of the newest collective of each rank that has ended, and
    of each live rank unless all ranks have issued it alike."""
    alike = ended_alike(view)
    for process in view.ranks.values():
        table, visible = view.rows(process, "issue")
        if visible > 0:
            gid, seq, t0_ns = (
                int(table.col(name)[visible - 1]) for name in ("group_id", "seq", "t0_ns")
            )
            group = process.groups.get(gid)
            if group is not None and (process.ends or (group.epoch, group.key, seq) not in alike):
                yield t0_ns, group, seq


def _open(view: View) -> Iterator[tuple[int, GroupDef, int]]:
    graph = wait_graph(view)
    for op in (*(wait.op for wait in graph.waits), *chain(*graph.issued_by_all)):
        if not op.p2p and not op.call:
            yield op.since_ns, op.group, op.seq


def _row(view: View, group: GroupDef, seq: int) -> CollectiveRow | None:
    """Return the collective, matched over its known ranks; None if none has a record of it."""
    key, parts = (group.epoch, group.key), dict[int, Issue]()
    reached: dict[int, int] = {}
    for rank in group.ranks:
        if (process := view.ranks.get(rank)) is None:
            continue
        table, visible = view.rows(process, "issue")
        lo = max(0, visible - TAIL)
        of = np.flatnonzero(process.on_group(table.col("group_id")[lo:visible], key))
        seqs = table.col("seq")[lo:visible][of]
        if len(seqs):
            reached[rank] = int(seqs.max())
        for issue in issues_at(view, rank, "issue", lo + of[seqs == seq][:1]):
            parts[rank] = issue
    return match(view, parts, reached) if parts else None
