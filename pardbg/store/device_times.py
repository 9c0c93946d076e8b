"""Records of what ran on a device, on the device's clock.

The host issues work and runs ahead: its records say when it launched an op, an action, a phase, a
step. Such a record (``Flag.DEVICE``) is held back until the DEVICE record with its real times is
there, and then stands in the tables with those; what was launched and has not been reached by the
device is in no table but ``launch``. Everything that reads tables thus sees one clock.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pardbg_agent.wire import Flag, Kind, Lane

Records = NDArray[Any]
LAUNCH: Final = 255
"""Kind, of no record of a rank: a launch, with the times of the host."""
MAX_PENDING: Final = 1 << 14
"""Launches held back; of more, the oldest are shown at the host's times, as are ops whose end the
device did not tell."""
_LANES: Final = {
    int(Kind.OP_ISSUE): int(Lane.COMM), int(Kind.ACTION): int(Lane.COMPUTE),
    int(Kind.PHASE): int(Lane.PHASE), int(Kind.STEP): int(Lane.STEP),
}  # fmt: skip
_LAUNCHED: Final = np.isin(np.arange(256), list(_LANES))
_TIMES: Final = np.isin(np.arange(256), [Kind.DEVICE, Kind.DEVICE_BEGIN])
_DEVICE, _DONE_DEVICE = int(Flag.DEVICE), int(Flag.DONE_DEVICE)


def concerned(records: Records) -> NDArray[np.bool_]:
    """Return which records are of work on a device: its launches, their times, their ends."""
    kinds, flags = records["kind"], records["flags"]
    found: NDArray[np.bool_] = _TIMES[kinds] | ((flags & _DEVICE) != 0)
    return found


class DeviceTimes:
    """One process's launches that the device has yet to reach."""

    def __init__(self) -> None:
        self._pending: Records | None = None
        self._reached: dict[int, int] = {}
        """Lane -> newest end of the device's there."""
        self.seen = False
        """Some times of the device have come."""

    def horizon_ns(self) -> int | None:
        """Return the time up to which work on the device is known, by the rank's own clock; None:
        nothing that was launched is still to come."""
        pending = self._pending
        if pending is None or not len(pending):
            return None
        known = []
        for kind in (Kind.OP_ISSUE, Kind.ACTION):
            launched = pending["t0_ns"][pending["kind"] == kind]
            if len(launched):
                known.append(max(int(launched.min()), self._reached.get(_LANES[kind], 0)))
        return min(known, default=None)

    def settle(self, records: Records) -> Records:
        """Return records with launches as LAUNCH, and times as records of what ran then. Records
        are in the order in which the rank wrote them, on its own clock."""
        records = records.copy()
        kinds, flags = records["kind"].copy(), records["flags"]
        launched = np.flatnonzero(_LAUNCHED[kinds] & ((flags & _DEVICE) != 0))
        fresh = records[launched]
        pending = fresh if self._pending is None else np.concatenate([self._pending, fresh])
        records["kind"][launched] = LAUNCH
        times = np.flatnonzero(_TIMES[kinds])
        self.seen |= len(times) > 0
        left = np.ones(len(pending), np.bool_)
        for kind, lane in _LANES.items():
            rows = times[records["lane"][times] == lane]
            newest = int(records["t1_ns"][rows].max(initial=0))
            self._reached[lane] = max(self._reached.get(lane, 0), newest)
            _replace(records, rows, pending, np.flatnonzero(pending["kind"] == kind), left)
        untimed = (kinds == Kind.OP_DONE) & ((flags & (_DEVICE | _DONE_DEVICE)) == _DEVICE)
        ended = np.isin(pending["t0_ns"], records["t0_ns"][untimed])
        shown = left & (pending["kind"] == Kind.OP_ISSUE) & ended
        oldest = np.flatnonzero(left & ~shown)[:-MAX_PENDING]
        shown[oldest] = True
        self._pending = pending[left & ~shown]
        return np.concatenate([records, pending[shown]]) if shown.any() else records


def _replace(
    records: Records, rows: NDArray[np.intp], pending: Records, among: NDArray[np.intp],
    left: NDArray[np.bool_],
) -> None:  # fmt: skip
    """Put the launches that these times are of in the times' place."""
    if not len(rows) or not len(among):
        return
    among = among[np.argsort(pending["t0_ns"][among], kind="stable")]
    issued = pending["t0_ns"][among]
    wanted = records["t0_ns"][rows] - records["a"][rows]  # a: the lead
    _, first = np.unique(wanted, return_index=True)  # an arrival, later its end
    first.sort()
    rows, wanted = rows[first], wanted[first]
    at = np.minimum(issued.searchsorted(wanted), len(issued) - 1)
    found = issued[at] == wanted
    rows, of = rows[found], among[at[found]]
    begins, ends = records["t0_ns"][rows].copy(), records["t1_ns"][rows].copy()
    records[rows] = pending[of]
    is_op = pending["kind"][of] == Kind.OP_ISSUE
    records["t0_ns"][rows], records["t1_ns"][rows] = begins, np.where(is_op, begins, ends)
    left[of] = False
