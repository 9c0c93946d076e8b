"""Finds ranks whose ops of a group are in another order, or at another pace, than their steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from pardbg.analysis.base.asof import View, per_store
from pardbg.analysis.base.rank_columns import MANY
from pardbg.analysis.base.steps import last_step_end
from pardbg.analysis.comm.matching import collectives, odd_ones
from pardbg.analysis.comm.op_rows import CollectiveRow
from pardbg.analysis.comm.ops import group_label, is_unrecorded
from pardbg.analysis.findings.finding import Candidate, GroupKey, Label
from pardbg.analysis.findings.kinds.value_kinds import (
    Drift,
    StepDrift,
    StepOrder,
    UnequalAveraging,
)
from pardbg.analysis.findings.values.exchanged import PHASES_BACK, SMALL_BYTES, backwards
from pardbg.store.definitions import GroupDef
from pardbg.store.process import Process
from pardbg.store.table import Array
from pardbg_agent import wire

_IN_A_ROW: Final = 8
"""Number of consecutive ops on one side of a step that make an order."""
_MOST_RANKS: Final = 64
"""Maximum number of ranks of a group that are compared."""
_ROUNDS: Final = 4
"""Number of averages of all parameters from which the steps between two are known."""
_STEPS: Final = 8
"""Minimum number of steps of each rank for a pace, and after a step that was odd."""
_ROWS_BACK: Final = 1 << 14
SELDOM_NS: Final = 20_000_000_000
"""Time of the run between two looks at many live ranks, in ns."""
_SEND: Final = int(wire.Flag.SEND)
_EDGE: Final = ("group_id", "name_id", "peer", "flags")
_REDUCE: Final = ("all_reduce", "reduce_scatter", "reduce")


# -- order


def step_orders(view: View) -> Iterable[Candidate]:
    """Find ranks that issue an op on the other side of their optimizer's step than others of the
    group do, while they issue another op on the same side: their order differs, not their steps."""
    groups: dict[GroupKey, list[CollectiveRow]] = defaultdict(list)
    for row in collectives(view):
        if row.verdict == "matched" and row.bytes > SMALL_BYTES:
            groups[row.key].append(row)
    for rows in groups.values():
        by_op: dict[tuple[str, int], list[Mapping[int, int]]] = defaultdict(list)
        for row in rows:
            by_op[row.op, row.bytes].append(row.issued)
        often = {op: issued for op, issued in by_op.items() if len(issued) >= _IN_A_ROW}
        ranks = sorted(rank for rank in rows[-1].issued if rank in view.ranks)[:_MOST_RANKS]
        stepped = {rank: _stepped(view, view.ranks[rank]) for rank in ranks if len(often) > 1}
        if len(stepped) > 1 and all(len(ended) for ended in stepped.values()):
            yield from _unlike_orders(view, rows[-1], often, stepped)


def _unlike_orders(
    view: View, newest_row: CollectiveRow, by_op: Mapping[tuple[str, int], list[Mapping[int, int]]],
    stepped: Mapping[int, Array],
) -> Iterable[Candidate]:  # fmt: skip
    """Find an op in another order. ``by_op``: (op, bytes) -> for each op, rank -> time of issue in
    ns; ``stepped``: rank -> ends of its optimizer's steps in ns."""
    beyond: dict[tuple[str, int], dict[int, int]] = {}
    for op, issued in by_op.items():
        newest = [of for of in issued if stepped.keys() <= of.keys()][-_IN_A_ROW:]
        counts = np.array(
            [ended.searchsorted([of[rank] for of in newest]) for rank, ended in stepped.items()]
        )
        if len(newest) == _IN_A_ROW:
            counts = counts - np.sort(counts, axis=0)[(len(stepped) - 1) // 2]
            if (counts == counts[:, :1]).all():
                beyond[op] = dict(zip(stepped, counts[:, 0].tolist(), strict=True))
    unlike = {op: of for op, of in beyond.items() if len({*of.values()}) > 1}
    if not unlike or len(unlike) == len(beyond):
        return
    (name, num_bytes), of = next(iter(unlike.items()))
    before = tuple(rank for rank, steps in of.items() if steps == min(of.values()))
    after = tuple(rank for rank in of if rank not in before)
    yield Candidate(
        kind="step-order", ranks=tuple(of), culprits=odd_ones(of), t_ns=last_step_end(view),
        group=newest_row.group,
        facts=StepOrder(Label(f"{name} {newest_row.label}"), num_bytes, before, after, _IN_A_ROW),
    )  # fmt: skip


def unequal_averaging(view: View) -> Iterable[Candidate]:
    """Find ranks that average their parameters (local SGD) after unlike numbers of steps: each
    average then mixes parameters of steps that are further apart."""
    groups: dict[GroupKey, list[CollectiveRow]] = defaultdict(list)
    for row in collectives(view):
        if row.verdict == "matched" and row.op == "all_reduce":
            groups[row.key].append(row)
    for rows in groups.values():
        ranks = sorted(rank for rank in rows[-1].issued if rank in view.ranks)[:_MOST_RANKS]
        models = [view.ranks[rank].model for rank in ranks]
        rows = [row for row in rows if row.issued.keys() >= {*ranks}]
        if len(rows) < _ROUNDS or not ranks[1:] or None in models:
            continue
        steps = np.array(
            [_stepped(view, view.ranks[rank]).searchsorted([row.issued[rank] for row in rows])
             for rank in ranks]
        )  # fmt: skip
        begins = np.flatnonzero(np.append(True, np.diff(steps[0]) != 0))
        summed = np.add.reduceat(np.array([row.bytes for row in rows], np.float64), begins)
        beyond = summed - max(model.parameters_bytes for model in models if model is not None)
        rounds = steps[:, begins[(beyond >= 0) & (beyond <= SMALL_BYTES)]][:, -_ROUNDS:]
        every = np.diff(rounds, axis=1)
        if rounds.shape[1] < _ROUNDS or (every != every[:, :1]).any() or every.min() < 1:
            continue
        by_rank = dict(zip(ranks, every[:, 0].tolist(), strict=True))
        if len({*by_rank.values()}) > 1:
            newest = rounds[:, -1].tolist()
            yield Candidate(
                kind="unequal-averaging", ranks=tuple(ranks), culprits=odd_ones(by_rank),
                t_ns=last_step_end(view), group=rows[-1].group,
                facts=UnequalAveraging(tuple(by_rank.items()), min(newest), max(newest)),
            )  # fmt: skip


def _stepped(view: View, process: Process) -> Array:
    _, ended, _ = backwards(view, process, PHASES_BACK, "optimizer")
    return np.sort(ended)


# -- pace


class _Pace(NamedTuple):
    """Numbers of reductions of a rank on a group in each step that is fully recorded."""

    steps: Array
    counts: Array
    """Number of ops in each step."""
    ends: Array
    """Sequence number of the last op in each step."""

    def between(self, low: int, high: int) -> _Pace:
        """Return the steps whose ops lie after ``low`` and up to ``high``."""
        part = slice(*self.ends.searchsorted((low + 1, high + 1)))
        return _Pace(*(column[part] for column in self))


def step_drift(view: View) -> Iterable[Candidate]:
    """Find ranks whose steps drift apart; with many live ranks, for which this takes a third of a
    second, only once in a while."""
    if view.live and len(view.ranks) > MANY:
        return _drifts_lately(view, view.t_ns // SELDOM_NS)
    return _drifts(view)


@per_store(lambda view, moment: (view.epoch, moment))
def _drifts_lately(view: View, moment: int) -> tuple[Candidate, ...]:
    return tuple(_drifts(view))


def _drifts(view: View) -> Iterator[Candidate]:
    """Find ranks whose steps have unlike numbers of reductions: one op of the group then is in
    unlike steps, and gradients of unlike steps are summed."""
    groups: dict[GroupKey, tuple[GroupDef, dict[int, _Pace]]] = {}
    for rank, process in view.ranks.items():
        for group, pace in _paces(view, process):
            _, of = groups.setdefault((group.epoch, group.key), (group, {}))
            if len(of) < _MOST_RANKS:
                of[rank] = pace
    for group, of in groups.values():
        low = max(int(pace.ends[0]) for pace in of.values())
        high = min(int(pace.ends[-1]) for pace in of.values())
        common = {rank: pace.between(low, high) for rank, pace in of.items()}
        if len({pace.ends.tobytes() for pace in common.values()}) > 1:
            yield from _apart(view, group, common)
    yield from _messages_apart(view)


def _paces(view: View, process: Process) -> Iterator[tuple[GroupDef, _Pace]]:
    """Yield (group, pace) of each group on which a rank reduces something in each of its steps.
    Left out are groups with missing records, and groups on which several threads issue ops."""
    table, visible = view.rows(process, "issue")
    part = slice(max(0, visible - _ROWS_BACK), visible)
    of = table.col("group_id")[part]
    ids = [i for i, op in process.ops.items() if op.op in _REDUCE]
    reduces = np.isin(table.col("name_id")[part], ids) & (table.col("a")[part] > SMALL_BYTES)
    for group_id in np.unique(of[reduces]).tolist():
        rows = np.flatnonzero(of == group_id)
        seqs = table.col("seq")[part][rows].astype(np.int64)
        steps = table.col("step")[part][rows].astype(np.int64)[reduces[rows]]
        last = np.flatnonzero(np.diff(steps))
        one_by_one = (np.diff(seqs) == 1).all() and (np.diff(steps)[last] == 1).all()
        if (group := process.groups.get(group_id)) and len(last) > _STEPS and one_by_one:
            at = last[1:]
            yield group, _Pace(steps[at], np.diff(last), seqs[reduces[rows]][at])


_Found = tuple[Drift, tuple[int, ...], Mapping[int, int], int]
"""(kind of drift, culprits, rank -> number, step)"""


Edge = tuple[int, str, int, int, int]
"""(epoch, group key, src, dst, tag)"""


def _messages_apart(view: View) -> Iterator[Candidate]:
    """Find a message that one side left out in one step, while before and since then both sides
    issue as many per step: each message since then is received in place of a later one. A rank
    that leaves out both its messages of a ring is one candidate."""
    sides: dict[Edge, dict[bool, tuple[int, Array]]] = defaultdict(dict)
    for rank, process in view.having("issue_p2p"):
        if not process.lost(view.t_ns) and not is_unrecorded(process, 0, view.t_ns):
            for edge, sends, begin, counts in _by_step(view, rank, process):
                sides[edge][sends] = begin, counts
    found: dict[tuple[str, int, int, int], dict[int, int]] = defaultdict(dict)
    for (_, key, src, dst, _), both in sides.items():
        begin = max(first for first, _ in both.values())
        steps = {sends: counts[begin - first :] for sends, (first, counts) in both.items()}
        at = _differs_once(steps[True], steps[False]) if len(steps) == 2 else None
        if at is not None:
            numbers = {src: int(steps[True][at]), dst: int(steps[False][at])}
            odd = dst if numbers[src] == steps[True][at - 1] else src
            found[key, begin + at, odd, numbers[odd]] |= numbers
    for (key, step, odd, _), numbers in found.items():
        group = next(of for of in view.ranks[odd].groups.values() if of.key == key)
        yield Candidate(
            kind="step-drift", ranks=tuple(sorted(numbers)), culprits=(odd,),
            t_ns=last_step_end(view), group=group.name,
            facts=StepDrift(Label(group_label(view, group)), "messages",
                            tuple(sorted(numbers.items())), step),
        )  # fmt: skip


def _differs_once(sent: Array, received: Array) -> int | None:
    """Return the only step with unlike numbers of messages, if as many are usual around it."""
    at = _differs_at(sent, received)
    if at is None or at < _STEPS:
        return None
    near = np.stack([of[at - _STEPS : at + _STEPS + 1] for of in (sent, received)])
    return at if np.count_nonzero(near != near[0, 0]) == 1 else None


def _by_step(view: View, rank: int, process: Process) -> Iterator[tuple[Edge, bool, int, Array]]:
    """Yield (edge, whether the rank sends, first step, number of messages in each step but the
    first and the newest) of the recent messages; not of receives from any rank."""
    table, visible = view.rows(process, "issue_p2p")
    part = slice(max(0, visible - _ROWS_BACK), visible)
    steps = table.col("step")[part].astype(np.int64)
    if not visible or (num := int(np.ptp(steps)) - 1) < 2 * _STEPS:
        return
    begin = int(steps.min()) + 1
    columns = [table.col(of)[part].astype(np.int64) for of in _EDGE]
    keys = columns[0] << 49 | columns[1] << 17 | (columns[2] & 0xFFFF) << 1  # numbers sort fast
    keys |= columns[3] & _SEND != 0
    _, firsts, of_key = np.unique(keys, return_index=True, return_inverse=True)
    found: dict[tuple[Edge, bool], Array] = {}
    for which, row in enumerate(firsts.tolist()):
        group_id, op_id, peer, flags = (int(column[row]) for column in columns)
        sends, group, op = flags & _SEND, process.groups.get(group_id), process.ops.get(op_id)
        if group is not None and op is not None and peer >= 0:
            ends = (rank, peer) if sends else (peer, rank)
            edge = (group.epoch, group.key, *ends, op.tag), bool(sends)
            at = steps[of_key == which] - begin
            counts = np.bincount(at[(at >= 0) & (at < num)], minlength=num)
            found[edge] = found.get(edge, np.zeros(num, np.int64)) + counts
    yield from ((edge, sends, begin, counts) for (edge, sends), counts in found.items())


def _apart(view: View, group: GroupDef, paces: Mapping[int, _Pace]) -> Iterator[Candidate]:
    if min(len(pace.counts) for pace in paces.values()) < _STEPS:
        return
    newest = {rank: pace.counts[-2 * _STEPS :] for rank, pace in paces.items()}
    usual = {rank: int(np.median(counts)) for rank, counts in newest.items()}
    found: _Found | None = None
    if len({*usual.values()}) == 1:
        found = _since_once(view, paces)
    elif all(_is_regular(counts, usual[rank]) for rank, counts in newest.items()):
        found = "rate", odd_ones(usual), usual, _first_unlike([*paces.values()])
    if found is not None:
        how, culprits, numbers, step = found
        yield Candidate(
            kind="step-drift", ranks=tuple(sorted(paces)), culprits=culprits,
            t_ns=last_step_end(view), group=group.name,
            facts=StepDrift(Label(group_label(view, group)), how, tuple(numbers.items()), step),
        )  # fmt: skip


def _is_regular(counts: Array, usual: int) -> bool:
    return 4 * int(np.count_nonzero(counts == usual)) >= 3 * len(counts)


def _first_unlike(paces: Sequence[_Pace]) -> int:
    """Return the first step in which ranks made unlike numbers of reductions."""
    both = min(len(pace.counts) for pace in paces)
    counts = np.array([pace.counts[:both] for pace in paces])
    return int(paces[0].steps[(counts != counts[0]).any(axis=0).argmax()])


def _since_once(view: View, paces: Mapping[int, _Pace]) -> _Found | None:
    """Return the drift of ranks that reduce like the others in most steps, but not in all."""
    whole = max(paces.values(), key=lambda pace: len(pace.ends))
    less = {rank: pace for rank, pace in paces.items() if not np.array_equal(pace.ends, whole.ends)}
    skipped = [_skipped(view, view.ranks[rank], pace, whole) for rank, pace in less.items()]
    steps = [step for step in skipped if step is not None]
    if len(steps) == len(less):
        return "skips", (*less,), {r: len(pace.ends) for r, pace in paces.items()}, min(steps)
    odd = odd_ones({rank: pace.ends.tobytes() for rank, pace in paces.items()})
    others = next(pace for rank, pace in paces.items() if rank not in odd)
    # A multiple is the sum of others' reductions over several steps, as in DDP's join.
    of = [paces[rank] for rank in odd if not np.isin(paces[rank].ends, others.ends).all()]
    at = _differs_at(of[0].counts, others.counts) if len(of) == len(odd) == 1 else None
    if at is None:
        return None
    numbers = {rank: int(pace.counts[at]) for rank, pace in paces.items()}
    return "once", odd, numbers, int(others.steps[at])


def _skipped(view: View, process: Process, own: _Pace, others: _Pace) -> int | None:
    """Return a rank's first step with the backwards of several, if its steps are a subset of the
    others'. One without data (DDP's join) takes part in reductions without a backward."""
    if not np.isin(own.ends, others.ends).all() or len(own.ends) == len(others.ends):
        return None
    steps = np.sort(backwards(view, process, PHASES_BACK)[2])
    run = steps.searchsorted(own.steps, "right") - steps.searchsorted(own.steps)
    left_out = own.ends.searchsorted(np.setdiff1d(others.ends, own.ends))
    left_out = left_out[left_out < len(run)]
    often = run[left_out] >= 2 * max(1.0, float(np.median(run)))
    return int(own.steps[left_out[0]]) if len(often) and often.all() else None


def _differs_at(own: Array, others: Array) -> int | None:
    """Return the only step, well before the last, with unlike numbers of reductions; else None."""
    both = min(len(own), len(others))
    unlike = np.flatnonzero(own[:both] != others[:both]).tolist()
    return unlike[0] if len(unlike) == 1 and both - unlike[0] > _STEPS else None
