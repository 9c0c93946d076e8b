"""Finds replicas of a model whose parameters are no longer equal, or never were."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

import pardbg.analysis.findings.kinds.value_kinds as kinds
from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.base.steps import last_step_end
from pardbg.analysis.comm.matching import odd_ones
from pardbg.analysis.findings.finding import Candidate
from pardbg.analysis.findings.values import exchanged
from pardbg.analysis.findings.values.checksums import (
    OWN,
    ByKey,
    Key,
    Sums,
    checksums,
    differs,
    equal,
    parts_apart,
    scattering,
)
from pardbg.store.definitions import GroupDef
from pardbg.store.process import Process
from pardbg.store.table import Array

_SETTINGS: Final = "settings"
"""Record of an optimizer's learning rate (a, float64) and a digest of all its settings (b)."""
_GRADIENTS: Final = "gradients"
"""Name of the record of the sum (a) of the gradients that an optimizer took."""
_LATE: Final = "gradients late"
"""Name of the record of a gradient that was changed after the optimizer's step."""
_GROUPS_BIT: Final = 32
"""Bit from which on ``b`` of a settings record is the optimizer's number of parameter groups."""
_LATE_LOOKS: Final = 2
_UNLIKE_LOOKS: Final = 2
"""Minimum number of looks with unlike settings; a schedule may step a moment later on one rank."""
_NEVER: Final = -1
"""Value in place of a number of modules: the model was never in eval mode."""
_LEAST_LOOKS: Final = 3
"""Minimum number of different sums of gradients."""
_AVERAGES: Final = 2
"""Number of averages of the model that make a local SGD; a program may end with a single one."""


def divergence(view: View) -> Iterable[Candidate]:
    """Find ranks whose replicated parameters are no longer bit-identical to the others'."""
    by_group: dict[str, dict[Key, dict[int, Sums]]] = defaultdict(lambda: defaultdict(dict))
    for rank, process in view.ranks.items():
        for group, key, sums in checksums(view, process):
            by_group[group][key][rank] = sums
    for group, by_key in sorted(by_group.items()):
        own = group.startswith(OWN)
        for ranks, average in _replicas(view, by_key) if own else [(set(view.ranks), True)]:
            among = {k: {r: v for r, v in of.items() if r in ranks} for k, of in by_key.items()}
            yield from _diverged(view, group, among, average)


def _replicas(view: View, by_key: ByKey) -> list[tuple[set[int], bool]]:
    """Return (ranks, whether they average their gradients) of replicas without a DDP: ranks that
    began with equal parameters and average, or were equal after the first step."""
    found = [set(of) for of in _averaging(view) if len({*of.values()}) == 1 < len(of)]
    first = min(step for step, _ in by_key)
    sums: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for (step, which), by_rank in sorted(by_key.items()):
        for rank, of in by_rank.items() if step == first else ():
            sums[rank].append((which, of.whole, of.parts))
    alike: dict[tuple[tuple[int, int, int], ...], set[int]] = defaultdict(set)
    for rank, said in sums.items():
        alike[tuple(said)].add(rank)
    equal = [ranks for ranks in alike.values() if len(ranks) > 1]
    new = [(ranks, False) for ranks in equal if not any(ranks <= of for of in found)]
    return [*((ranks, True) for ranks in found), *new]


@per_view
def _averaging(view: View) -> list[Mapping[int, int]]:
    """Return, per group, rank -> its digest of the initial parameters, for ranks that average the
    gradients of all their parameters, or whose optimizers took equal gradients."""
    starts: dict[tuple[int, str], dict[int, int]] = defaultdict(dict)
    members: dict[tuple[int, str], tuple[int, ...]] = {}
    models = {
        rank: model for rank, process in view.ranks.items()
        if (model := process.model) and model.start is not None and not model.rpc
        and model.shards <= 1
    }  # fmt: skip
    for rank, model in models.items():
        for group, times in exchanged.averages_on(view, view.ranks[rank]):
            if times == 1 and model.start is not None:
                key = group.epoch, group.key
                starts[key][rank], members[key] = model.start, group.ranks
    found: list[Mapping[int, int]] = [
        of for key, of in starts.items() if set(of) == set(members[key])
    ]
    for ranks in _alike_gradients(view, models):
        if not any(ranks <= set(of) for of in found):
            found.append({rank: models[rank].start or 0 for rank in sorted(ranks)})
    return found


def _alike_gradients(view: View, ranks: Iterable[int]) -> list[set[int]]:
    """Return sets of ranks whose optimizers took bit-identical gradients in all looks, though other
    ones each time: these ranks exchange gradients, in whatever way."""
    sums: dict[int, dict[Key, tuple[int, int]]] = {}
    for rank in ranks:
        process = view.ranks[rank]
        columns = exchanged.probes(view, process, _GRADIENTS)
        of = {(step, seq): (whole, count) for step, seq, whole, count in columns if whole}
        if len(of) >= _LEAST_LOOKS and exchanged.exchanges(view, process):
            sums[rank] = of
    common = sorted(set.intersection(*map(set, sums.values()))) if sums else []
    alike: dict[tuple[tuple[int, int], ...], set[int]] = defaultdict(set)
    for rank, of in sums.items():
        alike[tuple(of[key] for key in common)].add(rank)
    return [of for said, of in alike.items() if len(of) > 1 and len({*said}) >= _LEAST_LOOKS]


def _diverged(view: View, group: str, by_key: ByKey, average: bool) -> Iterable[Candidate]:
    steps: dict[int, list[Mapping[int, Sums]]] = defaultdict(list)
    for (step, _), by_rank in sorted(by_key.items()):
        if len(by_rank) > 1:
            steps[step].append(by_rank)
    different = [s for s, parts in steps.items() if any(differs(part) for part in parts)]
    if not different:
        return
    step = different[0]
    odd: Counter[int] = Counter()
    for part in steps[step]:
        odd.update(odd_ones({rank: of.whole for rank, of in part.items()}))
    names = [name for part in steps[step] if differs(part) for name in parts_apart(part)]
    ranks = tuple(sorted({rank for part in steps[step] for rank in part}))
    # others may be equal in a step that a rank which steps less often has not come to
    whole = [s for s, parts in steps.items() if all(part.keys() >= {*ranks} for part in parts)]
    yield Candidate(
        kind="replica-divergence", ranks=ranks, culprits=tuple(sorted(odd)),
        t_ns=min(of.t_ns for part in steps[step] for of in part.values()),
        facts=_facts(view, group, ranks, tuple(names), sorted({*whole, *different}), different,
                     average, odd),
        where=names[0] if names else None,
    )  # fmt: skip


def _facts(
    view: View, group: str, ranks: tuple[int, ...], names: tuple[str, ...], steps: Sequence[int],
    different: Sequence[int], average: bool, odd: Collection[int],
) -> kinds.ReplicaDivergence:  # fmt: skip
    own, newest, step = group.startswith(OWN), max(steps), different[0]
    again, processes = newest not in different, [view.ranks[rank] for rank in ranks]
    skipped, counts = _skipped(view, ranks, group.removeprefix(OWN))
    rates, others = _settings(view, ranks, step)

    def unfinished(rank: int) -> int:
        return exchanged.unfinished(view, view.ranks[rank])

    return kinds.ReplicaDivergence(
        parts=names, step=step,
        equal_step=max((s for s in steps if s < step), default=None),
        again_step=newest if again else None,
        sure=((len(different) > 1 and not again) or newest == step) and not own,
        averaged=not again and all(_syncs_at_times(view, of, own, average) for of in processes),
        skipped=skipped, steps=counts, rates=rates, settings=others,
        unfinished=min(map(unfinished, odd or ranks)) if own else 0,
    )  # fmt: skip


# -- why


def _settings(
    view: View, ranks: Sequence[int], until_step: int
) -> tuple[tuple[tuple[int, float], ...], tuple[int, ...]]:
    """Return (each rank's learning rate where the rates first differ, ranks whose optimizer had
    other settings)."""
    for (step, _), of in _settings_by_key(view, ranks).items():
        if step <= until_step and len(set(of.values())) > 1:
            return _unlike(of)
    return (), ()


def _settings_by_key(
    view: View, ranks: Sequence[int]
) -> dict[Key, Mapping[int, tuple[float, int]]]:
    """Return (step, optimizer) -> rank -> (learning rate, digest of all settings), in order, for
    keys that all ranks recorded."""
    by_key: dict[Key, dict[int, tuple[float, int]]] = defaultdict(dict)
    for rank in ranks:
        for key, settings in _settings_of(view, rank):
            by_key[key][rank] = settings
    return {key: of for key, of in sorted(by_key.items()) if len(of) == len(ranks)}


def _settings_of(view: View, rank: int) -> Iterable[tuple[Key, tuple[float, int]]]:
    for step, seq, rate, digest in exchanged.probes(view, view.ranks[rank], _SETTINGS, "<f8"):
        yield (step, seq), (rate, digest)


@per_view
def _all_settings(view: View) -> Mapping[Key, Counter[tuple[float, int]]]:
    """Return (step, optimizer) -> number of ranks with each settings."""
    found: dict[Key, Counter[tuple[float, int]]] = defaultdict(Counter)
    for rank in view.ranks:
        for key, settings in _settings_of(view, rank):
            found[key][settings] += 1
    return found


def _unlike_the_rest(
    view: View, key: Key, of: Mapping[int, tuple[float, int]]
) -> tuple[int, ...]:  # fmt: skip
    """Return the ranks of a group without a majority whose settings are not those of most ranks
    outside of it, if others of the group have these; empty: none."""
    rest = _all_settings(view)[key] - Counter(of.values())
    (usual, number), *_ = rest.most_common(1) or [((0.0, 0), 0)]
    if 2 * number <= rest.total() or usual not in of.values():
        return ()
    return tuple(sorted(rank for rank, settings in of.items() if settings != usual))


def _unlike(
    of: Mapping[int, tuple[float, int]],
) -> tuple[tuple[tuple[int, float], ...], tuple[int, ...]]:
    """Return (each rank's learning rate, if these differ; ranks unlike most)."""
    by_rank = tuple((rank, rate) for rank, (rate, _) in sorted(of.items()))
    differ = len({rate for _, rate in by_rank}) > 1
    return (by_rank if differ else ()), odd_ones(of) or tuple(sorted(of))


def _skipped(
    view: View, ranks: Sequence[int], group: str
) -> tuple[tuple[int, ...], tuple[int, int]]:
    """Return (ranks whose optimizer stepped another number of times than most, (that number, the
    number of most)); none if they ran fewer backwards, too: then they only issue more ops a
    step."""
    steps = updates(view, [rank for rank in ranks if rank in view.ranks], group)
    (most, _), *others = Counter(steps.values()).most_common() or [(0, 0)]
    odd = tuple(sorted(rank for rank, number in steps.items() if number != most))
    if not others:
        return (), (0, 0)
    usual = next(rank for rank, number in steps.items() if number == most)
    slower = steps[odd[0]] < most and _per_step(view, odd[0]) == _per_step(view, usual) > 0
    return ((), (0, 0)) if slower else (odd, (steps[odd[0]], most))


def _per_step(view: View, rank: int) -> float:
    """Return the number of backwards for each step of a rank's optimizer so far; 0: not known."""
    begun, _, _ = exchanged.backwards(view, view.ranks[rank])
    steps, _, _ = exchanged.backwards(view, view.ranks[rank], of="optimizer")
    return float(begun.searchsorted(steps[-1])) / len(steps) if len(steps) else 0.0


def _syncs_at_times(view: View, process: Process, own: bool, average: bool) -> bool:
    """Return whether a rank exchanges its model after some steps, but not after most, so that
    replicas become equal again. Ranks that ``average`` by hand may do so after all steps; ranks
    that do not may exchange a part. A checksum precedes such an exchange, so it does not show the
    replicas equal."""
    number = len(_model_syncs(view, process, 1 if average else exchanged.SHARE_OF_MODEL))
    begun, _, _ = exchanged.backwards(view, process, exchanged.PHASES_BACK)
    return number >= _AVERAGES and ((own and average) or 2 * number <= len(begun))


def _model_syncs(view: View, process: Process, least_share: float) -> Array:
    """Return the begins, in ns, of backwards before which a rank exchanged at least such a share of
    the model since the optimizer's step."""
    num_bytes = process.model.parameters_bytes if process.model else math.inf
    return exchanged.syncs(view, process, num_bytes * least_share)


def unequal_starts(view: View) -> Iterable[Candidate]:
    """Find ranks that average the gradients of all parameters but began with different parameters,
    unless these are equal by now or may have been made equal."""
    for starts in _averaging(view):
        if len(set(starts.values())) > 1 and _differ_still(view, starts):
            yield Candidate(
                kind="unequal-start", ranks=tuple(sorted(starts)), culprits=odd_ones(starts),
                t_ns=last_step_end(view), facts=kinds.UnequalStart(),
            )  # fmt: skip


def _differ_still(view: View, ranks: Iterable[int]) -> bool:
    """Return whether the newest checksums common to all ranks differ; without any since the last
    exchange of the whole model, whether there was no such exchange."""
    processes = [view.ranks[rank] for rank in ranks]
    synced = max((int(_model_syncs(view, of, 1).max(initial=0)) for of in processes), default=0)
    found = [{key: of for _, key, of in checksums(view, process)} for process in processes]
    common = set.intersection(*map(set, found))
    newest = [of[max(common)] for of in found] if common else []
    if not newest or min(of.t_ns for of in newest) < synced:
        return not synced
    return len({(of.whole, of.parts) for of in newest}) > 1


def late_averages(view: View) -> Iterable[Candidate]:
    """Find ranks that exchange at least a part of the model after most optimizer steps, while a
    gradient changed between the step and its clearing: the step came before the average."""
    late = tuple(
        rank for rank, process in view.ranks.items()
        if len({step for step, *_ in exchanged.probes(view, process, _LATE)}) >= _LATE_LOOKS
        and 2 * len(_model_syncs(view, process, exchanged.SHARE_OF_MODEL))
        > len(exchanged.backwards(view, process, exchanged.PHASES_BACK)[0])
    )  # fmt: skip
    if late:
        yield Candidate(
            kind="late-average", ranks=late, culprits=late if len(late) < len(view.ranks) else (),
            t_ns=last_step_end(view), facts=kinds.LateAverage(),
        )  # fmt: skip


def unequal_modes(view: View) -> Iterable[Candidate]:
    """Find ranks whose replica (DDP, or gradients averaged by hand) or shard (FSDP) of a model
    trains with other modules in training mode, in the newest look and an earlier one.
    """
    yield from _unlike_modes(view, "modes", exchanged.sharding(view) or (tuple(view.ranks),))
    yield from _unlike_modes(view, "modes-own", exchanged.averaging(view))


def _unlike_modes(view: View, name: str, groups: Iterable[Collection[int]]) -> Iterable[Candidate]:
    looks: dict[tuple[int, int], dict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    for rank, process in view.ranks.items():
        for step, number, training, modules in exchanged.probes(view, process, name):
            looks[number, modules][step][rank] = training
    for ranks in groups:
        for (number, modules), by_step in looks.items():
            common: dict[int, dict[int, int]] = {}
            for step, told in sorted(by_step.items()) if modules else ():
                of = {rank: told[rank] for rank in ranks if rank in told}
                if not any(of.values()):  # models never in eval mode: no counts are known
                    never = looks.get((number, 0), {}).get(step, ())
                    of |= {rank: _NEVER for rank in ranks if rank in never}
                if len(of) > 1:
                    common[step] = of
            yield from _left_in_eval(view, modules, common)


def _left_in_eval(
    view: View, modules: int, common: Mapping[int, Mapping[int, int]]
) -> Iterable[Candidate]:
    unlike = [step for step, of in common.items() if len({*of.values()}) > 1]
    if len(unlike) >= _UNLIKE_LOOKS and unlike[-1] == max(common):
        of = dict(sorted(common[unlike[-1]].items()))
        known = tuple((rank, training) for rank, training in of.items() if training != _NEVER)
        never = tuple(rank for rank, training in of.items() if training == _NEVER)
        yield Candidate(
            kind="unequal-mode", ranks=tuple(of), culprits=odd_ones(of), t_ns=last_step_end(view),
            facts=kinds.UnequalMode(known, modules, unlike[0], never),
        )  # fmt: skip


# -- shards


def unequal_settings(view: View) -> Iterable[Candidate]:
    """Find ranks that shard one model (FSDP) or its optimizer (ZeRO) and step their parts with
    unlike settings, in the newest look and an earlier one. A rank is in a group for each dimension
    of a mesh, and is told once."""
    found = defaultdict[tuple[tuple[int, ...], tuple[int, ...]],
                        list[tuple[tuple[int, ...], kinds.UnequalSettings]]](list)  # fmt: skip
    models = {rank: process.model for rank, process in view.ranks.items()}
    parted = {rank for rank, of in models.items() if of and of.zero and of.shards > 1}
    by_hand = [tuple(sorted(group.ranks)) for group, _ in _parted(view, early=False)]
    sharded = {*exchanged.sharding(view), *by_hand}
    for ranks in dict.fromkeys(
        (*exchanged.sharding(view), *exchanged.averaging(view), *by_hand, *scattering(view))
    ):
        looks = _settings_by_key(view, ranks)
        unlike = [key for key, of in looks.items() if len(set(of.values())) > 1]
        if len(unlike) < _UNLIKE_LOOKS or unlike[-1] != max(looks):
            continue
        if not (ranks in sharded or parted.issuperset(ranks) or equal(view, ranks)):
            continue
        rates, others = _unlike(looks[unlike[-1]])
        if ranks in by_hand and _may_be_meant(view, looks[unlike[-1]], bool(rates)):
            continue
        if len(others) == len(ranks):
            others = _unlike_the_rest(view, unlike[-1], looks[unlike[-1]]) or others
        facts = kinds.UnequalSettings(unlike[0][0], len(unlike), len(looks), rates, others)
        found[() if len(others) < len(ranks) else ranks, others].append((ranks, facts))
    for (all_of, others), same in found.items():
        rates = tuple(sorted({rate for _, facts in same for rate in facts.rates}))
        yield Candidate(
            kind="unequal-settings", ranks=tuple(sorted({rank for of, _ in same for rank in of})),
            culprits=() if all_of else others, t_ns=last_step_end(view),
            facts=replace(same[0][1], rates=rates),
        )  # fmt: skip


def _may_be_meant(view: View, of: Mapping[int, tuple[float, int]], rates: bool) -> bool:
    """Return whether unlike settings of ranks that step tensors of their own may be intended: in
    several parameter groups, or with equal learning rates (no weight decay of biases)."""
    models = (view.ranks[rank].model for rank in of)
    alike = len({model.parameters_bytes for model in models if model}) == 1
    return {digest >> _GROUPS_BIT for _, digest in of.values()} != {1} or not (alike or rates)


def _parted(view: View, early: bool) -> Iterable[tuple[GroupDef, int]]:
    """Yield (group, bytes of all parameters) where each rank steps a part of the parameters (ZeRO
    by hand) and parts are gathered: before the step if ``early``; else after it. Only the first
    rank is looked at."""
    process = view.ranks.get(min(view.ranks, default=-1))
    for number, group in process.groups.items() if process is not None else ():
        models = [view.ranks[rank].model for rank in group.ranks if rank in view.ranks]
        if len(models) < max(2, len(group.ranks)):
            continue
        of = [model for model in models if model and not model.rpc and model.shards <= 1]
        total = sum(model.parameters_bytes for model in of)
        if (
            process is not None
            and len(of) == len(models)
            and exchanged.gathers_parts(view, process, number, total, early)
        ):
            yield group, total


def stale_parameters(view: View) -> Iterable[Candidate]:
    """Find ranks that each step a part of the parameters (ZeRO by hand) and gather the parts
    between backward and step, but not after the step: other ranks' parts are a step old."""
    for group, total in _parted(view, early=True):
        yield Candidate(
            kind="stale-parameters", ranks=group.ranks, t_ns=last_step_end(view),
            facts=kinds.StaleParameters(total),
        )  # fmt: skip


# -- how often optimizers stepped


def updates(view: View, ranks: Iterable[int], group_key: str) -> Mapping[int, int]:
    """Return rank -> optimizer steps before the newest collective of the group that all ranks
    issued; empty if there is none, or if one rank has no optimizer."""
    issued = {rank: _issued(view, view.ranks[rank], group_key) for rank in ranks}
    newest = min((max(seqs, default=-1) for seqs in issued.values()), default=-1)
    if newest < 0 or any(newest not in seqs for seqs in issued.values()):
        return {}
    found = {r: _optimizer_steps(view, view.ranks[r], seqs[newest]) for r, seqs in issued.items()}
    return found if all(found.values()) else {}


def _issued(view: View, process: Process, group_key: str) -> dict[int, int]:
    """Return seq -> time of issue in ns, for the group's recent collectives."""
    table, visible = view.rows(process, "issue")
    part = slice(max(0, visible - 4096), visible)
    ids = [gid for gid, group in process.groups.items() if group.key == group_key]
    of = np.isin(table.col("group_id")[part], ids)
    seqs, times = table.col("seq")[part][of].tolist(), table.col("t0_ns")[part][of].tolist()
    return dict(zip(seqs, times, strict=True))


def _optimizer_steps(view: View, process: Process, until_ns: int) -> int:
    _, ended, _ = exchanged.backwards(view, process, of="optimizer")
    return int(np.count_nonzero(ended <= until_ns))
