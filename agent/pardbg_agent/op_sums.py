"""Level summary: instead of a record per op, one per step and kind of op, with number and bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from pardbg_agent.wire import NONE, Flag, Kind, Lane

MOST = 1 << 16
"""Ops of a step that are counted; a step with more has its oldest ones missing from the sums."""
_KEPT = int(Flag.P2P | Flag.SEND)


class Sums:
    """Completed ops since the last step's end. ``add`` may be called from any thread."""

    def __init__(self) -> None:
        self._ops: deque[tuple[int, int, int, int, int]] = deque(maxlen=MOST)
        self.add = self._ops.append
        """``add((name_id, group_id, flags, bytes, ns))``: one append, which needs no lock."""

    def write(self, record: Callable[..., Any], t0: int, t1: int, step: int) -> None:
        """The sums as OP_SUM records of a step."""
        ops = self._ops
        sums: dict[tuple[int, int, int], list[int]] = {}
        for _ in range(len(ops)):
            name_id, group_id, flags, num_bytes, ns = ops.popleft()
            known = sums.setdefault((name_id, group_id, flags & _KEPT), [0, 0, 0])
            known[0] += 1
            known[1] += num_bytes
            known[2] += ns
        for (name_id, group_id, flags), (number, num_bytes, ns) in sums.items():
            record(
                Kind.OP_SUM, Lane.COMM, flags, name_id, t0, t1, step, number, group_id, NONE, NONE,
                NONE, num_bytes, ns,
            )  # fmt: skip
