"""Replies to control verbs as text: the outcome of a verb, and held ranks' answers, alone or side
by side with the differences marked."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pardbg import words
from pardbg.analysis.hangs.stacks import is_user, place, thread_text
from pardbg.events.commands import Answers, RankRows, Reply, WhereFound  # fmt: skip
from pardbg.events.control_codes import Mode, Verb
from pardbg.events.control_events import Status
from pardbg.render.frame.control_words import (
    breakpoints_text,
    done_text,
    error_text,
    no_answer_text,
    waits_text,
    why_text,
)  # fmt: skip
from pardbg.words import agreed, ranks_text
from pardbg_agent.ctrl.agent_messages import Evaluated, Thread
from pardbg_agent.wire import Gate

LEASE_WORDS = "the lease of the hold and timeouts of ranks that wait go on: `status` counts down"
NOTHING_NEXT = "—"


def as_json(reply: Reply) -> dict[str, Any]:
    """Return a reply as printed by ``ctl --json``: ok, error and the verb's own fields."""
    found = {"ok": reply.ok, "error": error_text(reply) or None, **reply.data}
    if isinstance(reply.answer, Answers):
        for rank, one in reply.answer.answers.items():
            good, error = one.refusal is None, no_answer_text(one) or None
            found["answers"][rank] |= {"ok": good, "error": error}
            if one.port:
                found["answers"][rank]["launch"] = launch(rank, one.port)
    if reply.status is not None:
        found["reason"] = why_text(reply.status.why)
    text = done_text(reply)
    return {**found, "text": text} if text else found


def text(verb: Verb, reply: Reply) -> str:
    """Return the answer to ``verb``."""
    answer, status = reply.answer, reply.status
    if isinstance(answer, RankRows):
        return _ranks(answer)
    if isinstance(answer, WhereFound):
        return _stacks(answer)
    if verb is Verb.KILL:
        return "the run was told to end"
    if verb is Verb.BREAKS and status is not None:
        return "\n".join(breakpoints_text(status.breaks))
    return done_text(reply) or (_status(status) if status is not None else "ok")


def _status(status: Status) -> str:
    """Return mode, lease, the next op of each held rank, and the ranks that wait for one of
    these."""
    found = {rank: waits_text(waits) for rank, waits in status.waiting.items()} | dict(status.held)
    rows = [f"{rank:>5}  {what or NOTHING_NEXT}" for rank, what in sorted(found.items())]
    return "\n".join([_headline(status), *rows])


def _headline(status: Status) -> str:
    parts = [status.mode.value]
    if status.lease_ns is not None and status.mode is not Mode.RUNNING:
        parts.append(f"lease {words.countdown(status.lease_ns)}")
    if status.pending:
        parts.append(f"{words.plural(status.pending, 'op')} pending")
    if status.timeout_ns is not None:
        parts.append(f"an op times out in {words.countdown(status.timeout_ns)}")
    return " · ".join(filter(None, [*parts, why_text(status.why)]))


def _ranks(found: RankRows) -> str:
    rows = sorted(found.ranks.values(), key=lambda row: str(row.get("rank", -1)).rjust(9))
    lines = [" rank  step  now"]
    for row in rows:
        what = _doing(row)
        lines.append(f"{row.get('rank', '?'):>5} {row.get('step', ''):>5}  {what or NOTHING_NEXT}")
    return "\n".join(lines)


def _doing(row: Mapping[str, object]) -> str:
    """Return a rank's activity: held, ended, waiting in an op, or its phase or action."""
    if not row.get("alive", True):
        return "ended"
    held = row.get("held")
    if isinstance(held, int) and held:
        at = "at" if held & Gate.EXCEPTION else "before"
        return f"held {at} {row.get('next') or 'its next gate'}"
    what, op = str(row.get("what") or ""), str(row.get("open_op") or "")
    return " · ".join(filter(None, (what, f"{op} is open" if op else "")))


def _stacks(found: WhereFound) -> str:
    """Return the ranks by equal main-thread stack, innermost frame last."""
    lines = []
    for group in found.tree:
        raised = any(_raised(found, rank) for rank in group.ranks)
        lines.append(f"rank {words.rank_set(group.ranks)}{' raised here' if raised else ''}")
        own = [f for f in group.frames if not f[0].startswith("<frozen")]  # Python's start
        frames = [f"{_tail(file)}:{row} {name}" for file, row, name in own or group.frames]
        lines += [f"    {frame}" for frame in frames] or ["    no frames"]
    for rank, threads in sorted(found.stacks.items()):
        lines += [f"rank {rank} is handling {one.handles}" for one in threads if one.handles]
        lines += [f"rank {rank} {where}" for where in _other_threads(threads)]
    for rank, waits in sorted(found.locks.items()):
        lines += [f"rank {rank} {wait}" for wait in waits]
    for rank, source in sorted(found.source.items()):
        if source != "agent":
            lines.append(f"rank {rank}: {source}")
    return "\n".join(lines) or "no rank answered"


def _other_threads(threads: Sequence[Thread]) -> list[str]:
    """Return ``thread writer at job.py:30 in run`` for threads that are in the program's code."""
    found = [thread for thread in threads if not thread.main and any(map(is_user, thread.frames))]
    return [f"{thread_text(one.thread, one.task_of)} at {place(one.frames)}" for one in found]


def _raised(found: WhereFound, rank: int) -> bool:
    """Return whether the rank is held at an exception, so that its frames are the traceback's."""
    threads = found.stacks.get(rank, ())
    return any(thread.main and thread.inside == "exception" for thread in threads)


def _tail(file: str) -> str:
    """Return the last two parts of a path, which identify the file."""
    return "/".join(file.split("/")[-2:])


MAX_ROWS = 30
"""Maximum number of listed tensors that differ."""


def answers(found: Answers, *, compare: bool = False, named: bool = False) -> list[str]:
    """Return lines for the console or a terminal; ``named``: name the rank even if alone."""
    if not found.answers:
        return ["no rank was asked"]
    good = {rank: one for rank, one in found.answers.items() if one.refusal is None}
    lines = [
        f"rank {rank}: {no_answer_text(one)}"
        for rank, one in found.answers.items() if one.refusal is not None
    ]  # fmt: skip
    raised = {rank: one for rank, one in good.items() if one.raised}
    if compare and raised:
        good = {rank: one for rank, one in good.items() if rank not in raised}
        # Errors are not equal values: ranks on which there is none stand apart.
        lines = [
            *(f"{rank:>5} ✗ {' '.join(one.text.split())}" for rank, one in sorted(raised.items())),
            *lines,
        ]  # fmt: skip
        if not good:
            return [*lines, "nothing to compare: no rank has a value"]
    if compare and good:
        hashed = any(one.hashes for one in good.values())
        return [*(_hashes(good) if hashed else _beside(good)), *lines]
    return [*_texts(good, named), *lines]


def answer_rows(found: Answers, compare: bool) -> list[tuple[str, bool]]:
    """Return (line, whether the line is an error) for the console."""
    if compare or not found.answers:
        rows = answers(found, compare=compare)
        return [(row, row[5:8] == " ✗ " or not found.answers) for row in rows]
    shown = []
    for wrong in (False, True):
        own = {rank: one for rank, one in found.answers.items()
               if (one.raised or one.refusal is not None) == wrong}  # fmt: skip
        rows = answers(Answers(own), named=True) if own else []
        shown += [(row, wrong) for row in rows]
    return shown


def _texts(good: Mapping[int, Evaluated], named: bool) -> list[str]:
    """Return each different answer once, with its ranks."""
    if len(good) == 1 and not named:
        return _said(*next(iter(good.items()))).splitlines() or [""]
    same: dict[str, list[int]] = {}
    for rank, one in sorted(good.items()):
        same.setdefault(_said(rank, one), []).append(rank)
    lines = []
    for text, ranks in same.items():
        rows = text.splitlines() or [""]
        label = f"{ranks_text(ranks)}: "
        lines += [label + rows[0], *(" " * len(label) + row for row in rows[1:])]
    return lines


def launch(rank: int, port: int) -> Mapping[str, object]:
    """Return the entry of VS Code's launch.json that attaches to a rank's debugger."""
    return {
        "name": f"pardbg rank {rank}", "type": "debugpy", "request": "attach",
        "connect": {"host": "127.0.0.1", "port": port}, "justMyCode": True,
    }  # fmt: skip


def _said(rank: int, one: Evaluated) -> str:
    """Return a rank's answer; for a debugger, how to attach to it."""
    if not one.port:
        return one.text
    where = f"waits for a debugger on {one.text}, 127.0.0.1:{one.port}, for as long as it is held"
    entry = json.dumps(launch(rank, one.port), indent=4)
    return f"{where}\n{entry}\n{LEASE_WORDS}"


def _beside(good: Mapping[int, Evaluated]) -> list[str]:
    """Return a row per rank: its value, and the difference from most ranks' value."""
    keys = {rank: one.hash or one.text for rank, one in good.items()}
    usual = _most(keys)
    odd = [rank for rank, key in sorted(keys.items()) if key != usual]
    base = next((one.number for rank, one in good.items() if keys[rank] == usual), None)
    lines = []
    for rank, one in sorted(good.items()):
        text, mark = " ".join(one.text.split()), "≠" if rank in odd else "="
        if rank in odd and one.number is not None and base is not None:
            text += f"   {one.number - base:+.3g}"
        lines.append(f"{rank:>5} {mark} {text}")
    if odd:
        lines.append(f"{ranks_text(odd)} {agreed('differs', odd)};"
                     f" the first is rank {odd[0]}")  # fmt: skip
    else:
        lines.append(f"equal on {len(good)} ranks" if len(good) > 1 else "only one rank answered")
    return lines


def _hashes(good: Mapping[int, Evaluated]) -> list[str]:
    """Return the first tensor whose replicas differ, and the number of differing tensors."""
    tables = {rank: one.hashes for rank, one in sorted(good.items())}
    names = list(dict.fromkeys(name for table in tables.values() for name in table))
    rows = []
    for name in names:
        have = {rank: table[name] for rank, table in tables.items() if name in table}
        usual = _most(have)
        odd = [rank for rank, value in have.items() if value != usual]
        odd += [rank for rank in tables if rank not in have]
        if odd:
            rows.append(f"  {name}: {ranks_text(odd)} {agreed('differs', odd)}")
    if not rows:
        return [f"{len(names)} tensors, equal on {len(tables)} ranks"]
    more = [f"  … and {len(rows) - MAX_ROWS} more"] if len(rows) > MAX_ROWS else []
    return [f"{len(rows)} of {len(names)} tensors differ; the first:", *rows[:MAX_ROWS], *more]


def _most(values: Mapping[int, Any]) -> Any:
    """Return the most frequent value; the lowest rank's if none is more frequent."""
    counted = Counter(values.values()).most_common()
    best = counted[0][1]
    return next(value for _, value in sorted(values.items()) if dict(counted)[value] == best)
