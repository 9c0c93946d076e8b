"""Gradients that ranks exchange, by the bytes summed after each backward. Facts for detectors."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from pardbg.analysis.base.asof import View, per_view
from pardbg.store.definitions import GroupDef
from pardbg.store.process import Process
from pardbg.store.table import Array, Table
from pardbg_agent import wire

MIN_STEPS: Final = 3
"""Minimum number of steps of a run that has ended; a live one may average later (local SGD)."""
SMALL_BYTES: Final = 1024
"""Maximum size of losses, counts and flags, in bytes; gradients and activations are larger."""
CLEARED: Final = "cleared again"
"""Name of the record of gradients that are cleared twice with nothing in between."""
PHASES_BACK: Final = 1 << 14
"""Maximum number of phases per rank looked at where the whole run is not needed."""
SHARE_OF_MODEL: Final = 1 / 8
"""Least share of a model that a step moves to average it; sparse gradients move rows in use."""
SUMS: Final = ("all_reduce", "reduce_scatter", "reduce")
_BACKWARDS: Final = 16
SHIFTED: Final = 8
"""Steps for which a rank must be a batch ahead; other ranks may take theirs a step later."""
PROBES_BACK: Final = 4096
"""Maximum number of probes per rank looked at; a step has at most 16 checksums."""
_LOOKS: Final = 64
_ACTIONS: Final = {"forward": ("F",), "backward": ("B", "I", "W")}
"""Pipeline actions that stand for a phase, where no phase is recorded."""
_ASYNC: Final = int(wire.Flag.ASYNC)
_ON_DEVICE: Final = int(wire.Flag.DEVICE | wire.Flag.DONE_DEVICE)


@per_view
def averages_on(view: View, process: Process) -> tuple[tuple[GroupDef, int], ...]:
    """Return (group, times) where exactly once or twice a model's bytes are summed between each of
    the recent backwards and its optimizer's step: gradients, since parameters are averaged after a
    step. Of several backwards before one step, the last counts. Sums are in the model's dtype, if
    it has one: another takes more bytes. A sum may be a reduce_scatter and an all_gather, or an
    all_gather from all ranks. Twice the bytes may also be the whole of parameters half of which a
    rank steps (ZeRO by hand): not where it gathers as much after each step."""
    return tuple(_averages_on(view, process))


def _averages_on(view: View, process: Process) -> Iterator[tuple[GroupDef, int]]:
    model, (begun, until) = process.model, _last_backwards(view, process)
    if model is None or len(begun) < MIN_STEPS:
        return
    issues, part = issued_since(view, process, begun[0])
    when, groups = issues.when[part], issues.col("group_id")[part]
    names = issues.col("name_id")[part]
    at = begun.searchsorted(when, "right") - 1
    inside = when < until[at]

    def exactly(of: Array, op: str, column: str, num_bytes: int) -> bool:
        ids = [
            i for i, known in process.ops.items()
            if known.op == op and model.dtype in ("", known.dtype)
        ]  # fmt: skip
        of = of & np.isin(names, ids)
        moved = np.bincount(at[of], issues.col(column)[part][of], len(begun))
        beyond = moved - float(num_bytes)  # a definition may say any number
        return bool(((beyond >= 0) & (beyond <= SMALL_BYTES)).all())

    size = model.parameters_bytes
    moved = np.maximum(issues.col("a")[part], issues.col("b")[part])[~inside]
    gathered = np.bincount(at[~inside], moved, len(begun)) >= size
    for group_id in np.unique(groups[inside]).tolist():
        if (group := process.groups.get(group_id)) is None:
            continue
        of = inside & (groups == group_id)
        sharded = exactly(of, "reduce_scatter", "a", size) and exactly(of, "all_gather", "b", size)
        if sharded or exactly(of, "all_gather", "b", size * len(group.ranks)):
            yield group, 1
        for times in (1,) if 2 * gathered.sum() > len(begun) else (1, 2):
            if exactly(of, "all_reduce", "a", times * size):
                yield group, times


@per_view
def averaging(view: View) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each group on which gradients are summed, if all are known."""
    groups = {
        (group.epoch, group.key): group.ranks
        for process in view.ranks.values() if process.model is not None and not process.model.rpc
        for group, _ in averages_on(view, process)
    }  # fmt: skip
    return tuple(
        ranks for ranks in groups.values() if len(ranks) > 1 and view.ranks.keys() >= {*ranks}
    )


@per_view
def sharding(view: View) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each group on which gradients of sharded parameters are summed and
    scattered, if all are known."""
    found: dict[tuple[int, ...], None] = {}
    for process in view.ranks.values():
        if process.model is None or not process.model.parameters_sharded or process.model.rpc:
            continue
        table, visible = view.rows(process, "issue")
        part = slice(max(0, visible - 4096), visible)
        ids = [i for i, op in process.ops.items() if op.op == "reduce_scatter"]
        of = table.col("group_id")[part][np.isin(table.col("name_id")[part], ids)]
        groups = [process.groups.get(number) for number in np.unique(of).tolist()]
        found |= dict.fromkeys(tuple(sorted(group.ranks)) for group in groups if group)
    return tuple(of for of in found if len(of) > 1 and view.ranks.keys() >= {*of})


def probes(view: View, process: Process, name: str, dtype: str = "<i8") -> Iterable[Any]:
    """Return (step, seq, a, b) of the recent probes of a name."""
    table, visible = view.rows(process, "probe")
    wanted = process.ids(name)
    if not wanted:
        return []
    lo = max(0, visible - PROBES_BACK)
    rows = lo + np.flatnonzero(np.isin(table.col("name_id")[lo:visible], wanted))[-_LOOKS:]
    first = table.col("a")[rows].view(dtype).tolist()
    return (
        (*of, a, b)
        for a, (*of, b) in zip(first, table.tuples(rows, "step", "seq", "b"), strict=True)
    )


def part_of_samples(view: View, process: Process) -> tuple[int, int] | None:
    """Return (number of parts, the rank's) that its sampler had in the newest epoch of training;
    None: not known."""
    told = [*probes(view, process, "part of samples")]
    return (told[-1][2], told[-1][3]) if told else None


def told_words(view: View, process: Process, head: str) -> dict[tuple[int, int], tuple[str, ...]]:
    """Return (seq, step) -> the words after ``head`` in the names of the last probes."""
    return {
        (seq, step): tuple(process.names[name_id].removeprefix(head).split())
        for seq, step, name_id, _ in _told(view, process, head)
    }


def targets(view: View, process: Process) -> dict[int, int]:
    """Return step -> checksum of what its first loss compared with; 0: not known."""
    return {step: a for _, step, _, a in _told(view, process, "loss by ")}


def _told(view: View, process: Process, head: str) -> Iterable[tuple[int, ...]]:
    """Return rows (seq, step, name, a) of the last probes whose names begin with ``head``."""
    table, visible = view.rows(process, "probe")
    wanted = [*process.names_with(head)]
    lo = max(0, visible - PROBES_BACK) if wanted else visible
    rows = lo + np.flatnonzero(np.isin(table.col("name_id")[lo:visible], wanted))[-_LOOKS:]
    return table.tuples(rows, "seq", "step", "name_id", "a")


@per_view
def _last_backwards(view: View, process: Process) -> tuple[Array, Array]:
    """Return (begins of the recent backwards followed by an optimizer's step before another
    backward, begins of these steps), in ns."""
    begun, _, _ = backwards(view, process, PHASES_BACK)
    steps, _, _ = backwards(view, process, PHASES_BACK, "optimizer")
    next_one = steps.searchsorted(begun)
    is_last = next_one < len(steps)
    is_last[:-1] &= next_one[1:] > next_one[:-1]
    rows = np.flatnonzero(is_last)[-_BACKWARDS:]
    return begun[rows], steps[next_one[rows]]


def exchanges(view: View, process: Process) -> bool:
    """Return whether the rank sends or sums more than a few numbers between one of the recent
    backwards and its optimizer's step."""
    begun, until = _last_backwards(view, process)
    for name in ("issue", "issue_p2p") if len(begun) else ():
        table, visible = view.rows(process, name)
        part = slice(int(table.when[:visible].searchsorted(begun[0])), visible)
        when = table.col("t0_ns")[part]
        at = begun.searchsorted(when, "right") - 1
        sizes = np.maximum(table.col("a")[part], table.col("b")[part])
        if ((at >= 0) & (when < until[at]) & (sizes > SMALL_BYTES)).any():
            return True
    return False


def summed(view: View, process: Process) -> Array:
    """Return the bytes summed between each of the recent backwards and the optimizer's step that
    follows."""
    begun, until = _last_backwards(view, process)
    if not len(begun):
        return begun
    issues, part = issued_since(view, process, begun[0])
    when, ids = issues.when[part], [i for i, op in process.ops.items() if op.op in SUMS]
    at = begun.searchsorted(when, "right") - 1
    of = (when < until[at]) & np.isin(issues.col("name_id")[part], ids)
    return np.bincount(at[of], issues.col("a")[part][of], len(begun))


def gathers_parts(
    view: View, process: Process, group_id: int, num_bytes: int, early: bool
) -> bool:  # fmt: skip
    """Return whether ``num_bytes`` are summed on a group between each recent backward and its
    optimizer's step, and as many gathered: if ``early``, there as well, with next to nothing until
    the next backward; else from the step's begin on."""
    begun, until = _last_backwards(view, process)
    if len(begun) < MIN_STEPS or view.visible(process, "issue_p2p"):
        return False
    issues, part = issued_since(view, process, begun[0])
    when, names = issues.when[part], issues.col("name_id")[part]
    at, here = begun.searchsorted(when, "right") - 1, issues.col("group_id")[part] == group_id
    inside = when < until[at]

    def moved(of: Array, column: str, *ops: str) -> Array:
        of = of & here & np.isin(names, [i for i, op in process.ops.items() if op.op in ops])
        return np.bincount(at[of], issues.col(column)[part][of], len(begun))

    then = inside if early else ~inside
    gathered = moved(then, "b", "all_gather") + moved(then, "a", "broadcast")
    beyond = np.maximum(abs(moved(inside, "a", *SUMS) - num_bytes), abs(gathered - num_bytes))
    few = num_bytes * SHARE_OF_MODEL
    if not early:  # ops after the newest step are still to come
        return bool((beyond[:-1] <= min(few, SMALL_BYTES)).all())
    sizes = np.maximum(issues.col("a")[part], issues.col("b")[part]) * ~inside
    after = np.bincount(at, sizes, len(begun))
    return bool((beyond <= min(few, SMALL_BYTES)).all() and (after < few).all())


def unfinished(view: View, process: Process) -> int:
    """Return the number of recent optimizer steps that began during a sum of gradients: issued
    since the backward, in host memory, and complete only after the step's begin."""
    begun, until = _last_backwards(view, process)
    table, visible = view.rows(process, "done")
    ops = [i for i, op in process.ops.items() if op.op in ("all_reduce", "all_gather")]
    if not len(begun) or not visible:
        return 0
    part = slice(int(table.when[:visible].searchsorted(begun[0])), visible)
    issued, flags = table.col("t0_ns")[part], table.col("flags")[part]
    of = (issued >= begun[0]) & np.isin(table.col("name_id")[part], ops)
    of &= (flags & _ASYNC != 0) & (flags & _ON_DEVICE == 0)
    of &= np.maximum(table.col("a")[part], table.col("b")[part]) > SMALL_BYTES
    at = begun.searchsorted(issued[of], "right") - 1
    late = (issued[of] < until[at]) & (table.col("t1_ns")[part][of] > until[at])
    return len(np.unique(at[late]))


def counted_by_step(view: View, process: Process, what: str) -> dict[int, int]:
    """Return step -> number of phases of a name (``data``: batches of a data loader), or of records
    ``cleared again``, before that step's optimizer, since the first phase looked at. Empty: the
    rank has none."""
    begun, _, steps = backwards(view, process, PHASES_BACK, "optimizer")
    if what == CLEARED:
        table, visible = view.rows(process, "probe")
        ids = process.ids(CLEARED)
        part = slice(max(0, visible - PROBES_BACK) if ids else visible, visible)
        given = table.when[part][np.isin(table.col("name_id")[part], ids)]
    else:
        given, _, _ = backwards(view, process, PHASES_BACK, what)
        begun = begun if len(given) else begun[:0]
    return dict(zip(steps.tolist(), given.searchsorted(begun).tolist(), strict=False))


def one_each(steps: Sequence[int], taken: Mapping[int, Mapping[int, int]], rank: int) -> bool:
    """Return whether the other ranks run one backward per step; with accumulation a rank may have a
    microbatch less at the end of its batches."""
    others = (of for other, of in taken.items() if other != rank)
    return all(of[b] - of[a] == b - a for of in others for a, b in pairwise(steps))


def shifted_since(
    steps: Sequence[int], taken: Mapping[int, Mapping[int, int]], rank: int
) -> int | None:
    """Return the step before which a rank took one batch more than most; None unless once."""
    more = [
        taken[rank][step] - statistics.median_low(of[step] for of in taken.values())
        for step in steps
    ]
    jumps = [at for at in range(1, len(steps)) if more[at] != more[at - 1]]
    if len(jumps) != 1 or len(steps) - jumps[0] < SHIFTED:
        return None
    at = jumps[0]
    return steps[at] if more[at] == more[at - 1] + 1 else None


def shared_losses(view: View, process: Process, ranks: set[int], tokens: bool = True) -> set[int]:
    """Return the steps in which a rank exchanges data with others of ``ranks`` between a forward's
    begin (or an optimizer's step, if none is known) and the next backward: backward may begin from
    a loss that they averaged or computed together. Not counted: buffers and batches that are
    broadcast, sharded parameters that are gathered, and tensor parallel groups, which have only one
    of a model's replicas each; unless ``tokens``, nor integers that are summed, and what an
    all_to_all gives to one rank each: integers, or more than a few numbers."""
    begun, _, steps = backwards(view, process, PHASES_BACK)
    computed, _, _ = backwards(view, process, PHASES_BACK, "forward")
    if not len(computed):
        _, computed, _ = backwards(view, process, PHASES_BACK, "optimizer")
    if not len(begun) or not len(computed):
        return set()
    issues, part = issued_since(view, process, begun[0])
    when, bytes_in = issues.when[part], issues.col("a")[part]
    names = issues.col("name_id")[part]

    def of(*ops: str, dtypes: tuple[str, ...] = ("",)) -> Array:
        known = process.ops.items()
        return np.isin(
            names, [i for i, op in known if op.op in ops and op.dtype.startswith(dtypes)]
        )

    mixes = ~of("broadcast") & (bytes_in > 0)
    if not tokens:
        mixes &= ~of("all_reduce", "all_to_all", dtypes=("int", "uint"))
        mixes &= ~of("all_to_all") | (bytes_in <= SMALL_BYTES)
    computed = np.sort(computed)[np.sort(computed).searchsorted(when, "right") - 1]
    alone = [i for i, group in process.groups.items() if len(ranks.intersection(group.ranks)) < 2]
    mixes &= ~np.isin(issues.col("group_id")[part], alone) & ~_unshards(process, issues, part)
    at = begun.searchsorted(when, "right")
    before = (computed <= when) & (computed > begun[at - 1]) & (at < len(begun))
    return set(steps[at[mixes & before]].tolist())


def computing(view: View, process: Process) -> Iterator[GroupDef]:
    """Yield the groups on which a rank sums more than a few numbers before each of its recent
    backwards, and no gradients of a whole model after them: ranks compute one result on these."""
    begun, until = _last_backwards(view, process)
    if len(begun) < MIN_STEPS:
        return
    issues, part = issued_since(view, process, begun[0])
    when = issues.when[part]
    of = np.isin(issues.col("name_id")[part], [i for i, op in process.ops.items() if op.op in SUMS])
    of &= (issues.col("a")[part] > SMALL_BYTES) & (when < begun[-1])
    at = begun.searchsorted(when, "right") - 1
    of &= when > until[at]
    averaged = {group.key for group, _ in averages_on(view, process)}
    for group_id in np.unique(issues.col("group_id")[part][of]).tolist():
        group, here = process.groups.get(group_id), issues.col("group_id")[part] == group_id
        if group and group.key not in averaged and len({*at[of & here]}) == len(begun) - 1:
            yield group


def syncs(view: View, process: Process, least_bytes: float) -> Array:
    """Return the begins, in ns, of backwards before which a rank exchanged at least ``least_bytes``
    since the optimizer's step: a model or a part of it in local SGD or DiLoCo, parameters broadcast
    after steps, or data computed in its forward."""
    begun, _, _ = backwards(view, process, PHASES_BACK)
    _, ended, _ = backwards(view, process, PHASES_BACK, "optimizer")
    if not len(begun) or not len(ended):
        return begun[:0]
    issues, part = issued_since(view, process, begun[0])
    when = issues.when[part]
    before = begun.searchsorted(when, "right")
    stepped = (ended := np.sort(ended)).searchsorted(when, "right")
    since = np.where(stepped > 0, ended[np.maximum(stepped, 1) - 1], 0)
    after = (before < len(begun)) & (since > begun[before - 1])
    sizes = np.maximum(issues.col("a")[part], issues.col("b")[part])
    moved = np.bincount(before[after], sizes[after], len(begun))
    return begun[moved >= least_bytes]


def _unshards(process: Process, issues: Table, part: slice) -> Array:
    """Return a mask of the ops that gather sharded parameters (FSDP): they move as many bytes as a
    sum of their gradients, or half as many if gradients are summed in a wider dtype."""
    names, of = issues.col("name_id")[part], ("reduce_scatter", "all_gather")
    if process.model is None or not process.model.parameters_sharded:
        return np.zeros(len(names), bool)
    sums, gathers = (
        np.isin(names, [i for i, op in process.ops.items() if op.op == one]) for one in of
    )
    sizes = np.unique(issues.col("a")[part][sums])
    return gathers & np.isin(issues.col("b")[part], [*sizes, *sizes // 2])


def issued_since(view: View, process: Process, since_ns: int) -> tuple[Table, slice]:
    table, visible = view.rows(process, "issue")
    return table, slice(int(table.when[:visible].searchsorted(since_ns)), visible)


@per_view
def backwards(
    view: View, process: Process, last: int = 1 << 62, of: str = "backward"
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (begins, ends, steps) of each backward among the recent phases and pipeline actions,
    in ns, in the order of their begins."""
    parts = []
    for name, wanted in (("phase", (of,)), ("action", _ACTIONS.get(of, ()))):
        table, visible = view.rows(process, name)
        lo = max(0, visible - last)
        names = [i for known in wanted for i in process.ids(known)]
        rows = lo + np.flatnonzero(np.isin(table.col("name_id")[lo:visible], names))
        parts.append([table.col(column)[rows] for column in ("t0_ns", "t1_ns", "step")])
    begun, ended, steps = map(np.concatenate, zip(*parts, strict=True))
    order = begun.argsort()
    return begun[order], ended[order], steps[order]
