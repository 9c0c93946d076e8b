"""Predicted step times of the same work in another schedule, with other microbatches or stages.

Each plan is run with the durations of each of this run's last steps (``costs``), jitter and all, as
``playout`` runs it; the answer has medians over those steps. The rules, where something was not
measured:

- another number of stages: time is spread evenly within a measured stage;
- another number of microbatches: the batch stays, so an action takes in proportion to the
  microbatch's size. Small microbatches use a device less well: that is the best case;
- I and W where only B was seen: a half each; a schedule that needs them wins only if it does so
  with W as a third and as two thirds of B too. That the two take longer than B (``splits``) cannot
  be known then;
- B where only I and W were seen: a schedule that needs it wins only if it does so with B as long
  as the two together;
- everything outside the pipeline stays as it is.

The model's error is its prediction for the schedule that did run, against the measured time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from pardbg.analysis.base.asof import View, per_store
from pardbg.analysis.base.times import are_launches
from pardbg.analysis.pipeline.dependencies import compute_actions, parse
from pardbg.analysis.pipeline.in_flight import in_flight, peak_size
from pardbg.analysis.pipeline.outlines import newest_step
from pardbg.analysis.pipeline.pipelines import Layout, layouts
from pardbg.analysis.whatif import plans
from pardbg.analysis.whatif.backward_split import Split
from pardbg.analysis.whatif.costs import Costs, StepCosts, costs
from pardbg.analysis.whatif.plans import NoPlan, Plan
from pardbg.analysis.whatif.playout import Ran, actions, ordered, run
from pardbg.words import percent

SHARES: Final = (1 / 3, 2 / 3)
"""Shares of W in B for which an assumed split is tried."""
LEAST_MARGIN: Final = 0.05
"""Minimum error of the model for a schedule it did not see, however well it fits the one that ran:
``make bench ONLY=whatif`` measures it."""
IMBALANCE: Final = 0.05
"""Least excess of the slowest stage over the mean, as a share, for also trying equal times."""
EVERY: Final = 16
"""Number of steps between two answers on a screen."""


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run the step, with its predicted times."""

    schedule: str
    num_virtual: int
    """Number of stages per rank."""
    num_microbatches: int
    equal: bool
    """Whether the model is cut so that all stages take the same time."""
    step_ns: float
    window_ns: float
    bubble_fraction: float
    in_flight: int
    """Most microbatches forwarded and not yet backwarded on any rank, summed over its stages."""
    activation_bytes: float | None
    """Bytes of activations kept on the fullest rank; None: no size was sampled."""
    assumed: bool
    """Whether the plan splits B in I and W, which this run did not."""
    worst_ns: float
    """``step_ns`` at the least favourable split of B or, if B had to be put together, without the
    savings of that."""
    runs_now: bool = False


@dataclass(frozen=True, slots=True)
class WhatIf:
    """All options, and the run from which they were predicted."""

    schedule: str
    num_ranks: int
    num_stages: int
    num_microbatches: int
    num_steps: int
    """Number of measured steps."""
    step_ns: float
    """Median time of the measured steps, in ns."""
    predicted_ns: float
    """Predicted time of the schedule that ran, in ns."""
    error: float
    """Error of the prediction: predicted / measured - 1."""
    margin: float
    """Minimum win of an option: the largest of the model's error, its error in 8 of 10 single
    steps, the spread, and the possible error for a schedule that it did not see."""
    spread: float
    """Distance of 8 in 10 of the measured steps from their median, as a share of it."""
    split: str
    """Source of the durations of I, W and B, in words."""
    options: tuple[Option, ...]
    """All options, the fastest first."""
    best: Option | None
    """Best option with the same microbatches and stages, if it wins by more than the margin."""
    best_microbatches: Option | None
    """Best option with more microbatches, as a best case, if it wins by more than the margin."""
    left_out: tuple[tuple[str, str], ...]
    """(schedule, reason why it has no row)"""


def whatif(
    view: View,
    schedules: Sequence[str] = plans.SCHEDULES,
    microbatches: Sequence[int] = (),
    virtual: Sequence[int] = (),
    until: int | None = None,
) -> WhatIf | str:
    """Return the answer for the first pipeline of the run; a sentence if there is none. Variants:
    ``schedules`` by torch's names, numbers of ``microbatches`` (default: the run's own) and
    ``virtual`` stages per rank (the run's own, or 2). ``until``: last step that counts."""
    found = layouts(view)
    if not found:
        return "no pipeline ran: what-if answers for pipeline schedules"
    if are_launches(view):
        return "the run's times are the host's, and it computes on a device: nothing to measure by"
    layout = found[0]
    if layout.plan is None or not layout.planned:
        return "the pipeline's plan is not known, so there is nothing to compare with"
    measured = costs(view, layout, until)
    if measured is None:
        return "no complete pipeline step was recorded: there is nothing to measure by"
    now = layout.plan.num_virtual
    counts = tuple(microbatches) or (layout.num_microbatches,)
    several = tuple(virtual) or (now if now > 1 else 2,)
    order = layout.plan.order
    by_place = {
        i: tuple(entry for entry in order[rank] if compute_actions(entry))
        for i, rank in enumerate(layout.ranks)
    }
    return _answer(measured, layout.plan.schedule, by_place, schedules, counts, several)


def kept_whatif(view: View) -> WhatIf | str | None:
    """Return the answer for a screen, renewed every EVERY steps. None: no pipeline."""
    found = layouts(view)
    newest = newest_step(view, found[0]) if found else None
    if newest is None:
        return None
    until = newest - 1 if newest <= EVERY else (newest - 1) // EVERY * EVERY
    return _until(view, found[0], until)


@per_store(lambda view, layout, until: (layout.key, until))
def _until(view: View, layout: Layout, until: int) -> WhatIf | str:
    return whatif(view, until=until)


def _answer(
    measured: Costs, schedule: str, ran: Plan, schedules: Sequence[str],
    counts: Sequence[int], several: Sequence[int],
) -> WhatIf:  # fmt: skip
    name = plans.known(schedule) or schedule
    own = replace(option(measured, name, ran, measured.num_microbatches), runs_now=True)
    made, left_out = [own], []
    for other in schedules:
        stages = (1,) if other in plans.ONE_STAGE else several
        for count in counts:
            for v in stages:
                if (own.schedule, own.num_virtual, own.num_microbatches) == (other, v, count):
                    continue
                try:
                    plan = plans.plan(other, measured.num_ranks, v, count)
                    made.append(option(measured, other, plan, count))
                except NoPlan as why:
                    left_out.append((_label(other, v, count, counts), str(why)))
    whole = measured.stage_ns()
    if max(whole) > (1 + IMBALANCE) * sum(whole) / len(whole):
        made += [_evened(measured, o, ran) for o in list(made)]
    made.sort(key=lambda o: (o.step_ns, o.num_microbatches))
    errors = sorted(_errors(measured, ran))
    error = own.step_ns / measured.step_ns - 1 if measured.step_ns else 0.0
    single = errors[int(0.8 * (len(errors) - 1))] if errors else 1.0
    spread = _spread([step.observed_ns for step in measured.steps], measured.step_ns)
    margin = max(LEAST_MARGIN, abs(error), single, spread)
    here = [o for o in made if o.num_microbatches == measured.num_microbatches and not o.equal]
    more = [o for o in made if o.num_microbatches > measured.num_microbatches and not o.equal]
    return WhatIf(
        schedule=name,
        num_ranks=measured.num_ranks,
        num_stages=measured.num_stages,
        num_microbatches=measured.num_microbatches,
        num_steps=len(measured.steps),
        step_ns=measured.step_ns,
        predicted_ns=own.step_ns,
        error=error,
        margin=margin,
        spread=spread,
        split=_split_words(measured),
        options=tuple(made),
        best=_winner(here, own, margin),
        best_microbatches=_winner(more, own, margin),
        left_out=tuple(left_out),
    )


def _label(schedule: str, virtual: int, count: int, counts: Sequence[int]) -> str:
    label = schedule if virtual < 2 else f"{schedule} v={virtual}"
    return label if len(counts) == 1 else f"{label} m={count}"


def _split_words(measured: Costs) -> str:
    split = measured.split
    if not split.measured:
        return "I and W were not seen apart: a half of B each, and no longer than B (~)"
    words = f"W is {percent(split.weight_share, 0)} of a backward, as measured"
    if split.overhead > 1:
        words += f"; I and W take {percent(split.overhead - 1, 0)} longer than B"
        words += "" if split.whole_seen else " (~)"
    return words


def _winner(options: Sequence[Option], own: Option, margin: float) -> Option | None:
    """Return the fastest option that wins by more than the margin however B splits; or None."""
    sure = [o for o in options if o.worst_ns < own.step_ns * (1 - margin)]
    return min(sure, key=lambda o: o.worst_ns, default=None)


def _spread(taken: Sequence[float], usual: float) -> float:
    """Return the distance within which 8 in 10 steps are from the median, as a share of it."""
    away = sorted(abs(ns / usual - 1) for ns in taken) if usual > 0 else []
    return away[int(0.8 * (len(away) - 1))] if away else 0.0


def _errors(measured: Costs, ran: Plan) -> list[float]:
    """Return the model's error in each step, by that step's durations."""
    return [
        abs(_run_step(measured, step, ran, measured.num_stages).period / step.observed_ns - 1)
        for step in measured.steps if step.observed_ns > 0
    ]  # fmt: skip


def _evened(measured: Costs, other: Option, ran: Plan) -> Option:
    """Return the same schedule with all stages cut to equal times."""
    name, count = other.schedule, other.num_microbatches
    plan = ran if other.runs_now else plans.plan(name, measured.num_ranks, other.num_virtual, count)
    return option(measured, name, plan, count, equal=True)


def option(
    measured: Costs, schedule: str, plan: Plan, num_microbatches: int, equal: bool = False
) -> Option:
    """Return the prediction of the model for one plan."""
    flat = [actions(row) for row in plan.values()]
    num_stages = 1 + max(a.stage for row in flat for t in row if (a := parse(t)))
    scale = measured.num_microbatches / num_microbatches

    def tried(split: Split) -> list[Ran]:
        by = replace(measured, split=split)
        return [_run_step(by, step, plan, num_stages, scale, equal) for step in measured.steps]

    ran = tried(measured.split)
    assumed = not measured.split.measured and any("W" in t for row in flat for t in row)
    step_ns = median(one.period for one in ran)
    others = [tried(split) for split in _other_splits(measured.split, flat)]
    sizes = measured.cut_activations(num_stages, equal)
    rows = [[(a.stage, a.kind) for text in row if (a := parse(text))] for row in flat]
    held = None if sizes is None else max(peak_size(row, dict(enumerate(sizes))) for row in rows)
    return Option(
        schedule=schedule,
        num_virtual=max(1, num_stages // len(plan)),
        num_microbatches=num_microbatches,
        equal=equal,
        step_ns=step_ns,
        window_ns=median(one.window for one in ran),
        bubble_fraction=median(one.bubble_fraction(len(plan)) for one in ran),
        in_flight=max(in_flight(row)[1] for row in rows),
        activation_bytes=None if held is None else scale * held,
        assumed=assumed,
        worst_ns=max([step_ns, *(median(one.period for one in other) for other in others)]),
    )


def _other_splits(split: Split, rows: Sequence[Sequence[str]]) -> list[Split]:
    """Return other possible splits of a plan's backwards that the run does not exclude."""
    kinds = {action.kind for row in rows for text in row if (action := parse(text))}
    if not split.measured:
        return [replace(split, weight_share=share) for share in SHARES] if "W" in kinds else []
    if not split.whole_seen and "B" in kinds and split.overhead > 1:
        return [replace(split, joined=split.overhead)]
    return []


def _run_step(
    measured: Costs, step: StepCosts, plan: Plan, num_stages: int, scale: float = 1.0,
    equal: bool = False,
) -> Ran:  # fmt: skip
    """Return the plan run with one step's durations."""
    times = step.cut(num_stages, measured.split, equal)
    return run(ordered(plan, num_stages), times, scale, step.between, measured.outside)
