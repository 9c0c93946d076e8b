"""Comparison of a run with its reference: is it the same computation, and what differs first?

Nothing is claimed that does not follow: where inputs or initial parameters differ, a layout is not
known or rounding explains as much, the answer is that it cannot be compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Final, Literal, cast

from pardbg.analysis.same.activations import activations
from pardbg.analysis.same.beginnings import in_place, initial, inputs, later_ranks, sharing
from pardbg.analysis.same.by_rank import RankBlocks, Told, by_rank
from pardbg.analysis.same.elements import Elements, elements_of
from pardbg.analysis.same.hypotheses import (
    CERTAIN,
    Hypothesis,
    Trial,
    factor,
    hypothesis,
    of_replicas,
    unlike,
    update,
)
from pardbg.analysis.same.loss import Loss, loss_of
from pardbg.analysis.same.module_flow import Flow, Place, Why, flow, low_precision, tried
from pardbg.analysis.same.names import prefixes
from pardbg.analysis.same.noise import (
    MOST_OF_UPDATE,
    RED,
    SEEN,
    Floors,
    Level,
    alike,
    difference,
    floors,
    level_of,
    of_update,
)  # fmt: skip
from pardbg.analysis.same.siblings import Beside, beside
from pardbg.analysis.same.wholes import USED, Gap, Key, Whole, Wholes, ended_equal, told, wholes
from pardbg.analysis.same.working_copies import Copies, copies
from pardbg.store.store import DEFINITIONS, Store

Reason = Literal[
    "same", "invariants-hold", "differs", "replicas-differ", "nothing-captured", "no-common-names",
    "no-common-steps", "inputs-differ", "floor-inputs-differ", "initial-parameters-differ",
    "reference-replicas-differ", "uncertain", "all-rounding", "nothing-judged", "no-replicas",
    "too-large", "no-parameters", "not-stepped",
]  # fmt: skip
"""Reason of the answer. ``uncertain``: a tensor differs, but inputs or some initial parameters are
not known; ``all-rounding``: every gradient differs as computation in bfloat16 would make it;
``no-replicas``: no rank keeps a copy of another one's tensors; ``too-large``: not all captured data
was read; ``no-parameters``: the optimizers step tensors that cannot be assigned to parameters;
``not-stepped``: no optimizer has stepped."""
Left = Literal[
    Gap, Why, "only-reference", "only-run", "shape", "not-finite", "no-update", "gradient", "step",
]  # fmt: skip
"""Why a tensor is not judged: its layout; what module_flow.Why says; names or shapes; the
reference is not finite; the update is not known; its gradient is not green; a later step, without
--floor, that does not begin with equal parameters."""
EXIT: Final[Mapping[Reason, int]] = {
    "same": 0, "invariants-hold": 0, "differs": 1, "replicas-differ": 1,
}  # fmt: skip
CANNOT: Final = 2
MULTIPLE: Final = 0.25
"""Distance from 1 of a factor that is red whatever the noise."""
OF_LOSS: Final = "loss-value"
"""Kind of a difference: gradients agree, the loss is off by a logarithm, which no unit explains."""


@dataclass(frozen=True, slots=True)
class Row:
    """A tensor that was judged."""

    step: int
    what: str
    name: str
    error: float
    """Norm of the difference as a share of the reference's norm."""
    floors: float
    """Norm of the difference in noise floors."""
    level: Level


@dataclass(frozen=True, slots=True)
class NotJudged:
    """Tensors that were not judged, for one reason."""

    why: Left
    whats: tuple[str, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sameness:
    """Answer of ``pardbg same``."""

    reason: Reason
    step: int | None = None
    what: str = ""
    name: str = ""
    """Name of the first tensor that differs; for a reason about a session, its name "A" or "B"."""
    hypothesis: Hypothesis | None = None
    place: Place | None = None
    """Module to look at, if activations tell."""
    beside: tuple[Beside, ...] = ()
    """Collectives of the differing module's block that are unlike its siblings'."""
    rows: tuple[Row, ...] = ()
    """Judged tensors in order of execution: gradients from the last parameter, then parameters."""
    left: tuple[NotJudged, ...] = ()
    inputs_known: bool = False
    """Whether the inputs are known to be equal."""
    initial_known: bool = False
    """Whether the initial values of all parameters are known to be equal."""
    random: bool = False
    """Whether layers draw random numbers, as dropout does; other layouts draw others."""
    floor_idle: bool = False
    """Whether the second recording equals the first, bit by bit, and tells nothing of rounding."""
    num_tensors: int = 0
    """Number of tensors that were looked at."""
    num_copies: int = 0
    """Number of ranks' copies of parameters that are known to have, or lack, the update."""
    loss: Loss | None = None
    """Losses of the first captured step; None: one is not known."""
    elements: tuple[Elements, ...] = ()
    """Elements of the red tensors that both runs kept."""
    blocks: tuple[str, ...] = ()
    """Blocks of the first captured step, in the order of execution."""
    ranks: tuple[RankBlocks, ...] = ()
    """Distance of each rank from the reference, by block."""
    tried: tuple[Trial, ...] = ()
    """Hypotheses tried on the first tensor that differs, by their distance from the reference."""

    @property
    def exit_code(self) -> int:
        """Return the exit code: 0 the same; 1 not the same; 2 cannot be compared."""
        return EXIT.get(self.reason, CANNOT)


def alone(store: Store) -> Sameness:
    """Return whether tensors that a run keeps equal on several ranks are equal."""
    run = wholes(store)
    if store.refused[DEFINITIONS]:
        return Sameness("too-large", name="A")
    if not run.steps:
        return Sameness(_why_nothing(store), name="A")
    left = _left({key[1:]: gap for key, gap in run.unknown.items()})
    order = [run.tensors[key] for key in run.in_order() if key in run.tensors]
    order = [whole for whole in order if whole.copies]
    known = copies(run)
    odd = next((whole for whole in order if whole.replicas), None)
    if odd is not None:
        return _or_stale(Sameness("replicas-differ", *odd.key, unlike(odd), left=left), known)
    holds = order or known.judged
    reason: Reason = "invariants-hold" if holds else "nothing-judged" if left else "no-replicas"
    found = Sameness(reason, left=left, num_tensors=len(order), num_copies=known.judged)
    return _or_stale(found, known)


def compare(reference: Store, run: Store, floor: Store | None = None) -> Sameness:
    """Return whether ``run`` computes the same as ``reference``; ``floor``: a second recording of
    the reference, whose differences are its noise. If they cannot be compared, a fault within the
    run is the answer."""
    found = _compare(reference, run, floor)
    own = alone(run) if found.exit_code == CANNOT else found
    return own if own.exit_code == EXIT["differs"] else found


def _compare(reference: Store, run: Store, floor: Store | None) -> Sameness:
    for store, name in ((reference, "A"), (run, "B"), (floor, "--floor")):
        if store is not None and store.refused[DEFINITIONS]:
            return Sameness("too-large", name=name)
    a = wholes(reference)
    begun = {whole.name: whole for whole in a.tensors.values() if whole.what == "init"}
    moved = prefixes(begun, run)
    later = later_ranks(a, run, moved)
    b = wholes(run, moved, later, partial(in_place, begun=begun))
    for side, store, name in ((a, reference, "A"), (b, run, "B")):
        if not side.steps:
            return Sameness(_why_nothing(store), name=name)
    if not a.names("grad") & b.names("grad") | a.names("param") & b.names("param"):
        return Sameness("no-common-names")
    if a.steps[0] != b.steps[0]:
        return Sameness("no-common-steps")
    known, unequal = inputs(a, b)
    if unequal is not None:
        return Sameness("inputs-differ", unequal)
    verified, first = initial(a, b)
    if first is not None:
        return Sameness("initial-parameters-differ", *first.key)
    second = wholes(floor) if floor is not None else None
    if second is not None and inputs(a, second)[1] is not None:
        return Sameness("floor-inputs-differ", inputs(a, second)[1])
    judge, random = _Judge(a, b, second), a.random or b.random
    parameters = a.names("init") | a.names("param")
    certain = known and not random and verified >= parameters
    known_outs = activations(reference, judge.step, prefixes(begun, reference))
    shared = sharing(a, b, judge.step, "0")
    outs = activations(run, judge.step, moved, later, known_outs, shared)
    modules = flow(
        known_outs, outs,
        activations(floor, judge.step, {}) if floor is not None else (),
        judge.floors.of, b.group_sizes,
    )  # fmt: skip
    complete = parameters <= b.names("init") | b.names("param")
    found = _answer(a, judge.judge(), modules, certain, complete, judge.with_floor)
    found = _or_stale(found, copies(b))
    odd = () if found.place is None else beside(run, outs, found.name, found.what != "out")
    loss = loss_of((reference, a), (run, b), floor, judge.step)
    found = _or_loss(found, loss)
    parts = (one for one in told(run, moved) if one[1].step == judge.step)
    rows = _told(found.rows, judge.step)
    key = (found.step or 0, found.what, found.name)
    ways = tried(key, modules.judged, (a, b), judge.before, judge.floors.of)
    blocks, ranks = by_rank(rows, parts, modules.judged, (a, b), judge.floors.of)
    return replace(
        found, inputs_known=known, initial_known=verified >= parameters, random=random,
        floor_idle=judge.floor_idle, beside=odd, loss=loss, blocks=blocks, ranks=ranks,
        tried=ways if found.exit_code == EXIT["differs"] else (),
        elements=tuple(elements_of(_off(found), modules.judged, a, b, judge.floors.of)),
    )  # fmt: skip


def _or_stale(found: Sameness, known: Copies) -> Sameness:
    """Return the answer, or that modules compute with stale parameters if this comes first."""
    first = next(iter(known.stale), None)
    if first is None or (found.exit_code == 1 and (found.step or 0) < first.step):
        return found
    rows = tuple(Row(of.step, USED, of.name, of.error, math.inf, "red") for of in known.stale)
    return replace(
        found, reason="differs", step=first.step, what=USED, name=first.name,
        hypothesis=first.cause, place=None, rows=(*found.rows, *rows),
        num_tensors=found.num_tensors + len(rows),
    )  # fmt: skip


def _or_loss(found: Sameness, loss: Loss | None) -> Sameness:
    """Return the answer, or that the loss alone is off, by a logarithm."""
    if found.reason != "same" or loss is None or loss.level != "red" or not loss.log_of:
        return found
    cause = Hypothesis("log", float(loss.log_of), True)
    return replace(found, reason="differs", step=loss.step, what=OF_LOSS, hypothesis=cause)


def _off(found: Sameness) -> list[Key]:
    """Return the keys of red tensors, the answer's first."""
    named = [(found.step or 0, found.what, found.name)] if found.name else []
    return named + [(r.step, r.what, r.name) for r in found.rows if r.level == "red"]


def _told(rows: Sequence[Row], step: int) -> list[Told]:
    """Return the floors of a step's tensors; tensors red for other reasons get above RED."""
    at = [row for row in rows if row.step == step and row.what in ("out", "d_out", "grad")]
    return [
        (r.what, r.name, r.floors if r.level != "red" else max(r.floors, 2.0 * RED)) for r in at
    ]


def _why_nothing(store: Store) -> Reason:
    store.settle()
    procs = store.rank_procs(None).values()
    if not any(process.tensors for process in procs):
        return "nothing-captured"
    return "no-parameters" if any(len(p.table("step")) for p in procs) else "not-stepped"


def _left(reasons: Mapping[tuple[str, str], Left]) -> tuple[NotJudged, ...]:
    """Return the tensors that were not judged, (kind, name) grouped by reason."""
    keys = {why: [key for key, of in reasons.items() if of == why] for why in reasons.values()}
    return tuple(
        NotJudged(why, *(tuple(sorted(set(column))) for column in zip(*of, strict=True)))
        for why, of in keys.items()
    )


@dataclass(frozen=True, slots=True)
class _Found:
    rows: tuple[Row, ...]
    left: tuple[NotJudged, ...]
    first: Whole | None = None
    """First red tensor of the run."""
    cause: Hypothesis | None = None
    reference_replicas: Whole | None = None


class _Judge:
    """Judge of the tensors of two runs, one after another."""

    def __init__(self, a: Wholes, b: Wholes, second: Wholes | None) -> None:
        self.a, self.b = a, b
        self.step = a.steps[0]
        depth = len(a.names("grad") or a.names("param"))
        others = None if second is None else second.tensors
        self.floors: Floors = floors(a.tensors, depth, self.step, others)
        self.with_floor = any(self.floors.measured.values())
        self.floor_idle = second is not None and not self.with_floor
        self.reasons: dict[tuple[str, str], Left] = {}
        self.levels: dict[Key, Level] = {}
        self.shares: dict[tuple[int, str], float] = {}
        """(step, name) -> share of the gradient that is rounding, or is off."""
        later = (to for of, to in pairwise(a.steps) if self.with_floor or ended_equal(a, b, of))
        self.wanted = {self.step, *later}
        """Steps that are judged."""

    def judge(self) -> _Found:
        """Return the rows in the order of execution, with the first red tensor and its cause."""
        self._leave_names()
        rows: list[Row] = []
        first: Whole | None = None
        cause: Hypothesis | None = None
        for key in self.a.in_order():
            left, right = self.a.tensors.get(key), self.b.tensors.get(key)
            if left is None or right is None:
                if left is not None and self._no_gradient(left):
                    rows.append(Row(*key, 1.0, float("inf"), "red"))
                    if first is None:
                        first, cause = left, Hypothesis("no-gradient")
                continue
            if left.replicas:
                return _Found(tuple(rows), (), reference_replicas=left)
            if key[1] == "init" and not right.replicas:
                continue
            row = self._row(left, right)
            if not isinstance(row, Row):
                self.reasons.setdefault(key[1:], row)
                continue
            rows.append(row)
            self.levels[key] = row.level
            if row.level == "red" and first is None:
                first, cause = right, self._cause(left, right)
        return _Found(tuple(rows), _left(self.reasons), first, cause)

    def _no_gradient(self, left: Whole) -> bool:
        """Return whether the run's optimizer stepped a parameter without a gradient that the
        reference has."""
        updated = self.b.tensors.get((left.step, "param", left.name))
        here = left.what == "grad" and left.step == self.step and left.key not in self.b.unknown
        return here and left.most > 0 and updated is not None and alike(updated, left)

    def _leave_names(self) -> None:
        """Record names of one side only, and names without a known layout."""
        for what in ("grad", "param", "buffer"):
            names = self.a.names(what), self.b.names(what)
            self.reasons |= {(what, name): "only-reference" for name in names[0] - names[1]}
            self.reasons |= {(what, name): "only-run" for name in names[1] - names[0]}
        for side in (self.a, self.b):
            self.reasons |= {key[1:]: gap for key, gap in side.unknown.items()}

    def _row(self, left: Whole, right: Whole) -> Row | Left:
        """Return a tensor's row, or the reason for not judging it."""
        if not alike(left, right):
            return "shape"
        error, size = difference(left, right), left.norm
        share = error / size if size else float("inf") if error else 0.0
        if right.replicas:
            cause = of_replicas(left, right, self.floors.of(left, right) or 0.0)
            return "copies" if cause is None else Row(*left.key, share, float("inf"), "red")
        if left.step not in self.wanted:
            return "step"
        if left.bad:
            return "not-finite"
        noise = self.floors.of(left, right)
        if noise is None:
            return "dtype"
        scale = left.norm
        if left.what == "param":
            if self.levels.get((left.step, "grad", left.name), "green") != "green":
                return "gradient"
            before = self.before(self.a, left)
            if before is None:
                return "no-update"
            scale = difference(left, before)
            explained = of_update(self.shares.get((left.step, left.name), 0.0), left.count)
            if explained > MOST_OF_UPDATE or RED * noise > SEEN * scale:
                return "noise"
            noise = max(noise, explained * scale / RED)
        else:
            self.shares[left.step, left.name] = max(share, noise / size if size else 0.0)
        level = self._level(left, right, error, noise, scale)
        if level is None:
            return "noise"
        in_floors = error / noise if noise else float("inf") if error else 0.0
        return Row(*left.key, share, in_floors, level)

    def _level(
        self, left: Whole, right: Whole, error: float, noise: float, scale: float
    ) -> Level | None:
        """Return the level of a difference; None: rounding explains as much as any mistake."""
        if right.bad:
            return "red"
        if left.what == "grad" and self._is_multiple(left, right):
            return "red"  # rounding, however coarse, makes no multiple
        if not left.most and not right.most:
            return "green"
        if RED * noise > scale * (1.0 if left.what == "param" else SEEN):
            return None
        return level_of(error, noise)

    def _is_multiple(self, left: Whole, right: Whole) -> bool:
        found = factor(left, right, ())
        far = found is not None and abs(found.factor - 1) >= MULTIPLE
        return far and not self.floors.all_rounding(left, right)

    def before(self, side: Wholes, whole: Whole) -> Whole | None:
        """Return a tensor in the captured step before; or a parameter's initial value."""
        steps = [step for step in side.steps if step < whole.step]
        if steps:
            return side.tensors.get((steps[-1], whole.what, whole.name))
        return side.tensors.get((whole.step, "init", whole.name)) if whole.what == "param" else None

    def _cause(self, left: Whole, right: Whole) -> Hypothesis | None:
        noise, before = self.floors.of(left, right) or 0.0, self.before(self.b, right)
        found = hypothesis(left, right, before, noise, self.b.group_sizes)
        return found or update(left, right, (self.before(self.a, left), before))


def _answer(
    a: Wholes, found: _Found, modules: Flow, certain: bool, complete: bool, with_floor: bool
) -> Sameness:
    """Return the answer for the tensors found. ``certain``: inputs and initial parameters are known
    and equal; ``complete``: the run has all of the reference's parameters."""
    same = found.first is None and _judged(a, found.rows)
    outs, left = _of_modules(modules, same)
    rows, place = (*outs, *found.rows), None if same else modules.first

    def answer(reason: Reason, of: Whole | None = None) -> Sameness:
        step, what, name = (None, "", "") if of is None else of.key
        return Sameness(
            reason, step, what, name, found.cause, place, rows=rows, left=(*found.left, *left),
            num_tensors=len(rows),
        )  # fmt: skip

    if found.reference_replicas is not None:
        return answer("reference-replicas-differ", found.reference_replicas)
    first, cause = found.first, found.cause
    if first is None and place is None:
        return answer("same" if same else "nothing-judged")
    if first is not None and first.replicas and place is None:
        return answer("replicas-differ", first)
    # Stages that have one name by mistake have unlike outputs.
    of_output = place.hypothesis if place is not None and complete else None
    causes = cause, of_output
    known = {of.cause for of in causes if of is not None}
    if known & {*CERTAIN}:
        return _at(place, answer("differs", first), a.steps[0])
    if not certain:
        return _at(place, answer("uncertain", first), a.steps[0])
    rounding = not with_floor and not known and _all_rounding(rows, modules)
    return _at(place, answer("all-rounding" if rounding else "differs", first), a.steps[0])


def _at(place: Place | None, found: Sameness, step: int) -> Sameness:
    """Return an answer with the first differing module in place of the parameter."""
    if place is None:
        return found
    cause = place.hypothesis if place.what != "loss" else found.hypothesis
    return replace(found, step=step, what=place.what, name=place.name, hypothesis=cause)


def _of_modules(modules: Flow, same: bool) -> tuple[list[Row], tuple[NotJudged, ...]]:
    """Return (rows of activations, activations not judged). If parameters and gradients are the
    same, an activation that differs just has another layout."""
    rows: list[Row] = []
    reasons: dict[tuple[str, str], Left] = {}
    for one in modules.judged:
        level, key = one.level, (one.run.what, one.reference.name)
        if level == "green" or (level in ("yellow", "red") and not same):
            rows.append(Row(one.run.step, *key, one.error, one.floors, level))
        else:
            reasons[key] = "layout" if level in ("yellow", "red") else cast(Why, level)
    return rows, _left(reasons)


def _judged(a: Wholes, rows: Sequence[Row]) -> bool:
    """Return whether most gradients of the first step, or most parameters, were judged."""
    counted = {what: sum(row.what == what for row in rows) for what in ("grad", "param")}
    step = a.steps[0]
    return any(
        2 * counted[what] > sum(key[:2] == (step, what) for key in (*a.tensors, *a.unknown)) > 0
        for what in counted
    )


def _all_rounding(rows: Sequence[Row], modules: Flow) -> bool:
    """Return whether every gradient is off, and none by more than low precision explains: so it is
    where parameters are float32 and computation is not (autocast)."""
    of = [row for row in rows if row.what == "grad"]
    off = bool(of) and all(row.level != "green" for row in of)
    return off and max(row.error for row in of) <= low_precision(modules.judged)
