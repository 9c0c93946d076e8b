"""Finds wrong numbers: first NaNs, gradients that are never averaged, or that add nothing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import pardbg.analysis.findings.kinds.value_kinds as kinds
from pardbg.analysis.base.asof import View
from pardbg.analysis.base.losses import LOSS_NAMES, newest_ended
from pardbg.analysis.base.steps import last_step_end
from pardbg.analysis.base.times import device
from pardbg.analysis.comm.matching import odd_ones
from pardbg.analysis.findings.finding import Candidate, Evidence
from pardbg.analysis.findings.values import exchanged, looked_at
from pardbg.analysis.findings.values.checksums import averaging_in_step
from pardbg.store.process import Process
from pardbg.words import message
from pardbg_agent import wire

_P2P, _SEND, _INFERRED = int(wire.Flag.P2P), int(wire.Flag.SEND), int(wire.Flag.INFERRED)
MIN_LIVE_STEPS: Final = 1000
_MOST: Final = 256
"""Maximum number of non-finite values looked at, of each sort and rank."""
_PASSED: Final = 2
"""Number of finite losses after which a non-finite value has passed."""
_MASKS: Final = 3
"""Number of steps in which a rank sends non-finite values without harm, as masks have them."""
_PHASES: Final = 1 << 11
"""Number of phases per rank whose backwards are counted."""
_KEPT: Final = "gradients kept"
"""Name of the record of whether a backward began with an earlier step's gradients (a = 1)."""
_PARAMETER: Final = "nan parameter "
"""Head of the name of a record of a parameter that was not finite before a loss was."""
_GATHERED: Final = "nan gathered"
"""Name of the record of non-finite values that a rank gives to others unreduced."""
_ADDED: Final = "gradients added"
"""Name of the record of a step by gradients that still contain those of the step before."""
_IDLE: Final = 3
"""Steps without a gradient before it is reported; a program may step once for its scheduler."""
_BITS: Final = {"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16}
_OPS_BACK: Final = 1024
"""Number of newest ops per rank that can show by themselves that gradients are exchanged."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A value that is not finite."""

    rank: int
    step: int
    t_ns: int
    what: str
    """Kind of value: ``loss``, ``op`` or ``grad``."""
    op: str
    key: tuple[Any, ...]
    """Key that is equal for the inputs of one collective on all its ranks."""
    name: str = ""
    """Name of the parameter."""
    count: int = 0
    """Number of non-finite values in a message."""
    sends: bool = False
    """Whether the op is a message."""


def nan_origin(view: View) -> Iterable[Candidate]:
    """Find the rank whose numbers were not finite first."""
    seen = [one for rank, process in view.ranks.items() for one in _not_finite(view, rank, process)]
    masks = _masks(view, seen)
    begun = [
        one for one in seen
        if one.what != "grad" and not (one.sends and one.rank in masks)
    ]  # fmt: skip
    if not begun:
        return
    step = min(one.step for one in begun)
    at_first = sorted((one for one in begun if one.step == step), key=lambda one: one.t_ns)
    losses = sorted({one.rank for one in at_first if one.what == "loss"})
    first = at_first[0]
    culprits, what = _origin(at_first, losses, len(view.ranks))
    gathered = _gathered_first(view, at_first) if what == "loss" else []
    if gathered:
        first, what = gathered[0], f"input to {gathered[0].op}"
        culprits = tuple(sorted({one.rank for one in gathered}))
    hidden = _hidden(view, first, losses if what == "loss" else (), masks, culprits)
    names = sorted(
        (one for one in seen if one.what == "grad" and one.step in (step, step + 1)),
        key=lambda one: (one.step, one.rank not in culprits),
    )
    later = {one.step for one in begun if one.step > step}
    passed = _passed(view, max(later)) if later else False
    if _undecided(view, first, begun):
        return
    lasts = not passed and (bool(later) or (newest_ended(view) or 0) <= step + 1)
    if step == 0 and not later and not losses and not names:
        # torch's pipelining runs its stages once on memory nobody wrote to. A NaN of the training
        # itself is in the gradients or the loss by the end of the step.
        return
    since = () if passed else tuple(sorted({one.rank for one in begun if one.step > step}))
    spoilt, whose = _spoilt(view, losses, step) if what == "loss" else ("", ())
    # Of a loss that is not finite no gradient is: the last parameter's says nothing.
    parameter = spoilt or (names[0].name if names and what != "loss" else "")
    all_ranks = tuple(sorted({one.rank for one in begun}))
    yield Candidate(
        kind="nan", ranks=culprits if hidden and culprits else all_ranks,
        culprits=() if hidden else culprits,
        where=parameter or None, t_ns=first.t_ns,
        evidence=Evidence(first.t_ns, first.rank, "timeline", op=first.op),
        facts=kinds.NotFinite(what, step, parameter, since, lasts, not culprits, hidden,
                        tuple(sorted({step, *later})) if passed else (),
                        _senders_before(view, first, culprits),
                        not culprits and what == "loss" and _mixed(view, first.rank, step),
                        whose,
                        not culprits and what == "loss" and not looked_at.looked_at_sums(
                            view, step, {one.rank: one.t_ns for one in reversed(at_first)})),
    )  # fmt: skip


def _masks(view: View, seen: Sequence[_Seen]) -> set[int]:
    """Return the ranks whose messages may rightly have values that are not finite, as those of
    several steps had while all losses were finite."""
    sent = {(one.rank, one.step) for one in seen if one.sends}
    sound = {step for step in {step for _, step in sent} if _harmless(view, step)}
    counts = Counter(rank for rank, step in sent if step in sound)
    return {rank for rank, num in counts.items() if num >= _MASKS}


def _harmless(view: View, step: int) -> bool:
    """Return whether all losses of a step and of the next one are known and finite."""
    found = False
    for process in view.ranks.values():
        values, own = _own_losses(view, process)
        if own.any():
            table, visible = view.rows(process, "metric")
            steps, found = table.col("step")[:visible], True
            parts = [values[own & (steps == one)] for one in (step, step + 1)]
            if not all(len(part) and np.isfinite(part).all() for part in parts):
                return False
    return found


def _hidden(
    view: View, first: _Seen, losses: Sequence[int], masks: set[int], culprits: Sequence[int]
) -> bool:
    """Return whether a rank that did not look at its inputs in that step, or whose messages have
    ``masks``, may have made the first value that is not finite: an earlier stage, or another one
    that brings it to the same op."""
    if losses:
        if any(device(view.ranks[rank]) for rank in masks):
            return True
        processes = (view.ranks[rank] for rank in losses)
        sends = any(device(of) and view.visible(of, "issue_p2p") for of in processes)
        return sends and not looked_at.looked_at_inputs(view, view.ranks, first.step)
    if first.what != "op":
        return False
    group = "" if first.sends else first.key[0]
    return any(
        looked_at.mixed_elsewhere(view, rank, first.step, group) for rank in culprits
    ) or not looked_at.looked_at_inputs(view, view.ranks, first.step)


def _undecided(view: View, first: _Seen, begun: Sequence[_Seen]) -> bool:
    """Return whether an input on a device may pass without harm, as those do that a gradient scaler
    skips: until the rank's next losses are known."""
    if first.what != "op" or not device(view.ranks[first.rank]) or view.run_end is not None:
        return False
    known = any(_own_losses(view, process)[1].any() for process in view.ranks.values())
    waits = known and all(one.what != "loss" for one in begun)
    return waits and not _passed(view, max(one.step for one in begun))


def _spoilt(view: View, ranks: Sequence[int], step: int) -> tuple[str, tuple[int, ...]]:
    """Return (a parameter that was not finite before the losses of a step were computed, ranks
    whose it was); empty: none is known."""
    seen = [
        one for rank in ranks for one in _probed(view, rank, view.ranks[rank], "-", _PARAMETER)
        if one.step == step
    ]  # fmt: skip
    name = seen[0].name if seen else ""
    return name, tuple(one.rank for one in seen if one.name == name)


def _gathered_first(view: View, at_first: Sequence[_Seen]) -> list[_Seen]:
    """Return the first non-finite input of each rank to ops that gather data computed before a
    step's losses, if no other rank's could have caused it. Only if fewer ranks have such inputs
    than such losses; empty where such inputs came in earlier steps without harm."""
    losses = {one.rank: one.t_ns for one in reversed(at_first) if one.what == "loss"}
    step = at_first[0].step
    if len(losses) < 2 or not _mixed(view, min(losses), step):
        return []
    seen = [one for rank, of in view.ranks.items() for one in _probed(view, rank, of, _GATHERED)]
    if any(one.step < step for one in seen):
        return []
    before = (one for one in seen if one.t_ns < losses.get(one.rank, 0) and one.step == step)
    seen = sorted(before, key=lambda one: (one.t_ns, one.rank))
    of_rank = {one.rank: one for one in reversed(seen)}
    first = [one for one in of_rank.values() if not any(_before(view, of, one) for of in seen)]
    return first if {one.rank for one in first} < losses.keys() else []


def _before(view: View, other: _Seen, one: _Seen) -> bool:
    """Return whether a rank's value may come from another rank's input to an earlier op."""
    (group, seq), (of, at) = one.key, other.key
    ranks = next((g.ranks for g in view.ranks[other.rank].groups.values() if g.key == of), ())
    earlier = at < seq if of == group else other.t_ns < one.t_ns
    return other.rank != one.rank and one.rank in ranks and earlier


def _mixed(view: View, rank: int, step: int) -> bool:
    """Return whether ranks exchanged computed data before they had the losses of a step."""
    return step in exchanged.shared_losses(view, view.ranks[rank], set(view.ranks))


def _senders_before(view: View, first: _Seen, culprits: Sequence[int]) -> tuple[int, ...]:
    """Return ranks that sent to a culprit in that step before its first non-finite value, by a
    message or an all_to_all: these are checked in full only if time allows, so one of them may have
    made it, in few values. Empty if all values that the culprit sent are non-finite."""
    if first.rank not in culprits or (first.what != "loss" and not first.count):
        return ()
    process = view.ranks[first.rank]
    table, visible = view.rows(process, "issue_p2p")
    rows = np.flatnonzero(table.col("step")[:visible] == first.step)
    rows = rows[table.col("t0_ns")[rows] <= first.t_ns]
    senders: set[int] = set()
    for name_id, flags, peer, a, t0 in table.tuples(rows, "name_id", "flags", "peer", "a", "t0_ns"):
        if not flags & _SEND:
            senders.add(peer)
        elif t0 == first.t_ns and 8 * a <= first.count * _bits(process, name_id):
            return ()
    issues, part = exchanged.issued_since(view, process, 0)
    ids = [i for i, op in process.ops.items() if op.op == "all_to_all"]
    of = np.isin(issues.col("name_id")[part], ids) & (issues.col("step")[part] == first.step)
    of &= issues.col("t0_ns")[part] <= first.t_ns
    for group_id in np.unique(issues.col("group_id")[part][of]).tolist():
        group = process.groups.get(group_id)
        senders.update(group.ranks if group is not None else ())
    return tuple(sorted(rank for rank in senders if rank >= 0 and rank not in culprits))


def _bits(process: Process, op_id: int) -> int:
    """Return the number of bits of a value that an op moves; 0: not known."""
    op = process.ops.get(op_id)
    return _BITS.get(op.dtype, 0) if op is not None else 0


def _passed(view: View, last_step: int) -> bool:
    """Return whether every rank's losses after the last step with non-finite values are finite;
    spoilt parameters would show in each. Where a program skips its optimizer, the step goes on, and
    the next backward is taken for a part of its loss."""
    finite: list[bool] = []
    for process in view.ranks.values():
        values, own = _own_losses(view, process)
        if own.any():
            table, visible = view.rows(process, "metric")
            since = values[own & (table.col("step")[:visible] > last_step)]
            finite.append(len(since) >= _PASSED and bool(np.isfinite(since).all()))
    return bool(finite) and all(finite)


def _own_losses(view: View, process: Process) -> tuple[np.ndarray, np.ndarray]:
    """Return (values of a rank's metrics, mask of its own losses): of those passed to
    ``backward()`` if hooks saw them, else of those it logged."""
    names = [i for name in LOSS_NAMES for i in process.ids(name)]
    table, visible = view.rows(process, "metric")
    own = np.isin(table.col("name_id")[:visible], names)
    by_hook = own & ((table.col("flags")[:visible] & _INFERRED) != 0)
    return table.col("a")[:visible].view("<f8"), by_hook if by_hook.any() else own


def _origin(
    at_first: Sequence[_Seen], losses: Sequence[int], num_ranks: int
) -> tuple[tuple[int, ...], str]:
    """Return (culprits, name of the non-finite value). Inputs to one collective are each rank's own
    values, before the collective mixes them."""
    first = at_first[0]
    if first.what == "loss":
        together, what = losses, "loss"
    else:
        together = sorted({one.rank for one in at_first if one.key == first.key})
        what = f"input to {first.op}"
    return (() if len(together) == num_ranks > 1 else tuple(together)), what


def _not_finite(view: View, rank: int, process: Process) -> Iterable[_Seen]:
    yield from _losses(view, rank, process)
    yield from _probed(view, rank, process, "nan", "nan grad ")


def _probed(view: View, rank: int, process: Process, op: str, grad: str = "-") -> Iterable[_Seen]:
    """Yield the records of one name, and those whose names start with ``grad``."""
    table, visible = view.rows(process, "probe")
    if not visible:  # the usual case
        return
    wanted = {**process.names_with(grad), **dict.fromkeys(process.ids(op), op)}
    if not wanted:
        return
    rows = np.flatnonzero(np.isin(table.col("name_id")[:visible], list(wanted)))[:_MOST]
    columns = ("a", "name_id", "step", "group_id", "seq", "flags", "stage", "microbatch", "peer")
    times = table.when[rows].tolist()
    for t, (count, name_id, step, *of) in zip(times, table.tuples(rows, *columns), strict=True):
        if (name := wanted[name_id]) == op:
            sent = count if of[2] & _P2P else 0
            yield _Seen(rank, step, t, "op", *_op(process, rank, *of), count=sent,
                        sends=bool(of[2] & _P2P))  # fmt: skip
        else:
            yield _Seen(rank, step, t, "grad", "", (), name.removeprefix(grad))


def _op(
    process: Process, rank: int, group_id: int, seq: int, flags: int, stage: int, mb: int, peer: int
) -> tuple[str, tuple[Any, ...]]:
    """Return (op in words, key of the op)."""
    group = process.groups.get(group_id)
    name = "?" if group is None else group.axis or group.name
    if flags & _P2P:
        part = f", stage {stage} microbatch {mb}" if stage >= 0 else ""
        return f"{message('send', True, peer)}{part}", (rank, seq)
    return f"a collective of {name}, #{seq}", (group.key if group is not None else "", seq)


def _losses(view: View, rank: int, process: Process) -> Iterable[_Seen]:
    """Yield steps in which the rank's own loss was not finite: the scalar passed to ``backward()``,
    else the step's first value. The mean over ranks is logged too, even in the next step."""
    table, visible = view.rows(process, "metric")
    if np.isfinite(table.col("a")[:visible].view("<f8")).all():  # the usual case
        return
    values, own = _own_losses(view, process)
    rows = np.flatnonzero(own)
    _, first = np.unique(table.col("step")[rows], return_index=True)
    for row in rows[first][~np.isfinite(values[rows[first]])][:_MOST].tolist():
        step = int(table.col("step")[row])
        yield _Seen(rank, step, int(table.when[row]), "loss", "", ("loss", step))


# -- replicas that never exchange a gradient


def unaveraged(view: View) -> Iterable[Candidate]:
    """Find ranks that began with the same parameters, or train on parts of one set of samples, step
    an optimizer, and exchange nothing larger than a few numbers. Sharded models, pipelines, and
    runs whose messages or RPC move data are left out, and so are runs with missing records."""
    least = exchanged.MIN_STEPS if view.run_end is not None else MIN_LIVE_STEPS
    alike: dict[tuple[int | None, int, int], list[int]] = defaultdict(list)
    for rank, process in view.ranks.items():
        model = process.model
        if model is None or model.rpc or model.shards > 1 or view.visible(process, "step") < least:
            continue
        parts, _ = exchanged.part_of_samples(view, process) or (1, 0)
        start = model.start if parts < 2 else None
        if (parts > 1 or start is not None) and _exchanges_nothing(view, process):
            alike[start, parts, model.parameters_bytes].append(rank)
    for (_, parts, parameters_bytes), ranks in alike.items():
        if len(ranks) < 2:
            continue
        steps = min(view.visible(view.ranks[rank], "step") for rank in ranks)
        of = kinds.NoGradientExchange if parts < 2 else kinds.Unaveraged
        yield Candidate(
            kind="no-gradient-exchange", ranks=tuple(ranks), t_ns=last_step_end(view),
            facts=of(parameters_bytes, steps),
        )  # fmt: skip


def summed_twice(view: View) -> Iterable[Candidate]:
    """Find ranks that exchange twice the bytes of their gradients after each backward. All replicas
    of a model do, so only one rank is looked at."""
    process = view.ranks.get(min(view.ranks, default=-1))
    model = None if process is None else process.model
    if process is None or model is None or model.rpc or model.shards > 1:
        return
    for group, times in exchanged.averages_on(view, process):
        # In a small model a loss or two take as many bytes; with several dtypes, one may be cast.
        if times == 2 and model.parameters_bytes > exchanged.SMALL_BYTES and model.dtype:
            yield Candidate(
                kind="summed-twice", ranks=group.ranks, t_ns=last_step_end(view),
                facts=kinds.SummedTwice(model.parameters_bytes),
            )  # fmt: skip


def kept_gradients(view: View) -> Iterable[Candidate]:
    """Find ranks that began a backward with the gradients of the step before, while others that
    average with them had cleared theirs; and ranks that add to old gradients step after step."""
    kept = {rank: _by_step(view, rank, _KEPT) for rank in view.ranks}
    told: set[int] = set()
    for ranks in exchanged.averaging(view):
        steps = sorted(set.intersection(*(set(kept[rank]) for rank in ranks)))
        unlike = [step for step in steps if len({kept[rank][step] for rank in ranks}) > 1]
        if unlike:
            own = tuple(rank for rank in ranks if kept[rank][unlike[-1]])
            lasts = len(unlike) > 1 and unlike[-1] == steps[-1]
            told.update(ranks)
            yield Candidate(
                kind="gradients-kept", ranks=ranks, culprits=own, t_ns=last_step_end(view),
                facts=kinds.GradientsKept(unlike[0], len(unlike), len(steps), lasts),
            )  # fmt: skip
    added = {rank: sorted(_by_step(view, rank, _ADDED)) for rank in view.ranks.keys() - told}
    own = tuple(sorted(rank for rank, of in added.items() if _lasts(of, kept[rank])))
    if own:
        steps, looks = added[own[0]], len(kept[own[0]])
        yield Candidate(
            kind="gradients-kept", ranks=own, t_ns=last_step_end(view),
            culprits=own if len(own) < len(view.ranks) else (),
            facts=kinds.GradientsAdded(steps[0], len(steps), looks),
        )  # fmt: skip


def _lasts(added: Sequence[int], kept: Mapping[int, int]) -> bool:
    """Return whether a rank added to old gradients in several looks, up to the newest."""
    return len(added) > 1 and all(was for step, was in kept.items() if step >= added[-1])


def _by_step(view: View, rank: int, name: str) -> dict[int, int]:
    return {step: a for step, _, a, _ in exchanged.probes(view, view.ranks[rank], name)}


def unequal_accumulation(view: View) -> Iterable[Candidate]:
    """Find ranks that average gradients of unlike numbers of backwards, constant on each rank in
    all recent steps; a varying number comes from varying batches. An optimizer may average within
    its step: all parameters stay equal."""
    for ranks in dict.fromkeys((*exchanged.averaging(view), *averaging_in_step(view))):
        counts = {rank: _backwards_by_step(view, view.ranks[rank]) for rank in ranks}
        steps = sorted(set.intersection(*map(set, counts.values())))[:-1][-exchanged.SHIFTED :]
        numbers = {rank: {of[step] for step in steps} for rank, of in counts.items()}
        by_rank = {rank: min(of) for rank, of in numbers.items() if len(of) == 1}
        if (
            len(steps) == exchanged.SHIFTED
            and len(by_rank) == len(ranks)
            and len({*by_rank.values()}) > 1
        ):
            yield Candidate(
                kind="unequal-accumulation", ranks=ranks, culprits=odd_ones(by_rank),
                t_ns=last_step_end(view),
                facts=kinds.UnequalAccumulation(tuple(by_rank.items()), len(steps)),
            )  # fmt: skip


def _backwards_by_step(view: View, process: Process) -> dict[int, int]:
    _, _, steps = exchanged.backwards(view, process, _PHASES)
    found, counts = np.unique(steps, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def ungraded(view: View) -> Iterable[Candidate]:
    """Find ranks whose optimizer never has a gradient to step by."""
    found: dict[str, list[int]] = defaultdict(list)
    for rank, process in view.ranks.items():
        if (
            process.model is not None
            and process.model.idle
            and view.rows(process, "step")[1] >= _IDLE
        ):
            found[process.model.optimizer].append(rank)
    for optimizer, ranks in found.items():
        yield Candidate(
            kind="no-gradient",
            ranks=tuple(ranks),
            t_ns=last_step_end(view),
            facts=kinds.NoGradient(optimizer),
        )


def _exchanges_nothing(view: View, process: Process) -> bool:
    """Return whether a rank has exchanged no gradients since its first backward. In small models
    small parts add up, and ops in most backwards belong to the model (manual tensor parallelism).
    False if records are missing."""
    if process.lost(view.t_ns) or process.missed_before or len(process.table("op_sum")):
        return False
    table, visible = view.rows(process, "issue")
    messages, sent = view.rows(process, "issue_p2p")
    if table.base or messages.base or sent or view.visible(process, "action"):
        return False
    limit = exchanged.SMALL_BYTES if process.model is None else process.model.parameters_bytes
    if visible > 4 * _OPS_BACK:  # more than start-up distributes
        newest = slice(visible - _OPS_BACK, visible)
        if max(int(table.col(c)[newest].max()) for c in "ab") >= min(exchanged.SMALL_BYTES, limit):
            return False
    begun, ended, _ = exchanged.backwards(view, process)
    if not len(begun):
        return False
    since = int(table.when[:visible].searchsorted(begun[0]))
    if since == visible:
        return True
    issued = table.col("t0_ns")[since:visible]
    during = begun.searchsorted(issued, side="right") - 1
    inside = (during >= 0) & (issued <= ended[during])
    if 2 * len(np.unique(during[inside])) > len(begun):
        return False
    sizes = np.maximum(table.col("a")[since:visible], table.col("b")[since:visible])
    a_step = int(sizes.sum()) / max(1, view.visible(process, "step"))
    return (
        int(sizes.max()) < min(exchanged.SMALL_BYTES, limit)
        and a_step < limit * exchanged.SHARE_OF_MODEL
    )
