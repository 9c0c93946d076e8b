"""Training steps: duration, phases, loss."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.base.holds import stalls, unheld_ns, was_held
from pardbg.analysis.base.intervals import Interval, clip, intersect, total, union
from pardbg.analysis.base.losses import losses_by_step, newest_step
from pardbg.analysis.base.rank_columns import Columns
from pardbg.analysis.base.spans import p2p_waits
from pardbg.store.process import Process
from pardbg.store.table import Array
from pardbg_agent import wire


@dataclass(frozen=True, slots=True)
class StepRow:
    step: int
    duration_ns: int
    """Longest duration over ranks, in ns."""
    loss: float | None
    phases: Mapping[str, int]
    """Phase -> mean time over ranks, in ns."""


LAST: Final = 64
_STEPPED: Final = ("step", "phase", "action")
"""Tables whose newest row tells which step a rank is in."""
_INFERRED: Final = int(wire.Flag.INFERRED)
_PLACE: Final = 0xFFFFFFFF


def last_step_rows(view: View, process: Process, number: int | None) -> list[tuple[int, int, int]]:
    """Return (step, t0, t1) of the last ``number`` ended steps of a process; None: of all."""
    table, visible = view.rows(process, "step")
    lo = 0 if number is None else max(0, visible - number)
    columns = (table.col(c)[lo:visible].tolist() for c in ("step", "t0_ns", "t1_ns"))
    return list(zip(*columns, strict=True))


@per_view
def step_rows(view: View, last: int | None = LAST) -> tuple[StepRow, ...]:
    """Return the last steps that ended on every rank that counts steps; for None all steps."""
    counts = view.all("step").counts
    begins = np.maximum(counts - (last + 8), 0) if last is not None else np.zeros_like(counts)
    ended = _Ended(view.all("step").take(("step", "t0_ns", "t1_ns"), begins))
    complete = ended.complete(int(np.count_nonzero(counts)))
    if last is not None:
        complete = complete[-last:]
    if not complete:
        return ()
    losses = losses_by_step(view, complete[0], complete[-1])
    phases = _phases(view, complete, ended)
    longest = ended.longest(view, complete)
    return tuple(
        StepRow(step, longest[step], losses.get(step), phases.get(step, {})) for step in complete
    )


class _Ended:
    """Ends of steps on all ranks; for a step that a rank ended twice, the later end."""

    def __init__(self, rows: Columns) -> None:
        keys = rows["step"].astype(np.int64) << 32 | rows["who"]
        order = np.argsort(keys, kind="stable")
        newest = order[np.append(keys[order][1:] != keys[order][:-1], True)[: len(order)]]
        self.keys = keys[newest]
        """step << 32 | rank's place, in order."""
        self.begins, self.ends = rows["t0_ns"][newest], rows["t1_ns"][newest]
        self.steps, self._first, self._counts = np.unique(
            self.keys >> 32, return_index=True, return_counts=True
        )

    def complete(self, num_ranks: int) -> list[int]:
        """Return the steps that ended on ``num_ranks`` ranks."""
        found: list[int] = self.steps[self._counts == num_ranks].tolist()
        return found

    def num_ranks(self) -> dict[int, int]:
        """Return step -> number of ranks that ended it."""
        return dict(zip(self.steps.tolist(), self._counts.tolist(), strict=True))

    def longest(self, view: View, steps: Sequence[int]) -> dict[int, int]:
        """Return step -> longest duration over ranks, without holds, in ns."""
        if not was_held(view, 0, view.t_ns):
            most = np.maximum.reduceat(self.ends - self.begins, self._first)
            return dict(zip(self.steps.tolist(), most.tolist(), strict=True))
        ranks, found = list(view.ranks), dict.fromkeys(steps, 0)
        columns = (c.tolist() for c in (self.keys, self.begins, self.ends))
        for key, t0, t1 in zip(*columns, strict=True):
            if (step := key >> 32) in found:
                own = unheld_ns(view, ranks[key & _PLACE], t0, t1)
                found[step] = max(found[step], own)
        return found

    def window(self, steps: Array, places: Array) -> tuple[Array, Array]:
        """Return (begins, ends) of the ranks' steps in ns; (0, 0) for a step that has not ended."""
        wanted = steps.astype(np.int64) << 32 | places
        at = np.minimum(self.keys.searchsorted(wanted), len(self.keys) - 1)
        has = self.keys[at] == wanted
        return self.begins[at] * has, self.ends[at] * has


def _phases(view: View, steps: Sequence[int], ended: _Ended) -> dict[int, dict[str, int]]:
    """Return step -> {phase: mean ns over the ranks that count it}, at most the step's length."""
    cache = view.memo("phases")
    epoch = view.epoch
    found: dict[int, dict[str, int]] = {}
    wanted = []
    for step in steps:
        known: tuple[int, dict[str, int]] | None = cache.get((epoch, step))
        if known is not None and known[0] <= view.t_ns:
            found[step] = known[1]
        else:
            wanted.append(step)
    if wanted:
        fresh, newest = _sum_phases(view, wanted[0], wanted[-1], ended)
        for step in wanted:
            found[step] = fresh.get(step, {})
            if step < steps[-1] - 1:  # records of the last steps may still be on their way
                cache[epoch, step] = (newest.get(step, view.t_ns), found[step])
    return found


def _sum_phases(
    view: View, first: int, last: int, ended: _Ended
) -> tuple[dict[int, dict[str, int]], dict[int, int]]:
    """Return (step -> {phase: mean ns}, step -> newest end of a phase)."""
    names = ("step", "name_id", "t0_ns", "t1_ns", "flags")
    rows = view.all("phase").of_steps(names, first, last)
    if not len(rows["who"]):
        return {}, {}
    begins, ends = ended.window(rows["step"], rows["who"])
    begins, ends = np.maximum(rows["t0_ns"], begins), np.minimum(rows["t1_ns"], ends)
    inside = np.maximum(ends - begins, 0)
    for place in _not_plain(view, rows):
        own = np.flatnonzero(rows["who"] == place)
        inside[own] = _own_time(view, place, {n: c[own] for n, c in rows.items()}, begins[own],
                                inside[own])  # fmt: skip
    ids, named = np.unique(rows["who"] << 32 | rows["name_id"], return_inverse=True)
    processes = list(view.ranks.values())
    texts = [processes[i >> 32].name(i & _PLACE) for i in ids.tolist()]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    names_of = list(numbers)
    number = np.array([numbers[text] for text in texts], np.int64)[named]
    some = np.flatnonzero(inside > 0)
    keys, firsts, of = np.unique(
        rows["step"][some].astype(np.int64) << 32 | number[some],
        return_index=True, return_inverse=True,
    )  # fmt: skip
    sums = np.zeros(len(keys), np.int64)
    np.add.at(sums, of, inside[some])
    means: dict[int, dict[str, int]] = defaultdict(dict)
    num_ranks = ended.num_ranks()
    for at in np.argsort(firsts).tolist():
        step, name = int(keys[at]) >> 32, names_of[int(keys[at]) & _PLACE]
        means[step][name] = round(int(sums[at]) / num_ranks[step])
    steps, at_step = np.unique(rows["step"], return_inverse=True)
    newest = np.zeros(len(steps), np.int64)
    np.maximum.at(newest, at_step, rows["t1_ns"])
    return means, dict(zip(steps.tolist(), newest.tolist(), strict=True))


def _not_plain(view: View, rows: Columns) -> list[int]:
    """Return the places of ranks whose phases need more than clipping to the step: nested phases
    (beyond the clock's corrections), phases that contain waits for their input, or held ranks."""
    since_ns = int(rows["t0_ns"].min())
    if was_held(view, since_ns, int(rows["t1_ns"].max())):
        odd: Array = rows["who"]
    else:
        apart = np.array([one.clocks.apart_ns(since_ns) for one in view.ranks.values()], np.int64)
        order = np.lexsort((rows["t1_ns"], rows["t0_ns"], rows["who"]))
        place, begins, ends = (rows[name][order] for name in ("who", "t0_ns", "t1_ns"))
        by_ns = np.minimum(ends[:-1], ends[1:]) - begins[1:]
        over = (place[1:] == place[:-1]) & (by_ns > apart[place[1:]])
        odd = np.append(place[1:][over], rows["who"][(rows["flags"] & _INFERRED) != 0])
    places: list[int] = np.unique(odd).tolist()
    return places


def _own_time(view: View, place: int, rows: Columns, begins: Array, inside: Array) -> list[int]:
    """Return each phase's own time within the step on a rank, in ns."""
    rank, process = list(view.ranks.items())[place]
    columns = [rows[n].tolist() for n in ("step", "name_id", "t0_ns", "t1_ns", "flags")]
    named = {name_id: process.name(name_id) for name_id in set(columns[1])}
    enclosed = _enclosed(named, columns)
    held = was_held(view, min(columns[2]), max(columns[3]))
    found = []
    for name_id, flags, t0, ns in zip(
        columns[1], columns[4], begins.tolist(), inside.tolist(), strict=True
    ):
        if ns > 0:
            window = t0, t0 + ns
            out = stalls(view, rank, *window) if held else []
            if flags & _INFERRED:  # inferred phases include the waits for their input
                out += clip(p2p_waits(view, rank, window), *window)
            if named[name_id] in enclosed:
                out += clip(enclosed[named[name_id]], *window)
            ns -= total(union(out)) if out else 0
        found.append(ns)
    return found


def _enclosed(
    named: Mapping[int, str], columns: Sequence[Sequence[int]]
) -> dict[str, list[Interval]]:
    """Return phase -> time in it that belongs to other phases: forward, backward and data of a
    closure inside the optimizer's step(), data loaded by a schedule or a forward, forwards
    recomputed in a backward. The rest of a schedule's run is its own."""
    _, name_ids, begins, ends, _ = columns
    spans = sorted(zip(begins, ends, strict=True))
    if all(end <= following for (_, end), (following, _) in pairwise(spans)):
        return {}  # the usual case: no phase overlaps another
    at: dict[str, list[Interval]] = defaultdict(list)
    for name_id, *span in zip(name_ids, begins, ends, strict=True):
        at[named[name_id]].append((span[0], span[1]))
    of = {name: union(spans) for name, spans in at.items()}
    out = {"optimizer": union(span for name in of if name != "optimizer" for span in of[name])}
    run, data = of.get("pipeline", []), of.get("data", [])
    out |= dict.fromkeys(of.keys() - {"optimizer", "pipeline", "data"}, run)
    out |= {"pipeline": data, "forward": run + data, "backward": run + of.get("recompute", [])}
    return {name: intersect(of[name], out[name]) for name in of.keys() & out.keys()}


def last_step_end(view: View) -> int:
    """Return when the newest step of any rank ended, in ns; without steps the cursor's time."""
    rows = (view.rows(process, "step") for process in view.ranks.values())
    ends = (int(table.when[visible - 1]) for table, visible in rows if visible)
    return max(ends, default=view.t_ns)


def current_step(view: View, states: Mapping[str, Mapping[str, object]]) -> int | None:
    """Return the newest step under way on any rank at the cursor. Ops count only if nothing else
    has a step: ops after the last step belong to no step, whatever number their records have."""
    stated = [
        stated_step(states[p.proc]) for p in view.ranks.values()
        if p.proc in states and view.proc_end(p) is None
    ]  # fmt: skip
    known = [*stated, *(newest_step(view, name) for name in _STEPPED)]
    steps = [step for step in known if step is not None]
    return max(steps, default=None) if steps else newest_step(view, "issue")


def step_of(view: View, process: Process, reported: Mapping[str, object]) -> int | None:
    """Return the newest step under way on a rank, by its records and its STATE message."""
    steps = []
    for name in _STEPPED:
        table, visible = view.rows(process, name)
        if visible:
            steps.append(int(table.col("step")[visible - 1]))
    stated = stated_step(reported)
    if stated is not None and view.proc_end(process) is None:
        steps.append(stated)
    return max(steps, default=None)


def stated_step(reported: Mapping[str, object]) -> int | None:
    """Return the step under way according to a STATE message. Between two steps, and after the
    last, an agent already counts the next one: without activity it has not begun, nor while
    a rank starts up."""
    step, what = reported.get("step"), reported.get("what") or reported.get("phase")
    begun = reported.get("held") or (what and what != wire.START_UP)
    return step if isinstance(step, int) and step >= 0 and begun else None
