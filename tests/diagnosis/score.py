"""What a drill's outcomes come to: precision, recall, culprits, places and times, each with the
interval that its number of cases allows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from tests.diagnosis.cases import HANG
from tests.diagnosis.live import Outcome

Z = 1.96
"""95 %"""


def wilson(hits: int, of: int) -> tuple[float, float]:
    """Wilson's interval of a share: it holds for few cases and for shares near 1, too."""
    if of == 0:
        return 0.0, 1.0
    p, n = hits / of, of
    middle = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def share(name: str, hits: int, of: int) -> str:
    """``recall 0.985 (197 of 200; 95 % 0.957-0.995)``."""
    if of == 0:
        return f"{name} – (no case)"
    low, high = wilson(hits, of)
    return f"{name} {hits / of:.3f} ({hits} of {of}; 95 % {low:.3f}-{high:.3f})"


def summary(outcomes: Sequence[Outcome]) -> list[str]:
    """Lines for the end of the table."""
    faults = [o for o in outcomes if o.case.kinds]
    found = [o for o in faults if o.right is not None or o.named is not None]
    right = [o for o in faults if o.right is not None]
    alarms = sum(len(o.false) for o in outcomes)
    placed = [o for o in right if o.case.place]
    at = sum(o.case.place in (o.right.where or "") for o in placed if o.right is not None)
    hangs = [o.seconds for o in right if o.seconds is not None and o.case.sort == HANG]
    warned = sum(bool(o.warned) for o in outcomes if not o.case.kinds)
    lines = [
        share("precision", len(right), len(right) + alarms),
        share("recall", len(found), len(faults)),
        share("culprit", len(right), len(found)),
        share("place", at, len(placed)),
        f"{warned} of {len(outcomes) - len(faults)} healthy jobs had a warning",
    ]
    if len(hangs) > 1:
        mean, deviation = statistics.fmean(hangs), statistics.stdev(hangs)
        half = Z * deviation / math.sqrt(len(hangs))
        lines.append(
            f"hangs after {mean:.1f} s (95 % ±{half:.1f}; longest {max(hangs):.1f} s, "
            f"{sum(s <= 3 for s in hangs)} of {len(hangs)} within 3 s)"
        )
    return lines
