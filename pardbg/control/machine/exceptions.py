"""Ranks that are held at an exception nobody caught (``--on-exception hold``), and who holds them
where nobody has control: the run itself, for a bounded time.

[Note: who holds a post-mortem] A rank that raised stops itself for a lease, as at a breakpoint, and
the hub decides. Where somebody has control, it is held as everything else. Where nobody has, the
run does (holder RUN): for ``hold_ns`` from the last time a viewer was there or a question was
asked. Any viewer may command meanwhile without taking control over first. Nobody comes: the rank
dies as it would have, so a job without anybody to look at it does not hang.

What follows from a death that somebody allowed is not held: connections to the dead rank close.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

RUN: Final = "--on-exception hold"
"""Holder of control in the run's own name; any viewer may command instead."""
HOLD_S: Final = 600.0
"""Default time."""
MAX_HOLD_S: Final = 3600.0
FOLLOWS_NS: Final = 60_000_000_000
"""An exception within this time after a rank was let die is a consequence."""
_PREFIX: Final = "exception "


@dataclass(slots=True)
class UncaughtErrors:
    """Which processes are at their exception."""

    hold_ns: int = 0
    """How long they are held unattended; 0: exceptions are not held at all."""
    procs: dict[str, str] = field(default_factory=dict)
    """proc -> ``ValueError: no labels`` (or `` in thread …``)."""
    _let_die: dict[str, int] = field(default_factory=dict)
    """epoch (one start of the job's ranks) -> when one was let die, hub ns."""

    def refusal(self, proc: str, now: int) -> str:
        """Return why this one is not held; empty if it is."""
        if not self.hold_ns:
            return "exceptions are not held in this run"
        died = self._let_die.get(_epoch(proc))
        if died is not None and now - died < FOLLOWS_NS:
            return "another rank was let die before"
        return ""

    def add(self, proc: str, rank: int, coming: str) -> str:
        """Hold it. Return why all ranks stop. ``coming``: what comes next there, as it reports."""
        self.procs[proc] = coming.removeprefix(_PREFIX)
        return f"rank {rank} raised {self.procs[proc]}: continue lets it die"

    def let_die(self, proc: str, now: int) -> None:
        """Let it die."""
        if self.procs.pop(proc, None) is not None:
            self._let_die[_epoch(proc)] = now


def _epoch(proc: str) -> str:
    return proc.partition(".")[0]
