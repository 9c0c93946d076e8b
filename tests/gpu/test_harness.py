"""The harness of ``make gpu``: no row passes without a check, and rows run on simulated devices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pardbg.lab.sim import extension
from pardbg_agent import native
from tests.conftest import ROOT
from tests.gpu.rows import ROWS
from tests.gpu.table import Checks, Row, Skip, lines, tried


def _nothing(device: str, checks: Checks) -> None:
    checks.figure = "all is well"


def _raises(device: str, checks: Checks) -> None:
    checks.that(True, "")
    raise RuntimeError("no such thing")


def _fails(device: str, checks: Checks) -> None:
    checks.near(3, 2, 0.5, "a number")
    checks.that(True, "")


def _skips(device: str, checks: Checks) -> None:
    raise Skip("needs two devices")


def _skips_silently(device: str, checks: Checks) -> None:
    raise Skip


def _skips_after_a_failure(device: str, checks: Checks) -> None:
    checks.that(False, "wrong")
    raise Skip("needs two devices")


def _holds(device: str, checks: Checks) -> None:
    checks.that(True, "")


@pytest.mark.parametrize(
    ("check", "verdict"),
    [(_nothing, "FAIL"), (_raises, "FAIL"), (_fails, "FAIL"), (_skips, "skip"),
     (_skips_silently, "FAIL"), (_skips_after_a_failure, "FAIL"), (_holds, "pass")],
)  # fmt: skip
def test_a_row_passes_only_if_it_checked_something(
    check: Callable[[str, Checks], None], verdict: str
) -> None:
    outcome = tried(Row("row", "claim", ("sim",), check), "sim")
    assert outcome.verdict == verdict
    assert verdict == "pass" or outcome.text


def test_a_row_for_another_device_is_skipped_with_a_reason() -> None:
    outcome = tried(Row("row", "claim", ("cuda",), _holds), "sim")
    assert (outcome.verdict, outcome.num_checks) == ("skip", 0) and "cuda" in outcome.text
    assert lines([outcome], "sim")[-1] == "0 pass, 0 FAIL, 1 skip"


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", ["spans", "streams", "stands", "numbers", "inputs", "oom"])
def test_rows_hold_on_the_simulated_accelerator(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARDBG_SIM", str(ROOT / ".native"))
    try:
        extension.built()
    except (native.Unusable, OSError) as error:
        pytest.skip(f"no simulated accelerator: {error}")
    outcome = tried(next(row for row in ROWS if row.name == name), "sim")
    assert outcome.verdict == "pass", outcome.text
    assert outcome.num_checks >= 3
