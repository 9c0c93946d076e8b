"""Copies of parameters that other ranks step: whether they have the newest update, and whose they
lack. Parts are rows of a 6 x 4 parameter, which two ranks step three rows of each."""

from __future__ import annotations

import numpy as np
import pytest

from pardbg.analysis.same.wholes import wholes
from pardbg.analysis.same.working_copies import Copies, copies
from pardbg_agent import wire
from tests.unit.analysis.same.captured import Array, fields
from tests.unit.trace_builder import Trace

pytestmark = pytest.mark.timeout(60)
DRAWN = np.random.default_rng(5)
BEFORE = DRAWN.normal(size=(6, 4)).astype(np.float32).astype(np.float64)
UPDATE = 0.01 * DRAWN.normal(size=(6, 4))
AFTER = BEFORE + UPDATE
WHOLE = (0, 0), (6, 4)
ROWS = slice(0, 3), slice(3, 6)


def run(used: list[Array], dtype: str = "float32") -> Copies:
    """Two ranks that each step their rows in step 0, and compute with ``used`` in step 1."""
    trace = Trace(2)
    for proc, rows, mine in zip(trace.ranks, ROWS, used, strict=True):
        own = (rows.start, 0), (3, 4)
        told = (0, "init", BEFORE, own), (0, "param", AFTER, own), (1, "used", mine, WHOLE)
        for step, what, values, box in told:
            proc.define(
                wire.DefKind.TENSOR, step=step, what=what, name="w", order=0, model=0, over=[],
                dtype=dtype if what == "used" else "float32", **fields(values, *box),
            )  # fmt: skip
    return copies(wholes(trace.store()))


def lacking(*rows: int) -> Array:
    """The parameter without the updates of these ranks' rows."""
    found = AFTER.copy()
    for rank in rows:
        found[ROWS[rank]] = BEFORE[ROWS[rank]]
    return found


def test_with_all_updates_nothing_is_stale() -> None:
    assert run([AFTER, AFTER]) == Copies((), 2)


@pytest.mark.parametrize(("used", "holders", "makers"), [
    ([AFTER, lacking(0)], (1,), (0,)),
    ([lacking(1), lacking(0)], (0, 1), (0, 1)),
    ([lacking(0, 1), AFTER], (0,), (0, 1)),
])  # fmt: skip
def test_who_computes_without_whose_update_is_named(
    used: list[Array], holders: tuple[int, ...], makers: tuple[int, ...]
) -> None:
    found = run(used)
    (stale,) = found.stale
    assert (found.judged, stale.step, stale.name) == (2, 1, "w")
    assert (stale.cause.cause, stale.cause.ranks, stale.cause.makers) == (
        "not-taken", holders, makers,
    )  # fmt: skip


@pytest.mark.parametrize("other", [
    BEFORE + 0.5 * UPDATE, AFTER.clip(-0.5, 0.5), DRAWN.normal(size=(6, 4)),
], ids=["an average", "clipped", "other values"])  # fmt: skip
def test_nothing_is_said_of_a_copy_that_no_parts_explain(other: Array) -> None:
    assert run([AFTER, other]) == Copies((), 1)


def test_of_an_update_below_rounding_nothing_is_known() -> None:
    """An update of 1 % is three roundings of bfloat16 (2^-7): too few to tell."""
    assert run([lacking(1), lacking(0)], "bfloat16") == Copies((), 0)
