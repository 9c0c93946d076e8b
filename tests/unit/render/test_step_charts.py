"""Step time and loss over one axis of steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pardbg.analysis.findings.finding import Finding
from pardbg.render.draw.cells import plain
from pardbg.render.frame.step_charts import Event
from pardbg.render.pages.overview.page import OverviewPageState, overview
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


def test_a_finding_has_a_line_where_it_begins() -> None:
    """Of steps 0 to 39 that are as wide as each other the middle one, 20, is in the middle."""
    made = snapshot_1f1b()
    steps = tuple(replace(made.steps[-1], step=n) for n in range(40))
    shown = replace(made, steps=steps, loss_history=tuple((n, 5 - n / 20) for n in range(40)))
    found = Finding("straggler", "warning", made.t_ns, "rank 2 is late", culprits=(2,))
    look = OverviewPageState(events=(Event(20.5, found), Event(99, found)))
    picture = overview(shown, 120, 36, look)
    rows = [plain(row) for row in (*picture.head, *picture.body)]
    at = {x for row in rows for x, sign in enumerate(row) if sign == "┊"}
    ends = next((row.index("└"), row.rindex("─", 0, 76)) for row in rows if "└" in row)
    assert len(at) == 1 and abs(at.pop() - sum(ends) / 2) <= 2, (at, ends)
    assert sum("▲ straggler r2" in row for row in rows) == 1
    early = overview(replace(shown, t_ns=found.t_ns - 1), 120, 36, look)
    styles = {run.style for row in early.head for run in row if "┊" in run.text}
    assert styles and all(style.startswith("faint") for style in styles), "it is to come"


def test_where_rows_are_few_the_loss_stands_beside_the_step_time() -> None:
    picture = overview(snapshot_1f1b(), 80, 20)
    rows = [plain(row) for row in (*picture.head, *picture.body)]
    axes = [row for row in rows if "└" in row]
    assert len(axes) == 1 and axes[0].count("└") == 2


@pytest.mark.parametrize(("cells", "rows"), [(80, 20), (120, 36), (200, 56)])
def test_ticks_of_the_step_time_have_one_unit(cells: int, rows: int) -> None:
    """Steps of 0.7 to 1.1 s: 800 ms would stand under 1 s."""
    made = snapshot_1f1b()
    times = [700_000_000 + 20_000_000 * at for at in range(21)]
    steps = tuple(replace(made.steps[-1], step=n, duration_ns=ns) for n, ns in enumerate(times))
    picture = overview(replace(made, steps=steps, loss_history=()), cells, rows)
    shown = [
        plain(row).partition("┤")[0].split()
        for row in (*picture.head, *picture.body)
        if "┤" in plain(row)
    ]
    ticks = [(float(words[-2]), words[-1]) for words in shown]
    assert len(ticks) >= 2 and {unit for _, unit in ticks} == {"s"}
    assert 1.1 >= ticks[0][0] > ticks[-1][0] >= 0.7
