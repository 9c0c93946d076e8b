"""Detection of closed terminals."""

from __future__ import annotations

import select


def any_closed(terminals: list[int]) -> bool:
    """Return whether the terminal of one of these descriptors was closed. The kernel only sends
    SIGHUP to the session's leader, and not every leader (make, sudo) passes it on."""
    poller = select.poll()
    for fd in terminals:
        poller.register(fd, 0)
    return any(event & select.POLLHUP for _, event in poller.poll(0))
