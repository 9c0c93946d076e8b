"""One sign per severity, on every screen, in the time bar and in reports."""

from __future__ import annotations

from typing import Final

SIGN: Final = {"error": ("✗", "bad"), "warning": ("▲", "warn"), "info": ("i", "dim")}
"""Severity -> (character, style)."""
SIGNS: Final = {
    "running": ("▶", "good"), "waiting": ("◷", "warn"), "held": ("‖", "held"),
    "stale": ("?", "warn"), "lost": ("✗", "bad"), "ended": ("■", "dim"), "unknown": ("·", "faint"),
}  # fmt: skip
"""A rank's state -> its mark."""
