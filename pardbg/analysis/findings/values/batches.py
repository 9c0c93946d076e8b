"""Finds faults in training data: equal data on ranks, epochs in the same order, skipped batches."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from itertools import chain
from typing import Final

from pardbg.analysis.base.asof import View
from pardbg.analysis.base.losses import each_own_loss, newest_ended, own_losses
from pardbg.analysis.base.steps import last_step_end
from pardbg.analysis.comm.matching import odd_ones
from pardbg.analysis.findings.finding import Candidate
from pardbg.analysis.findings.kinds.data_kinds import (
    SameData,
    SameOrder,
    SameParts,
    SameTargets,
    SkippedBatch,
    UnlikeData,
)
from pardbg.analysis.findings.values import exchanged
from pardbg.analysis.findings.values.checksums import averaging_in_step
from pardbg.store.process import Process

_ALIKE: Final = 20
"""Number of recent steps in which losses must be equal."""
_FURTHER: Final = 128
"""Steps among which these are, where a loss is averaged for a log every few steps."""
_TARGETS: Final = 8
"""Newest looks in which targets are equal, and not those of another look."""
_UNLIKE: Final = 3
"""Newest looks in which targets differ on the same ranks."""
_ORDER: Final = "same order"
"""Name of the record of an epoch (a: its number) that a sampler begins for the b-th time."""
_EPOCHS: Final = 3


def same_data(view: View) -> Iterable[Candidate]:
    """Find ranks that average gradients or shard one model and had bit-identical losses in each
    recent step; in a pipeline, replicas of its last stage."""
    last = (newest_ended(view) or 0) - 1  # of the newest some may be on their way
    newest = own_losses(view, last, last).get(last, {}).values()
    if len({*newest}) == len(newest):  # the usual case
        return
    by_rank: dict[int, list[tuple[float, ...]]] = defaultdict(list)
    for _, own in sorted(each_own_loss(view, last - _ALIKE + 1, last).items()):
        for rank, each in own.items():
            by_rank[rank].append(each)
    alike: dict[tuple[tuple[float, ...], ...], set[int]] = defaultdict(set)
    for rank, losses in by_rank.items():
        every = [*chain(*losses)]
        fine = all(map(math.isfinite, every)) and not all(map(_in_half_precision, every))
        if len(losses) == _ALIKE and len({*losses}) > 1 and fine:
            alike[tuple(losses)].add(rank)
    for ranks in alike.values():
        process = view.ranks[min(ranks)]
        if len(ranks) < 2 or process.model is None:
            continue
        averaged = (group.ranks for group, _ in exchanged.averages_on(view, process))
        for together in dict.fromkeys((*averaged, *_stepping_alike(view))):
            same = ranks.intersection(together)
            if len(same) > 1 and _alike_alone(view, process, same, last):
                yield Candidate(
                    kind="same-data", ranks=tuple(sorted(same)), t_ns=last_step_end(view),
                    facts=SameData(_ALIKE),
                )  # fmt: skip


def same_targets(view: View) -> Iterable[Candidate]:
    """Find ranks that average their gradients, or shard one model, and compared what they computed
    with the same targets, other ones at each of the last looks, though their losses differ: each
    has noise of its own (dropout). Not where they may share what they computed before backward."""
    for together in dict.fromkeys((*exchanged.averaging(view), *_stepping_alike(view))):
        told = {rank: exchanged.targets(view, view.ranks[rank]) for rank in together}
        steps = sorted(set.intersection(*map(set, told.values())))[-_TARGETS:]
        alike: dict[tuple[int, ...], set[int]] = defaultdict(set)
        for rank, own in told.items():
            alike[tuple(own[step] for step in steps)].add(rank)
        for of, ranks in alike.items() if len(steps) == _TARGETS else ():
            if len(ranks) > 1 and all(of) and len({*of}) == _TARGETS:
                shared = exchanged.shared_losses(view, view.ranks[min(ranks)], ranks)
                losses = [own_losses(view, step, step).get(step, {}) for step in steps]
                unlike = any(len({one.get(rank) for rank in ranks}) > 1 for one in losses)
                if unlike and shared.isdisjoint(steps):
                    yield Candidate(
                        kind="same-data", ranks=tuple(sorted(ranks)), t_ns=last_step_end(view),
                        facts=SameTargets(_TARGETS),
                    )  # fmt: skip


def unlike_data(view: View) -> Iterable[Candidate]:
    """Find a rank that computes one result with others (tensor parallel), and compares it with
    other targets than all of them do with the same ones, which change from look to look."""
    groups = {
        group.ranks for process in view.ranks.values() if process.model is not None
        for group in exchanged.computing(view, process) if view.ranks.keys() >= {*group.ranks}
    }  # fmt: skip
    for ranks in groups:
        told = {rank: exchanged.targets(view, view.ranks[rank]) for rank in ranks}
        steps = sorted(set.intersection(*map(set, told.values())))
        by_step = [(step, {rank: told[rank][step] for rank in ranks}) for step in steps]
        odd = [odd_ones(of) if all(of.values()) else () for _, of in by_step]
        newest = odd[-_UNLIKE:]
        if len(newest) < _UNLIKE or len({*newest}) > 1 or len(newest[0]) != 1:
            continue
        others = {of[r] for _, of in by_step[-_UNLIKE:] for r in ranks if r not in newest[0]}
        since = next(at for at in range(len(odd)) if {*odd[at:]} == {*newest})
        if len(others) == _UNLIKE:
            yield Candidate(
                kind="unlike-data", ranks=tuple(sorted(ranks)), culprits=newest[0],
                t_ns=last_step_end(view), facts=UnlikeData(steps[since], len(odd) - since),
            )  # fmt: skip


def same_parts(view: View) -> Iterable[Candidate]:
    """Find ranks that average their gradients, or shard one model, and whose samplers give them the
    same part of the samples. Not where they may share what they compute before backward."""
    told = {rank: exchanged.part_of_samples(view, process) for rank, process in view.ranks.items()}
    newest = {rank: part for rank, part in told.items() if part is not None}
    if len({*newest.values()}) == len(newest):  # the usual case
        return
    for together in dict.fromkeys((*exchanged.averaging(view), *_stepping_alike(view))):
        alike: dict[tuple[int, int], set[int]] = defaultdict(set)
        for rank in newest.keys() & {*together}:
            alike[newest[rank]].add(rank)
        for (parts, part), ranks in alike.items():
            if parts > 1 < len(ranks) and not exchanged.shared_losses(
                view, view.ranks[min(ranks)], ranks
            ):
                yield Candidate(
                    kind="same-data", ranks=tuple(sorted(ranks)), t_ns=last_step_end(view),
                    facts=SameParts(part, parts),
                )  # fmt: skip


def same_orders(view: View) -> Iterable[Candidate]:
    """Find ranks whose sampler began several epochs with the same number, so that it draws the same
    order in each."""
    told = {
        rank: [*exchanged.probes(view, process, _ORDER)] for rank, process in view.ranks.items()
    }
    newest = {rank: rows[-1] for rank, rows in told.items() if rows}
    ranks = tuple(rank for rank, (*_, times) in newest.items() if times >= _EPOCHS)
    if ranks:
        _, _, epoch, times = newest[ranks[0]]
        yield Candidate(
            kind="same-order", ranks=ranks, t_ns=last_step_end(view),
            culprits=ranks if len(ranks) < len(view.ranks) else (), facts=SameOrder(epoch, times),
        )  # fmt: skip


def _stepping_alike(view: View) -> Iterable[tuple[int, ...]]:
    """Return ranks that take the same step together but do not average gradients before it: they
    shard one model, or average within it."""
    return chain(exchanged.sharding(view), averaging_in_step(view))


def _alike_alone(view: View, process: Process, ranks: set[int], last: int) -> bool:
    """Return whether the ranks' losses were equal in the recent steps in which these ranks
    exchanged nothing before backward, as far as is known with the same targets."""
    of_targets = [exchanged.targets(view, view.ranks[rank]) for rank in ranks]
    looks = set.intersection(*map(set, of_targets))
    if any(len({own[step] for own in of_targets} - {0}) > 1 for step in looks):
        return False
    shared = exchanged.shared_losses(view, process, ranks, tokens=False)
    if not shared:
        return True
    found = own_losses(view, last - _FURTHER + 1, last)
    steps = [s for s, own in sorted(found.items()) if s not in shared and ranks <= own.keys()]
    alike = {tuple(found[step][rank] for step in steps[-_ALIKE:]) for rank in ranks}
    return len(steps) >= _ALIKE and len(alike) == 1


def _in_half_precision(value: float) -> bool:
    """Return whether a value fits float16 or bfloat16: such losses are often equal by chance."""
    return (math.frexp(value)[0] * 2**11).is_integer()


def skipped_batches(view: View) -> Iterable[Candidate]:
    """Find ranks that took one batch more than the others without a step for it while gradients are
    averaged: from there on their n-th gradients are of another batch. Not found on ranks that do so
    often (samples for a log), nor for many batches at once (an evaluation). Without a data loader,
    a backward, or gradients cleared twice, shows an iteration without a step."""
    for ranks in exchanged.averaging(view):
        told: set[int] = set()
        for what in ("data", "backward", exchanged.CLEARED):
            taken = {
                rank: exchanged.counted_by_step(view, view.ranks[rank], what) for rank in ranks
            }
            steps = sorted(set.intersection(*map(set, taken.values())))[:-1]
            for rank in ranks if len(steps) > exchanged.SHIFTED else ():
                since = exchanged.shifted_since(steps, taken, rank)
                alone = what != "backward" or exchanged.one_each(steps, taken, rank)
                if since is not None and alone and rank not in told:
                    told.add(rank)
                    yield Candidate(
                        kind="skipped-batch", ranks=ranks, culprits=(rank,),
                        t_ns=last_step_end(view),
                        facts=SkippedBatch(since, steps[-1] - since + 1, what),
                    )  # fmt: skip
