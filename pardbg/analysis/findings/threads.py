"""Two threads of a rank that issue ops on one group: nothing says which of them comes first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.comm.ops import UNKNOWN_OP, group_label
from pardbg.analysis.findings.shared import Evidence, Finding
from pardbg.analysis.hangs.stacks import place
from pardbg.analysis.hangs.standstill import seen
from pardbg.store.process import Process
from pardbg.words import ranks_text
from pardbg_agent import wire

_OTHER: Final = int(wire.Flag.OTHER_THREAD)
_LAST: Final = 2048
"""Ops per rank that are looked at."""
_MAX_TOLD: Final = 4
Key = tuple[int, str]
Ops = Mapping[int, tuple[bool, int, int]]
"""seq -> (by another thread, op's id, when)"""


@per_view
def crossed(view: View) -> dict[Key, Finding]:
    """(epoch, group) -> the first op that some ranks issued by their main thread and others by
    another one, where ranks use the group from both."""
    several = any(process.threads for process in view.ranks.values())
    return dict(_crossed(view)) if several else {}


def thread_order(view: View) -> Iterable[Finding]:
    """One per group."""
    return list(crossed(view).values())[:_MAX_TOLD]


def _crossed(view: View) -> Iterable[tuple[Key, Finding]]:
    groups: dict[Key, dict[int, Ops]] = defaultdict(dict)
    for rank, process in view.ranks.items():
        for key, ops in _ops(view, process).items():
            groups[key][rank] = ops
    for key, by_rank in groups.items():
        both = [r for r, ops in by_rank.items() if len({by for by, _, _ in ops.values()}) > 1]
        times: dict[int, set[bool]] = defaultdict(set)
        for rank in both:
            for seq, (by, _, _) in by_rank[rank].items():
                times[seq].add(by)
        odd = min((seq for seq, by in times.items() if len(by) > 1), default=None)
        if odd is not None:
            yield key, _finding(view, key, odd, {rank: by_rank[rank] for rank in both})


def _ops(view: View, process: Process) -> dict[Key, dict[int, tuple[bool, int, int]]]:
    table, visible = view.rows(process, "issue")
    part = slice(max(0, visible - _LAST), visible)
    columns = (
        table.col(c)[part].tolist() for c in ("group_id", "seq", "flags", "name_id", "t0_ns")
    )
    found: dict[Key, dict[int, tuple[bool, int, int]]] = defaultdict(dict)
    for gid, seq, flags, name_id, t0 in zip(*columns, strict=True):
        group = process.groups.get(gid)
        if group is not None:
            found[group.epoch, group.key][seq] = (bool(flags & _OTHER), name_id, t0)
    return found


def _finding(view: View, key: Key, seq: int, by_rank: Mapping[int, Ops]) -> Finding:
    ranks = tuple(sorted(by_rank))
    did: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        if seq in by_rank[rank]:
            other, op_id, _ = by_rank[rank][seq]
            op = view.ranks[rank].ops.get(op_id, UNKNOWN_OP).op
            did[f"{op} by {'another' if other else 'the main'} thread"].append(rank)
    names = sorted({name for rank in ranks for name in view.ranks[rank].threads})
    group = next(g for g in view.ranks[ranks[0]].groups.values() if (g.epoch, g.key) == key)
    label = group_label(view, group)
    stands = {
        f"{name} at {at}": None
        for rank in ranks for name, frames in seen(view, rank).threads if (at := place(frames))
    }  # fmt: skip
    begun = min(ops[seq][2] for ops in by_rank.values() if seq in ops)
    where = [at for rank in ranks if (at := place(seen(view, rank).frames))]
    return Finding(
        kind="thread-order",
        severity="error",
        ranks=ranks,
        culprits=ranks,
        group=label,
        seq=seq,
        where=where[0] if where else None,
        t_ns=begun,
        first_ns=begun,
        text=f"{ranks_text(ranks)} issue ops on {label} from two threads (MainThread, "
        f"{', '.join(names[:_MAX_TOLD])}), and which one comes first differs: #{seq} is "
        f"{', '.join(f'{what} on {ranks_text(who)}' for what, who in did.items())}."
        f"{' They stand: ' + ', '.join(list(stands)[:_MAX_TOLD]) + '.' if stands else ''}",
        advice="Give each thread a group of its own (new_group), or issue all ops of a group from "
        "one thread.",
        evidence=Evidence(begun, ranks[0], "collectives", op=f"{label} #{seq}"),
    )
