"""The port through which viewers and scripts command a live run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from pardbg.control.language.verbs import Verb


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
        """Name of this viewer in the audit trail."""
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
