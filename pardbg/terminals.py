"""Terminals that go away."""

from __future__ import annotations

import select


def any_closed(terminals: list[int]) -> bool:
    """Return whether one of these descriptors is of a terminal that was closed. The kernel says so
    by SIGHUP to the session's leader alone, and not every one (make, sudo) passes it on."""
    poller = select.poll()
    for fd in terminals:
        poller.register(fd, 0)
    return any(event & select.POLLHUP for _, event in poller.poll(0))
