"""The picture of a stall: the rank that others wait for has its place on its own lane."""

from __future__ import annotations

from pathlib import Path

import pytest

from pardbg.analysis.answers.snapshot import snapshot
from pardbg.analysis.answers.timeline import lanes
from pardbg.render.draw.cells import plain
from pardbg.render.pages.findings import Around, findings
from pardbg.render.pages.timeline import Window
from pardbg.session.reader import load

SESSIONS = Path(__file__).parents[3] / "sessions"
S = 1_000_000_000


def standing(name: str, after_s: float, cells: int = 120) -> list[tuple[str, str]]:
    """(what is on the lane of a rank that is waited for, its rank) so long after the begin."""
    store = load(SESSIONS / f"{name}.mcap")
    made = snapshot(store, store.begin_ns + int(after_s * S))
    window = Window(made.t_ns - 3 * S, made.t_ns)
    drawn = lanes(store, window.t0_ns, window.t1_ns, cells)
    picture = findings(made, cells, 40, 0, Around(drawn, window))
    return [
        (one.text.strip(), plain(row).split()[0])
        for row in picture.body for one in row if one.style == "absent"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "after_s", "shown"),
    [
        ("fault-missing-rank", 14.3, [("missing_rank.py:45 in wait_for", "r2")]),
        ("fault-missing-rank", 23.3, []),  # its process has ended
        ("fault-p2p-cycle", 11.2, []),  # each of them waits in an op, and its lane says so
    ],
)
def test_a_rank_in_no_op_has_its_place_on_its_lane(
    name: str, after_s: float, shown: list[tuple[str, str]]
) -> None:
    assert standing(name, after_s) == shown


def test_a_narrow_picture_cuts_the_place() -> None:
    ((text, rank),) = standing("fault-missing-rank", 14.3, 40)
    assert rank == "r2" and text and "missing_rank.py:45 in wait_for".startswith(text.rstrip("…"))


def test_the_waits_of_a_live_run_are_drawn_before_their_records_come() -> None:
    """Of the recording as it was live: nothing that ends after the cursor."""
    store = load(SESSIONS / "fault-missing-rank.mcap")
    made = snapshot(store, store.begin_ns + int(14.3 * S))
    window = Window(made.t_ns - 3 * S, made.t_ns)
    come = {
        rank: {
            name: tuple(one for one in spans if one.t1_ns < made.t_ns)
            for name, spans in of.items()
        }
        for rank, of in lanes(store, window.t0_ns, window.t1_ns, 120).items()
    }  # fmt: skip
    picture = findings(made, 120, 40, 0, Around(come, window))
    said = [one.text for row in picture.body for one in row if one.style == "wait"]
    assert sum("all_reduce default #21, 2." in text for text in said) == 3
