"""Step time and loss over one axis of steps."""

from __future__ import annotations

from dataclasses import replace

from pardbg.render.draw.cells import plain
from pardbg.render.pages.overview.page import overview
from tests.ui.sample import snapshot_1f1b


def test_step_time_and_loss_share_their_steps() -> None:
    """Losses of more steps than step times: both stand over one axis, with the ticks of all."""
    made = snapshot_1f1b()
    step = made.steps[-1]
    steps = tuple(replace(step, step=n) for n in range(80, 100))
    losses = tuple((n, 5 - n / 50) for n in range(100))
    shown = replace(made, steps=steps, loss_history=losses)
    picture = overview(shown, 120, 36)
    rows = [plain(row) for row in (*picture.head, *picture.body)]
    ticks = [[at for at, char in enumerate(row) if char == "┬"] for row in rows if "└" in row]
    assert len(ticks) == 2 and ticks[0] == ticks[1] and len(ticks[0]) >= 4
    assert sum("step 0" in row for row in rows) == 1
    # The newest step times stand over the end of the losses, from four fifths of the axis on.
    first = next(at for at, row in enumerate(rows) if "step time and loss" in row)
    upper = rows[first : next(at for at, row in enumerate(rows) if "└" in row)]
    dots = [at for row in upper for at, char in enumerate(row) if char == "●"]
    assert dots and min(dots) > ticks[0][0] + 0.7 * (ticks[0][-1] - ticks[0][0])


def test_where_rows_are_few_the_loss_stands_beside_the_step_time() -> None:
    picture = overview(snapshot_1f1b(), 80, 20)
    rows = [plain(row) for row in (*picture.head, *picture.body)]
    axes = [row for row in rows if "└" in row]
    assert len(axes) == 1 and axes[0].count("└") == 2
