"""Floors: from a second recording, and how much of it counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pardbg.analysis.same.hypotheses import hypothesis, update
from pardbg.analysis.same.noise import Floors
from pardbg.analysis.same.wholes import Whole


def whole(what: str, dtype: str = "bfloat16", most: float = 1.0, bits: int = 1) -> Whole:
    """A tensor of 100 elements with a norm of 10."""
    vector = np.zeros(256)
    vector[0] = 10.0 * most
    return Whole(
        0, what, "w", 0, 0, dtype, (100,), 100, most, 0, vector, (), (), False, (), (bits,), 0
    )


@pytest.mark.parametrize(
    ("what", "apart", "measured", "floor"),
    [
        ("grad", False, 0.0, 5.0),  # 8 epsilon sqrt(64) = 0.5 of 10
        ("grad", False, 0.5, 0.5),  # what was measured
        ("grad", False, 0.05, 0.2),  # 2 %
        ("out", False, 0.5, 0.5),
        ("grad", True, 0.5, 0.25),  # a half of it
        ("out", True, 0.5, 0.25),
        ("d_out", True, 0.01, 10 / 256),
        ("param", True, 0.5, 0.5),  # Adam turns signs
    ],
)
def test_a_measured_floor_counts_whole_or_half(
    what: str, apart: bool, measured: float, floor: float
) -> None:
    one = whole(what)
    known = {one.key: measured} if what in ("grad", "param") and measured else {}
    made = Floors(64, 0.0, known, apart)
    assert made.of(one, one, 0.0 if known else measured) == pytest.approx(floor)


def test_rounding_of_float32_is_the_floor_where_it_is_larger() -> None:
    one = whole("grad", "float32")
    # 8 * 2^-23 * 8 of 10, whatever is measured
    assert Floors(64, 0.0, {one.key: 1e-9}, True).of(one, one) == pytest.approx(640 * 2.0**-23)


def test_a_parameter_of_zeros_that_stays_is_what_it_was() -> None:
    reference, zeros = whole("param"), whole("param", most=0.0, bits=0)
    found = hypothesis(reference, zeros, zeros, 0.0, ())
    assert found is not None and found.cause == "stale"
    found = hypothesis(whole("grad"), whole("grad", most=0.0, bits=0), None, 0.0, ())
    assert found is not None and found.cause == "zero"


@pytest.mark.parametrize(("step", "found"), [(0.02, 2.0), (0.01, None)])
def test_another_learning_rate_is_a_factor_of_the_update(step: float, found: float | None) -> None:
    """The reference moves one bucket by 0.01, the run the same by ``step`` or, as it is no
    multiple, another."""
    old = whole("param", "float32")
    of, own = old.vector.copy(), old.vector.copy()
    of[1], own[1 if step > 0.01 else 2] = 0.01, step
    made = update(replace(old, vector=of), replace(old, vector=own), (old, old))
    assert (made and (made.cause, round(made.factor, 6))) == (found and ("update", found))
