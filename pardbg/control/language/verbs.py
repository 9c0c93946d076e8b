"""The verbs of control, and the port through which keys, the console and ``pardbg ctl`` ask them of
a live hub.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol


class Verb(str, Enum):
    PAUSE = "pause"
    """Stop every rank at its next gate and settle to a consistent cut."""
    CONTINUE = "continue"
    """Open every gate."""
    STEP = "step"
    """Each chosen rank passes one gate: one action (compute, send, receive, collective)."""
    TICK = "tick"
    """Each pipeline rank whose input has arrived runs one compute action; sends flow."""
    NEXT = "next"
    """Run one training step."""
    OP = "op"
    """Run to the next collective, or to the end of the step if it has no more."""
    WHERE = "where"
    """Return all ranks' stacks."""
    BREAK = "break"
    """Stop where a condition is true: ``expr`` (control.language.expr); on the chosen ranks."""
    TBREAK = "tbreak"
    """As BREAK, for one hit."""
    UNTIL = "until"
    """``tbreak`` and continue; answers once stopped."""
    CONDITION = "condition"
    """Change the ``expr`` of breakpoint ``number``."""
    IGNORE = "ignore"
    """Skip the next ``count`` matches of breakpoint ``number`` on each rank."""
    DELETE = "delete"
    """Delete breakpoints ``numbers``; if empty, all."""
    BREAKS = "breaks"
    """List breakpoints and watches with their hit counts."""
    WATCH = "watch"
    """Stop where something goes wrong: ``expr`` (control.language.watch_expr); on the chosen ranks.
    In one table with the breakpoints."""
    INSPECT = "inspect"
    """Inspect held ranks: ``kind`` (pardbg_agent.control.evaluate.KINDS), ``expr``, ``frame``."""
    DELAY = "delay"
    """Delay the chosen ranks by ``ns`` in each step: a planted straggler; 0 ends it."""
    RANKS = "ranks"
    """Return where each rank is."""
    STATUS = "status"
    """Report the controller, the lease and pending ops."""
    MARK = "mark"
    """A bookmark in the recording: ``at_ns`` (now where not given) and ``text``. Changes nothing
    in the run, so it needs no control."""
    LEVEL = "level"
    """Set the chosen ranks' sampling ``level``: off, summary or full; for ``for_s`` seconds, if
    given. Needs no control, as no rank is held."""
    KILL = "kill"
    """End the job: SIGTERM, then SIGKILL to what is left. Needs ``confirm=True``."""


@dataclass(frozen=True, slots=True)
class Reply:
    ok: bool
    error: str | None
    """One line: what, and what to do."""
    data: dict[str, Any]


class ControlPort(Protocol):
    """What the TUI, the console and ``pardbg ctl`` need of a live hub."""

    @property
    def name(self) -> str:
        """Return the name of this viewer in the audit trail."""
        ...

    def command(
        self, verb: Verb, ranks: str | None = None, timeout_s: float = 30.0, **args: Any
    ) -> Reply:
        """Send and wait for the acknowledgement. Call from a worker thread."""
        ...

    def take(self) -> Reply: ...

    def leave(self) -> None:
        """Give control up; every rank runs on."""
        ...
