"""Control at a cursor: held or running, according to the hub's CONTROL messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from pardbg.analysis.base.asof import View
from pardbg.events.control_codes import Mode
from pardbg.events.control_events import ControlEvent, Status
from pardbg.events.control_facts import Breakpoint, Fact, Waits

LOG_EVENTS: Final = 200
_RUNNING: Final = ControlEvent(status=Status(Mode.RUNNING))


@dataclass(frozen=True, slots=True)
class ControlView:
    """The control state, as acknowledged by the agents."""

    mode: Literal["running", "pausing", "held", "stepping"]
    controller: str | None
    lease_ns: int | None
    """Left of the lease; None: no viewer has control."""
    why: tuple[Fact, ...] = ()
    """Why ranks are held, where it is not what was asked."""
    held: Mapping[int, str] = field(default_factory=dict)
    """rank -> what comes next there."""
    pending: int = 0
    """Ops issued and not complete."""
    log: tuple[ControlEvent, ...] = ()
    """The audit trail's newest events, oldest first."""
    waiting: Mapping[int, Waits] = field(default_factory=dict)
    """Ranks that wait in an op for a rank that is held on purpose."""
    timeout_ns: int | None = None
    """Until the first of those ops may time out; None: no rank waits so."""
    breaks: tuple[Breakpoint, ...] = ()


def control_view(view: View) -> ControlView:
    """Return what control does at the cursor: mode, controller, lease, breakpoints."""
    log = tuple(event for _, event in view.store.controls.last(view.now_ns, LOG_EVENTS))
    with_status = (event for event in reversed(log) if event.status is not None)
    newest = next(with_status, _RUNNING) if view.run_end is None else _RUNNING
    status = newest.status
    assert status is not None
    held = dict(sorted(status.held.items())) if status.mode is not Mode.RUNNING else {}
    return ControlView(
        status.mode.value, status.controller,
        _left(view, newest, status.lease_ns) if status.controller is not None else None,
        status.why, held, status.pending, tuple(e for e in log if e.fact is not None),
        dict(sorted(status.waiting.items())), _left(view, newest, status.timeout_ns), status.breaks,
    )  # fmt: skip


def _left(view: View, event: ControlEvent, left: int | None) -> int | None:
    """Return the rest, at the cursor, of a time limit that the event gave."""
    return max(0, left - (view.now_ns - event.t_ns)) if left is not None else None
