"""Conclusions from a log in words: one row per kind, and the whole answer as text and as JSON."""

from __future__ import annotations

import signal
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import Any, Final

from pardbg.events.log_facts import LogLine, LogSays
from pardbg.joblog.conclusion import Conclusion
from pardbg.joblog.events import Line
from pardbg.joblog.joined import WAITS
from pardbg.joblog.scan import Log
from pardbg.joblog.verdict import Verdict
from pardbg.words import plural, ranks_text, size


@dataclass(frozen=True, slots=True)
class Kind:
    """Kind of conclusion: ``sentence`` states it; ``advice``: what to do next."""

    severity: str
    sentence: Callable[[Conclusion], str]
    advice: str


MAX_TOLD: Final = 200
"""Characters of an exception's text in a sentence; the log's line has the rest."""


def _ranks(numbers: tuple[int, ...], none: str = "a rank that the log does not name") -> str:
    text = ranks_text(numbers) if numbers else none
    return text[:1].upper() + text[1:]


def _op(one: Conclusion) -> str:
    """Return an op's name: ``ALLREDUCE #7753 of group dp``."""
    number = "" if one.seq is None else f" #{one.seq}"
    group = "" if one.group in ("", "default") else f" of group {one.group}"
    return f"{one.op or 'an op'}{number}{group}"


def _nccl_warning(one: Conclusion) -> str:
    more = f" ({one.fact('num')} warnings)" if one.fact("num") != 1 else ""
    return f"NCCL warned on host {one.fact('host')}{more}: {one.fact('text')}"


def _waiting(one: Conclusion) -> str:
    return f" {_ranks(one.ranks)} waited in it{_issued(one)}." if one.ranks else ""


def _issued(one: Conclusion) -> str:
    if one.place is None:
        return ""
    file, line, function = one.place
    return f", issued at {file}:{line} ({function})"


def _at(one: Conclusion) -> str:
    return _issued(one).replace(", issued", "")


def _missing(one: Conclusion) -> str:
    last = one.fact("last")
    tail = f": the last op issued is #{last}" if last != "" else ""
    if (file := one.fact("file")) != "":
        tail += f", {one.fact('last_op')} at {file}:{one.fact('line')} ({one.fact('function')})"
    return f"{_ranks(one.culprits)} did not come to {_op(one)}{tail}.{_waiting(one)}"


def _mismatch(one: Conclusion) -> str:
    facts = dict(one.facts)
    differ = f": {facts['most']} and {facts['other']}" if facts else ""
    if one.culprits:
        odd = f"{ranks_text(one.culprits)} issued {facts['other']}{_at(one)}"
        odd += f", the others {facts['most']}"
        return f"Ranks disagree at {_op(one)}: {odd}."
    return f"Ranks disagree at {_op(one)}{differ}."


def _absent(one: Conclusion) -> str:
    return (
        f"{_ranks(one.ranks)} waited in {_op(one)}; the log has no line of "
        f"{ranks_text(one.culprits)} about it."
    )


def _different(one: Conclusion) -> str:
    return (
        f"Ranks wait at different ops of one group: {ranks_text(one.ranks)} at {_op(one)}, rank "
        f"{one.fact('ahead')} further on."
    )


def _stuck(one: Conclusion) -> str:
    return f"{_ranks(one.ranks)} issued {_op(one)}{_at(one)}, and it did not end."


def _exception(one: Conclusion) -> str:
    facts = dict(one.facts)
    place = f" at {facts['file']}:{facts['line']} ({facts['function']})" if facts["file"] else ""
    told = str(facts["text"]).rstrip(".")
    told = told if len(told) <= MAX_TOLD else told[:MAX_TOLD].rpartition(" ")[0] + " …"
    text = f": {told}" if told else ""
    kind = facts["type"] or "an exception, whose type is cut off"
    return f"{_ranks(one.culprits, 'A process')} raised {kind}{text}{place}."


def _memory(one: Conclusion) -> str:
    facts = dict(one.facts)
    asked = f", asking for {facts['requested']}" if facts["requested"] else ""
    return f"{_ranks(one.culprits, 'A process')} ran out of {facts['device']} memory{asked}."


def _host_memory(one: Conclusion) -> str:
    facts = dict(one.facts)
    process = f"process {facts['pid']}" if facts["pid"] else "a process"
    who = ranks_text(one.culprits) if one.culprits else process
    where = f" on {facts['host']}" if facts["host"] else ""
    return f"The kernel killed {who}{where}: the machine, or its cgroup, had no memory left."


def _fault(one: Conclusion) -> str:
    facts = dict(one.facts)
    where = f" on {facts['host']}" if facts["host"] else ""
    return f"The GPU at {facts['device']}{where} reported Xid {facts['xid']}: {facts['text']}."


def _ended(one: Conclusion) -> str:
    code, host, local = int(one.fact("code")), one.fact("host"), int(one.fact("local_rank"))
    how = f"by {_signal(-code)}" if code < 0 else f"with exit code {code}"
    process = f"Process {one.fact('pid')}" if one.fact("pid") else "A process"
    who = _ranks(one.culprits, f"Local rank {local}" if local >= 0 else process)
    return f"{who}{f' on {host}' if host else ''} ended {how}."


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _not_joined(one: Conclusion) -> str:
    return f"{one.fact('joined')} of {one.fact('expected')} ranks joined the store in time."


def _init(one: Conclusion) -> str:
    size = one.fact("ranks")
    missing = f"; {ranks_text(one.culprits)} never began" if one.culprits else ""
    return f"NCCL's set-up of {size} ranks did not end on {ranks_text(one.ranks)}{missing}."


def _unfit(one: Conclusion) -> str:
    return (
        f"The dump {one.fact('file')} of {ranks_text(one.ranks)} does not fit the log, which has "
        "another op, or a later one, of that rank: no dump is used."
    )


def _disagrees(one: Conclusion) -> str:
    return (
        f"The log and the dumps disagree about {ranks_text(one.ranks)} at {_op(one)}: by the dumps "
        "it is not so."
    )


def _watchdog(one: Conclusion) -> str:
    seconds = one.fact("seconds")
    took = f" for {seconds} s" if seconds else ""
    who = ranks_text(one.ranks) if one.ranks else "a rank that the log does not name"
    return f"The watchdog thread of {who} made no progress{took}."


def _peers_lost(one: Conclusion) -> str:
    absent = f"; the log has no line of {ranks_text(one.culprits)}" if one.culprits else ""
    link = f": {one.fact('text')}" if one.fact("text") else ""
    return f"{_ranks(one.ranks, 'Processes')} lost the connection to a peer{absent}{link}."


def _rank_twice(one: Conclusion) -> str:
    size, rank = one.fact("ranks"), one.fact("rank")
    return f"Two processes came to NCCL's set-up of {size} ranks as rank {rank}."


def _ahead(one: Conclusion) -> str:
    ops = one.fact("ops")
    return f"The host of rank {one.ranks[0]} was {ops} ops ahead of its device."


KINDS: Final[dict[str, Kind]] = {
    "missing-rank": Kind("error", _missing, "See what these ranks did instead: a stack "
                         "(`pardbg attach`), a branch of the code that only they take, a slow "
                         "loader or checkpoint."),
    "mismatch": Kind("error", _mismatch, "Compare the code that leads there on both sides: a "
                     "branch by rank, a batch or parameter of another shape."),
    "absent-ranks": Kind("error", _absent, "Look at these ranks' own logs and hosts: they may be "
                         "dead, or never have come."),
    "different-ops": Kind("error", _different, "One side left out a collective: compare what "
                          "both issue between the two numbers (a Flight Recorder dump has it)."),
    "stuck-op": Kind("error", _stuck, "If all ranks are here, look at the network and the GPUs: "
                     "NCCL_DEBUG=INFO, dmesg for Xid, link counters."),
    "exception": Kind("error", _exception, "Start at this line; what other ranks say later follows "
                      "from it."),
    "exception-logged": Kind(
        "note", lambda c: f"{_exception(c)} The log goes on, and tells of no process that ended.",
        "If the program caught it, nothing is wrong; else start at this line."),
    "out-of-memory": Kind("error", _memory, "Lower the batch or sequence, shard or recompute more; "
                          "`pardbg run` shows which category grew."),
    "host-memory": Kind("error", _host_memory, "Look at what a rank keeps in the host's memory: "
                        "loaders' workers and what they prefetch, offloading, pinned buffers, a "
                        "checkpoint that one rank gathers; then at the limit (--mem)."),
    "device-fault": Kind("error", _fault, "Drain the node: NVIDIA's Xid catalogue says what the "
                         "number means."),
    "program-fault": Kind("error", _fault, "Most often a kernel of the program did it, with memory "
                          "that is not its own: CUDA_LAUNCH_BLOCKING=1, compute-sanitizer."),
    "process-ended": Kind("error", _ended, "Read this process's own output and the kernel's log "
                          "(dmesg) at that time. SIGKILL most often means that memory ran out."),
    "ranks-not-joined": Kind("error", _not_joined, "Look at the launchers of the missing ranks: "
                             "MASTER_ADDR, MASTER_PORT, WORLD_SIZE, a node that never started."),
    "store-unreachable": Kind(
        "error", lambda c: f"{_ranks(c.ranks, 'A process')} found no store"
        + (f" at {c.fact('address')}." if c.fact("address") else "."),
        "Check that rank 0 lives there, and that the port is open from this node."),
    "init-not-complete": Kind("error", _init, "Look at the ranks that are missing; else at "
                              "NCCL_SOCKET_IFNAME and firewalls between nodes."),
    "told-to-end": Kind("note", lambda c: f"The job was told to end: {c.fact('by')}.",
                        "Ask who sent it: a time limit, a pre-emption, a user."),
    "peers-lost": Kind("error", _peers_lost, "A peer that ended first says why in its own output. "
                       "If all live, it is the network: links, routes, NCCL_IB_GID_INDEX, "
                       "NCCL_SOCKET_IFNAME."),
    "rank-twice": Kind("error", _rank_twice, "Look at how ranks are given: RANK and node rank of "
                       "each launcher, one MASTER_PORT a job."),
    "device-twice": Kind(
        "error", lambda c: f"{_ranks(c.culprits)} use one GPU ({c.fact('device')}).",
        "torch.cuda.set_device(LOCAL_RANK) before the first op; look at CUDA_VISIBLE_DEVICES."),
    "nccl-warning": Kind("note", _nccl_warning, "NCCL_DEBUG=INFO says what led to it."),
    "dump-unfit": Kind("note", _unfit, "See when it was written: a dump is kept from an attempt to "
                       "the next."),
    "dump-disagrees": Kind("note", _disagrees, "See when the dumps were written: a rank may have "
                           "come later, or they may be another attempt's."),
    "watchdog-stuck": Kind("error", _watchdog, "A CUDA or NCCL call blocks it, or another thread "
                           "holds the GIL: see where each rank stands (`pardbg attach`)."),
    "host-ahead": Kind("note", _ahead, "The Python line where a rank stands is later than the op "
                       "that its device waits in."),
}  # fmt: skip

UNTOLD: Final[dict[str, str]] = {
    "which-side": "which side is wrong",
    "world-size": "whether all ranks are in this log",
    "cause": "why the peer ended",
}
"""Id of an open question -> its sentence."""


SIGNS: Final = {"error": "✗", "note": "i"}
MAX_UNKNOWN: Final = 3


def text(verdict: Verdict, log: Log, width: int) -> Iterator[str]:
    """Yield the verdict on a log as lines."""
    names = _names({line.file for one in verdict.conclusions for line in one.lines})
    for one in verdict.conclusions:
        kind = KINDS[one.kind]
        note = "follows: " if one.follows else ""
        sign = SIGNS["note" if one.follows else kind.severity]
        yield from _wrapped(f"{note}{kind.sentence(one)}", width, f"{sign} ")
        if not one.follows:
            yield from _wrapped(kind.advice, width, "  → ")
        for line in one.lines[: 1 if one.follows else None]:
            yield f"    {names[line.file]}:{line.number}: {line.text}"[:width]
        yield ""
    if not verdict.conclusions:
        yield "Nothing found: no line of these logs tells of a failure that pardbg knows."
    if verdict.untold:
        yield f"Not told by these logs: {'; '.join(UNTOLD[one] for one in verdict.untold)}."
    if verdict.unknown:
        number = plural(len(verdict.unknown), "watchdog line")
        yield f"{number} in words that pardbg does not know:"
        names = _names({one.file for one in verdict.unknown})
        for line in verdict.unknown[:MAX_UNKNOWN]:
            yield f"    {names[line.file]}:{line.number}: {line.text}"[:width]
    seen = f"; lines of {ranks_text(verdict.ranks)}" if verdict.ranks else ""
    world = f" of {verdict.world_size}" if verdict.world_size and verdict.ranks else ""
    yield f"Read {size(log.num_bytes)}{seen}{world}."


def said(verdict: Verdict) -> tuple[list[LogSays], list[LogLine]]:
    """Return the conclusions, with the lines that support them, as facts of a session."""
    facts: list[LogSays] = []
    lines: dict[tuple[str, int], LogLine] = {}
    for one in verdict.conclusions:
        kind = KINDS[one.kind]
        facts.append(LogSays(
            one.kind, kind.sentence(one), kind.advice, stop=one.kind in WAITS,
            error=kind.severity == "error" and not one.follows, culprits=one.culprits,
            ranks=one.ranks, group=one.group, seq=one.seq, where=_where(one),
        ))  # fmt: skip
        lines |= {(line.file, line.number): LogLine(line.origin.rank, line.text)
                  for line in one.lines}  # fmt: skip
    return facts, list(lines.values())


def _where(one: Conclusion) -> str:
    """Return a place in the form used in findings: ``train.py:88 in forward``."""
    file, line, function = one.place or (one.fact("file"), one.fact("line"), one.fact("function"))
    return f"{str(file).rpartition('/')[2]}:{line} in {function}" if file and line else ""


def _wrapped(text: str, width: int, lead: str) -> list[str]:
    rest = " " * len(lead)
    return textwrap.wrap(text, width, initial_indent=lead, subsequent_indent=rest)


def _names(files: Set[str]) -> dict[str, str]:
    """Return as much of the end of each path as tells it from the others."""
    names: dict[str, str] = {}
    for parts in (1, 2, 3):
        names |= {file: "/".join(file.split("/")[-parts:]) for file in files - names.keys()}
        counts = Counter(names.values())
        names = {file: name for file, name in names.items() if counts[name] == 1}
    return {file: names.get(file, file) for file in files}


def as_json(verdict: Verdict, log: Log) -> dict[str, Any]:
    """Return the conclusions of a log in JSON form."""
    return {
        "findings": [_conclusion(one) for one in verdict.conclusions],
        "untold": list(verdict.untold),
        "unknown_watchdog_lines": [_line(one) for one in verdict.unknown],
        "ranks": list(verdict.ranks),
        "world_size": verdict.world_size,
        "bytes": log.num_bytes,
        "dropped_events": log.dropped,
    }


def _conclusion(one: Conclusion) -> dict[str, Any]:
    kind = KINDS[one.kind]
    return {
        "kind": one.kind, "severity": "note" if one.follows else kind.severity,
        "culprits": list(one.culprits), "ranks": list(one.ranks), "group": one.group or None,
        "seq": one.seq, "op": one.op or None, "follows": one.follows, "facts": dict(one.facts),
        "place": one.place and dict(zip(("file", "line", "function"), one.place, strict=True)),
        "text": kind.sentence(one), "advice": kind.advice,
        "lines": [_line(line) for line in one.lines],
    }  # fmt: skip


def _line(line: Line) -> dict[str, Any]:
    return {"file": line.file, "line": line.number, "rank": line.origin.rank, "text": line.text}
