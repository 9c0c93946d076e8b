"""Ranks that are held where they stand though others wait inside ops for them, and for how long.

A cut has nobody waiting, so no timeout runs. A breakpoint's rank, or one that alone was asked to
hold, must not move, so the ranks that wait for it are inside ops with a clock. It is released
before the nearest of these can run out, unless ``--hold`` was asked for.

On gloo an op's clock runs while somebody waits in it; counting from its issue is on the safe side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pardbg.control.language.agent_state import OpenOp
from pardbg.control.machine.cut import Settlement

MARGIN: Final = 0.2
"""Release with this share of the timeout left ..."""
LEAST_MARGIN_NS: Final = 2_000_000_000
"""... and not less than this."""
UNKNOWN_NS: Final = 60_000_000_000
"""A group whose timeout nobody said: assume a short one."""
_DAY_NS: Final = 86_400_000_000_000


@dataclass(slots=True)
class HeldRanks:
    """Which ranks are pinned, and the deadline that follows from who waits for them."""

    procs: set[str] = field(default_factory=set)
    forever: bool = False
    """``--hold``: nobody is released, whatever runs out."""
    deadline_ns: int | None = None
    """Hub time of the nearest timeout; None: nobody waits."""
    _seen: dict[tuple[str, OpenOp], int] = field(default_factory=dict)

    def clear(self) -> None:
        self.procs, self.forever, self.deadline_ns, self._seen = set(), False, None, {}

    def update(self, found: Settlement, timeouts: Mapping[str, int], now: int) -> bool:
        """Take note of who waits; True: it is time to let the pinned ranks go."""
        self._seen = {
            (proc, op): self._seen.get((proc, op), now) for proc, (op, _) in found.waiting.items()
        }
        ends, release = [], []
        for (_, op), seen in self._seen.items():
            timeout = timeouts.get(op.group, UNKNOWN_NS)
            since = op.since_ns if 0 <= now - op.since_ns < _DAY_NS else seen
            end = min(since, seen) + timeout
            ends.append(end)
            release.append(end - max(int(MARGIN * timeout), LEAST_MARGIN_NS))
        self.deadline_ns = min(ends, default=None)
        return bool(release) and not self.forever and now >= min(release)

    def left_ns(self, now: int) -> int | None:
        """Until the nearest timeout of somebody who waits."""
        return None if self.deadline_ns is None else max(0, self.deadline_ns - now)
