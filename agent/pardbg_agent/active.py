"""Core that the program's own calls use, visible to both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pardbg_agent.watched_rank import Core

CORE: Core | None = None
"""Core of a watched rank; None: the public functions do nothing. Set by pardbg_agent.core."""

LAST_IN = 0
"""Process in which autostart's exit handler, older than the program's, ends the agent."""
