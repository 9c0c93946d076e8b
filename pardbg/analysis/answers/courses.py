"""How each rank's last steps went: what of a step it computed, waited, and moved data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from pardbg.analysis.answers.step_times import Split, pipeline_of, pipeline_split, split_of
from pardbg.analysis.base.asof import View
from pardbg.analysis.base.intervals import Interval
from pardbg.analysis.base.steps import last_step_rows
from pardbg.analysis.base.times import are_launches
from pardbg.analysis.comm.matching import matched_in
from pardbg.analysis.comm.op_rows import CollectiveRow
from pardbg.analysis.comm.overlap import ops_by_rank

LAST: Final = 64
SOON: Final = 8
"""Steps that are split where others are known or can wait."""
MANY: Final = 128
"""Number of ranks above which there are none: the mesh shows so many."""
_OPEN: Final = 2
"""Newest steps: records of these may still be on their way."""
_KEPT: Final = 4 * LAST
"""Steps of a rank that are kept: a recording's cursor goes back and forth."""
_MAX_ISSUES: Final = 1 << 18


class Course(NamedTuple):
    """Fractions of one step of a rank; what is none of them is its host's other code."""

    step: int
    compute: float
    wait: float
    comm: float


def rank_courses(
    view: View, ranks: Collection[int] | None, most: int = LAST
) -> dict[int, tuple[Course, ...]]:
    """Return rank -> its last LAST steps, oldest first, at most ``most`` of them split anew; of
    ``ranks`` (None: all). Empty where the times are the host's of a run on a device."""
    if are_launches(view) or len(view.ranks) > MANY:
        return {}
    memo = view.memo("courses")
    spans: dict[int, dict[int, Interval]] = {}
    lacking: dict[int, dict[int, Interval]] = {}
    for rank, process in view.ranks.items():
        if ranks is None or rank in ranks:
            ended = {s: (t0, t1) for s, t0, t1 in last_step_rows(view, process, LAST)}
            open_, kept = list(ended)[-_OPEN:], memo.setdefault(process.proc, {})
            new = [s for s, span in ended.items() if s in open_ or (s, span) not in kept]
            spans[rank], lacking[rank] = ended, {s: ended[s] for s in new[-most:]}
    made = _split(view, lacking)
    found: dict[int, tuple[Course, ...]] = {}
    for rank, ended in spans.items():
        known: dict[tuple[int, Interval], Split | None] = memo[view.ranks[rank].proc]
        all_ = {(s, span): made[rank][s] for s, span in lacking[rank].items()}
        known |= {at: all_[at] for at in all_ if at[0] in list(ended)[:-_OPEN]}
        for old in list(known)[: max(0, len(known) - _KEPT)]:
            del known[old]
        splits = ((s, all_.get((s, span)) or known.get((s, span))) for s, span in ended.items())
        found[rank] = tuple(Course(step, *split) for step, split in splits if split is not None)
    return found


def _split(
    view: View, lacking: Mapping[int, Mapping[int, Interval]]
) -> dict[int, dict[int, Split | None]]:
    """Return rank -> step -> its parts."""
    found: dict[int, dict[int, Split | None]] = defaultdict(dict)
    wanted: dict[int, dict[int, Interval]] = defaultdict(dict)
    for rank, ended in lacking.items():
        for step, span in ended.items():
            pipeline = pipeline_of(view, rank, step)
            found[rank][step] = None if pipeline is None else pipeline_split(pipeline, rank)
            if pipeline is None:
                wanted[rank][step] = span
    if not wanted:
        return found
    steps = {step for ended in wanted.values() for step in ended}
    begin = min(t0 for ended in wanted.values() for t0, _ in ended.values())
    matched = matched_in(view, begin, steps, _MAX_ISSUES)
    rows: dict[int | None, list[CollectiveRow]] = defaultdict(list)
    for row in matched.rows(range(len(matched))):
        rows[row.step].append(row)
    ops = {step: ops_by_rank([*rows[step - 1], *rows[step]]) for step in steps}
    for rank, ended in wanted.items():
        for step, span in ended.items():
            own = ops[step].get(rank, ())  # an op may go on into the next step
            found[rank][step] = split_of(view, rank, view.ranks[rank], span, own)
    return found
