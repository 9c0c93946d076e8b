"""Control at a cursor: held or running, according to the hub's CONTROL messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pardbg.analysis.base.asof import View
from pardbg.events.control_codes import Mode
from pardbg.events.control_events import ControlEvent, Status

LOG_EVENTS: Final = 200
_RUNNING: Final = ControlEvent(status=Status(Mode.RUNNING))


@dataclass(frozen=True, slots=True)
class ControlView(Status):
    """The control state at the cursor, as acknowledged by the agents."""

    log: tuple[ControlEvent, ...] = ()
    """Newest events of the audit trail, oldest first."""


def control_view(view: View) -> ControlView:
    """Return the control state at the cursor: mode, controller, lease, breakpoints."""
    log = tuple(event for _, event in view.store.controls.last(view.now_ns, LOG_EVENTS))
    with_status = (event for event in reversed(log) if event.status is not None)
    newest = next(with_status, _RUNNING) if view.run_end is None else _RUNNING
    status = newest.status
    assert status is not None
    held = dict(sorted(status.held.items())) if status.mode is not Mode.RUNNING else {}
    return ControlView(
        status.mode, status.controller,
        _left(view, newest, status.lease_ns) if status.controller is not None else None,
        status.why, held, status.pending, status.queued, dict(sorted(status.waiting.items())),
        _left(view, newest, status.timeout_ns), status.breaks,
        tuple(e for e in log if e.fact is not None),
    )  # fmt: skip


def _left(view: View, event: ControlEvent, left: int | None) -> int | None:
    """Return the time left at the cursor of a limit that the event gave, in ns; None: no limit."""
    return max(0, left - (view.now_ns - event.t_ns)) if left is not None else None
