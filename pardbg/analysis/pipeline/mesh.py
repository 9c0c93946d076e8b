"""The run's pipelines side by side: their places on the device mesh, and their bubbles."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from pardbg.analysis.base.asof import View
from pardbg.analysis.pipeline.outlines import last_step, newest_step, step_outline
from pardbg.analysis.pipeline.pipeline_steps import pipeline_step
from pardbg.analysis.pipeline.pipelines import Layout, layouts
from pardbg.analysis.pipeline.values import PipelineStep

_RECENT = 3
"""Number of newest steps in which a complete one is looked for, per pipeline."""
_MOST = 16
"""Maximum number of pipelines whose newest steps are computed: a step costs some ms."""
_STEPS = 600
"""Number of newest steps that a report looks at."""


@dataclass(frozen=True, slots=True)
class PipelineName:
    """A pipeline of the run, in the list to choose from."""

    label: str
    """Place of the pipeline on the device mesh, ``dp=0 tp=1``, or its ranks."""
    ranks: tuple[int, ...]
    bubble_fraction: float | None
    """Bubble of the pipeline's newest complete step at the cursor; None: there is none."""


def pipeline_names(view: View) -> tuple[PipelineName, ...]:
    """Return all pipelines at the cursor, in the order of their lowest ranks."""
    return tuple(
        PipelineName(place(view, layout), layout.ranks, _newest_bubble(view, layout))
        for layout in layouts(view)
    )


def newest_steps(view: View) -> dict[int, PipelineStep]:
    """Return rank -> newest complete step of its pipeline; empty if pipelines are too many."""
    found = layouts(view)
    steps: dict[int, PipelineStep] = {}
    for layout in found if len(found) <= _MOST else ():
        made = (pipeline_step(view, layout, step) for step in _last_steps(view, layout))
        step = next((step for step in made if step is not None and step.complete), None)
        if step is not None:
            steps.update(dict.fromkeys(layout.ranks, step))
    return steps


def _last_steps(view: View, layout: Layout) -> range:
    """Return the last few steps, the newest first."""
    newest = last_step(view, layout)
    last = -1 if newest is None else newest
    return range(last, max(-1, last - _RECENT), -1)


def place(view: View, layout: Layout) -> str:
    """Return a pipeline's place on the device mesh, ``dp=0 tp=1``; else its ranks."""
    found: dict[str, set[int]] = {}
    strides: dict[str, int] = {}
    members: dict[str, frozenset[int]] = {}
    for (epoch, key), group in view.store.groups.items():
        if epoch != layout.epoch or key == layout.group or not group.axis or len(group.ranks) < 2:
            continue
        mine = [group.ranks.index(rank) for rank in layout.ranks if rank in group.ranks]
        if mine:
            found.setdefault(group.axis, set()).update(mine)
            strides[group.axis] = group.ranks[1] - group.ranks[0]
            if layout.ranks[0] in group.ranks:
                members[group.axis] = frozenset(group.ranks)
    own = _distinct({a: members[a] for a, at in found.items() if len(at) == 1 and a in members})
    # The outermost dimension of a mesh has its ranks furthest apart.
    own.sort(key=lambda axis: -strides[axis])
    if own:
        return " ".join(f"{axis}={min(found[axis])}" for axis in own)
    return f"ranks {','.join(map(str, layout.ranks))}"


def _distinct(members: dict[str, frozenset[int]]) -> list[str]:
    """Return the axes without those that flatten others or repeat another's ranks."""
    axes = list(members)
    return [
        axis
        for at, axis in enumerate(axes)
        if not any(
            members[other] < members[axis] or (members[other] == members[axis] and place < at)
            for place, other in enumerate(axes)
        )
    ]


def _newest_bubble(view: View, layout: Layout) -> float | None:
    known = (step_outline(view, layout, step) for step in _last_steps(view, layout))
    return next((one.bubble_fraction for one in known if one is not None), None)


@dataclass(frozen=True, slots=True)
class PipelineSummary:
    """A pipeline of the run, over its recent complete steps."""

    label: str
    """Place of the pipeline on the device mesh, as ``PipelineName.label``."""
    ranks: tuple[int, ...]
    num_steps: int
    bubble_fraction: float | None
    """Median bubble over the steps; None: there are none."""


def pipeline_summaries(view: View) -> tuple[PipelineSummary, ...]:
    """Return all pipelines of the run, in the order of their lowest ranks."""
    made = []
    for layout in layouts(view):
        newest = newest_step(view, layout)
        last = -1 if newest is None else newest
        known = (step_outline(view, layout, at) for at in range(max(0, last - _STEPS), last + 1))
        bubbles = [one.bubble_fraction for one in known if one is not None]
        middle = median(bubbles) if bubbles else None
        made.append(PipelineSummary(place(view, layout), layout.ranks, len(bubbles), middle))
    return tuple(made)
