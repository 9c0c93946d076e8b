"""One rank that C code ends in a way of its own: ``python crashes.py HOW``."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import time

import torch
import torch.distributed as dist


def crash() -> None:
    ctypes.string_at(0)


def abort_elsewhere() -> None:
    """Abort in a thread that Python does not know, while this one waits."""
    libc, thread = ctypes.CDLL(None), ctypes.c_ulong()
    start = ctypes.cast(libc.abort, ctypes.c_void_p)
    libc.pthread_create(ctypes.byref(thread), None, start, None)
    time.sleep(60)


def main(how: str) -> None:
    if how == "forked" and (child := os.fork()):
        sys.exit(os.waitpid(child, 0)[1] & 0x7F)
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    if how == "told":
        faulthandler.enable()
    if how in ("here", "told", "forked"):
        crash()
    if how == "all":
        signal.raise_signal((signal.SIGSEGV, signal.SIGBUS)[dist.get_rank()])
    if how == "elsewhere":
        abort_elsewhere()
    if how == "child" and not os.fork():
        crash()
    os.wait()


if __name__ == "__main__":
    main(sys.argv[1])
