"""Records of work on a device, on the device's clock.

The host issues work and runs ahead: its records have the time at which it launched an op, an
action, a phase, a step. Such a record (``Flag.DEVICE``) is held back until the DEVICE record with
the real times comes, and is then put into the tables with those times; launches that the device has
not reached are only in table ``launch``. So all readers of tables see one clock.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pardbg.events.decode import RECORD_DTYPE
from pardbg_agent.wire import Flag, Kind, Lane

Records = NDArray[Any]
LAUNCH: Final = 255
"""Kind of a launch with the host's times; no rank writes such records. ``peer`` is its lane."""
REACHED: Final = 254
"""Kind of the same launch when the device reached it, with the device's times: ``a`` is the lead at
its begin (ns by which the host was ahead), ``b`` at its end; for an op both at its arrival."""
STOOD: Final = 253
"""Kind of a stretch in which a device's computing stream stood in a wait for an asynchronous op."""
MAX_PENDING: Final = 1 << 14
"""Maximum number of launches held back; beyond it the oldest are shown at the host's times, as are
ops whose end the device did not report."""
_LANES: Final = {
    int(Kind.OP_ISSUE): int(Lane.COMM), int(Kind.ACTION): int(Lane.COMPUTE),
    int(Kind.PHASE): int(Lane.PHASE), int(Kind.STEP): int(Lane.STEP),
    int(Kind.FSDP): int(Lane.COMM), int(Kind.SPAN): int(Lane.USER),
}  # fmt: skip
_LAUNCHED: Final = np.isin(np.arange(256), list(_LANES))
_TIMES: Final = np.isin(np.arange(256), [Kind.DEVICE, Kind.DEVICE_BEGIN])
_TOLD: Final = 64
_PHASE, _ISSUE = int(Kind.PHASE), int(Kind.OP_ISSUE)
_DEVICE, _DONE_DEVICE = int(Flag.DEVICE), int(Flag.DONE_DEVICE)
_INFERRED: Final = int(Flag.INFERRED)


def concerned(records: Records) -> NDArray[np.bool_]:
    """Return which records concern a device: launches, times, ends, phases that follow."""
    kinds, flags = records["kind"], records["flags"]
    inferred = (kinds == _PHASE) & ((flags & _INFERRED) != 0)
    found: NDArray[np.bool_] = _TIMES[kinds] | ((flags & _DEVICE) != 0) | inferred
    return found


class DeviceTimes:
    """One process's launches that its device has not reached yet."""

    def __init__(self) -> None:
        self._pending: Records | None = None
        self._phase_end_ns = 0
        self._told = np.zeros(0, RECORD_DTYPE)
        """Newest arrivals of ops: the end of an op may come in the next batch."""
        self._reached: dict[int, int] = {}
        """Lane -> newest time at which the device ended work there."""
        self.seen = False
        """Whether any times of the device have come."""

    def horizon_ns(self) -> int | None:
        """Return the time up to which work on the device is known, by the rank's own clock; None:
        no launch is pending."""
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
        """Return the records with launches as LAUNCH, and launches that the device reached both as
        REACHED and at its times. Records are in the rank's order, on its own clock."""
        times = records[_TIMES[records["kind"]]]
        self.seen |= len(times) > 0
        records = records.copy()
        kinds, flags = records["kind"].copy(), records["flags"]
        held = _LAUNCHED[kinds] & ((flags & _DEVICE) != 0)
        if self.seen:
            held |= (kinds == _PHASE) & ((flags & _INFERRED) != 0)
        launched = np.flatnonzero(held)
        fresh = records[launched]
        pending = fresh if self._pending is None else np.concatenate([self._pending, fresh])
        records["kind"][launched] = LAUNCH
        records["peer"][launched] = records["lane"][launched]
        for lane in np.unique(times["lane"]).tolist():
            newest = int(times["t1_ns"][times["lane"] == lane].max())
            self._reached[lane] = max(self._reached.get(lane, 0), newest)
        reached, left = _reached(times, pending)
        inferred = self._inferred(reached, pending, left)
        self._arrive(records, times)
        records["kind"][(kinds == Kind.DEVICE) & (records["lane"] == Lane.WAIT)] = STOOD
        untimed = (kinds == Kind.OP_DONE) & ((flags & (_DEVICE | _DONE_DEVICE)) == _DEVICE)
        ended = np.isin(pending["t0_ns"], records["t0_ns"][untimed])
        shown = left & (pending["kind"] == _ISSUE) & ended
        oldest = np.flatnonzero(left & ~shown)[:-MAX_PENDING]
        shown[oldest] = True
        self._pending = pending[left & ~shown]
        return np.concatenate([records, *reached, inferred, pending[shown]])

    def _arrive(self, records: Records, times: Records) -> None:
        """Set the begin of ops that ended on the device to their arrival, not to their issue."""
        times = np.concatenate([self._told, times[times["lane"] == Lane.COMM]])
        self._told = times[-_TOLD:]
        done = np.flatnonzero(
            (records["kind"] == Kind.OP_DONE) & ((records["flags"] & _DONE_DEVICE) != 0)
        )
        if not len(done) or not len(times):
            return
        issued, of = np.unique(times["t0_ns"] - times["a"], return_index=True)
        at = np.minimum(issued.searchsorted(records["t0_ns"][done]), len(issued) - 1)
        known = issued[at] == records["t0_ns"][done]
        records["t0_ns"][done[known]] = times["t0_ns"][of[at[known]]]

    def give_up(self) -> Records | None:
        """Return the ops that the device of an ended process will never reach, as issued."""
        pending, self._pending = self._pending, None
        if pending is None:
            return None
        ops = pending[pending["kind"] == _ISSUE]
        ops["flags"] &= ~np.uint16(_DEVICE)
        return ops if len(ops) else None

    def _inferred(
        self, reached: tuple[Records, Records], pending: Records, left: NDArray[np.bool_]
    ) -> Records:
        """Return forwards that no hook saw, from the last phase's end to their backward's begin."""
        ran, about = reached
        phases = np.flatnonzero(ran["kind"] == _PHASE)
        phases = phases[np.argsort(ran["t0_ns"][phases], kind="stable")]
        issued = ran["t0_ns"][phases] - about["a"][phases]
        found = []
        for row in np.flatnonzero(left & ((pending["flags"] & _INFERRED) != 0)):
            (at,) = np.nonzero(issued == pending["t1_ns"][row])
            if len(at):
                before = ran["t1_ns"][phases[: at[0]]].max(initial=self._phase_end_ns)
                one = pending[row : row + 1].copy()
                one["t1_ns"] = ran["t0_ns"][phases[at[0]]]
                one["t0_ns"] = np.minimum(np.maximum(one["t0_ns"], before), one["t1_ns"])
                found.append(one)
                left[row] = False
        self._phase_end_ns = int(ran["t1_ns"][phases].max(initial=self._phase_end_ns))
        return np.concatenate(found) if found else pending[:0]


def _reached(times: Records, pending: Records) -> tuple[tuple[Records, Records], NDArray[np.bool_]]:
    """Return ((launches at the device's times, the same as REACHED), which launches are left)."""
    left = np.ones(len(pending), np.bool_)
    found = [
        _matched(times[times["lane"] == lane], pending, np.flatnonzero(pending["kind"] == kind))
        for kind, lane in _LANES.items()
    ]
    of = np.concatenate([launches for _, launches in found])
    told = np.concatenate([rows for rows, _ in found])
    left[of] = False
    ran, about = pending[of], pending[of]
    is_op = ran["kind"] == _ISSUE
    ran["t0_ns"], ran["t1_ns"] = told["t0_ns"], np.where(is_op, told["t0_ns"], told["t1_ns"])
    for name in ("t0_ns", "t1_ns"):
        about[name] = ran[name]
    about["a"] = told["a"]
    about["b"] = np.where(is_op, told["a"], told["t1_ns"] - pending["t1_ns"][of])
    about["kind"], about["peer"] = REACHED, about["lane"]
    return (ran, about), left


def _matched(
    times: Records, pending: Records, among: NDArray[np.intp]
) -> tuple[Records, NDArray[np.intp]]:
    """Return (times, indices of the launches that the times belong to)."""
    if not len(times) or not len(among):
        return times[:0], among[:0]
    among = among[np.argsort(pending["t0_ns"][among], kind="stable")]
    issued = pending["t0_ns"][among]
    wanted = times["t0_ns"] - times["a"]  # a: the lead
    _, first = np.unique(wanted, return_index=True)  # an arrival, later its end
    first.sort()
    times, wanted = times[first], wanted[first]
    at = np.minimum(issued.searchsorted(wanted), len(issued) - 1)
    is_of = issued[at] == wanted
    return times[is_of], among[at[is_of]]
