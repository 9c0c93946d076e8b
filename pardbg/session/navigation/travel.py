"""Navigation in time: to the next or previous action, op, step, finding or bookmark, or to a place
in the user's words. Reads the store; the thread that feeds the store calls it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings.finding import Finding
from pardbg.analysis.pipeline.outlines import newest_step
from pardbg.analysis.pipeline.pipelines import layouts, step_rows
from pardbg.analysis.pipeline.ticks.grid import tick_ends
from pardbg.errors import UserError
from pardbg.session.navigation.goto import Target, wall_near
from pardbg.store.process import Process
from pardbg.store.store import Store
from pardbg.store.table import Table
from pardbg.words import duration, message, size
from pardbg_agent import wire

UNITS: Final = ("step", "action", "op", "tick", "finding", "bookmark")
"""Units that one key press moves by, in the order in which they are offered."""
_NEAR: Final = 64
"""Rows searched to each side: actions of a rank overlap, and rows are sorted by end, not begin."""


@dataclass(frozen=True, slots=True)
class Found:
    """A moment, with a text for what happens there."""

    t_ns: int
    text: str


def since_ns(finding: Finding) -> int:
    """Return the time at which the finding becomes true."""
    return finding.first_ns if finding.first_ns is not None else finding.t_ns


def beside(
    store: Store, t_ns: int, unit: str, by: int, rank: int, findings: Sequence[Finding]
) -> Found:
    """Return the nearest ``unit`` after (``by`` > 0) or before ``t_ns``. Actions and ops are those
    of ``rank``; a step is its end. Raises UserError."""
    store.settle()
    if unit == "finding":
        places: Iterable[Found] = (Found(since_ns(f), _finding_text(f)) for f in findings)
    elif unit == "bookmark":
        places = (Found(mark.t_ns, mark.text) for mark in store.bookmarks.all())
    else:
        near = {"step": _steps_near, "tick": _ticks_near, "op": _ops_near}.get(unit, _actions_near)
        places = near(store, t_ns, rank)
    way = 1 if by > 0 else -1
    there = [place for place in places if way * (place.t_ns - t_ns) > 0]
    found = min(there, key=lambda place: way * place.t_ns, default=None)
    if found is None:
        whose = f" of rank {rank}" if unit in ("action", "op", "tick") else ""
        raise UserError(f"no {unit}{whose} {'after' if by > 0 else 'before'} this moment")
    return found


def find(
    store: Store, t_ns: int, target: Target, begin_ns: int, end_ns: int,
    findings: Sequence[Finding], step: int | None,
) -> Found:  # fmt: skip
    """Return the time of ``target``, seen from ``t_ns`` in ``step``. Raises UserError."""
    store.settle()
    kind, number = target.kind, target.number
    if kind == "time":
        if begin_ns + number > end_ns:
            long = duration(end_ns - begin_ns)
            raise UserError(f"the run is {long} long so far; a step is `goto step 42`")
        return Found(begin_ns + number, f"{duration(number)} after the start")
    if kind == "by":
        return Found(t_ns + number, "")
    if kind == "share":
        return Found(begin_ns + round((end_ns - begin_ns) * target.share), "")
    if kind in ("begin", "end"):
        return Found(begin_ns if kind == "begin" else end_ns, f"the {kind}")
    if kind == "wall":
        return Found(wall_near(store.run, target, begin_ns, end_ns), "")
    if kind == "step":
        return Found(_step_end(store, number), f"step {number}, at its end")
    if kind == "finding":
        return _numbered([Found(since_ns(f), _finding_text(f)) for f in findings], number, kind)
    if kind == "bookmark":
        marks = [Found(mark.t_ns, mark.text) for mark in store.bookmarks.all()]
        return _named(marks, target.text) if target.text else _numbered(marks, number, kind)
    return _action(store, t_ns, target.text, step)


def step_end(store: Store, step: int) -> int | None:
    """Return when ``step`` ended on all ranks, before the next one's actions, in ns; or None."""
    ends, following = [], []
    for process in store.procs.values():
        table = process.table("step")
        rows = table.step_rows(step, step, len(table))
        if len(rows):
            ends.append(int(table.col("t1_ns")[rows].max()))
        actions = process.table("action")
        rows = actions.step_rows(step + 1, step + 1, len(actions))
        if len(rows):
            following.append(int(actions.col("t0_ns")[rows].min()))
    if not ends:
        return None
    end = max(ends)
    after = [t for t in following if t > min(ends)]
    return min(end, min(after) - 1) if after else end


def opening(store: Store, nth: int) -> int | None:
    """Return the time at which a recording opens: the end of training step ``nth``. While the file
    is read that is the second (1: the first one warms up, and not every rank has reported its
    memory), then the last (-1); for a rank that has ended only one step, this one. None: no rank
    has ended a step."""
    store.settle()
    tables = [table.col("step") for p in _ranks(store) if len(table := p.table("step"))]
    if not tables:
        return None
    return step_end(store, min(int(steps[min(nth, len(steps) - 1)]) for steps in tables))


_ACTIVE: Final = ("step", "phase", "action", "wait", "done", "done_p2p")


def active_bounds(store: Store) -> tuple[int, int] | None:
    """Return the first and last time of recorded activity of ranks, in ns; None: no activity. A
    hang is included: if the job ended badly, the last time is its end."""
    store.settle()
    tables = [p.table(name) for p in _ranks(store) for name in _ACTIVE]
    tables = [table for table in tables if len(table)]
    if not tables:
        return None
    first = min(int(table.col("t0_ns")[0]) for table in tables)
    last = max(int(table.when[len(table) - 1]) for table in tables)
    badly = any(code != 0 for _, code in store.run_ends) or not store.run_ends
    return first, max(last, store.end_ns if badly else last)


def every_rank_stepped(store: Store) -> bool:
    """Return whether each rank known so far has ended two steps."""
    known = list(_ranks(store))
    store.settle()
    return bool(known) and all(len(process.table("step")) > 1 for process in known)


def _ranks(store: Store, rank: int | None = None) -> Iterator[Process]:
    for process in store.procs.values():
        if process.rank is not None and rank in (None, process.rank):
            yield process


def _steps_near(store: Store, t_ns: int, rank: int) -> Iterator[Found]:
    numbers: set[int] = set()
    for process in list(_ranks(store, rank)) or list(_ranks(store)):
        table = process.table("step")
        at = table.visible(t_ns)
        numbers.update(table.col("step")[max(0, at - 3) : at + 3].tolist())
    for number in sorted(numbers):
        end = step_end(store, number)
        if end is not None:
            yield Found(end, f"step {number}, at its end")


def _ticks_near(store: Store, t_ns: int, rank: int) -> Iterator[Found]:
    """Yield ends of ticks of the rank's pipeline (or of the first one) in the adjacent steps."""
    now, whole = View(store, t_ns), View(store, None)
    found = layouts(whole)
    layout = next((one for one in found if rank in one.ranks), found[0] if found else None)
    if layout is None:
        return
    here = newest_step(now, layout)
    steps = (0,) if here is None else range(max(0, here - 1), here + 2)
    ends = {step: tick_ends(whole, layout, step) for step in steps}
    for step, ticks in ends.items():
        rows = step_rows(whole, layout, step + 1).values()
        later_ns = min((span.t0_ns for row in rows for span in row), default=None)
        for tick, end_ns in ticks:
            text = f"step {step}, tick {tick}"
            if later_ns is not None and later_ns <= end_ns:  # the grid shows that one already
                at = max((n for n, t_ns in ends.get(step + 1, ()) if t_ns <= end_ns), default=0)
                text = f"step {step + 1}, tick {at}; tick {tick} of step {step} has ended"
            yield Found(end_ns, text)


def _step_end(store: Store, number: int) -> int:
    end = step_end(store, number)
    if end is not None:
        return end
    known = [
        (int(table.col("step")[0]), int(table.col("step")[-1]))
        for process in _ranks(store)
        if len(table := process.table("step"))
    ]
    if not known:
        raise UserError("no training step has ended in this run")
    first, last = min(low for low, _ in known), max(high for _, high in known)
    raise UserError(f"no step {number}: steps {first} to {last} have ended")


def _ops_near(store: Store, t_ns: int, rank: int) -> Iterator[Found]:
    for process in _ranks(store, rank):
        for name in ("issue", "issue_p2p"):
            table = process.table(name)
            after = table.visible(t_ns)
            before = int(np.searchsorted(table.when, t_ns, side="left")) - 1
            for row in (before, after):
                if 0 <= row < len(table):
                    yield Found(int(table.when[row]), _op_text(process, name, row))


def _op_text(process: Process, name: str, row: int) -> str:
    table = process.table(name)
    op = process.ops.get(int(table.col("name_id")[row]))
    group = process.groups.get(int(table.col("group_id")[row]))
    word = op.op if op is not None else "op"
    if name == "issue_p2p":
        sends = bool(int(table.col("flags")[row]) & wire.Flag.SEND)
        text = message(word, sends, int(table.col("peer")[row]))
        return f"rank {process.rank} {text}{_bytes(table, row)}"
    where = f" {group.axis or group.name}" if group is not None else ""
    seq = int(table.col("seq")[row])
    return f"rank {process.rank} {word}{where} #{seq}{_bytes(table, row)}"


def _bytes(table: Table, row: int) -> str:
    """Return input and output bytes, ``, 65.5 kB → 262 kB``; one figure if both are equal."""
    sides = dict.fromkeys(int(table.col(name)[row]) for name in ("a", "b"))
    text = " → ".join(size(number) for number in sides if number)
    return f", {text}" if text else ""


def _actions_near(store: Store, t_ns: int, rank: int) -> Iterator[Found]:
    for process in _ranks(store, rank):
        table = process.table("action")
        at = table.visible(t_ns)
        rows = range(max(0, at - _NEAR), min(len(table), at + _NEAR))
        begins = table.col("t0_ns")[rows.start : rows.stop].tolist()
        for row, t0 in zip(rows, begins, strict=True):
            yield Found(t0, f"rank {process.rank} begins {action_text(process, row)}")


def action_text(process: Process, row: int) -> str:
    """Return ``2B5`` of a row of the action table."""
    table = process.table("action")
    stage, mb = int(table.col("stage")[row]), int(table.col("microbatch")[row])
    name = process.name(int(table.col("name_id")[row]))
    return f"{stage if stage >= 0 else ''}{name}{mb if mb >= 0 else ''}"


def _action(store: Store, t_ns: int, text: str, step: int | None) -> Found:
    """Find an action's begin in this step, nearest after ``t_ns``; else the next, else the last."""
    here: list[tuple[bool, bool, int, str]] = []
    for process in _ranks(store):
        rows, table = _rows_of(process, text), process.table("action")
        if not len(rows):
            continue
        t0, steps = table.col("t0_ns")[rows], table.col("step")[rows]
        elsewhere = np.ones(len(rows), bool) if step is None else steps != step
        best = int(np.lexsort((np.abs(t0 - t_ns), t0 <= t_ns, elsewhere))[0])
        said = f"{text} begins on rank {process.rank}, step {int(steps[best])}"
        distance = int(t0[best]) - t_ns
        here.append((bool(elsewhere[best]), distance <= 0, abs(distance), said))
    if not here:
        raise UserError(f"no action {text} in this run")
    _, past, far, said = min(here)
    return Found(t_ns - far if past else t_ns + far, said)


def _rows_of(process: Process, text: str) -> NDArray[np.intp]:
    stage = text[: len(text) - len(text.lstrip("0123456789"))]
    name = text[len(stage) :].rstrip("0123456789")
    mb = text[len(stage) + len(name) :]
    table = process.table("action")
    found = table.col("stage") == int(stage)
    found &= table.col("microbatch") == (int(mb) if mb else -1)
    found &= np.isin(table.col("name_id"), process.ids(name))
    return np.flatnonzero(found)


def _numbered(places: Sequence[Found], number: int, kind: str) -> Found:
    ordered = sorted(places, key=lambda place: place.t_ns)
    if not ordered:
        raise UserError(f"no {kind} in this run" + (" (m sets one)" * (kind == "bookmark")))
    if not 1 <= number <= len(ordered):
        raise UserError(f"no {kind} {number}: there are 1 to {len(ordered)}")
    found = ordered[number - 1]
    return Found(found.t_ns, f"{kind} {number}: {found.text}")


def _named(places: Sequence[Found], text: str) -> Found:
    for place in places:
        if text.lower() in place.text.lower():
            return Found(place.t_ns, f"bookmark: {place.text}")
    raise UserError(f"no bookmark with {text!r} (`:marks` lists them)")


def _finding_text(finding: Finding) -> str:
    return finding.text.splitlines()[0] if finding.text else finding.kind
