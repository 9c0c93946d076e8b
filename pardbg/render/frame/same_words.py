"""Sentences for the result of ``pardbg same``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pardbg.analysis.findings.kinds.difference_words import difference_text, tensor_text
from pardbg.analysis.same.comparison import OF_LOSS, Left, NotJudged, Reason, Sameness
from pardbg.analysis.same.elements import Elements, Shard
from pardbg.analysis.same.loss import Loss
from pardbg.render.draw.cells import clean
from pardbg.words import count, number, plural, size

MAX_NAMES: Final = 3
_CANNOT: Final[Mapping[Reason, str]] = {
    "no-common-names": "no tensor has the same name in both runs",
    "no-common-steps": "the first captured steps are not the same",
    "inputs-differ": "the inputs differ in step {step}",
    "floor-inputs-differ": "the inputs of --floor differ from the reference's in step {step}",
    "initial-parameters-differ": "the initial parameters differ: {name}; record with "
                                 "--init-to and --init-from to begin with the same",
    "reference-replicas-differ": "replicas of {name} differ within the reference itself",
    "nothing-judged": "too few tensors have a known layout and a floor below their own size",
    "no-replicas": "no rank keeps what another one keeps; give a second recording",
    "no-parameters": "{name} steps tensors of which it is not known which parameters they are; "
                     "pardbg_agent.layout(…, name=…) tells it",
    "not-stepped": "{name} ended before its first captured step did",
    "too-large": "{name} has more captured tensors than are read; capture one step (--tensors 0)",
    "all-rounding": "every gradient differs by what bfloat16 would explain (autocast?): "
                    "record the reference a second time and give it as --floor",
}  # fmt: skip
_LEFT: Final[Mapping[Left, str]] = {
    "only-reference": "only in the reference", "only-run": "only in the run",
    "shape": "layout unknown: shapes differ between the runs",
    "shapes": "layout unknown: shapes differ between ranks",
    "dtypes": "layout unknown: dtypes differ between ranks",
    "place": "layout unknown: the place of a rank's part is not known",
    "overlap": "layout unknown: parts overlap",
    "incomplete": "layout unknown: parts of some ranks are missing",
    "copies": "layout unknown: unlike values on ranks that are not known as replicas",
    "layout": "layout unknown: no way that ranks could share it agrees",
    "scale": "scaled unlike the reference, and not by one factor",
    "dtype": "dtype without a known rounding", "noise": "rounding may be as large as a mistake",
    "not-finite": "not finite in the reference", "no-update": "size of the update not known",
    "gradient": "its gradient already differs, or is not judged",
    "step": "later steps, which are judged with --floor only",
}  # fmt: skip


def verdict(found: Sameness) -> str:
    """Return the answer to ``pardbg same`` in one sentence."""
    if found.reason == "nothing-captured":
        return (
            f"Cannot be compared: {found.name} has no captured tensors; record with --tensors 0-1."
        )
    if found.reason == "same":
        worst = max(found.rows, key=lambda row: row.floors, default=None)
        limit = f"at most {number(worst.floors)} noise floors apart" if worst else ""
        if not any(row.error for row in found.rows):
            limit = "no difference at all"
        return f"The same computation: {plural(found.num_tensors, 'tensor')} agree ({limit})."
    if found.reason == "invariants-hold":
        return " ".join(_held(found))
    if found.reason in ("differs", "replicas-differ"):
        return f"Not the same computation: {_difference(found)}."
    if found.reason == "uncertain":
        lack = "some initial parameters" if found.inputs_known else "the inputs"
        lack = "the numbers that dropout draws" if found.random else lack
        return f"Cannot be compared: {_difference(found)}, but {lack} are not known to be equal."
    said = _CANNOT[found.reason].format(step=found.step, name=clean(found.name))
    return f"Cannot be compared: {said}."


def _held(found: Sameness) -> Iterator[str]:
    """Yield the sentences that hold for a run without a reference."""
    if found.num_tensors:
        agreed = plural(found.num_tensors, "tensor")
        yield f"Replicas are equal: {agreed} on several ranks, bit by bit."
    if found.num_copies:
        taken = count(found.num_copies)
        yield f"Ranks compute with the newest update of what others step: {taken} parameters."


def loss_line(loss: Loss, same: bool) -> str:
    """Return both losses, and their distance; ``same``: gradients and parameters agree."""
    line = f"Loss of step {loss.step}: {loss.run:.7g}, the reference's {loss.reference:.7g}"
    if loss.level == "noise":
        return f"{line}."
    if loss.level == "green":
        return f"{line}: equal within rounding."
    line += f", {number(loss.floors)} noise floors apart"
    if loss.times:
        by = loss.times
        line += f": {f'1/{round(1 / by)}' if by < 1 else number(by)} × the reference's"
    elif loss.log_of:
        line += f": larger by log {loss.log_of}"
    odd = same and loss.level == "red"
    return line + (". The program reports another loss and computes the same." if odd else ".")


def where(found: Sameness) -> Iterator[str]:
    """Yield the places to look at first, and what agrees."""
    place = found.place
    if place is None:
        if found.what in ("buffer", OF_LOSS) and found.reason == "differs":
            yield "All gradients and parameters of this step agree."
        if found.what == OF_LOSS:
            yield "So it is where ranks have all logits, and take them for a part of the words."
        return
    if place.what == "loss":
        yield "All outputs agree; the gradients that backward begins with do not: look at the loss."
        return
    if place.what == "out":
        yield "The outputs of the modules before it agree."
    else:
        through = f": look at the backward of {clean(place.through)}" if place.through else ""
        yield f"All outputs and the gradients behind it agree{through}."
    if place.source:
        yield f"{clean(place.name)} is a {clean(place.kind)}, {clean(place.source)}"
    for one in found.beside:
        when = "backward" if one.backward else "forward"
        yield (
            f"In its {when} {clean(one.block)} issues {_times(one.times)} {one.op} of "
            f"{size(one.bytes)} over {clean(one.group)}; most of its "
            f"{one.siblings - 1} siblings issue {_times(one.usual)}."
        )


def _times(number_of: int) -> str:
    return str(number_of) if number_of else "no"


def _difference(found: Sameness) -> str:
    return difference_text(found.step, found.what, clean(found.name), found.hypothesis)


def element_lines(one: Elements) -> Iterator[str]:
    """Yield the differing elements of a tensor, and a map of each rank's part, by dimension from
    the first index to the last: ▁ none differs, █ all, · not compared."""
    shape = " × ".join(count(n) for n in one.shape)
    shape = f"samples {shape}" if one.by_sample else shape
    yield f"elements of {tensor_text(one.what, clean(one.name))}, {shape}"
    plain = {1: ["elements"], 2: ["rows", "columns"]}.get(len(one.shape))
    names = [f"dim {at}" for at in range(len(one.shape))] if plain is None else plain
    names[0] = "samples" if one.by_sample else names[0]
    for shard in one.shards:
        yield f"  rank {shard.rank}  {_of_shard(one, shard, names)}"
        for name, parts in zip(names, shard.strips, strict=False):
            yield f"    {name:<9} {''.join(map(_sign, parts))}"


def _of_shard(one: Elements, shard: Shard, names: Sequence[str]) -> str:
    head = f"{count(shard.wrong)} of {count(shard.compared)} differ"
    if not shard.wrong:
        return head
    ranges = zip(names, shard.ranges, one.shape, strict=True)
    where = ", ".join(
        f"{name} {first}-{last} of {size}" if first < last else f"{name} {first} of {size}"
        for name, (first, last), size in ranges
    )
    values = f"{number(shard.run)}, the reference's {number(shard.reference)}"
    return f"{head}: {where}; first {list(shard.first)}: {values}"


def _sign(share: float | None) -> str:
    if share is None:
        return "·"
    return "▁" if not share else "█" if share == 1 else "▂▄▆"[int(3 * share)]


def checks(found: Sameness) -> tuple[tuple[bool, str], ...]:
    """Return (whether it is good, words) of inputs, initial parameters and random numbers."""
    known = ((found.inputs_known, "same inputs", "inputs not known to be equal"),
             (found.initial_known, "same initial values", "not all initial values known"),
             (not found.random, "no Dropout", "dropout draws"))  # fmt: skip
    return tuple((good, yes if good else no) for good, yes, no in known)


def counted(found: Sameness) -> str:
    """Return how many tensors were compared, and how many differ."""
    red = sum(row.level == "red" for row in found.rows)
    return f"{plural(found.num_tensors, 'tensor')}, {red} differ"


def label(name: str) -> str:
    """Return a module's name, that of the whole model too."""
    return clean(name) or "(model)"


def not_judged(left: NotJudged) -> str:
    """Return which tensors are not judged, and why."""
    names = ", ".join(clean(name) for name in left.names[:MAX_NAMES])
    more = len(left.names) - MAX_NAMES
    rest = f" and {count(more)} more" if more > 0 else ""
    return f"{'/'.join(left.whats)} {names}{rest}: {_LEFT[left.why]}"
