"""The bubbles of torch's schedules as pardbg measures them, compute paced and stages equal.

4 ranks, 8 microbatches, medians over warm steps. What theory says of them: GPipe and 1F1B have
what their plan implies, interleaving makes the bubble smaller, cutting backward in two smaller
still.
"""

from __future__ import annotations

from statistics import median

from tests.bench.figures import Figure
from tests.distributed.recorded import recorded

PACE_MS = 25.0
"""Per block: a stage of two sleeps 50 ms forward and 100 backward, a half of that where a rank has
two stages. What a busy machine adds to each action and message, some ms, is little beside it."""
STEPS, WARM = 6, 2
POINTS = 3.0
CLOSE = ("gpipe", "1f1b")
ORDER = (("interleaved", "1f1b"), ("zb", "interleaved"), ("zbv", "interleaved"),
         ("dualpipev", "interleaved"))  # fmt: skip


def main() -> list[Figure]:
    """Each schedule's bubble in percent, and the differences that theory promises."""
    names = (*CLOSE, *(name for name, _ in ORDER))
    found = {name: bubbles(name) for name in names}
    figures = []
    for name, (measured, implied, bound) in found.items():
        note = f"implied {implied:.1f}, equal stages {bound:.1f}"
        figures.append(Figure(f"bubble of {name}", measured, "%", note=note))
        if name in CLOSE:
            excess = abs(measured - implied)
            figures.append(Figure(f"{name}: measured beside implied", excess, "points", POINTS))
    for name, other in ORDER:
        less = found[other][0] - found[name][0]
        figures.append(Figure(f"{name} below {other}", less, "points", 0.0, higher_is_better=True))
    return figures


def bubbles(name: str) -> tuple[float, float, float]:
    """(measured, implied, with equal stages and free messages) in percent, medians."""
    run = recorded(name, steps=STEPS, pace=PACE_MS)
    assert run.exit_code == 0, run.err
    steps = [step for step in run.report["pipeline"]["steps"] if step["step"] >= WARM]
    measured = median(step["bubble_fraction"] for step in steps)
    implied = median(step["implied_fraction"] for step in steps)
    virtual = 1 if name in CLOSE else 2
    parts = virtual if name in (*CLOSE, "interleaved") else 3 * virtual  # F, I and W alike
    return 100 * measured, 100 * implied, 100 * 3 / (parts * 8 + 3)
