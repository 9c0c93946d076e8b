"""System calls that a rank stands in, as facts and in words: what it waits for, and what to do."""

from __future__ import annotations

from typing import Final

from pardbg.analysis.hangs.blocked import Blocking, Call

_WORDS: Final[dict[Call, str]] = {
    "sleep": "it sleeps", "lock": "it waits for a lock or another thread",
    "child": "it waits for a child process", "socket": "it waits on a socket",
    "pipe": "it waits at a pipe", "terminal": "it waits for input at a terminal",
    "poll": "it waits for a socket, a pipe or another process",
}  # fmt: skip
_ADVICE: Final[dict[Call, str]] = {
    "sleep": "Look for a retry or a loop at that line: ranks often sleep until a file, a service "
    "or another rank is ready.",
    "lock": "Another thread is inside that lock, or never ends: `where {rank}` in `pardbg ctl` "
    "shows all threads.",
    "child": "See what the child does: `ps --ppid {pid}`, `py-spy dump --pid CHILD`. A full pipe "
    "blocks it if nobody reads its output.",
    "file": "Look at that disk or mount (`iostat -x`, `df -h`): other ranks' copies may be cached.",
    "socket": "See the other end: `ss -tnp | grep {pid}`. Usual are a slow data server, a proxy, a "
    "download on one rank alone.",
    "pipe": "See which process should write: `ls -l /proc/{pid}/fd`. Usual is a helper that ended.",
    "terminal": "It asks a question that nobody sees: take input(), pdb or a login prompt out.",
    "poll": "See what it waits for: `ls -l /proc/{pid}/fd`, `ss -tnp | grep {pid}`.",
    "worker": "See the worker's line: `py-spy dump --pid {other}`. num_workers=0 shows it in the "
    "rank itself; a loader's timeout ends the wait.",
    "file lock": "See who has it: `fuser -v {file}`. Take no lock around a collective: release it "
    "before ranks meet.",
    "lock file": "If no build runs, a killed one left it: `rm {file}`, and start again.",
}  # fmt: skip


def blocking_text(of: Blocking) -> str:
    """Return ``it sleeps``, to follow a place."""
    if of.call == "file":
        return f"it reads or writes {of.file or 'a file'}"
    if of.call == "file lock":
        by = f"process {of.other}" if of.holder is None else f"rank {of.holder}"
        return f"it waits for the lock on {of.file}" + f", which {by} holds" * bool(of.other)
    if of.call == "lock file":
        held = "" if of.does == "held" else ", which no process has open"
        return f"it waits until {of.file} is gone{held}"
    if of.call == "worker":
        does = {"sleep": "sleeps", "running": "computes"}.get(of.does, f"stands at: {of.does}")
        return f"its worker process {of.other} {does}"
    return _WORDS[of.call]


def blocking_advice(of: Blocking, rank: int, pid: int) -> str:
    """Return what to run and what usually causes it."""
    return _ADVICE[of.call].format(rank=rank, pid=pid, file=of.file, other=of.other)
