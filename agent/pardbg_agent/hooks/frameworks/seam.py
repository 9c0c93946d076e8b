"""Helpers of all adapters: a framework's functions as runs and actions of a pipeline."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from pardbg_agent import core as _core
from pardbg_agent.hooks.patching import Patches, around
from pardbg_agent.hooks.tensors import unseen
from pardbg_agent.hooks.training import backward_loss, pipeline_actions, step_phases
from pardbg_agent.hooks.training.pipeline_actions import Actions, group_key, ranks_of
from pardbg_agent.schedule_orders import Plan, by_rank

Given = dict[str, Any]
"""Arguments of a call by their names."""
What = tuple[str, int, int, Any]
"""(verb, stage, microbatch, module or None) of an action."""


@dataclass(slots=True)
class Run:
    """State of a schedule's run that its actions need."""

    stage: int
    """Stage of this rank in the pipeline's group."""
    num_ranks: int
    losses: list[Any] = field(default_factory=list)
    """Losses of the last stage's microbatches, as tensors."""
    of_framework: Any = None
    """Object of the framework: an engine, or the node that runs."""

    def at(self, second_half: bool) -> int:
        """Return the virtual stage; a second chunk runs back through the ranks (V schedules)."""
        return 2 * self.num_ranks - 1 - self.stage if second_half else self.stage


def begin(made: Actions, group: Any, stage: int | None = None) -> Run:
    """Begin a run on the pipeline's process group; ``stage``: this rank in it."""
    ranks = ranks_of(group)
    made.of_run = run = Run(group.rank() if stage is None else int(stage), len(ranks))
    return run


def plan_on(
    group: Any,
    name: str,
    number: int,
    row: Callable[[int, int, int], list[str]] | None,
    chunks: int = 1,
) -> Plan | None:
    """Return the plan of a run of ``number`` microbatches on a process group. ``row(rank in the
    group, its size, number)`` returns one rank's actions; None: they are unknown. A group of one
    rank has no pipeline, so the plan is None."""
    ranks = ranks_of(group)
    size = len(ranks)
    if size < 2:
        return None
    order = by_rank(ranks, lambda at: row(at, size, number)) if row and number else {}
    return Plan(name, ranks, size * chunks, number, order, group=group_key(group))


def keep_loss(made: Actions, loss: Any) -> None:
    """Keep the loss that backward begins from, if it is one number."""
    if made.of_run is not None and backward_loss.is_one_number(loss):
        with unseen():
            made.of_run.losses.append(loss.detach().clone())


def report_sum(c: _core.Core, made: Actions) -> None:
    """Report the loss of a run whose microbatches' losses were divided by their number."""
    if made.of_run.losses:
        report_losses(c, made, made.of_run.losses, sum)


def report_mean(c: _core.Core, made: Actions) -> None:
    """Report the loss of a run whose microbatches' losses were not divided."""
    if made.of_run.losses:
        report_losses(c, made, made.of_run.losses, fmean)


def names_of(function: Any) -> Callable[[tuple[Any, ...], Given], Given]:
    """Return a function that names a call's arguments, whatever its form. Arguments that the
    signature does not have are left out."""
    try:
        known = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        known = []

    def given(args: tuple[Any, ...], kwargs: Given) -> Given:
        return {**dict(zip(known, args, strict=False)), **kwargs}

    return given


def hook_run(
    patches: Patches,
    owner: Any,
    name: str,
    hook: str,
    begins: Callable[[_core.Core, Actions, Given], Plan | None],
    ended: Callable[[_core.Core, Actions], None] | None = None,
) -> None:
    """Hook ``owner.name`` as one run of a schedule. ``begins`` returns the plan (without an order
    if unknown; None: no pipeline, forward and backward are phases of the step) and sets
    ``Actions.of_run`` for the actions, or leaves it unset where the call is not a run; ``ended`` is
    called when the run is over."""
    if not hasattr(owner, name):
        return
    given = names_of(getattr(owner, name))

    def before(c: _core.Core, *args: Any, **kwargs: Any) -> Any:
        made = pipeline_actions.of(c)
        plan = begins(c, made, given(args, kwargs))
        made.run_step = c.step
        if plan is not None:
            made.run_begins(made.define(plan) if plan.order else [])
        return None if made.of_run is None else (made, plan is not None)

    def after(c: _core.Core, what: Any, t1: int, failed: bool) -> None:
        made, piped = what
        try:
            if ended is not None and not failed:
                ended(c, made)
        finally:
            made.of_run = None
            if piped:
                made.run_ended(t1, failed)

    patches.around(owner, name, hook, before, after)


def report_losses(
    c: _core.Core, made: Actions, losses: Sequence[Any], loss_of: Callable[[list[float]], float]
) -> None:  # fmt: skip
    """Report the loss of a run that ended, for the step in which it began: an optimizer inside the
    run may have ended that step."""
    backward_loss.log_losses(c, losses, made.run_step, loss_of)


def action(
    original: Any,
    hook: str,
    which: Callable[[Actions, Given], What | list[What] | None],
    loss_of: Callable[[Actions, Given], Any] | None = None,
) -> Any:
    """Wrap ``original`` as an action of the run it is called in, or as several actions that it
    overlaps; outside a run it is left alone."""
    given = names_of(original)

    def before(c: _core.Core, *args: Any, **kwargs: Any) -> Any:
        made = pipeline_actions.of(c)
        if made.of_run is None:
            return None
        values = given(args, kwargs)
        what = which(made, values)
        if what is None:
            return None
        whats = what if isinstance(what, list) else [what]
        if made.of_run.num_ranks < 2:
            return _phase(c, whats[-1][0], whats[-1][3])
        loss = None if loss_of is None else loss_of(made, values)
        actions = [made.begins(*each) for each in whats]

        def ended(t1: int, failed: bool) -> None:
            for action in actions:
                made.ended(action, t1, failed, loss)

        return ended, ()

    def after(c: _core.Core, what: Any, t1: int, failed: bool) -> None:
        ended, before = what
        ended(*before, t1, failed)

    return around(original, hook, before, after)


def in_order(verb: str, module: str = "") -> Callable[[Actions, Given], What]:
    """Return the actions of the rank's one stage, by microbatch; ``module`` names its argument."""

    def which(made: Actions, given: Given) -> What:
        stage = made.of_run.stage
        return verb, stage, made.next_mb(verb, stage), given.get(module)

    return which


def backward(made: Actions, planned: tuple[int, int] | None = None) -> What:
    """Return the planned backward, else the next microbatch's on the rank's first stage."""
    stage = made.of_run.stage
    return "B", *(planned or (stage, made.next_mb("B", stage))), None


def _phase(c: _core.Core, verb: str, module: Any) -> tuple[Callable[..., None], Any] | None:
    """Begin a forward or backward phase of the step: a run on one rank has no pipeline."""
    ended: Callable[..., None] = step_phases.after_backward
    if verb == "F":
        begun, ended = step_phases.before_forward(c, module), step_phases.after_forward
    else:
        begun = step_phases.before_backward(c, None)
    return None if begun is None else (ended, (c, begun))


def hook_action(
    patches: Patches,
    owner: Any,
    name: str,
    hook: str,
    which: Callable[[Actions, Given], What | list[What] | None],
    loss_of: Callable[[Actions, Given], Any] | None = None,
) -> None:
    """Hook ``owner.name`` as an action of the run it is called in."""
    if hasattr(owner, name):
        patches.set(owner, name, action(getattr(owner, name), hook, which, loss_of))


def hook_communication(patches: Patches, owner: Any, name: str, hook: str) -> None:
    """Hook ``owner.name``, which waits for an action's input: its compute begins after the wait."""

    def before(c: _core.Core, *args: Any, **kwargs: Any) -> Any:
        made = pipeline_actions.of(c)
        return made if made.of_run is not None else None

    def after(c: _core.Core, made: Any, t1: int, failed: bool) -> None:
        made.compute_begins()

    patches.around(owner, name, hook, before, after)
