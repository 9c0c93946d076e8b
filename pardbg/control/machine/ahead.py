"""Settling a pipeline by its plan: how far each rank must go for ranks that wait inside an op.

[Note: all at once] A rank that waits for a message waits for an action of its neighbour, that one
for an action of the next, and so on: through the rest of a step, where a rank is in the next step
already. The rule of ``cut`` finds this chain link by link, as each rank comes to its own wait,
while ranks at the other end stand still. The plan gives the chain at once: each rank is let go as
far as its own last action in the chain. That is the same causal past; where the plan does not fit
the actions that ran, the rule of ``cut`` does it alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from pardbg.analysis.pipeline.dependencies import COMPUTE, compute_actions, parse, source
from pardbg.control.machine.cut import Ripe, View
from pardbg.control.machine.permits import DRAIN, Permit
from pardbg_agent.ctrl.agent_messages import State
from pardbg_agent.wire import Gate

MAX_TURNS: Final = 2
"""Maximum number of steps that a rank is let go ahead; one is usual."""


@dataclass(frozen=True, slots=True)
class Onward:
    """Permit that takes a rank to where others need it."""

    permit: Permit
    to: int
    """Target: number of actions behind it, over all steps."""


def ahead(
    views: Mapping[str, View], pipelines: Mapping[str, Sequence[int]], ripe: Ripe
) -> dict[str, Onward]:
    """Return process -> how far it must go now, for pipelines whose ranks wait for each other."""
    by_rank = {view.rank: view for view in views.values() if view.state is not None}
    out: dict[str, Onward] = {}
    for ranks in pipelines.values():
        members = [by_rank[rank] for rank in ranks if rank in by_rank]
        if any(_receives(view, ripe) for view in members):
            out.update(_Chain(members).permits(ripe))
    return out


@dataclass(frozen=True, slots=True)
class _Plans:
    rows: tuple[tuple[str, ...], ...]
    """Planned actions by rank of the pipeline."""
    where: dict[str, tuple[int, int]]
    """Action -> (rank of the pipeline, index in its row)."""
    sources: dict[str, str]
    """Action -> action of another rank whose output it needs."""


@lru_cache(maxsize=256)
def _plans(plans: tuple[tuple[str, ...], ...]) -> _Plans:
    rows = tuple(tuple(a for text in plan for a in compute_actions(text)) for plan in plans)
    where = {text: (r, i) for r, row in enumerate(rows) for i, text in enumerate(row)}
    num_stages = max((action.stage for text in where if (action := parse(text))), default=0) + 1
    sources = {}
    for text, (r, _) in where.items():
        found = source(text, num_stages, where)
        if found is not None and where[found][0] != r:
            sources[text] = found
    return _Plans(rows, where, sources)


class _Chain:
    """Positions of one pipeline's ranks in their plans, and the positions they must reach."""

    def __init__(self, views: Sequence[View]) -> None:
        self._views = [(view, view.state) for view in views if view.state is not None]
        self._plans = _plans(tuple(state.plan for _, state in self._views))
        pairs = zip(self._views, self._plans.rows, strict=True)
        self._at = [_place(state, row) for (_, state), row in pairs]
        """Number of actions that each rank has behind it, over all steps; None: unknown."""
        self._to: dict[int, int] = {}
        """Number of actions that a rank must have behind it."""

    def permits(self, ripe: Ripe) -> dict[str, Onward]:
        for (view, _), row, at in zip(self._views, self._plans.rows, self._at, strict=True):
            for peer in _receives(view, ripe) if at is not None else ():
                assert at is not None
                source = self._plans.sources.get(row[at % len(row)])
                if source and self._views[self._plans.where[source][0]][0].rank == peer:
                    self._need(source, at // len(row))
        out = {}
        for r, to in self._to.items():
            (view, state), at = self._views[r], self._at[r]
            if at is not None and to > max(at, view.ahead) and _can_be_told(view, ripe):
                out[view.proc] = Onward(_permit(state, to - at), to)
        return out

    def _need(self, text: str, turn: int) -> None:
        """Require an action, in that turn, and the needs of its rank's actions before it."""
        todo = [(text, turn)]
        while todo:
            text, turn = todo.pop()
            r, i = self._plans.where[text]
            row, at = self._plans.rows[r], self._at[r]
            if at is None:
                continue
            begin, end = max(at, self._to.get(r, 0)), turn * len(row) + i + 1
            if not begin < end <= at + MAX_TURNS * len(row):
                continue
            self._to[r] = end
            for k in range(begin, end):
                source = self._plans.sources.get(row[k % len(row)])
                if source is not None:
                    todo.append((source, k // len(row)))


def _place(state: State, row: tuple[str, ...]) -> int | None:
    if not row or row[: len(state.done)] != state.done:
        return None
    if len(state.done) < len(row):
        return state.step * len(row) + len(state.done)
    # ``done`` stays until the next run begins; the step's number moves on in between. Where it may
    # be either, assume more done: the rank is then let go too short, not too far.
    return (state.step + (not state.held & Gate.STEP)) * len(row)


def _receives(view: View, ripe: Ripe) -> list[int]:
    if view.held or view.state is None:
        return []
    ops = (op for op in view.state.open if op.peer is not None and not op.send)
    return [op.peer for op in ops if op.peer is not None and ripe(view, op)]


def _can_be_told(view: View, ripe: Ripe) -> bool:
    """Return whether a rank is held, or will be after its present op, with no action in between."""
    if view.held or not (view.fresh and view.settles) or view.computing_since_ns:
        return view.held
    return view.state is not None and any(ripe(view, op) for op in view.state.open)


def _permit(state: State, n: int) -> Permit:
    found = parse(state.next) if state.held else None
    if state.held & Gate.INSIDE:
        n -= 1  # its gate is behind it
    elif found is not None and found.kind not in COMPUTE:
        n += 1  # an action's gate, but none of the plan
    return replace(DRAIN, n=n)
