"""Held or running, as the hub's CONTROL messages say it as of a cursor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pardbg.analysis.asof import View
from pardbg.analysis.model import ControlView
from pardbg.events import fields

LOG_LINES: Final = 50
_LOOK_BACK: Final = 200
Mode = Literal["running", "pausing", "held", "stepping"]
_MODES: Final[tuple[Mode, ...]] = ("running", "pausing", "held", "stepping")


def control_view(view: View) -> ControlView:
    events: list[tuple[int, Any]] = view.store.controls.last(view.t_ns, _LOOK_BACK)
    t_ns, newest = _newest_state(events)
    mode = _mode(newest)
    if view.run_end is not None:
        mode, newest = "running", {}
    controller = fields.text_or_none(newest, "controller")
    return ControlView(
        mode=mode,
        controller=controller,
        lease_ns=_lease_left(view, newest, t_ns) if controller is not None else None,
        reason=fields.text(newest, "reason"),
        held=_held(newest) if mode != "running" else {},
        pending=fields.integer(newest, "pending", 0),
        log=tuple((t, _line(event)) for t, event in events if fields.text(event, "event"))[
            -LOG_LINES:
        ],
    )


def _newest_state(events: list[tuple[int, Any]]) -> tuple[int, Mapping[str, Any]]:
    """The newest event that says the mode."""
    for t_ns, event in reversed(events):
        if "mode" in event:
            return t_ns, event
    return 0, {}


def _mode(event: Mapping[str, Any]) -> Mode:
    said = fields.text(event, "mode", "running")
    return next((mode for mode in _MODES if mode == said), "running")


def _lease_left(view: View, event: Mapping[str, Any], t_ns: int) -> int | None:
    lease = fields.integer_or_none(event, "lease_ns")
    return max(0, lease - (view.t_ns - t_ns)) if lease is not None else None


def _held(event: Mapping[str, Any]) -> dict[int, str]:
    held: dict[int, str] = {}
    for rank, following in fields.mapping(event, "held").items():
        if str(rank).isdigit():
            held[int(rank)] = str(following)
    return dict(sorted(held.items()))


def _line(event: Mapping[str, Any]) -> str:
    """``pause by view-1a2b: all ranks``."""
    parts = [fields.text(event, "event")]
    by, text = fields.text(event, "by"), fields.text(event, "text")
    reason = fields.text(event, "reason")
    if by:
        parts.append(f"by {by}")
    if text or reason:
        parts[-1] += ":"
        parts.append(text or reason)
    return " ".join(parts)
