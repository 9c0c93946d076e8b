"""Finds captured tensors that differ from the reference, or between replicas that must be equal."""

from __future__ import annotations

from collections.abc import Iterable

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.losses import newest_ended
from pardbg.analysis.findings.finding import Candidate
from pardbg.analysis.findings.kinds.value_kinds import Diverges
from pardbg.analysis.same.comparison import Sameness, alone, compare
from pardbg.analysis.same.module_rows import is_captured
from pardbg.analysis.same.wholes import USED
from pardbg.store.store import Store


def diverges(view: View) -> Iterable[Candidate]:
    """Find the first captured tensor that differs, once its step has ended."""
    store = view.store
    found, newest = _answer(store), store.rank_procs(None)
    if found is None or found.exit_code != 1 or found.step is None:
        return
    ended = newest_ended(view)
    seen = view.t_ns >= view.end_ns or (ended is not None and ended >= found.step)
    if not (view.live or seen) or view.ranks != newest:
        return
    cause, place = found.hypothesis, found.place
    named = cause.ranks if cause is not None else ()
    yield Candidate(
        kind="diverges", ranks=named or tuple(sorted(newest)),
        culprits=() if cause is None else cause.odd_ranks, t_ns=_end_of(view, found.step),
        facts=Diverges(
            found.step, found.what, found.name, cause,
            found.reason != "replicas-differ" and found.what != USED,
            "" if place is None else place.through,
        ),
        where=(place.source if place is not None else "") or None,
    )  # fmt: skip


def _answer(store: Store) -> Sameness | None:
    """Return the comparison, repeated if more was captured since; None: nothing was captured, or
    ranks are in the middle of a step."""
    of = sum(len(process.tensors) for process in store.rank_procs(None).values()), store.reference
    known: tuple[object, Sameness | None] | None = store.memo.get("sameness")
    if known is None or known[0] != of:
        over = store.run_ends or store.truncated
        if not of[0] or not (over or is_captured(store)):
            return None
        reference = store.reference
        found = alone(store) if reference is None else compare(reference, store)
        known = store.memo["sameness"] = of, found
    return known[1]


def _end_of(view: View, step: int) -> int:
    """Return when the last rank ended the step, in ns."""
    ends = [
        int(table.col("t1_ns")[rows].max())
        for process in view.ranks.values()
        for table, rows in [view.step_rows(process, "step", step)]
        if len(rows)
    ]
    return max(ends, default=view.t_ns)
