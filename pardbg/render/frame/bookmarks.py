"""The list of bookmarks."""

from __future__ import annotations

from collections.abc import Sequence

from pardbg import words
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.render.draw.cells import Line, Picture, Segment, clip, left, line, right
from pardbg.render.frame.empty import empty
from pardbg.store.history import Bookmark


def bookmark_list(
    marks: Sequence[Bookmark], snapshot: Snapshot | None, cells: int, rows: int
) -> Picture:
    """Number, time from the begin, wall clock and note; ``goto mark N`` goes there."""
    if not marks or snapshot is None:
        return empty(cells, rows, "no bookmark yet: m marks the moment on the screen")
    run = snapshot.run
    body: list[Line] = [
        line(
            " ",
            Segment(right(str(number), 3), "key"),
            "  ",
            Segment(right(words.offset(mark.t_ns - snapshot.t_begin_ns, 1e7), 10), "strong"),
            "  ",
            Segment(words.clock(run.wall_ns + mark.t_ns - run.t0_ns), "dim"),
            "  ",
            Segment(
                clip(mark.text, max(8, cells - 30)), "accent" if mark.t_ns == snapshot.t_ns else ""
            ),
        )
        for number, mark in enumerate(marks, 1)
    ]
    how = ":goto mark N goes there, :unmark N takes it away"
    foot = line(" ", Segment(left(how, cells - 1), "dim"))
    return Picture(body=tuple(body), foot=(foot,))
