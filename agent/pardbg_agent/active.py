"""The Core that the program's own calls speak to, where both sides can see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pardbg_agent.watched_rank import Core

CORE: Core | None = None
"""The Core of a watched rank; None: the public functions do nothing. Set by pardbg_agent.core."""

LAST_IN = 0
"""The process in which an exit handler older than the program's, autostart's, ends the agent."""
