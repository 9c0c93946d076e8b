"""Pipe that ends another thread's poll."""

from __future__ import annotations

import contextlib
import os
import select
import threading


class WakePipe:
    """Pipe whose ``fd`` is readable from ``wake`` to ``clear``. Any thread may ``wake``, also after
    ``close``: nothing is written then, as the pipe's numbers may be another file's."""

    def __init__(self) -> None:
        self.fd, self.write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._lock = threading.Lock()

    def wake(self) -> None:
        with self._lock:
            if self.fd >= 0:
                with contextlib.suppress(OSError):  # full: the polling thread wakes up anyway
                    os.write(self.write_fd, b"w")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4096)

    def wait(self, timeout_s: float) -> None:
        """Return when the pipe is written, or when the time is up."""
        poller = select.poll()  # select() takes no descriptor of 1,024 or more
        poller.register(self.fd, select.POLLIN)
        if poller.poll(timeout_s * 1000):
            self.clear()

    def close(self) -> None:
        """Close the pipe, once no thread polls it any more."""
        with self._lock:
            os.close(self.fd)
            os.close(self.write_fd)
            self.fd = self.write_fd = -1
