"""The last collectives and messages, and those before them that some rank is at: of the hundred
groups of a thousand ranks one may hang while the others issue thousands."""

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
"""Ops of all ranks of a run that has ended, of which all are looked at."""
MOST: Final = 64
"""More are left out, the newest first."""
Key = tuple[tuple[int, str], int]
"""((epoch, group key), seq)"""


@per_look
def standing_collectives(view: View) -> tuple[CollectiveRow, ...]:
    """`collectives`, and before them those that somebody stands in for long, oldest first."""
    return _with(view, collectives(view), _open(view))


@per_look
def newest_collectives(view: View) -> tuple[CollectiveRow, ...]:
    """`standing_collectives`, and what each rank issued last: those that have ended, too."""
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
    """`p2p_rows`, and before them what went between ranks that stand in a message both issued."""
    rows = p2p_rows(view)
    here = {_which(row) for row in rows}
    pairs = {(min(op.rank, op.peer), max(op.rank, op.peer)): op for op in wait_graph(view).met}
    older = chain(*(p2p_between(view, *pair) for pair in list(pairs)[:MOST]))
    return (*(row for row in older if _which(row) not in here), *rows)


@per_store(lambda view: (view.revision, view.t_ns), most=2)
def passed_collectives(view: View) -> tuple[CollectiveRow, ...]:
    """Return the collectives before the last ones whose ranks disagreed, of a run that has ended:
    their backend let them pass, as it does other dtypes."""
    if not _can_be_read(view, "issue"):
        return ()
    return tuple(row for row in collectives(view, None)[:-LAST] if row.verdict != "matched")


@per_store(lambda view: (view.revision, view.t_ns), most=2)
def judged_messages(view: View) -> tuple[P2PRow, ...]:
    """Return `newest_messages`, and of a run that has ended all: their backend may have let one
    pass that its receiver expected larger. Empty where the sides of each fit."""
    if _can_be_read(view, "issue_p2p"):
        return () if all_fit(view, None) else p2p_rows(view, None)
    return () if all_fit(view) and not wait_graph(view).met else newest_messages(view)


def _can_be_read(view: View, name: str) -> bool:
    """Return whether the run has ended and a frame can read all of its ops."""
    return view.run_end is not None and int(view.all(name).counts.sum()) <= WHOLE


def _which(row: P2PRow) -> tuple[object, ...]:
    return row.key, row.src, row.dst, row.tag, row.order


def _issued_last(view: View) -> Iterator[tuple[int, GroupDef, int]]:
    """(when, group, seq) of each rank's newest collective: where a rank that has ended stood, and
    of one that runs unless all have issued it alike."""
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
    """The collective, matched over those of its ranks that are known."""
    parts: dict[int, Issue] = {}
    reached: dict[int, int] = {}
    for rank in group.ranks:
        process = view.ranks.get(rank)
        own = [] if process is None else [
            gid for gid, one in process.groups.items()
            if (one.epoch, one.key) == (group.epoch, group.key)
        ]  # fmt: skip
        if process is None or not own:
            continue
        table, visible = view.rows(process, "issue")
        lo = max(0, visible - TAIL)
        of = np.flatnonzero(np.isin(table.col("group_id")[lo:visible], own))
        seqs = table.col("seq")[lo:visible][of]
        if len(seqs):
            reached[rank] = int(seqs.max())
        for issue in issues_at(view, rank, "issue", lo + of[seqs == seq][:1]):
            parts[rank] = issue
    return match(view, parts, reached) if parts else None
