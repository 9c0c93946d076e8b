"""A rank's start-up and its exit, as its status says them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pardbg_agent import wire
from pardbg_agent.clock import now_ns
from pardbg_agent.life import calls
from pardbg_agent.wire import NONE

if TYPE_CHECKING:
    from pardbg_agent.watched_rank import Core

EXIT_NS: Final = 1_000_000_000
"""An exit that is shorter has no record."""


def start_up(c: Core) -> None:
    """Before torch is there: for a rank that may never come to its group."""
    if c.run is not None:
        c.starting = True
        c.status.now(0, c.defs.name(wire.START_UP), 0, NONE, NONE, c.identity.start_ns)


def group_formed(c: Core) -> bool:
    """The default group is there. True where that ends the start-up."""
    if not c.starting:
        return False
    c.starting = False
    c.status.now(c.step, 0, 0, NONE, NONE, now_ns())
    return True


def watch_exit(c: Core) -> None:
    """The main thread has ended: from here on the agent's thread looks, and an exit is told once it
    takes its time."""
    from_ns = now_ns() + EXIT_NS

    def look() -> None:
        if c.exiting is None and now_ns() >= from_ns:
            c.exiting = calls.alone(c, "exit")

    c.pollers.append(look)


def exited(c: Core) -> None:
    """Handlers and threads have ended; what is left is the agent's own."""
    call, c.exiting = c.exiting, None
    if call is not None:
        c.guard.call("calls", calls.end, c, call)
