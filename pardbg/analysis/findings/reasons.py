"""Why a rank does not come: what is known of it, as a kind, a severity and words."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from pardbg.analysis.base.asof import View
from pardbg.analysis.findings.shared import Evidence, Finding
from pardbg.analysis.hangs.stacks import at_files, busy, caller, in_pdb, place
from pardbg.analysis.hangs.standstill import IDLE_CORES, TURNS, Seen, is_cut_off, seen
from pardbg.analysis.hangs.waitgraph import PendingOp, WaitGraph
from pardbg.words import duration, ranks_text

Severity = Literal["error", "warning", "info"]
_FILES_NS: Final = 30_000_000_000
"""A checkpoint that is being written or read takes its time."""
_STILL_NS: Final = 1_000_000_000
_MOVES_NS: Final = 10_000_000_000
"""A rank that gets on, a server of parameters say, comes when it has served the others."""
_MOST_READY: Final = 0.8
_MOST_LOAD: Final = 4.0
START_LOAD: Final = 8.0
"""A start-up has many processes and threads beside it, and reads the disk."""
_UNKNOWN_NS: Final = 3_000_000_000
"""Wait where threads take turns on cores and no stack says yet what a rank does."""
_MAX_THREADS: Final = 3
_BLOCKED_NS: Final = 6_000_000_000
"""A disk with other things to do, or pages that are read anew, keep a rank as long."""
_IMPORTS_NS: Final = 10_000_000_000
UNKNOWN: Final = "has not come"
ASLEEP: Final = " (it sleeps or waits there)"
_LEFT: Final = (
    "The others wait for it until their timeout: end the job, or have every rank stop at the same "
    "step."
)
NODE_ADVICE: Final = (
    "Ask the node itself: does it answer, do its ranks run? Its own `pardbg run` says whether it "
    "finds the hub."
)
_PHASES: Final = {
    "data": "loads data", "forward": "is in forward", "backward": "is in backward",
    "optimizer": "is in the optimizer's step", "pipeline": "is in the pipeline's step",
    "start-up": "is in its start-up",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a rank does not come, and whether it still can."""

    kind: str
    severity: Severity
    """error: it cannot come by itself. warning: it may."""
    text: str
    """``is in forward at train.py:88 in step``, to follow "rank 2, which"."""
    where: str | None
    advice: str
    fault: bool = True
    """It is out of order whatever the others wait for; else it only takes its time."""
    idle: bool = False
    """It sleeps or waits for something."""
    patience_ns: int = 0
    """Time an activity may take before a finding mentions it."""
    gets_on: bool = False
    """Its records go on coming."""
    host: str = ""
    """The reason is one of all that is there."""


def reason(view: View, rank: int) -> Reason:
    """Of a rank that others wait for."""
    end = view.proc_end(view.ranks[rank])
    if end is not None:
        return _ended(view, rank, end[1])
    now = seen(view, rank)
    where = place(now.frames)
    at = f" at {where}" if where else ""
    leaving = view.ranks[rank].leaving_ns
    if leaving is not None and leaving <= view.t_ns:
        return Reason("missing-rank", "error", "has exited normally", None, _LEFT)
    if now.os_state == "T":
        return Reason("rank-stopped", "error", f"is stopped (SIGSTOP){at}", where,
                      f"`kill -CONT {view.ranks[rank].pid}` lets it run on.")  # fmt: skip
    if now.os_state == "t":
        return Reason("rank-stopped", "error", f"is stopped by a native debugger{at}", where,
                      "Have the debugger that is attached to it continue.")  # fmt: skip
    if in_pdb(now.frames):
        return Reason("in-debugger", "warning", f"{busy(now.frames)}{at}", where,
                      "Continue there, or take the breakpoint out; the others' timeouts run "
                      "meanwhile. `pardbg` pauses all ranks without that.")  # fmt: skip
    if now.gil_held and is_cut_off(view, host := view.ranks[rank].host):
        return Reason("node-lost", "warning", f"is on {host}, of which nothing is heard", None,
                      NODE_ADVICE, host=host)  # fmt: skip
    if now.gil_held or now.inside == "gil":
        return _gil(now, at, where)
    if now.os_state == "D":
        return Reason("missing-rank", "warning",
                      f"is blocked in the kernel (a disk, a network file system, a driver){at}",
                      where, "Look at the file or device it uses there.", fault=False,
                      patience_ns=_BLOCKED_NS)  # fmt: skip
    idle = _asleep(now)
    moves = not now.frames and view.t_ns - now.moved_ns < _STILL_NS
    starved = not now.frames and now.os_state == "R"  # to run, and no stack says where it does
    patience = _MOVES_NS if moves or starved else _patience(now, idle)
    if not now.source and now.host_load >= TURNS:
        patience = max(patience, _UNKNOWN_NS)
    return Reason("missing-rank", "warning", _busy(now, where), where,
                  "Look at what it does there that the others do not.", fault=False, idle=idle,
                  patience_ns=round(patience * more_time(now)), gets_on=moves)  # fmt: skip


def more_time(now: Seen, most: float = _MOST_LOAD) -> float:
    """Return how many times as long as with a core of its own a rank takes: it stood ready
    meanwhile, or those did that answer it, as many as there are cores. ``most``: of the load that
    counts."""
    return max(1.0, 1 / (1 - min(now.ready, _MOST_READY)), min(now.host_load, most))


def _patience(now: Seen, idle: bool) -> int:
    """Return how long what a rank does may take: if it works, or reads the modules it imports."""
    if at_files(now.frames):
        return 0 if idle else _FILES_NS
    does = busy(now.frames)
    return _IMPORTS_NS if does == "imports modules" or (does == "is compiling" and not idle) else 0


def _gil(now: Seen, at: str, where: str | None) -> Reason:
    silent = f" for {duration(now.silent_ns)}" if now.silent_ns else ""
    idle = now.cpu is not None and now.cpu < IDLE_CORES
    doing = ", waiting for something" if idle else ""
    return Reason(
        "gil-held", "warning", f"is in C code that holds Python's lock{silent}{doing}{at}", where,
        "No Python thread of it runs meanwhile. Have that call release the GIL, or move it to "
        "another process.",
    )  # fmt: skip


def _busy(now: Seen, where: str | None) -> str:
    words = busy(now.frames) or (f"is in {now.action}" if now.action else _PHASES.get(now.phase))
    if words is None:
        words = "is" if where else UNKNOWN
    if where is None:
        return words
    by = caller(now.frames)
    called = f", called by {by}" if by else ""
    lock = f"; {now.lock}" if now.lock else ""
    asleep = ASLEEP if _asleep(now) else ""
    return f"{words} at {where}{_in_thread(now)}{called}{asleep}{others(now)}{lock}"


def _in_thread(now: Seen) -> str:
    name = now.threads[0][0] if now.threads else "MainThread"
    return f" in thread {name}" if name != "MainThread" else ""


def others(now: Seen) -> str:
    """Return text such as ``; its thread writer is at a.py:3 in f``."""
    places = [(name, place(frames)) for name, frames in now.threads[1:]]
    told = [f"its thread {name} is at {at}" for name, at in places if at][:_MAX_THREADS]
    return f"; {', '.join(told)}" if told else ""


def _asleep(now: Seen) -> bool:
    return now.cpu is not None and now.cpu < IDLE_CORES and now.os_state == "S"


def _ended(view: View, rank: int, how: str) -> Reason:
    process = view.ranks[rank]
    words = "has ended"
    if how in ("killed", "lost"):
        words = killed_text(process.exit_code) if how == "killed" else "is lost"
    elif process.exit_code:
        words = f"has ended with exit code {process.exit_code}"
    return Reason("missing-rank", "error", words, None, _LEFT)


def killed_text(code: int | None) -> str:
    """Return text such as ``was killed by SIGKILL``."""
    if code is None or code >= 0:
        return "was killed, or left by os._exit"
    return f"was killed by {signal_name(code)}"


def signal_name(code: int) -> str:
    """Of an exit code below 0."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def past(text: str) -> str:
    """Return a reason's words once it is over: ``was in forward``."""
    for now, then in (("is ", "was "), ("has ", "had "), ("loads ", "loaded ")):
        if text.startswith(now):
            return then + text.removeprefix(now).replace(" holds ", " held ")
    return text


IDLE_NS: Final = 4_000_000_000
"""Minimum time that a call of a rank alone stands still and uses no CPU."""
BUSY_NS: Final = 60_000_000_000
"""... and one that works."""
_MAX_TOLD: Final = 8
STORE_ADVICE: Final = (
    "Some rank must set that key: compare the name, and look at what the rank that sets it does "
    "instead."
)
_ADVICE: Final = {
    "exit": "The program is over: look for non-daemon threads, for atexit handlers and "
    "for objects whose end waits (loaders, writers, process groups).",
    "destroy_process_group": "Let ops end before the group goes: wait for async ones, and have all "
    "ranks come to a barrier first.",
    "file": "Look at the disk or the network file system it writes to or reads from.",
}


def stays(view: View, graph: WaitGraph) -> Iterable[Finding]:
    """Per rank its oldest call that stays, but for ranks that wait for others, or they for it."""
    blamed = {rank for blame in graph.blames for rank in (*blame.ranks, *blame.victims)}
    told = 0
    for op in graph.alone:
        if op.rank in blamed or told >= _MAX_TOLD:
            continue
        now = seen(view, op.rank)
        still = _is_idle(now) and view.t_ns - max(op.since_ns, now.moved_ns) >= IDLE_NS
        if still or view.t_ns - op.since_ns >= BUSY_NS:
            told += 1
            yield _finding(view, op, now, still)


def _is_idle(now: Seen) -> bool:
    asleep = now.os_state in ("", "S") and now.cpu is not None and now.cpu < IDLE_CORES
    return asleep or now.stopped or now.os_state == "D"


def _finding(view: View, op: PendingOp, now: Seen, still: bool) -> Finding:
    where = place(now.frames)
    at = f" at {where}" if where else ""
    doing = "uses no CPU" if still else "works on"
    what = "does not end: it is in its exit" if op.op.op == "exit" else f"is in {op.text}"
    return Finding(
        kind="stuck-call",
        severity="warning" if still else "info",
        ranks=(op.rank,),
        culprits=(op.rank,),
        where=where,
        t_ns=op.since_ns,
        text=f"{ranks_text([op.rank])} {what} for {duration(view.t_ns - op.since_ns)}{at}, and "
        f"{doing}{others(now)}.",
        advice=STORE_ADVICE if op.at_store else _ADVICE.get(op.op.op, _ADVICE["file"]),
        evidence=Evidence(op.since_ns, op.rank, "timeline", op=op.text),
    )
