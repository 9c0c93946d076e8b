"""Control at a cursor: held or running, according to the hub's CONTROL messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pardbg.analysis.base.asof import View
from pardbg.events import fields
from pardbg.words import whole

LOG_LINES: Final = 50
_LOOK_BACK: Final = 200
_MAX_BREAKS: Final = 64
Mode = Literal["running", "pausing", "held", "stepping"]
_MODES: Final[tuple[Mode, ...]] = ("running", "pausing", "held", "stepping")


@dataclass(frozen=True, slots=True)
class ControlView:
    """The control state, as acknowledged by the agents."""

    mode: Literal["running", "pausing", "held", "stepping"]
    controller: str | None
    lease_ns: int | None
    """Left of the lease; None where nobody holds control."""
    reason: str
    held: Mapping[int, str]
    """rank -> what comes next there."""
    pending: int
    """Ops issued and not complete."""
    log: tuple[tuple[int, str], ...]
    """(t_ns, line): the audit trail's last lines, oldest first."""
    waiting: Mapping[int, str] = field(default_factory=dict)
    """rank -> the op it waits in for a rank that is held on purpose."""
    timeout_ns: int | None = None
    """Until the first of those ops may time out; None: nobody waits so."""
    breaks: tuple[Breakpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """A breakpoint or watch, as the hub last reported it."""

    number: int
    condition: str
    ranks: str
    hits: int
    """Matches over all ranks."""
    once: bool
    watch: bool = False


_MOVING: Final = ("pause", "continue", "step", "tick", "next", "op", "until")
_OUTCOMES: Final = ("cut", "running", "wait", "loose", "released", "hit")
_SOON_NS: Final = 2_000_000_000
"""A breakpoint that is hit so soon after a verb is what came of it."""


def control_view(view: View) -> ControlView:
    """Return the control state at the cursor: mode, controller, lease, breakpoints."""
    events: list[tuple[int, Any]] = view.store.controls.last(view.t_ns, _LOOK_BACK)
    t_ns, newest = _newest_state(events)
    mode = _mode(newest)
    if view.run_end is not None:
        mode, newest = "running", {}
    controller = fields.text_or_none(newest, "controller")
    return ControlView(
        mode=mode,
        controller=controller,
        lease_ns=_left(view, newest, t_ns, "lease_ns") if controller is not None else None,
        reason=fields.text(newest, "reason"),
        held=_by_rank(newest, "held") if mode != "running" else {},
        pending=fields.integer(newest, "pending", 0),
        log=trail(events)[-LOG_LINES:],
        waiting=_by_rank(newest, "waiting"),
        timeout_ns=_left(view, newest, t_ns, "timeout_ns"),
        breaks=_breaks(newest),
    )


def _newest_state(events: list[tuple[int, Any]]) -> tuple[int, Mapping[str, Any]]:
    """Return the newest event that has the mode."""
    for t_ns, event in reversed(events):
        if "mode" in event:
            return t_ns, event
    return 0, {}


def _mode(event: Mapping[str, Any]) -> Mode:
    reported = fields.text(event, "mode", "running")
    return next((mode for mode in _MODES if mode == reported), "running")


def _left(view: View, event: Mapping[str, Any], t_ns: int, name: str) -> int | None:
    """Return the time left at the cursor of a limit that the event at ``t_ns`` set, in ns."""
    left = fields.integer_or_none(event, name)
    return max(0, left - (view.t_ns - t_ns)) if left is not None else None


def _by_rank(event: Mapping[str, Any], name: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for rank, text in fields.mapping(event, name).items():
        number = whole(str(rank))
        if number is not None:
            found[number] = str(text)
    return dict(sorted(found.items()))


def _breaks(event: Mapping[str, Any]) -> tuple[Breakpoint, ...]:
    entries = event.get("breaks")
    return tuple(
        Breakpoint(
            fields.integer(entry, "number", 0), fields.text(entry, "condition"),
            fields.text(entry, "ranks"), fields.integer(entry, "hits", 0),
            entry.get("once") is True, bool(fields.text(entry, "kind")),
        )
        for entry in (entries if isinstance(entries, list) else [])[:_MAX_BREAKS]
        if isinstance(entry, dict)
    )  # fmt: skip


def trail(events: list[tuple[int, Any]]) -> tuple[tuple[int, str], ...]:
    """Return the audit trail: a line per verb with its outcome (``tick by view-1a2b → held at a
    cut``), and a line per other event."""
    lines: list[tuple[int, str]] = []
    verb = False
    """The newest line is of a verb that moves ranks."""
    for t_ns, event in events:
        name = fields.text(event, "event")
        if not name:
            continue
        came = _outcome(event, name) if name in _OUTCOMES else ""
        late = name == "hit" and bool(lines) and t_ns - lines[-1][0] > _SOON_NS
        if came and verb and not late:
            begun, text = lines[-1]
            if came not in text:
                lines[-1] = begun, f"{text} → {came}"
            continue
        lines.append((t_ns, _line(event)))
        verb = name in _MOVING
    return tuple(lines)


def _outcome(event: Mapping[str, Any], name: str) -> str:
    """Return the text of an event that follows a verb; empty for a cut without a text of its
    own."""
    text = fields.text(event, "text") or fields.text(event, "reason")
    return text or {"cut": "held at a cut"}.get(name, name)


def _line(event: Mapping[str, Any]) -> str:
    """Return text such as ``pause by view-1a2b: all ranks``."""
    parts = [fields.text(event, "event")]
    by, text = fields.text(event, "by"), fields.text(event, "text")
    reason = fields.text(event, "reason")
    if by:
        parts.append(f"by {by}")
    if (text or reason) and (text or reason) != parts[0].split(" ")[0]:
        parts[-1] += ":"
        parts.append(text or reason)
    return " ".join(parts)
