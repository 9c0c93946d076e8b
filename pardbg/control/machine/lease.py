"""The control lease: its holder and the time left. Times are the hub's monotonic ns, injected."""

from __future__ import annotations

from dataclasses import dataclass

from pardbg_agent.wire import LEASE_NS

MAX_LEASE_NS = 3_600_000_000_000
"""No lease is longer than an hour, whatever a script asks for."""


@dataclass(slots=True)
class Lease:
    """At most one holder. It lapses by itself."""

    holder: str | None = None
    until_ns: int = 0
    period_ns: int = LEASE_NS
    keep: bool = False
    """Only the lease ends it; the holder may come and go (a script, one process per command)."""

    def grant(self, holder: str, now: int, *, keep: bool = False, period_ns: int = 0) -> None:
        """Give control to ``holder`` (also to another than before)."""
        self.holder, self.keep = holder, keep
        self.period_ns = min(max(period_ns, LEASE_NS), MAX_LEASE_NS)
        self.until_ns = now + self.period_ns

    def renew(self, holder: str, now: int) -> bool:
        """Restart the lease if ``holder`` has control. False if it does not, or the lease has
        lapsed: the ranks run on by then."""
        if self.holder != holder or self.lapsed(now):
            return False
        self.until_ns = now + self.period_ns
        return True

    def left_ns(self, now: int) -> int | None:
        """Return the time left; None if control is free."""
        return None if self.holder is None else max(0, self.until_ns - now)

    def lapsed(self, now: int) -> bool:
        """Return whether there is a holder whose time is over."""
        return self.holder is not None and now >= self.until_ns

    def drop(self) -> None:
        """Free control."""
        self.holder, self.keep = None, False
