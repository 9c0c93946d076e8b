"""Sends paired with their receives by (group, src, dst, tag, order)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.base.holds import unheld_ns
from pardbg.analysis.base.spans import Span, enclosing
from pardbg.analysis.base.times import are_launches
from pardbg.analysis.comm.op_rows import P2PRow, Verdict
from pardbg.analysis.comm.ops import Issue, issues, issues_at, tail_start
from pardbg_agent import wire

LAST: Final = 200
_MARGIN: Final = 2
"""Factor of ops read ahead, as the oldest pairs of a tail are incomplete."""
MISSING_AFTER_NS: Final = 1_000_000_000
Edge = tuple[int, str, int, int, int]
"""(epoch, group key, src, dst, tag)"""
Pair = tuple[int, Edge, int, Issue | None, Issue | None]
"""(first issue, edge, order, send, receive)"""
_TRANSFERS: Final = 480
"""Least number of pairs searched for, so that a view searches only once."""
_BY_STEP: Final = 1 << 20
"""Factor in an order counted within a step (after lost records): step * this + number."""


@per_view
def p2p_rows(view: View, last: int | None = LAST) -> tuple[P2PRow, ...]:
    """Return the last point-to-point pairs as of the cursor, oldest first; ``last=None``: all."""
    return _rows(view, _newest(view, last))


def all_fit(view: View, last: int | None = LAST) -> bool:
    """Return whether the sides of each recent pair agree on size and dtype, as in a healthy run:
    then no row of `p2p_rows` is needed to find misfits."""
    return not any(s and r and _misfit(s, r) for *_, s, r in _newest(view, last))


class Transfer(NamedTuple):
    """A message that arrived as it was sent, with both sides known."""

    src: int
    dst: int
    bytes: int
    group: str
    send_ns: int
    done_ns: int
    moving_ns: int
    """Time from both sides being posted to completion, in ns; without holds."""


def transfers(view: View, last: int) -> Iterator[Transfer]:
    """Yield messages among the last point-to-point pairs, at most 480, oldest first, but for those
    whose completion a poll saw: their times of arrival are not known."""
    for _, edge, _, send, recv in _newest(view, _TRANSFERS)[-last:]:
        if not send or not recv or recv.done_ns is None or recv.source == "polled":
            continue
        if _verdict(view, send, recv) == "matched":
            moving = _moving(view, send, recv, recv.done_ns) or 0
            name = send.group.axis or send.group.name
            yield Transfer(edge[2], edge[3], send.bytes, name, send.t0_ns, recv.done_ns, moving)


def _newest(view: View, last: int | None) -> Sequence[Pair]:
    if last is not None and last < _TRANSFERS:
        return _newest(view, _TRANSFERS)[-last:]
    found: Sequence[Pair] = _pairs_since(view, last)
    return found


@per_view
def _pairs_since(view: View, last: int | None) -> Sequence[Pair]:
    """Return the last pairs, read from as many ops as these may need."""
    rows = None if last is None else 2 * _MARGIN * last + 64
    start = tail_start(view, "issue_p2p", rows)
    pairs = _paired(view, issues(view, "issue_p2p", start), start)
    return pairs if last is None else pairs[-last:]


@per_view
def p2p_between(view: View, one: int, other: int) -> tuple[P2PRow, ...]:
    """Return the last messages between two ranks in both directions, oldest first; with a thousand
    ranks these need not be among the run's last."""
    tables = {
        rank: view.rows(view.ranks[rank], "issue_p2p")
        for rank in (one, other) if rank in view.ranks
    }  # fmt: skip
    begins = (int(t.when[max(0, seen - 2 * LAST)]) for t, seen in tables.values() if seen)
    start = min(begins, default=view.t_ns)
    parts: list[Issue] = []
    for rank, (table, seen) in tables.items():
        rows = np.arange(int(table.when[:seen].searchsorted(start)), seen)
        ops = issues_at(view, rank, "issue_p2p", rows)
        parts += [op for op in ops if op.peer == (other if rank == one else one)]
    return _rows(view, _paired(view, parts, start)[-LAST:])


def _paired(view: View, parts: Sequence[Issue], start: int) -> list[Pair]:
    """Return the pairs of ``parts``: all ops that ranks at either end issued since ``start``."""
    before = _Before(view, start)
    sends, receives = _by_edge(parts)
    pairs: list[Pair] = []
    for edge in sends.keys() | receives.keys():
        numbered_sends = _numbered(view, edge, sends.get(edge, ()), before)
        numbered_receives = _numbered(view, edge, receives.get(edge, ()), before)
        for order in numbered_sends.keys() | numbered_receives.keys():
            send, receive = numbered_sends.get(order), numbered_receives.get(order)
            first = min(i.t0_ns for i in (send, receive) if i is not None)
            pairs.append((first, edge, order, send, receive))
    return sorted(pairs, key=lambda pair: pair[:3])


def _rows(view: View, pairs: Sequence[Pair]) -> tuple[P2PRow, ...]:
    spans = _spans(view, [i for *_, send, recv in pairs for i in (send, recv) if i is not None])
    gaps = {edge: _has_gaps(view, edge) for edge in {pair[1] for pair in pairs}}
    return tuple(
        _row(view, edge, order % _BY_STEP if gaps[edge] else order, send, recv, spans)
        for _, edge, order, send, recv in pairs
    )


def _spans(view: View, parts: Sequence[Issue]) -> dict[int, Span]:
    """Return id(op) -> span of the program around the op."""
    by_rank: dict[int, list[Issue]] = defaultdict(list)
    for issue in parts:
        by_rank[issue.rank].append(issue)
    found: dict[int, Span] = {}
    for rank, ops in by_rank.items():
        for op, span in zip(ops, enclosing(view, rank, [op.t0_ns for op in ops]), strict=True):
            if span is not None:
                found[id(op)] = span
    return found


def _by_edge(parts: Sequence[Issue]) -> tuple[dict[Edge, list[Issue]], dict[Edge, list[Issue]]]:
    sends: dict[Edge, list[Issue]] = defaultdict(list)
    receives: dict[Edge, list[Issue]] = defaultdict(list)
    for issue in parts:
        if issue.peer < 0:  # a receive from anybody that nothing has come to yet
            continue
        ends = (issue.rank, issue.peer) if issue.send else (issue.peer, issue.rank)
        edge = (issue.group.epoch, issue.group.key, *ends, issue.op.tag)
        (sends if issue.send else receives)[edge].append(issue)
    return sends, receives


class _Before:
    """Counts of each rank's ops issued before a time, by edge and side."""

    def __init__(self, view: View, t_ns: int) -> None:
        self._view, self._t_ns = view, t_ns
        self._ranks: dict[int, dict[tuple[str, bool, int, int], int]] = {}

    def number(self, edge: Edge, issue: Issue) -> int:
        counts = self._ranks.get(issue.rank)
        if counts is None:
            counts = self._ranks[issue.rank] = _counts(
                self._view, issue.rank, "issue_p2p", self._t_ns
            )
        return counts.get((edge[1], issue.send, issue.peer, edge[4]), 0)


def _counts(
    view: View, rank: int, name: str, before_ns: int
) -> dict[tuple[str, bool, int, int], int]:
    """Return (group key, send, peer, tag) -> number of rows in a rank's table before a time."""
    process = view.ranks[rank]
    row = int(process.table(name).when.searchsorted(before_ns, side="left"))
    counts: dict[tuple[str, bool, int, int], int] = defaultdict(int)
    for key, number, _ in process.totals(name).as_of(row):
        group, op = process.groups.get(key.group_id), process.ops.get(key.name_id)
        if group is not None and op is not None:
            counts[group.key, key.send, key.peer, op.tag] += number
    return counts


def _numbered(view: View, edge: Edge, parts: Sequence[Issue], before: _Before) -> dict[int, Issue]:
    """Return order -> op, counted from the run's start; if a side lost records, within the step,
    since a lost record would shift all later pairs."""
    if not parts:
        return {}
    if _has_gaps(view, edge):
        return _numbered_by_step(parts)
    if any(issue.from_any for issue in parts):
        # A receive from any rank is matched by its completion, not by its issue.
        parts = sorted(parts, key=lambda issue: (issue.done_ns is None, issue.done_ns or 0))
        first = _completed_before(view, edge, parts[0])
    else:
        first = before.number(edge, parts[0])
    return {first + i: issue for i, issue in enumerate(parts)}


def _has_gaps(view: View, edge: Edge) -> bool:
    return any(_lost_records(view, rank) for rank in edge[2:4])


@per_view
def _lost_records(view: View, rank: int) -> bool:
    process = view.ranks.get(rank)
    if process is None:
        return False
    lost = process.lost(None) or process.missed_before
    known = not lost and not process.unrecorded_since(0, view.t_ns)
    return not known or process.totals("issue_p2p").overflowed


def _numbered_by_step(parts: Sequence[Issue]) -> dict[int, Issue]:
    counts: dict[int, int] = defaultdict(int)
    numbered = {}
    for issue in parts:
        numbered[issue.step * _BY_STEP + counts[issue.step]] = issue
        counts[issue.step] += 1
    return numbered


def _completed_before(view: View, edge: Edge, first: Issue) -> int:
    """Return the number of the edge's receives that completed before ``first``."""
    counts = _counts(view, first.rank, "done_p2p", first.done_ns or view.t_ns)
    return counts.get((edge[1], first.send, first.peer, edge[4]), 0)


def _row(
    view: View, edge: Edge, order: int, send: Issue | None, recv: Issue | None,
    spans: Mapping[int, Span],
) -> P2PRow:  # fmt: skip
    issue = send if send is not None else recv
    assert issue is not None
    sent_in, taken_in = spans.get(id(send)), spans.get(id(recv))
    done = recv.done_ns if recv is not None else send.done_ns if send is not None else None
    num_bytes = send.bytes if send is not None else issue.bytes
    return P2PRow(
        group=issue.group.axis or issue.group.name,
        src=edge[2],
        dst=edge[3],
        order=order,
        tag=edge[4],
        bytes=num_bytes,
        label=_label(send, recv) or _chunk_span(sent_in, taken_in),
        send_ns=send.t0_ns if send is not None else None,
        recv_ns=recv.t0_ns if recv is not None else None,
        done_ns=done,
        verdict=_verdict(view, send, recv),
        waited_ns=None if are_launches(view) else _waited(view, send, recv),
        moving_ns=_moving(view, send, recv, done),
        sides=((send.bytes, send.op.dtype), (recv.bytes, recv.op.dtype)) if send and recv else None,
        phase=sent_in.name if sent_in is not None else "",
        part=sent_in.part if sent_in is not None else 0,
        parts=sent_in.parts if sent_in is not None else 0,
        chunk=sent_in.chunk if sent_in is not None else wire.NONE,
        key=edge[:2],
        polled=(issue if recv is None else recv).source == "polled",
    )


def _waited(view: View, send: Issue | None, recv: Issue | None) -> int | None:
    """Return how long the receive was posted while the sender had yet to send, in ns."""
    if send is None or recv is None:
        return None
    return max(0, unheld_ns(view, send.rank, recv.t0_ns, max(recv.t0_ns, send.t0_ns)))


def _moving(view: View, send: Issue | None, recv: Issue | None, done_ns: int | None) -> int | None:
    if send is None or recv is None:
        return None
    begun = max(send.t0_ns, recv.t0_ns)
    end = max(begun, view.t_ns if done_ns is None else done_ns)
    return max(0, unheld_ns(view, recv.rank, begun, end))


def _chunk_span(sent_in: Span | None, taken_in: Span | None) -> str:
    """Return the text of the span that has the chunk: the sender's, since the receiver's may be
    about its own send."""
    if sent_in is not None:
        return sent_in.text
    return taken_in.name if taken_in is not None else ""


def _verdict(view: View, send: Issue | None, recv: Issue | None) -> Verdict:
    if send is None or recv is None:
        issue = send if send is not None else recv
        other = view.ranks.get(issue.peer) if issue is not None else None
        if issue is None or issue.done_ns is not None or other is None or other.lost(None):
            return "incomplete"  # completed: only the other side's record is missing
        waited = unheld_ns(view, issue.peer, issue.t0_ns, view.t_ns) >= MISSING_AFTER_NS
        gone = view.proc_end(other) is not None
        return "missing rank" if waited or gone else "incomplete"
    if misfit := _misfit(send, recv):
        return misfit
    return "matched" if recv.done_ns is not None else "incomplete"


def _misfit(send: Issue, recv: Issue) -> Verdict | None:
    if send.op.dtype and recv.op.dtype and send.op.dtype != recv.op.dtype:
        return "dtype mismatch"  # first: sizes follow from it
    return "size mismatch" if send.bytes != recv.bytes else None


def _label(send: Issue | None, recv: Issue | None) -> str:
    """Return ``F4`` if the pipeline labelled the op with stage and microbatch; else empty."""
    for issue in (send, recv):
        if issue is not None and issue.microbatch != wire.NONE:
            return f"{issue.op.reduce}{issue.microbatch}"
    return ""


@dataclass(frozen=True, slots=True)
class Move:
    """A message of a collective that the program writes in sends and receives."""

    src: int
    dst: int
    chunk: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RingStep:
    """Progress of a collective made of messages: the step of the rank furthest behind."""

    phase: str
    part: int
    parts: int
    moves: tuple[Move, ...]
    """Message of each rank in this step, by sender."""
    slowest: tuple[int, int] | None
    """Edge whose messages take longest from both sides being posted to completion (median)."""
    slowest_bps: float | None  # of that edge, while a message is on it
    film: tuple[tuple[str, tuple[Move, ...]], ...] = ()
    """(phase, messages) of all parts up to this one; empty if an earlier one is not known."""


def ring_step(rows: Sequence[P2PRow]) -> RingStep | None:
    """Return the progress of the newest collective made of messages; None if there is none.

    Ranks run up to a step apart from their neighbours. The step is that of the rank furthest
    behind: all others have passed it, so its row of moves is complete.
    """
    labelled = [row for row in rows if row.parts > 0 and row.chunk >= 0 and row.send_ns is not None]
    newest = {row.src: row for row in sorted(labelled, key=_sent)}
    if not newest:
        return None
    behind = min(newest.values(), key=_sent)
    same = [row for row in labelled if _place(row) == _place(behind)]
    moves = {row.src: row for row in sorted(same, key=_sent)}
    slowest, speed = _slowest(labelled)
    return RingStep(
        phase=behind.phase,
        part=behind.part,
        parts=behind.parts,
        moves=tuple(Move(r.src, r.dst, r.chunk, r.bytes) for _, r in sorted(moves.items())),
        slowest=slowest,
        slowest_bps=speed,
        film=_film(labelled, behind),
    )


def _film(labelled: Sequence[P2PRow], last: P2PRow) -> tuple[tuple[str, tuple[Move, ...]], ...]:
    """Return the parts of ``last``'s collective: each sender's newest run, from the first on."""
    found: dict[int, dict[int, P2PRow]] = defaultdict(dict)
    awaited = {row.src: last.part for row in labelled}
    for row in sorted(labelled, key=_sent, reverse=True):
        if row.group == last.group and row.part == awaited[row.src] > 0:
            found[row.part][row.src] = row
            awaited[row.src] -= 1
    if any(awaited.values()):
        return ()
    return tuple(
        (found[part][last.src].phase,
         tuple(Move(r.src, r.dst, r.chunk, r.bytes) for _, r in sorted(found[part].items())))
        for part in range(1, last.part + 1)
    )  # fmt: skip


def _sent(row: P2PRow) -> int:
    return row.send_ns or 0


def _place(row: P2PRow) -> tuple[str, str, int, int]:
    return row.group, row.phase, row.part, row.parts


def _slowest(rows: Sequence[P2PRow]) -> tuple[tuple[int, int] | None, float | None]:
    """Return (edge, bytes/s) of the edge with the lowest median rate."""
    speeds: dict[tuple[int, int], list[float]] = defaultdict(list)
    for row in rows:
        taken = row.transfer_ns
        if taken:
            speeds[row.src, row.dst].append(row.bytes * 1e9 / taken)
    if len(speeds) < 2:
        return None, None
    edge = min(speeds, key=lambda e: median(speeds[e]))
    return edge, median(speeds[edge])
