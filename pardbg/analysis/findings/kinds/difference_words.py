"""Words for the first difference from a reference, in findings and in ``pardbg same``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pardbg.analysis.same.comparison import OF_LOSS
from pardbg.analysis.same.hypotheses import Cause, Hypothesis, Trial
from pardbg.words import agreed, number, ranks_text

_MODEL: Final = "the model's output"
_WHAT: Final = {
    "init": "the initial value of", "grad": "the gradient of", "param": "the updated parameter",
    "out": "the output of", "buffer": "the buffer",
    "d_out": "the gradient of the output of", "loss": "the gradient of the loss",
    "loss-value": "the loss", "used": "the parameter",
}  # fmt: skip
_CAUSE: Final[Mapping[Cause, str]] = {
    "zero": "all of it is 0",
    "stale": "it is what it was before this step",
    "not-finite": "it has NaN or infinite elements",
    "no-gradient": "the optimizer got none",
    "part-zero": "the part of {ranks} is 0",
    "mean": "the mean over {ranks} is the reference's: it was not averaged",
    "sum": "the sum over {ranks} is the reference's: it was not summed",
    "replicas": "it differs between {ranks}",
    "not-taken": "on {ranks} it lacks the update that {makers} made in the step before",
}

_TRIED: Final[Mapping[Cause, str]] = {
    "sum": "a term of the sum over ranks", "mean": "a term of the mean over ranks",
    "replicas": "the reference on one rank", "stale": "what it was a step before",
}  # fmt: skip


def tensor_text(what: str, name: str) -> str:
    """Return the tensor in words, such as ``the gradient of head.weight``."""
    named = name or what in ("loss", OF_LOSS)
    return f"{_WHAT.get(what, what)} {name}".strip() if named else _MODEL


def difference_text(step: int | None, what: str, name: str, cause: Hypothesis | None) -> str:
    """Return in words which tensor differs first, and what its difference looks like."""
    head = f"{tensor_text(what, name)} differs first, in step {step}"
    return head if cause is None else f"{head}: {_cause(cause)}"


def _cause(found: Hypothesis) -> str:
    if found.cause == "factor":
        return f"it is {_factor(found)} × the reference's"
    if found.cause == "update":
        return f"its step is {_factor(found)} × the reference's (learning rate)"
    if found.cause == "log":
        return f"it is larger by log {found.factor:.0f}"
    if found.odd_ranks:
        return f"{ranks_text(found.odd_ranks)} unlike the others of {ranks_text(found.ranks)}"
    return _CAUSE[found.cause].format(
        ranks=ranks_text(found.ranks), makers=ranks_text(found.makers)
    )


def trial_text(tried: Trial) -> str:
    """Return the hypothesis that was tried on a tensor, such as ``1/4 × the reference``."""
    if tried.cause == "factor":
        return f"{_factor(Hypothesis('factor', tried.factor, True))} × the reference"
    return _TRIED[tried.cause]


def _factor(found: Hypothesis) -> str:
    """Return a factor as ``2`` or ``1/4``; unusual factors with their digits."""
    if found.named and 0 < found.factor < 1:
        return f"1/{round(1 / found.factor)}"
    return number(found.factor)


def sides_text(numbers: Iterable[tuple[int, float]], before: str = "") -> str:
    """Return (rank, number) pairs as ``3 on rank 1, 4 on ranks 0,2``."""
    by_number: dict[float, list[int]] = {}
    for rank, one in numbers:
        by_number.setdefault(one, []).append(rank)
    return ", ".join(f"{before}{n:.6g} on {ranks_text(of)}" for n, of in sorted(by_number.items()))


def settings_text(
    rates: tuple[tuple[int, float], ...], others: tuple[int, ...], ranks: tuple[int, ...]
) -> str:
    """Return a sentence on (rank, learning rate) pairs, or on ranks with settings unlike most of
    ``ranks``; all of these, if there is no majority."""
    if rates:
        return f" Their learning rates differ: {sides_text(rates)}."
    if len(others) == len(ranks):
        return (
            " Their optimizers differ in another group's learning rate, in weight decay, momentum, "
            "clipping or another number."
        )
    if others:
        return (
            f" The optimizer of {ranks_text(others)} {agreed('has', others)} other settings "
            f"(weight decay, momentum, clipping, another group's learning rate) than the others'."
        )
    return ""
