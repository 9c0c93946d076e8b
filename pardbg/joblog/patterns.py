"""The lines that are known, of torch 2.0 and newer, NCCL, gloo, launchers and the kernel.

One row a line: bytes that the scanner looks for, and a regular expression whose groups make an
event. The first row that matches counts. ``tests/unit/joblog/lines.txt`` has lines for each.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Final, get_type_hints

from pardbg.joblog import events
from pardbg.joblog.events import Event, Line
from pardbg.nccl.debug_lines import WARNING

Match = re.Match[str]
Make = Callable[[Line, Match], Event]


@dataclass(frozen=True, slots=True)
class Pattern:
    """Pattern of a known line. ``needles``: each such line contains one of these byte strings."""

    name: str
    needles: tuple[bytes, ...]
    regex: re.Pattern[str]
    make: Make


def rank_of(line: Line, text: str | None = None) -> int | None:
    """Return the global rank: from the prefix, else the number in a line of the default group, in
    which group ranks are global ranks."""
    return line.origin.rank if line.origin.rank is not None or text is None else int(text)


def _int(found: Match, name: str) -> int | None:
    return _number(found.groupdict().get(name))


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


_READ: Final[dict[Any, Callable[[Any], Any]]] = {
    str: lambda text: (text or "").strip(" ,."), int: int, int | None: _number,
    tuple[int, ...]: lambda text: tuple(map(int, re.findall(r"\d+", text))),
}  # fmt: skip
"""Type of an event's field -> function from the group's text (None: no group) to the value."""


def _as(kind: type[Event]) -> Make:
    """Return a maker of events from groups named like fields; ``own``: a rank of the group."""
    hints = get_type_hints(kind)
    readers = {one.name: _READ[hints[one.name]] for one in fields(kind)[2:]}

    def make(line: Line, found: Match) -> Event:
        groups = found.groupdict()
        values = {name: read(groups.get(name)) for name, read in readers.items()}
        return kind(line, rank_of(line, groups.get("own")), **values)

    return make


def _progress(line: Line, found: Match) -> Event:
    default = "default_pg" in found["group"] or found["group"] in ("", "0")
    return events.Progress(
        line, rank_of(line, found["own"] if default else None), found["group"],
        _int(found, "seq"), int(found["enqueued"]), _int(found, "started"), int(found["completed"]),
    )  # fmt: skip


def _disagree(line: Line, found: Match) -> Event:
    one, other = found["a"], found["b"]
    shapes = [re.search(r"TensorShape=(\[[\d, ]*\])", text) for text in (one, other)]
    ops = [re.search(r"OpType=(\w+)", text) for text in (one, other)]
    return events.Disagree(
        line, line.origin.rank, _int(found, "seq"), (int(found["ra"]), int(found["rb"])),
        (ops[0][1] if ops[0] else "", ops[1][1] if ops[1] else ""),
        (shapes[0][1] if shapes[0] else "", shapes[1][1] if shapes[1] else ""),
    )  # fmt: skip


def _not_come(line: Line, found: Match) -> Event:
    """gloo's ranks wait for a key of each rank in turn."""
    rank = line.origin.rank
    return events.BarrierMissed(line, rank, (int(found["rank"]),), "init_process_group")


def _unreachable(line: Line, found: Match) -> Event:
    address = re.sub(r"[\s(),]+", " ", found["at"] or "").strip().replace(" ", ":")
    return events.Unreachable(line, line.origin.rank, address)


def _init(line: Line, found: Match) -> Event:
    return events.InitStart(
        line, line.origin.rank, f"{found['process'] or line.origin.process}:{found['comm']}",
        found["id"] or "", int(found["r"]), int(found["n"]), found["state"] == "COMPLETE",
    )  # fmt: skip


def _kernel_oom(line: Line, found: Match) -> Event:
    groups = found.groupdict()
    rank, host = _int(found, "rank"), groups.get("host") or line.origin.host
    return events.OutOfMemory(line, rank, "", "", _int(found, "pid"), host)


def _ended(line: Line, found: Match, code: int | None = None) -> Event:
    groups, rank = found.groupdict(), _int(found, "rank")
    if code is None:
        code = _exit_code(groups.get("code"), groups.get("signal"))
    return events.Ended(
        line, line.origin.rank if rank is None else rank, code, _int(found, "local"),
        _int(found, "pid"), groups.get("host") or line.origin.host, False,
    )  # fmt: skip


_killed: Final = partial(_ended, code=-signal.SIGKILL)


def _exit_code(code: str | None, name: str | None) -> int:
    """Return waitpid's code for a number (128 + N as in shells) or a signal's name."""
    if name is not None:
        return -int(getattr(signal, name, signal.SIGKILL))
    number = int(code or 0)
    return 128 - number if number > 128 else number


def _ordered(line: Line, found: Match) -> Event:
    return events.Ordered(line, line.origin.rank, found.groupdict().get("by") or found[0])


def _abort(line: Line, found: Match) -> Event:
    kind = found["type"].rpartition("::")[2] if found["type"] else "Segmentation fault"
    return events.Failure(line, line.origin.rank, kind, found["text"].strip(), None, True)


def _asynchronous(line: Line, found: Match) -> Event:
    rank = rank_of(line, found["own"])
    return events.Failure(line, rank, "asynchronous error", found["text"].strip(), None)


_RANK: Final = r"\[(?:PG [^\]]*?)?Rank (?P<own>\d+)\]"
_PG: Final = r"\[PG (?:ID )?(?P<group>[^\]]*?)\s*Rank (?P<own>\d+)\]"
_COUNTS: Final = (
    r"[Ll]ast enqueued(?: NCCL)? work: (?P<enqueued>-?\d+),"
    r"(?: last started(?: NCCL)? work: (?P<started>-?\d+),)?"
    r" last completed(?: NCCL)? work: (?P<completed>-?\d+)"
)
_ROWS: Final[tuple[tuple[str, tuple[bytes, ...], str, Make], ...]] = (
    ("nccl asynchronous error", (b"WorkNCCL(",),
     rf"{_RANK} Collective WorkNCCL\(.*?\) raised the following async exception: "
     r"(?P<text>(?!.*remote process exited).*)",
     _asynchronous),
    ("nccl op timeout", (b"atchdog", b"WorkNCCL("),
     rf"{_RANK} (?:Watchdog caught collective operation timeout:|Collective) WorkNCCL\("
     r"(?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+)(?:, TensorShape=\[[\d, ]*\])?"
     r"(?:, NumelIn=(?P<numel_in>\d+), NumelOut=(?P<numel_out>\d+))?"
     r", Timeout\(ms\)=\d+\)", _as(events.OpTimeout)),
    ("nccl counts at a failure", (b"ast enqueued",),
     rf"{_PG}.*?(?:work sequence id|watchdog at work|at NCCL work): (?P<seq>\d+)\D.*?{_COUNTS}",
     _progress),
    ("nccl counts at a dump, own", (b"ast enqueued",),
     rf"{_PG}.*?(?P<seq>(?!))?{_COUNTS}", _progress),
    ("desync report", (b"join collective",),
     r"\[(?P<ranks>[\d, ]+)\] finished collective #\d+, but didn't join collective #(?P<seq>\d+)",
     _as(events.NotJoined)),
    ("fingerprints differ", (b"running collective",),
     r"Rank (?P<ra>\d+) is running collective: (?P<a>CollectiveFingerPrint\("
     r"(?:SequenceNumber=(?P<seq>\d+),? ?)?.*?), ?but Rank (?P<rb>\d+) is running collective: "
     r"(?P<b>.*)", _disagree),
    ("monitored barrier", (b"onitoredBarrier",),
     r"Ranks? (?P<ranks>[\d, ]+) failed to pass monitoredBarrier", _as(events.BarrierMissed)),
    ("store: rank missing", (b"ait timeout",),
     r"[Ww]ait timeout after \d+ ?ms, keys: /default_pg/\S*/(?P<rank>\d+)$", _not_come),
    ("store: clients missing", (b"s joined",),
     r"(?P<joined>\d+)/(?P<expected>\d+) (?:clients|workers) joined", _as(events.NotAllJoined)),
    ("store: no connection", (b"imed out", b"C10d store"),
     r"client socket has timed out after \S+ while trying to connect to (?P<at>\([^)]*\)|\S+)"
     r"|The connection to the C10d store has failed",
     _unreachable),
    ("nccl init", (b" Init ",),
     r"(?:(?P<process>\S+:\d+):\d+ \[.*)?comm (?P<comm>0x[0-9a-f]+) rank (?P<r>\d+) "
     r"nranks (?P<n>\d+)(?:.*commId (?P<id>0x[0-9a-f]+))?.*Init (?P<state>START|COMPLETE)", _init),
    ("nccl rank twice", (b"NCCL WARN",),
     r"rank (?P<comm_rank>\d+) of (?P<num_ranks>\d+) ranks has already checked in",
     _as(events.RankTwice)),
    ("nccl device twice", (b"NCCL WARN",),
     r"Duplicate GPU detected : (?P<ranks>rank \d+ and rank \d+) both on CUDA device "
     r"(?P<device>\w+)", _as(events.SharedDevice)),
    ("device memory", (b"ut of memory",),
     r"(?P<device>CUDA|HIP|XPU|NPU|MPS) out of memory(?:\. Tried to allocate "
     r"(?P<requested>[\d.]+ \w+))?", _as(events.OutOfMemory)),
    ("kernel memory", (b"ut of memory",),
     r"(?:Out of memory|Memory cgroup out of memory): Killed process (?P<pid>\d+)", _kernel_oom),
    ("xid", (b"Xid (",),
     r"NVRM: Xid \(PCI:(?P<device>[0-9a-fA-F:.]+)\): (?P<xid>\d+),?(?P<text>.*)",
     _as(events.DeviceFault)),
    ("torchrun: signal", (b"SIG",),
     r"[Pp]rocess (?P<pid>\d+) \(?local_rank (?P<local>\d+)\)?.*(?P<signal>SIG[A-Z]+)", _ended),
    ("torchrun: closing", (b"SIG",),
     r"(?:Sending process \d+ closing signal|Closing process \d+ via signal) (?P<by>SIG\w+)",
     _as(Event)),
    ("signal to the launcher", (b"SIG", b"got signal"),
     r"(?:Received|got signal:?) (?:Signals\.)?(?P<by>SIGTERM|SIGINT|SIGHUP|15|2)"
     r"(?: death signal)?\b", _ordered),
    ("torchrun: failed", (b"exitcode",),
     r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)",
     _ended),
    ("deepspeed: exit", (b"exits with",),
     r"(?:--local[_-]rank=(?P<local>\d+)\b.*)?exits with return code = (?P<code>-?\d+)", _ended),
    ("lightning: child", (b"terminate",),
     r"(?:\[rank: (?P<rank>\d+)\] )?Child process with PID (?P<pid>\d+) terminated with code "
     r"(?P<code>-?\d+)", _ended),
    ("mp.spawn: child", (b"terminate",),
     r"process (?P<local>\d+) terminated with (?:exit code (?P<code>-?\d+)|signal "
     r"(?P<signal>SIG\w+))", _ended),
    ("slurm: out of memory", (b": error: ",),
     r"error: (?P<host>\S+): task (?P<rank>\d+): Out Of Memory", _kernel_oom),
    ("slurm: memory of a step", (b": error: ",),
     r"error: Detected \d+ oom[-_]kill event", _kernel_oom),
    ("shell: killed", (b" Killed ",),
     r": line \d+:\s+(?P<pid>\d+) Killed\s", _killed),
    ("slurm: exit", (b": error: ",),
     r"error: (?P<host>\S+): tasks? (?P<rank>\d+): Exited with exit code (?P<code>\d+)", _ended),
    ("slurm: killed", (b": error: ",),
     r"error: (?P<host>\S+): tasks? (?P<rank>\d+): Killed", _killed),
    ("slurm: crashed", (b": error: ",),
     r"error: (?P<host>\S+): tasks? (?P<rank>\d+): (?:Segmentation fault|Aborted)",
     partial(_ended, code=-signal.SIGSEGV)),
    ("slurm: cancelled", (b": error: ",),
     r"(?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+(?: DUE TO (?P<by>[A-Z ]+?))?\s*\*\*\*", _ordered),
    ("dump signal", (b"dump signal",),
     r"Received a dump signal .*?(?:from +rank \d+|from this local rank)",
     _as(events.Signalled)),
    ("watchdog stuck", (b"atchdog", b"imed out"),
     r"(?:watchdog got stuck for (?P<seconds>\d+) seconds|Heartbeat monitor timed out"
     r"|detected no heartbeat of its watchdog)",
     _as(events.WatchdogStuck)),
    ("gloo timeout", (b"imed out",),
     r"Timed out waiting \d+ms for (?:recv|send) operation", _as(events.OpTimeout)),
    ("gloo sizes differ", (b"preamble.length", b"collective mismatch"),
     r"preamble\.length <= op\.nbytes\. (?P<sent_bytes>\d+) vs (?P<expected_bytes>\d+)|"
     r"Is there a distributed collective mismatch", _as(events.SizesDiffer)),
    ("peer lost", (b"onnection ", b"roken pipe"),  # of torch and NCCL: programs have others
     r"^(?=.*(?i:gloo|nccl|c10d|SocketImpl|TCPStore|\.cpp|\.cc\b)).*?"
     r"(?P<text>Connection closed by (?:remote )?peer|Connection reset by peer|Broken pipe)",
     _as(events.PeerLost)),
    ("peer lost", (b"onnection ", b"roken pipe", b"ncclRemote", b"NET/IB"),
     r"(?P<text>ncclRemoteError|connectFullMesh failed|NET/IB.*(?:status|vendor err).*"
     r"|remote process exited"
     r"|^(?:RuntimeError: )?(?:Connection (?:closed|reset) by peer|Broken pipe))",
     _as(events.PeerLost)),
    ("nccl warning", (b"NCCL WARN",), WARNING.pattern, _as(events.NcclWarning)),
    ("c++ abort", (b"terminate", b"egmentation fault"),
     r"(?:terminate called after throwing an instance of '(?P<type>[^']+)'|terminate called|"
     r"Segmentation fault)(?P<text>.*)", _abort),
    ("explained by counts", (b"atchdog",),
     r"(?:frame #\d+: |(?:preparing|attempting) to dump|Observed flight recorder|to signal dumping"
     r"|watchdog thread terminated|Process group watchdog|watchdogHandler|ncclCommWatchdog"
     r"|watchdog (?:at|detected)|Watchdog (?:thread|finished)|TORCH_NCCL_|terminate called"
     r"|HeartbeatMonitor|watchdog (?:timeout|interval))", _as(Event)),
    ("explained by the timeout", (b"ailed or timed out", b"data inconsistency"),
     r"Some NCCL operations have failed or timed out|To avoid data inconsistency", _as(Event)),
    ("unknown watchdog line", (b"atchdog",),
     r"(?=.*atchdog).*(?:ProcessGroup\w+|Rank \d+\])", _as(events.Unknown)),
)  # fmt: skip
PATTERNS: Final = tuple(
    Pattern(name, needles, re.compile(regex), make) for name, needles, regex, make in _ROWS
)
TRACEBACK: Final = b"Traceback (most"
ISSUED: Final = b"Stack trace of the failed collective"
"""Line after which the frames of the call that issued an op follow, the innermost first
(TORCH_NCCL_TRACE_CPP_STACK or the Flight Recorder's buffer is on)."""
HEAD: Final = b"ProcessGroup"
"""Begin of a line of c10d, which may be broken anywhere after it."""
TABLE: Final = b"exitcode  : "
"""A row of torchrun's failure table."""
NEEDLES: Final = tuple(
    dict.fromkeys(
        [TRACEBACK, ISSUED, b"exitcode", HEAD, *(n for one in PATTERNS for n in one.needles)]
    )
)


_BY_WORD: Final = {
    needle.decode(): [number for number, one in enumerate(PATTERNS) if needle in one.needles]
    for one in PATTERNS
    for needle in one.needles
}
"""Word -> numbers of the patterns that may match a text with this word."""


def event_of(line: Line) -> Event | None:
    """Return the event that the line states; None if no pattern matches."""
    known = _first(line.text)
    if known is None:
        return None
    event = known[0].make(line, known[1])
    return None if type(event) is Event else event


def known(text: str) -> bool:
    """Return whether a pattern may match the text, with or without prefixes."""
    return _first(text) is not None


def _first(text: str) -> tuple[Pattern, Match] | None:
    numbers = {number for word in _BY_WORD if word in text for number in _BY_WORD[word]}
    for pattern in map(PATTERNS.__getitem__, sorted(numbers)):
        if found := pattern.regex.search(text):
            return pattern, found
    return None
