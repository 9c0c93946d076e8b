"""The lines that are known, of torch 2.0 and newer, NCCL, gloo, launchers and the kernel.

One row a line: bytes that the scanner looks for, and a regular expression whose groups make an
event. The first row that matches counts. ``tests/unit/joblog/lines.txt`` has a line for each.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pardbg.joblog import events
from pardbg.joblog.events import Event, Line

Match = re.Match[str]


@dataclass(frozen=True, slots=True)
class Pattern:
    """A known line. ``needles``: one of these bytes is in each such line."""

    name: str
    needles: tuple[bytes, ...]
    regex: re.Pattern[str]
    make: Callable[[Line, Match], Event]


def rank_of(line: Line, text: str | None = None) -> int | None:
    """Return the global rank: the prefix's, else the number in a line of the default group, which
    counts ranks of its own group."""
    return line.origin.rank if line.origin.rank is not None or text is None else int(text)


def _int(found: Match, name: str) -> int | None:
    text = found.groupdict().get(name)
    return None if text is None else int(text)


def _timeout(line: Line, found: Match) -> Event:
    return events.OpTimeout(
        line, rank_of(line, found["rank"]), found["op"], _int(found, "seq"), _int(found, "nin"),
        _int(found, "nout"), _int(found, "ms"),
    )  # fmt: skip


def _gloo_timeout(line: Line, found: Match) -> Event:
    return events.OpTimeout(line, line.origin.rank, "", None, None, None, int(found["ms"]))


def _progress(line: Line, found: Match) -> Event:
    return events.Progress(
        line, rank_of(line, found["rank"] if _default(found["group"]) else None), found["group"],
        _int(found, "seq"), int(found["enqueued"]), _int(found, "started"), int(found["completed"]),
    )  # fmt: skip


def _default(group: str) -> bool:
    return "default_pg" in group or group in ("", "0")


def _not_joined(line: Line, found: Match) -> Event:
    return events.NotJoined(line, line.origin.rank, _numbers(found["ranks"]), int(found["seq"]))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


def _disagree(line: Line, found: Match) -> Event:
    one, other = found["a"], found["b"]
    shapes = [re.search(r"TensorShape=(\[[\d, ]*\])", text) for text in (one, other)]
    ops = [re.search(r"OpType=(\w+)", text) for text in (one, other)]
    return events.Disagree(
        line, line.origin.rank, _int(found, "seq"), (int(found["ra"]), int(found["rb"])),
        (ops[0][1] if ops[0] else "", ops[1][1] if ops[1] else ""),
        (shapes[0][1] if shapes[0] else "", shapes[1][1] if shapes[1] else ""),
    )  # fmt: skip


def _barrier(line: Line, found: Match) -> Event:
    return events.BarrierMissed(line, line.origin.rank, _numbers(found["ranks"]))


def _joined(line: Line, found: Match) -> Event:
    return events.NotAllJoined(line, line.origin.rank, int(found["n"]), int(found["of"]))


def _unreachable(line: Line, found: Match) -> Event:
    address = re.sub(r"[\s(),]+", " ", found["at"]).strip().replace(" ", ":")
    return events.Unreachable(line, line.origin.rank, address)


def _init(line: Line, found: Match) -> Event:
    return events.InitStart(
        line, line.origin.rank, f"{found['process'] or line.origin.process}:{found['comm']}",
        found["id"] or "", int(found["r"]), int(found["n"]), found["state"] == "COMPLETE",
    )  # fmt: skip


def _device_oom(line: Line, found: Match) -> Event:
    device = found["device"]
    return events.OutOfMemory(line, line.origin.rank, device or "device", found["size"] or "", None)


def _kernel_oom(line: Line, found: Match) -> Event:
    return events.OutOfMemory(line, None, "", "", int(found["pid"]))


def _xid(line: Line, found: Match) -> Event:
    text = found["text"].strip(" ,")
    return events.DeviceFault(line, line.origin.rank, found["pci"], int(found["xid"]), text)


def _exit_code(code: str | None, name: str | None) -> int:
    """Return waitpid's code from a number (128 + N as shells have it) or a signal's name."""
    if name is not None:
        return -int(getattr(signal, name, signal.SIGKILL))
    number = int(code or 0)
    return 128 - number if number > 128 else number


def _ended(line: Line, found: Match) -> Event:
    groups = found.groupdict()
    rank = _int(found, "rank")
    return events.Ended(
        line, line.origin.rank if rank is None else rank,
        _exit_code(groups.get("code"), groups.get("signal")), _int(found, "local"),
        _int(found, "pid"), groups.get("host") or line.origin.host, False,
    )  # fmt: skip


def _ended_with(code: int) -> Callable[[Line, Match], Event]:
    def make(line: Line, found: Match) -> Event:
        host = found.groupdict().get("host") or line.origin.host
        rank = _int(found, "rank")
        rank = line.origin.rank if rank is None else rank
        return events.Ended(line, rank, code, None, _int(found, "pid"), host, False)

    return make


def _ordered(line: Line, found: Match) -> Event:
    return events.Ordered(line, line.origin.rank, found.groupdict().get("by") or found[0])


def _sizes(line: Line, found: Match) -> Event:
    return events.SizesDiffer(line, line.origin.rank, _int(found, "a"), _int(found, "b"))


def _peer(line: Line, found: Match) -> Event:
    return events.PeerLost(line, line.origin.rank, found[0])


def _stuck(line: Line, found: Match) -> Event:
    return events.WatchdogStuck(line, line.origin.rank, _int(found, "s"))


def _signalled(line: Line, found: Match) -> Event:
    return events.Signalled(line, line.origin.rank, _int(found, "by"))


def _abort(line: Line, found: Match) -> Event:
    return events.Failure(line, line.origin.rank, found["type"], found["text"].strip(), None, True)


def _ignored(line: Line, found: Match) -> Event:
    return events.Event(line, line.origin.rank)


def _unknown(line: Line, found: Match) -> Event:
    return events.Unknown(line, line.origin.rank)


_RANK: Final = r"\[(?:PG [^\]]*?)?Rank (?P<rank>\d+)\]"
_PG: Final = r"\[PG (?:ID )?(?P<group>[^\]]*?)\s*Rank (?P<rank>\d+)\]"
_COUNTS: Final = (
    r"[Ll]ast enqueued(?: NCCL)? work: (?P<enqueued>-?\d+),"
    r"(?: last started(?: NCCL)? work: (?P<started>-?\d+),)?"
    r" last completed(?: NCCL)? work: (?P<completed>-?\d+)"
)
_ROWS: Final[tuple[tuple[str, tuple[bytes, ...], str, Callable[[Line, Match], Event]], ...]] = (
    ("nccl op timeout", (b"atchdog",),
     rf"{_RANK} Watchdog caught collective operation timeout: WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?"
     r"OpType=(?P<op>\w+)(?:, TensorShape=\[[\d, ]*\])?(?:, NumelIn=(?P<nin>\d+), "
     r"NumelOut=(?P<nout>\d+))?, Timeout\(ms\)=(?P<ms>\d+)\)", _timeout),
    ("nccl counts at a failure", (b"ast enqueued",),
     rf"{_PG}.*?(?:work sequence id|watchdog at work|at NCCL work): (?P<seq>\d+)\D.*?{_COUNTS}",
     _progress),
    ("nccl counts at a dump, own", (b"ast enqueued",),
     rf"{_PG}.*?(?P<seq>(?!))?{_COUNTS}", _progress),
    ("desync report", (b"collective",),
     r"\[(?P<ranks>[\d, ]+)\] finished collective #\d+, but didn't join collective #(?P<seq>\d+)",
     _not_joined),
    ("fingerprints differ", (b"collective",),
     r"Rank (?P<ra>\d+) is running collective: (?P<a>CollectiveFingerPrint\("
     r"(?:SequenceNumber=(?P<seq>\d+),? ?)?.*?), ?but Rank (?P<rb>\d+) is running collective: "
     r"(?P<b>.*)", _disagree),
    ("monitored barrier", (b"onitoredBarrier",),
     r"Ranks? (?P<ranks>[\d, ]+) failed to pass monitoredBarrier", _barrier),
    ("store: clients missing", (b"s joined",),
     r"(?P<n>\d+)/(?P<of>\d+) (?:clients|workers) joined", _joined),
    ("store: no connection", (b"imed out",),
     r"client socket has timed out after \S+ while trying to connect to (?P<at>\([^)]*\)|\S+)",
     _unreachable),
    ("nccl init", (b" Init ",),
     r"(?:(?P<process>\S+:\d+):\d+ \[.*)?comm (?P<comm>0x[0-9a-f]+) rank (?P<r>\d+) "
     r"nranks (?P<n>\d+)(?:.*commId (?P<id>0x[0-9a-f]+))?.*Init (?P<state>START|COMPLETE)", _init),
    ("device memory", (b"ut of memory",),
     r"(?P<device>CUDA|HIP|XPU|NPU|MPS) out of memory(?:\. Tried to allocate "
     r"(?P<size>[\d.]+ \w+))?", _device_oom),
    ("kernel memory", (b"ut of memory",),
     r"(?:Out of memory|Memory cgroup out of memory): Killed process (?P<pid>\d+)", _kernel_oom),
    ("xid", (b"Xid (",),
     r"NVRM: Xid \(PCI:(?P<pci>[0-9a-fA-F:.]+)\): (?P<xid>\d+),?(?P<text>.*)", _xid),
    ("torchrun: signal", (b"SIG",),
     r"[Pp]rocess (?P<pid>\d+) \(?local_rank (?P<local>\d+)\)?.*(?P<signal>SIG[A-Z]+)", _ended),
    ("torchrun: closing", (b"SIG",),
     r"(?:Sending process \d+ closing signal|Closing process \d+ via signal) (?P<by>SIG\w+)",
     _ignored),
    ("signal to the launcher", (b"SIG",),
     r"(?:Received|got signal:?) (?:Signals\.)?(?P<by>SIGTERM|SIGINT|SIGHUP|15|2)"
     r"(?: death signal)?\b", _ordered),
    ("torchrun: failed", (b"exitcode",),
     r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)",
     _ended),
    ("deepspeed: exit", (b"exits with",),
     r"exits with return code = (?P<code>-?\d+)", _ended),
    ("lightning: child", (b"terminate",),
     r"(?:\[rank: (?P<rank>\d+)\] )?Child process with PID (?P<pid>\d+) terminated with code "
     r"(?P<code>-?\d+)", _ended),
    ("mp.spawn: child", (b"terminate",),
     r"process (?P<local>\d+) terminated with (?:exit code (?P<code>-?\d+)|signal "
     r"(?P<signal>SIG\w+))", _ended),
    ("slurm: out of memory", (b": error: ",),
     r"error: (?P<host>\S+): task (?P<rank>\d+): Out Of Memory", _ended_with(-signal.SIGKILL)),
    ("slurm: exit", (b": error: ",),
     r"error: (?P<host>\S+): tasks? (?P<rank>\d+): Exited with exit code (?P<code>\d+)", _ended),
    ("slurm: killed", (b": error: ",),
     r"error: (?P<host>\S+): tasks? (?P<rank>\d+): Killed", _ended_with(-signal.SIGKILL)),
    ("slurm: crashed", (b": error: ",),
     r"error: (?P<host>\S+): tasks? (?P<rank>\d+): (?:Segmentation fault|Aborted)",
     _ended_with(-signal.SIGSEGV)),
    ("slurm: cancelled", (b": error: ",),
     r"(?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+(?: DUE TO (?P<by>[A-Z ]+?))?\s*\*\*\*", _ordered),
    ("dump signal", (b"ast enqueued", b"collective"),
     r"Received a dump signal .*?(?:from +rank (?P<by>\d+)|from this local rank)", _signalled),
    ("watchdog stuck", (b"atchdog", b"imed out"),
     r"(?:watchdog got stuck for (?P<s>\d+) seconds|Heartbeat monitor timed out)", _stuck),
    ("gloo timeout", (b"imed out",),
     r"Timed out waiting (?P<ms>\d+)ms for (?:recv|send) operation", _gloo_timeout),
    ("gloo sizes differ", (b"preamble.length", b"collective"),
     r"preamble\.length <= op\.nbytes\. (?P<a>\d+) vs (?P<b>\d+)|Is there a distributed collective "
     r"mismatch", _sizes),
    ("peer lost", (b"onnection ", b"roken pipe", b"ncclRemote", b"NET/IB"),
     r"Connection closed by (?:remote )?peer|Connection reset by peer|Broken pipe|ncclRemoteError"
     r"|connectFullMesh failed|NET/IB.*(?:status|vendor err)|remote process exited", _peer),
    ("c++ abort", (b"terminate", b"egmentation fault"),
     r"(?P<type>terminate called|Segmentation fault)(?P<text>.*)", _abort),
    ("explained by counts", (b"atchdog",),
     r"(?:watchdog thread terminated|Process group watchdog|watchdogHandler|ncclCommWatchdog"
     r"|watchdog (?:at|detected)|Watchdog (?:thread|finished)|TORCH_NCCL_|terminate called"
     r"|HeartbeatMonitor|watchdog (?:timeout|interval))", _ignored),
    ("unknown watchdog line", (b"atchdog",), r"ProcessGroup\w+|Rank \d+\]", _unknown),
)  # fmt: skip
PATTERNS: Final = tuple(
    Pattern(name, needles, re.compile(regex), make) for name, needles, regex, make in _ROWS
)
TRACEBACK: Final = b"Traceback (most"
TABLE: Final = b"exitcode  : "
"""A row of torchrun's failure table."""
NEEDLES: Final = tuple(
    dict.fromkeys([TRACEBACK, b"exitcode", *(n for one in PATTERNS for n in one.needles)])
)


def event_of(line: Line) -> Event | None:
    """Return what the line states; None where no pattern matches."""
    for pattern in PATTERNS:
        found = pattern.regex.search(line.text)
        if found is not None:
            event = pattern.make(line, found)
            return None if type(event) is Event else event
    return None
