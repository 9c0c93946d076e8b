"""Training steps: duration, phases, loss."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.base.holds import stalls, unheld_ns, was_held
from pardbg.analysis.base.intervals import Interval, clip, intersect, total, union
from pardbg.analysis.base.losses import losses_by_step, newest_step
from pardbg.analysis.base.spans import p2p_waits
from pardbg.store.process import Process
from pardbg_agent import wire


@dataclass(frozen=True, slots=True)
class StepRow:
    step: int
    duration_ns: int
    """Longest over ranks."""
    loss: float | None
    phases: dict[str, int]
    """Mean ns per phase over ranks."""


LAST: Final = 64
_STEPPED: Final = ("step", "phase", "action")
"""Tables whose newest row says which step a rank is in."""
_INFERRED: Final = int(wire.Flag.INFERRED)


def last_step_rows(view: View, process: Process, number: int | None) -> list[tuple[int, int, int]]:
    """(step, t0, t1) of the last steps that ended on a process."""
    table, visible = view.rows(process, "step")
    lo = 0 if number is None else max(0, visible - number)
    columns = (table.col(c)[lo:visible].tolist() for c in ("step", "t0_ns", "t1_ns"))
    return list(zip(*columns, strict=True))


@per_view
def step_rows(view: View, last: int | None = LAST) -> tuple[StepRow, ...]:
    """The last steps that ended on every rank that counts steps; all of the run for None."""
    number = None if last is None else last + 8
    ended_at: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
    counting = []
    for rank, process in view.ranks.items():
        ended = last_step_rows(view, process, number)
        if ended:
            counting.append(rank)
        for step, t0, t1 in ended:
            ended_at[step][rank] = t0, t1
    complete = sorted(s for s, by_rank in ended_at.items() if len(by_rank) == len(counting))
    if last is not None:
        complete = complete[-last:]
    if not complete:
        return ()
    held = was_held(view, 0, view.t_ns)
    losses = losses_by_step(view, complete[0], complete[-1])
    phases = _phases(view, complete, ended_at)
    return tuple(
        StepRow(
            step,
            max(
                unheld_ns(view, rank, t0, t1) if held else t1 - t0
                for rank, (t0, t1) in ended_at[step].items()
            ),
            losses.get(step),
            phases.get(step, {}),
        )
        for step in complete
    )


Ended = Mapping[int, Mapping[int, tuple[int, int]]]
"""step -> rank -> (begin, end)"""


def _phases(view: View, steps: Sequence[int], ended: Ended) -> dict[int, dict[str, int]]:
    """step -> {phase: mean ns over the ranks that count it}, at most the step in all."""
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
    view: View, first: int, last: int, ended: Ended
) -> tuple[dict[int, dict[str, int]], dict[int, int]]:
    sums: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    newest: dict[int, int] = {}
    for rank, process in view.ranks.items():
        table, visible = view.rows(process, "phase")
        rows = table.step_rows(first, last, visible)
        names = ("step", "name_id", "t0_ns", "t1_ns", "flags")
        columns = [table.col(c)[rows].tolist() for c in names]
        own = {step: by_rank[rank] for step, by_rank in ended.items() if rank in by_rank}
        named = {name_id: process.name(name_id) for name_id in set(columns[1])}
        enclosed = _enclosed(named, columns)
        held = bool(columns[0]) and was_held(view, min(columns[2]), max(columns[3]))
        for step, name_id, t0, t1, flags in zip(*columns, strict=True):
            newest[step] = max(newest.get(step, 0), t1)
            begin, end = own.get(step, (0, 0))  # others count no such step
            window = max(t0, begin), min(t1, end)
            inside, name = window[1] - window[0], named[name_id]
            if inside > 0:
                out = stalls(view, rank, *window) if held else []
                if flags & _INFERRED:  # it lies around the waits for its input
                    out += clip(p2p_waits(view, rank, window), *window)
                if name in enclosed:
                    out += clip(enclosed[name], *window)
                inside -= total(union(out)) if out else 0
            if inside > 0:
                sums[step][name] += inside
    means = {
        step: {name: round(ns / len(ended[step])) for name, ns in by_name.items()}
        for step, by_name in sums.items()
    }
    return means, newest


def _enclosed(
    named: Mapping[int, str], columns: Sequence[Sequence[int]]
) -> dict[str, list[Interval]]:
    """Phase -> what others say of its time: a closure's forward, backward and data inside an
    optimizer's step(), data that a schedule loads, forwards that run again in a backward. What
    lies in a schedule's run beside these is the run's own."""
    _, name_ids, begins, ends, _ = columns
    spans = sorted(zip(begins, ends, strict=True))
    if all(end <= following for (_, end), (following, _) in pairwise(spans)):
        return {}  # one after the other, as mostly
    at: dict[str, list[Interval]] = defaultdict(list)
    for name_id, *span in zip(name_ids, begins, ends, strict=True):
        at[named[name_id]].append((span[0], span[1]))
    of = {name: union(spans) for name, spans in at.items()}
    out = {"optimizer": union(span for name in of if name != "optimizer" for span in of[name])}
    run = of.get("pipeline", [])
    out |= dict.fromkeys(of.keys() - {"optimizer", "pipeline", "data"}, run)
    out |= {"pipeline": of.get("data", []), "backward": run + of.get("recompute", [])}
    return {name: intersect(of[name], out[name]) for name in of.keys() & out.keys()}


def current_step(view: View, states: Mapping[str, Mapping[str, object]]) -> int | None:
    """Newest step any rank works on at the cursor. Ops count only where nothing else says a step:
    what follows the last one is in no step, whatever number its records have."""
    stated = [
        stated_step(states[p.proc]) for p in view.ranks.values()
        if p.proc in states and view.proc_end(p) is None
    ]  # fmt: skip
    known = [*stated, *(newest_step(view, name) for name in _STEPPED)]
    steps = [step for step in known if step is not None]
    return max(steps, default=None) if steps else newest_step(view, "issue")


def step_of(view: View, process: Process, said: Mapping[str, object]) -> int | None:
    """Newest step that one rank works on, by its records and its STATE message."""
    steps = []
    for name in _STEPPED:
        table, visible = view.rows(process, name)
        if visible:
            steps.append(int(table.col("step")[visible - 1]))
    stated = stated_step(said)
    if stated is not None and view.proc_end(process) is None:
        steps.append(stated)
    return max(steps, default=None)


def stated_step(said: Mapping[str, object]) -> int | None:
    """The step that a STATE message says is under way. Between two steps, and after the last one,
    an agent counts on already: a step in which nothing happens yet has not begun."""
    step = said.get("step")
    begun = said.get("what") or said.get("phase") or said.get("held")
    return step if isinstance(step, int) and step >= 0 and begun else None
