"""One sign per severity, on every screen, in the time bar and in reports."""

from __future__ import annotations

from typing import Final

SIGN: Final = {"error": ("✗", "bad"), "warning": ("▲", "warn"), "info": ("i", "dim")}
"""Severity -> (character, style)."""
