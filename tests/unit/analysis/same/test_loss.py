"""The loss is compared as a number and tells factors; it decides nothing but by a logarithm."""

from __future__ import annotations

import math

import pytest

from pardbg.analysis.answers.metrics import worst_difference
from pardbg.analysis.same.comparison import OF_LOSS, Sameness, compare
from pardbg.analysis.same.hypotheses import Hypothesis
from pardbg.analysis.same.loss import Loss
from pardbg.render.reports.sameness import same_text
from pardbg.store.store import Store
from pardbg_agent import wire
from tests.unit.analysis.same.captured import Run, changed, run

LOSS = 4.0


def with_loss(made: Run, *losses: float) -> Store:
    """Each rank's loss of step 0, seen where its backward begins."""
    trace = made.trace()
    for proc, loss in zip(trace.ranks, losses, strict=True):
        proc.seen_loss(5.0, loss, 0)
        proc.step(0, 0.0, 10.0)
    return trace.store()


def compared(made: Run, *losses: float) -> tuple[Sameness, Loss]:
    found = compare(with_loss(run(), LOSS), with_loss(made, *losses))
    assert found.loss is not None
    return found, found.loss


def test_losses_of_ranks_are_averaged_and_judged_by_the_floor() -> None:
    # 8 epsilon sqrt(6 gradients) of 4.0
    floor = 8 * 2.0**-23 * math.sqrt(6) * LOSS
    found, loss = compared(run(2, seed=1), LOSS - 0.5, LOSS + 0.5)
    assert (loss.step, loss.run, loss.floors, loss.level) == (0, LOSS, 0.0, "green")
    assert found.reason == "same" and same_text(found).startswith("Loss of step 0: 4,")
    for floors, level in ((2, "green"), (6, "yellow"), (20, "red")):
        _, loss = compared(run(1), LOSS + floors * floor)
        assert loss.floors == pytest.approx(floors) and loss.level == level


@pytest.mark.parametrize(
    ("value", "times", "log_of"),
    [(2 * LOSS, 2.0, 0), (LOSS / 4, 0.25, 0), (LOSS + 0.1, 0.0, 0)],
)
def test_a_loss_that_differs_alone_is_said_and_decides_nothing(
    value: float, times: float, log_of: int
) -> None:
    found, loss = compared(run(4, seed=1), *[value] * 4)
    assert (loss.level, loss.times, loss.log_of) == ("red", times, log_of)
    assert (found.exit_code, found.reason) == (0, "same")


def test_a_loss_that_is_larger_by_a_logarithm_of_the_ranks_is_no_unit() -> None:
    found, loss = compared(run(4, seed=1), *[LOSS + math.log(4)] * 4)
    assert (found.exit_code, found.what, loss.log_of) == (1, OF_LOSS, 4)
    assert found.hypothesis == Hypothesis("log", 4.0, True) and "log 4" in same_text(found)
    assert worst_difference(found) == [math.inf]


def test_it_stands_beside_a_gradient_that_differs() -> None:
    found, loss = compared(changed(run(1), lambda g: 2 * g), 2 * LOSS)
    assert found.exit_code == 1 and loss.times == 2.0


def test_a_coarse_dtype_judges_no_loss_without_a_floor() -> None:
    coarse = run(1, dtype="bfloat16")
    store = with_loss(coarse, LOSS)
    found = compare(store, with_loss(coarse, LOSS * 1.01)).loss
    assert found is not None and found.level == "noise"
    found = compare(store, with_loss(coarse, LOSS * 1.01), with_loss(coarse, LOSS * 1.0001)).loss
    # measured 1e-4, at least a rounding of bfloat16, 2**-7
    assert found is not None and found.floors == pytest.approx(1.28) and found.level == "green"


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("loss", [4.0, 11.0])
def test_a_logarithm_of_the_ranks_is_seen_in_a_coarse_dtype(loss: float, ranks: int) -> None:
    # log 2 is 0.69: 8 roundings of 11, which any other difference may be
    reference = with_loss(run(1, dtype="bfloat16"), loss)
    floor = with_loss(run(1, 5, 4e-3, dtype="bfloat16"), loss * (1 + 2.0**-8))
    made = run(ranks, 9, 4e-3, dtype="bfloat16")
    for more, log_of in ((math.log(ranks), ranks), (0.45, 0), (0.0, 0)):
        found = compare(reference, with_loss(made, *[loss + more] * ranks), floor)
        assert found.loss is not None and found.loss.log_of == log_of
        assert found.exit_code == (1 if log_of else 0)


def test_losses_that_are_not_finite() -> None:
    _, loss = compared(run(1), math.nan)
    assert (loss.level, loss.floors) == ("red", math.inf)
    assert compare(run().store(), run().store()).loss is None


def test_a_loss_that_is_only_printed_is_not_judged() -> None:
    stores = []
    for made, least in ((run(), 4.0), (run(seed=1), 4.1)):
        trace = made.trace()
        trace.define(wire.DefKind.RUN, run="r", name="n", argv=[], loss_pattern="")
        for step in range(4):
            t = 10.0 * step
            trace.ranks[0].phase("backward", t + 1, t + 3, step)
            trace.ranks[0].step(step, t, t + 9)
            trace.output(t + 9, f"step {step} loss {least + step}")
        trace.end(50)
        stores.append(trace.store())
    found = compare(*stores)
    assert found.loss == Loss(0, 4.0, 4.1, math.inf, "noise") and found.reason == "same"
