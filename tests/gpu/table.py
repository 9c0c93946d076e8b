"""Rows of the table: what each checked, its verdict and its figure.

A row passes only if it compared something: one that returns without a check fails, as does one that
raises. One that cannot be tried here is skipped, with the reason.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["pass", "FAIL", "skip"]


class Skip(Exception):
    """The row cannot be tried here; its text says why."""


class Checks:
    """What a row compares, and the figure that it shows."""

    def __init__(self) -> None:
        self.num = 0
        self.failed: list[str] = []
        self.figure = ""

    def that(self, holds: bool, what: str) -> None:
        """Check a condition; ``what`` is shown if it does not hold."""
        self.num += 1
        if not holds:
            self.failed.append(what)

    def near(self, value: float, truth: float, within: float, what: str) -> None:
        """Check that a number is another one's, within an absolute tolerance."""
        self.that(abs(value - truth) <= within, f"{what}: {value:g}, not {truth:g} ± {within:g}")

    def some(self, values: Iterable[object], least: int, what: str) -> None:
        """Check that there is at least that much to look at."""
        found = len(list(values))
        self.that(found >= least, f"{found} {what}, not {least} or more")


@dataclass(frozen=True)
class Row:
    """One line of the table. ``check(device, checks)`` compares, or raises Skip."""

    name: str
    claim: str
    devices: tuple[str, ...]
    """Kinds of devices that it can be tried on."""
    check: Callable[[str, Checks], None]


@dataclass(frozen=True)
class Outcome:
    row: Row
    verdict: Verdict
    text: str
    num_checks: int
    seconds: float


def tried(row: Row, device: str) -> Outcome:
    """Try a row on a device."""
    begin, checks = time.monotonic(), Checks()
    verdict: Verdict
    try:
        if device not in row.devices:
            raise Skip(f"needs {' or '.join(row.devices)}: {device} has none of it")
        row.check(device, checks)
    except Skip as reason:
        text = str(reason)
        verdict = "skip" if text and not checks.failed else "FAIL"
        text = text or "skipped without a reason"
    except Exception as error:  # noqa: BLE001 - a row that fails is a line of the table
        verdict, text = "FAIL", "".join(traceback.format_exception_only(error)).strip()[-400:]
    else:
        verdict, text = _judged(checks)
    return Outcome(row, verdict, text, checks.num, time.monotonic() - begin)


def _judged(checks: Checks) -> tuple[Verdict, str]:
    if checks.failed:
        more = f" (+{len(checks.failed) - 1} more)" if len(checks.failed) > 1 else ""
        return "FAIL", checks.failed[0] + more
    return ("pass", checks.figure) if checks.num else ("FAIL", "it checked nothing")


def lines(outcomes: Sequence[Outcome], device: str) -> list[str]:
    """Return the table, and its sum in the last line."""
    width = max((len(one.row.name) for one in outcomes), default=0)
    table = [
        f"{one.verdict:<4}  {one.row.name:<{width}}  {one.num_checks:>6}  {one.seconds:>5.1f} s  "
        f"{one.row.claim}: {one.text}"
        for one in outcomes
    ]
    counts = {v: sum(one.verdict == v for one in outcomes) for v in ("pass", "FAIL", "skip")}
    total = ", ".join(f"{number} {verdict}" for verdict, number in counts.items())
    return [f"verdict, row, checks, time ({device})", *table, total]
