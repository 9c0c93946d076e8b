"""Ranks that others wait for, now or when the job fell apart; deadlocks; ops that never end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from pardbg.analysis.base.asof import View, per_store
from pardbg.analysis.base.control import control_view
from pardbg.analysis.base.holds import was_held
from pardbg.analysis.base.matched import CollectiveRow
from pardbg.analysis.comm.matching import calls, collectives
from pardbg.analysis.comm.p2p import p2p_between
from pardbg.analysis.findings.asked import told
from pardbg.analysis.findings.mismatches import CALL_ADVICE, crossed, mispaired
from pardbg.analysis.findings.reasons import (
    ASLEEP,
    START_LOAD,
    STORE_ADVICE,
    UNKNOWN,
    Reason,
    more_time,
    past,
    reason,
    stays,
)
from pardbg.analysis.findings.shared import (
    Evidence,
    Finding,
    at_row,
    bad_ends,
    first,
    is_transport,
    mismatched,
)
from pardbg.analysis.findings.stuck import first_place, stuck
from pardbg.analysis.hangs.stacks import place
from pardbg.analysis.hangs.standstill import CROWDED, IDLE_CORES, seen
from pardbg.analysis.hangs.waitgraph import (
    PATIENCE_NS,
    Blame,
    PendingOp,
    Wait,
    WaitGraph,
    open_ops,
    wait_graph,
)
from pardbg.analysis.pipeline.pipelines import states
from pardbg.events import fields
from pardbg.words import agreed, duration, ranks_text, waits_text

LONGEST_PATIENCE_NS: Final = 60_000_000_000
START_NS: Final = 10_000_000_000
"""Imports and models take some ranks longer than others."""
GETS_ON_NS: Final = 3_000_000_000
"""A rank whose records go on coming is mentioned after that, if ..."""
UNUSUAL: Final = 5
"""... nobody had to wait a fifth as long in ..."""
LEAST_BEFORE: Final = 8
"""... this number of ops before."""
ENDED_NS: Final = 1_000_000_000
"""A process that has just gone: why is told with its exit code."""
BEFORE_NS: Final = 200_000_000
"""Ops of a hang end, one by one, some time before the first exception is told."""
INTO_NS: Final = 250_000_000
"""Time after a wait began at which both the wait and what led to it are visible."""
STATE_NS: Final = 300_000_000
"""A rank's state is told some times a second."""
_STEPS: Final = 32
_MAX_PLACES: Final = 4
_GETS_ON: Final = "gets on: "


def hangs(view: View) -> Iterable[Finding]:
    """Return what holds ranks up at the cursor; once the job fell apart, what did just before."""
    ended = view.run_end
    if ended is not None and not ended[1]:
        return
    bad, found = bad_ends(view), list[Finding]()
    fell = min((t for _, t, _ in bad), default=None)
    if fell is not None:
        found = list(_at(View(view.store, fell - BEFORE_NS), over=fell))
        if not found and (asked := told(view, bad)) is not None:  # ranks may clean up for seconds
            found = list(_at(View(view.store, asked.t_ns - BEFORE_NS), over=fell))
    if not found and ended is None:
        found = list(_at(view, over=None))
    yield from found


def _at(view: View, *, over: int | None) -> Iterable[Finding]:
    """Return what holds ranks up at the view's cursor. ``over``: when it ended, if it has."""
    if control_view(view).mode != "running":
        return  # held on purpose: who waits for a held rank waits for the debugger
    graph = wait_graph(view)
    if not graph.waits and not graph.issued_by_all and not graph.alone:
        return
    yield from stays(view, graph)
    explained = mismatched(view) | crossed(view).keys()
    apart = any(row.verdict.endswith("mismatch") for row in calls(view))
    missing: dict[tuple[str, str], list[tuple[Blame, Reason]]] = {}
    for blame in graph.blames:
        if any(wait.op.key in explained for wait in blame.waits):
            continue
        if apart and not blame.cycle and _never_made(view, blame):
            continue  # ranks that made other groups: call-mismatch
        if mispaired(view) & set(blame.ranks):
            continue  # a message that does not fit: a finding of its own
        if any(seen(view, rank).held for rank in blame.ranks):
            continue  # at a breakpoint: on purpose
        if blame.cycle:
            yield _deadlock(view, graph, blame, over)
            continue
        late = view.t_ns - blame.since_ns
        taker = _taker(view, graph, blame)
        if taker is not None and (over or late >= _first_ns(view, blame)):
            yield _misaddressed(view, blame.waits[0].op, taker.op, over)
            continue
        if blame.ranks[0] in {rank for rank, _, _ in bad_ends(view)}:
            continue  # how it ended is a finding of its own, and says who waits for it
        if over is None and _just_ended(view, blame.ranks[0]):
            continue  # how it ended is told in a moment
        if _waits_soon(view, blame.ranks[0]):
            continue  # whom it waits for is known in a moment
        why = reason(view, blame.ranks[0])
        sure = why.fault and not _loads(view, blame, why)
        if not sure and _in_op_of_all(graph, blame):
            continue  # it comes when that ends; that it does not is told as that
        if not sure and late < _patience(view, blame, why):
            if not why.gets_on or not _unusual(view, blame):
                continue
            text = "gets on" if why.text == UNKNOWN else f"{_GETS_ON}{why.text}"
            why = replace(why, severity="info", text=text)
        of = why.host or blame.waits[0].op.text
        missing.setdefault((why.kind, of), []).append((blame, why))
    for blamed in missing.values():
        yield _missing(view, blamed, over)
    for ops in graph.issued_by_all:
        if ops[0].key not in explained:
            yield from stuck(view, ops, over)


def _never_made(view: View, blame: Blame) -> bool:
    """The rank that is waited for has no such group."""
    made = view.ranks[blame.ranks[0]].groups.values()
    return blame.waits[0].op.key not in {(group.epoch, group.key) for group in made}


def _loads(view: View, blame: Blame, why: Reason) -> bool:
    """Libraries are loaded with the GIL held, also by a group's first op in the first step."""
    op, process = blame.waits[0].op, view.ranks[blame.ranks[0]]
    first = not op.p2p and not op.seq and not view.visible(process, "step")
    return why.kind == "gil-held" and (op.op.op == "init_process_group" or first)


def _in_op_of_all(graph: WaitGraph, blame: Blame) -> bool:
    """The ranks that are waited for are in an op that all of its ranks have issued."""
    return {op.rank for ops in graph.issued_by_all for op in ops} >= set(blame.ranks)


def _taker(view: View, graph: WaitGraph, blame: Blame) -> Wait | None:
    """Return the wait for a message of the rank that waits in one with somebody else. None where
    messages went that way before: both wait so in a pipeline whenever a rank is late."""
    op = blame.waits[0].op
    edge = (op.rank, op.peer) if op.send else (op.peer, op.rank)
    if op.p2p and any(
        (row.src, row.dst) == edge and row.verdict == "matched" for row in p2p_between(view, *edge)
    ):
        return None
    return next(
        (wait for wait in graph.waits
         if op.p2p and wait.op.p2p and wait.op.send != op.send and wait.missing == (op.rank,)
         and wait.rank not in blame.ranks and wait.op.key == op.key),
        None,
    )  # fmt: skip


def _first_ns(view: View, blame: Blame) -> float:
    """Return how long the first message between two ranks may wait for the other: longer if that
    works."""
    now = seen(view, blame.ranks[0])
    return (START_NS if (now.cpu or 0) >= IDLE_CORES else PATIENCE_NS) * more_time(now)


def _misaddressed(view: View, op: PendingOp, other: PendingOp, over: int | None) -> Finding:
    """A send or receive that names another rank than the one that waits for it."""
    kind = "unpaired-send" if op.send else "unpaired-recv"
    does, waits = ("receive", "receive from") if op.send else ("send", "send to")
    where = place(seen(view, op.rank).frames)
    return Finding(
        kind=kind,
        severity="error" if over else "warning",
        ranks=tuple(sorted((op.rank, other.rank))),
        culprits=(op.rank,),
        group=op.name,
        where=where,
        t_ns=op.since_ns,
        text=f"rank {op.rank} waits in {op.text}, which has no matching {does}, while rank "
        f"{other.rank} waits to {waits} rank {op.rank}: one of them names the wrong "
        f"rank.{_stands(view, (op.rank, other.rank))}",
        advice=_ADVICE[kind],
        evidence=Evidence(op.since_ns + INTO_NS, op.rank, "timeline", op=op.text),
    )


def _patience(view: View, blame: Blame, why: Reason) -> int:
    """Return how long this rank may take. Programs start at their own pace, as long as they work,
    and the slower the fewer cores they get."""
    now = seen(view, blame.ranks[0])
    works = not why.idle or now.in_op  # … for a message on its way
    works &= now.host_load >= CROWDED
    usual = max(patience_ns(view) * (more_time(now) if works else 1), why.patience_ns)
    starting = any(wait.op.call and not wait.op.at_store for wait in blame.waits)
    starting |= _loads(view, blame, why)
    start = START_NS * more_time(now, START_LOAD)
    return round(max(usual, start) if starting and not why.idle else usual)


def _unusual(view: View, blame: Blame) -> bool:
    """Return whether nobody waited nearly as long before in that group or for that rank."""
    op, rank = blame.waits[0].op, blame.ranks[0]
    before: list[int | None] = [
        row.skew_ns for row in collectives(view) if row.key == op.key and row.verdict == "matched"
    ]
    if op.p2p:
        edge = (op.rank, rank) if op.send else (rank, op.rank)
        messages = p2p_between(view, *edge)
        before = [row.waited_ns for row in messages if (row.src, row.dst) == edge]
    known = [ns for ns in before if ns is not None]
    waited = view.t_ns - blame.since_ns
    least = max(GETS_ON_NS, patience_ns(view))
    return len(known) >= LEAST_BEFORE and waited >= max(least, UNUSUAL * max(known))


def _waits_soon(view: View, rank: int) -> bool:
    """The rank stands in an op itself, for less than PATIENCE_NS since who it was waiting for in a
    message has done something."""
    process, now = view.ranks[rank], seen(view, rank)
    if not now.in_op:
        return False
    said = states(view).get(process.proc, {})
    since = fields.integer(said, "open_since_ns", 0) if said.get("open") else 0
    peers = {op.peer for op in open_ops(view, rank, process) if op.p2p and op.peer in view.ranks}
    since = max([since, *(seen(view, peer).moved_ns for peer in peers)])
    return view.t_ns - since < PATIENCE_NS + STATE_NS


def _just_ended(view: View, rank: int) -> bool:
    end = view.proc_end(view.ranks[rank])
    return end is not None and view.t_ns - end[0] < ENDED_NS


def patience_ns(view: View) -> int:
    """Return how long a rank may take before others' wait for it is worth a line: a wait that is
    shorter than a step is no news."""
    steps = []
    for process in view.ranks.values():
        table, visible = view.rows(process, "step")
        part = slice(max(0, visible - _STEPS), visible)
        steps += (table.col("t1_ns")[part] - table.col("t0_ns")[part]).tolist()
    typical = int(median(steps)) if steps else 0
    return max(PATIENCE_NS, min(typical, LONGEST_PATIENCE_NS))


def _missing(view: View, blamed: Sequence[tuple[Blame, Reason]], over: int | None) -> Finding:
    """Ranks that do not come to one op, or of one host, for like reasons."""
    culprits = tuple(sorted(blame.ranks[0] for blame, _ in blamed))
    blame, why = blamed[0]
    if why.host:
        waits = sorted((w for one, _ in blamed for w in one.waits), key=lambda w: w.op.since_ns)
        victims = sorted({rank for one, _ in blamed for rank in one.victims})
        blame = Blame(blame.ranks, tuple(victims), tuple(waits))
    direct = tuple(sorted({wait.rank for wait in blame.waits}))
    indirect = tuple(r for r in blame.victims if r not in direct and r not in culprits)
    op, waited = blame.waits[0].op, (over or view.t_ns) - blame.since_ns
    reasons = sorted({past(why.text) if over else why.text for _, why in blamed})
    texts = [_agreed(text, culprits) for text in reasons[:3]]
    first, *others = _by_op(blame)
    verb = "waited" if over else waits_text(first[1])
    text = (
        f"{ranks_text(first[1])} {verb} {duration(waited)} in {op.text} for "
        f"{ranks_text(culprits)}, which {' or '.join(texts)}."
    )
    for said, ranks in others:
        verb = "waited" if over else waits_text(ranks)
        text += f" {ranks_text(ranks).capitalize()} {verb} in {said}."
    if indirect:
        text += f" {ranks_text(indirect).capitalize()} {waits_text(indirect)} in turn."
    where = why.where
    return Finding(
        kind=why.kind,
        severity="error" if over and _gave_up(view, direct) else why.severity,
        ranks=(*direct, *indirect),
        culprits=culprits,
        group=op.name,
        seq=op.seq,
        where=where,
        t_ns=blame.since_ns,
        text=text,
        advice=why.advice,
        evidence=Evidence(blame.since_ns + INTO_NS, culprits[0], "timeline", op=op.text),
    )


def _by_op(blame: Blame) -> list[tuple[str, list[int]]]:
    """(op, who waits in it), the oldest first; of more than two the rest together."""
    by_op: dict[str, list[int]] = {}
    known: set[int] = set()
    for wait in blame.waits:
        if wait.rank not in known:
            known.add(wait.rank)
            by_op.setdefault(wait.op.text, []).append(wait.rank)
    found = list(by_op.items())
    rest = [rank for _, ranks in found[2:] for rank in ranks]
    return [*found[:2], ("other ops", rest)] if len(found) > 3 else found


def _agreed(text: str, ranks: Sequence[int]) -> str:
    """A reason's words, which may have more than one verb."""
    gets_on = agreed(_GETS_ON, ranks) if text.startswith(_GETS_ON) else ""
    said = gets_on + agreed(text.removeprefix(_GETS_ON), ranks)
    return said if len(ranks) == 1 else said.replace(ASLEEP, " (they sleep or wait there)")


def _gave_up(view: View, ranks: Sequence[int]) -> bool:
    """One of these ranks then ended with a timeout or a lost connection: nobody ended the job."""
    failures = (f for r in ranks for f in view.ranks[r].failures)
    return any(is_transport(failure.text) for failure in failures)


def _deadlock(view: View, graph: WaitGraph, blame: Blame, over: int | None) -> Finding:
    """Ranks that wait for each other, each with its op."""
    kind, culprits = _name(blame)
    sure = not set(blame.ranks) & set(graph.unsure)
    waits = {rank: next(w for w in blame.waits if w.rank == rank) for rank in blame.ranks}
    by_op: dict[str, list[int]] = {}
    for rank, wait in waits.items():
        by_op.setdefault(wait.op.text, []).append(rank)
    parts = [f"{ranks_text(ranks)} in {text}" for text, ranks in by_op.items()]
    text = f"{ranks_text(blame.ranks)} wait for each other: {'; '.join(parts[:6])}."
    if kind == "p2p-tag-mismatch":
        text = _tags_text(*(waits[rank].op for rank in culprits))
    elif kind.startswith("unpaired"):
        wait = waits[culprits[0]]
        verb = "is not received" if wait.op.send else "is not sent"
        text = (
            f"rank {wait.rank} waits in {wait.op.text}, which {verb}: rank {wait.op.peer} is in "
            f"{waits[wait.op.peer].op.text}."
        )
    keys = sorted({wait.op.op.reduce for wait in waits.values() if wait.op.at_store})
    if keys:
        text += f" Nobody is left to set {', '.join(keys[:_MAX_PLACES])}."
    others = tuple(r for r in blame.victims if r not in blame.ranks)
    if others:
        text += f" {ranks_text(others).capitalize()} {waits_text(others)} for them."
    since = blame.since_ns
    where = first_place(view, culprits)
    if where:
        text += _stands(view, culprits)
    return Finding(
        kind=kind,
        severity="error" if sure or over else "warning",
        ranks=(*blame.ranks, *others),
        culprits=culprits,
        group=blame.waits[0].op.name,
        seq=blame.waits[0].op.seq,
        where=where,
        t_ns=since,
        text=text,
        advice=_deadlock_advice(kind, waits.values()),
        evidence=Evidence(since + INTO_NS, culprits[0], "timeline", op=waits[culprits[0]].op.text),
    )


_ADVICE: Final = {
    "deadlock": "Call the groups' ops in the same order on all ranks, or issue one of them with "
    "async_op=True and wait later.",
    "p2p-cycle": "Have one side send first, or use isend/irecv or batch_isend_irecv for both.",
    "p2p-tag-mismatch": "A send pairs with a receive of the same tag only: compare the two calls.",
    "unpaired-recv": "Either there is one receive too many or the send is missing: compare the two "
    "places.",
    "unpaired-send": "Either there is one send too many or the receive is missing: compare the two "
    "places.",
}  # fmt: skip


def _deadlock_advice(kind: str, waits: Iterable[Wait]) -> str:
    if kind == "deadlock" and any(wait.op.at_store for wait in waits):
        return STORE_ADVICE
    return CALL_ADVICE if kind == "deadlock" and any(w.op.call for w in waits) else _ADVICE[kind]


def _name(blame: Blame) -> tuple[str, tuple[int, ...]]:
    """(kind, culprits). Where most ranks of the cycle stand in one op, those who do not are the
    ones that took another order; else nobody can be told from the others."""
    ops = {wait.rank: wait.op for wait in blame.waits}
    p2p = [rank for rank, op in ops.items() if op.p2p]
    crossed = _crossed(ops)
    if crossed:
        return "p2p-tag-mismatch", crossed
    if len(p2p) == len(ops):
        return "p2p-cycle", blame.ranks
    by_op: dict[tuple[object, ...], list[int]] = {}
    for rank, op in ops.items():
        by_op.setdefault((*op.key, op.seq, op.p2p, op.rank if op.p2p else None), []).append(rank)
    skipped = _skipped(blame)
    if skipped:
        return "deadlock", skipped
    most = max(by_op.values(), key=len)
    odd = tuple(sorted(set(blame.ranks) - set(most)))
    if len(p2p) == 1 and ops[p2p[0]].peer in ops and not ops[ops[p2p[0]].peer].p2p:
        op = ops[p2p[0]]
        return f"unpaired-{'send' if op.send else 'recv'}", (op.rank, op.peer)
    return "deadlock", odd if 2 * len(most) > len(ops) else blame.ranks


def _stands(view: View, ranks: Sequence[int]) -> str:
    """`` Rank 0 at a.py:3 in f, rank 1 at …``: where each stands, if they are few."""
    places = [(rank, place(seen(view, rank).frames)) for rank in ranks[:_MAX_PLACES]]
    said = [f"rank {rank} at {where}" for rank, where in places if where]
    return f" {', '.join(said)}." if len(said) > 1 else ""


def _skipped(blame: Blame) -> tuple[int, ...]:
    """Ranks of the cycle that left a set-up call out which the others make: they stand in an op."""
    made = [wait for wait in blame.waits if wait.op.call and not wait.op.at_store]
    missing = {rank for wait in made for rank in wait.missing}
    few = bool(made) and 2 * len(missing) <= len(made[0].op.group.ranks)
    return tuple(sorted(missing & set(blame.ranks))) if few else ()


def _crossed(ops: Mapping[int, PendingOp]) -> tuple[int, ...]:
    """(sender, receiver) of a message that both wait for, under different tags."""
    for rank, op in ops.items():
        other = ops.get(op.peer) if op.p2p and op.send else None
        if other is None or not other.p2p or other.send or other.peer != rank:
            continue
        if other.key == op.key and other.op.tag != op.op.tag:
            return rank, op.peer
    return ()


def _tags_text(send: PendingOp, take: PendingOp) -> str:
    return (
        f"tag mismatch between ranks {send.rank} and {take.rank}: rank {send.rank} sends with tag "
        f"{send.op.tag}, rank {take.rank} receives with tag {take.op.tag}, and neither ends."
    )


MAX_RANKS: Final = 8
LATE_NS: Final = 4_000_000_000
"""On a host with more processes than cores a rank may stand aside for seconds."""


@per_store(lambda view, rank, came_ns, late_ns: (view.ranks[rank].proc, came_ns))
def _why(view: View, rank: int, came_ns: int, late_ns: int) -> Reason:
    """Return what was known of the rank towards the end of the wait. It is past: looked up once."""
    return reason(View(view.store, came_ns - late_ns // 4), rank)


def late(view: View) -> Iterable[Finding]:
    """Per rank, the longest wait for it among the last collectives, if it was worth a line."""
    least = max(LATE_NS, patience_ns(view))
    worst: dict[int, CollectiveRow] = {}
    for row in collectives(view):
        rank, skew = row.last_rank, row.skew_ns
        if row.verdict != "matched" or rank is None or skew is None or skew < least:
            continue
        if was_held(view, first(row), max(row.issued.values())):
            continue
        if rank not in worst or skew > (worst[rank].skew_ns or 0):
            worst[rank] = row
    ordered = sorted(worst.items(), key=lambda item: -(item[1].skew_ns or 0))
    for rank, row in ordered[:MAX_RANKS]:
        others = tuple(a.rank for a in row.arrivals if a.rank != rank)
        came = max(row.issued.values())
        why = _why(view, rank, came, row.skew_ns or 0)
        meanwhile = "" if why.text == UNKNOWN else f" Meanwhile it {past(why.text)}."
        yield Finding(
            kind="late-rank",
            severity="info",
            ranks=others,
            culprits=(rank,),
            group=row.group,
            seq=row.seq,
            t_ns=came,
            first_ns=came - (row.skew_ns or 0),
            where=why.where,
            text=f"rank {rank} came {duration(row.skew_ns or 0)} after the first to {row.op} "
            f"{row.label} #{row.seq}; the others waited for it.{meanwhile}",
            advice="It is over. See in the timeline what the rank did meanwhile.",
            evidence=at_row(row, rank),
        )
