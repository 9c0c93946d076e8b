"""Traffic of a small mesh: bytes between neighbours, the groups by axis, senders by receivers, and
the traffic that would cross between two hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.render.draw.bars import GAP, abreast, rule
from pardbg.render.draw.cells import Line, clean, fit
from pardbg.render.pages.mesh.link_boxes import link_boxes
from pardbg.render.pages.traffic_step import across, axes, who_sends

_LEAST: Final = 56
"""Minimum cells of the panel of groups."""


def link_panels(snapshot: Snapshot, ranks: Sequence[int], cells: int, rows: int) -> list[Line]:
    """Draw the four panels in at most ``rows`` lines; empty if they do not fit, or the traffic is
    not between a mesh's neighbours."""
    step = snapshot.traffic.step
    wide = max(_LEAST, (cells - 2 - GAP) // 2)
    left = cells - 2 - GAP - wide
    boxes = link_boxes(step, snapshot.mesh, left - 1) if step is not None else []
    if step is None or not boxes:
        return []
    name = " × ".join(f"{clean(axis.name)} {axis.size}" for axis in snapshot.mesh.axes)
    groups = [rule("groups by axis", wide, "a rank's bytes a step, largest first"),
              *axes(snapshot.traffic, wide - 2)]  # fmt: skip
    upper = [([rule(f"mesh {name}", left, "bytes of a step"), *boxes], left), (groups, wide)]
    grid = who_sends(step, ranks, left - 2, len(ranks) + 1)
    lower = [([rule("who sends to whom", left, "rows send"), *grid], left)]
    cut = across(step, wide - 2) if snapshot.run.num_hosts == 1 else []
    if cut:
        title = f"if the {len(ranks)} ranks were on 2 hosts"
        lower.append(([rule(title, wide, "bytes a step"), (), *cut], wide))
    made = [(), *abreast(upper), (), *abreast(lower), ()]
    return [fit(row, cells) for row in made] if grid and len(made) <= rows else []
