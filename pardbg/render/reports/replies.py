"""Replies to control verbs as text: the outcome of a verb, and answers of held ranks about
themselves, alone or side by side with the differences marked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pardbg import words
from pardbg.analysis.hangs.stacks import is_user, place
from pardbg.control.language.verbs import Verb
from pardbg.words import agreed, ranks_text

NOTHING_NEXT = "—"


def text(verb: Verb, data: dict[str, Any]) -> str:
    """Return the reply to ``verb`` as text."""
    if verb is Verb.RANKS:
        return _ranks(data)
    if verb is Verb.WHERE:
        return _stacks(data)
    if verb is Verb.KILL:
        return "the job was told to end"
    if verb is Verb.LEVEL:
        return f"{words.plural(int(data.get('asked', 0)), 'rank')} asked for level {data['level']}"
    if verb is Verb.MARK:
        return "bookmark kept"
    if verb is Verb.BREAKS:
        return "\n".join(breakpoints(data))
    return str(data["text"]) if data.get("text") else _status(data)


def breakpoints(data: dict[str, Any]) -> list[str]:
    """Return a line per breakpoint: number, condition, ranks, matches."""
    lines = []
    for entry in data.get("breaks") or []:
        watch = "watch " if entry.get("kind") else ""
        parts = [f"{entry['number']:>3}  {watch}{entry['condition']}", f"rank {entry['ranks']}"]
        parts += [f"matched {entry['hits']} ×" if entry["hits"] else "not matched yet"]
        parts += ["once"] if entry.get("once") else []
        parts += [f"the next {entry['ignore']} pass"] if entry.get("ignore") else []
        lines.append(" · ".join(parts))
    return lines or ["no breakpoint is set: break action==B and mb==3"]


def _status(data: dict[str, Any]) -> str:
    """Return mode, lease, each held rank's next op, and the waiting ranks."""
    lines = [_headline(data)]
    waiting = {int(rank): str(what) for rank, what in dict(data.get("waiting") or {}).items()}
    waiting |= {int(rank): what for rank, what in dict(data.get("held") or {}).items()}
    lines += [f"{rank:>5}  {what or NOTHING_NEXT}" for rank, what in sorted(waiting.items())]
    return "\n".join(lines)


def _headline(data: dict[str, Any]) -> str:
    parts = [str(data.get("mode", "running"))]
    if data.get("lease_ns") is not None and parts[0] != "running":
        parts.append(f"lease {words.countdown(data['lease_ns'])}")
    if data.get("pending"):
        parts.append(f"{words.plural(data['pending'], 'op')} pending")
    if data.get("timeout_ns") is not None:
        parts.append(f"an op times out in {words.countdown(data['timeout_ns'])}")
    if data.get("reason"):
        parts.append(str(data["reason"]))
    return " · ".join(parts)


def _ranks(data: dict[str, Any]) -> str:
    rows = sorted(dict(data.get("ranks") or {}).values(), key=lambda row: row.get("rank", -1))
    lines = [" rank  step  now"]
    for row in rows:
        what = _doing(row)
        lines.append(f"{row.get('rank', '?'):>5} {row.get('step', ''):>5}  {what or NOTHING_NEXT}")
    return "\n".join(lines)


def _doing(row: dict[str, Any]) -> str:
    """Return whether the rank is held, has ended, waits in an op, or its phase or action."""
    if not row.get("alive", True):
        return "ended"
    if row.get("held"):
        coming = str(row.get("next") or "its next gate")
        return f"held {'at' if coming.startswith('exception ') else 'before'} {coming}"
    what, op = str(row.get("what") or ""), str(row.get("open_op") or "")
    return " · ".join(filter(None, (what, f"{op} is open" if op else "")))


def _stacks(data: dict[str, Any]) -> str:
    """Return the ranks grouped by main-thread stack, innermost frame last."""
    lines = []
    for branch in data.get("tree") or []:
        raised = [rank for rank in branch["ranks"] if _raised(data, rank)]
        there = " raised here" if raised else ""
        lines.append(f"rank {words.rank_set(branch['ranks'])}{there}")
        own = [f for f in branch["frames"] if not str(f[0]).startswith("<frozen")]  # Python's start
        frames = [f"{_tail(file)}:{row} {name}" for file, row, name in own or branch["frames"]]
        lines += [f"    {frame}" for frame in frames] or ["    no frames"]
    for rank, threads in sorted(dict(data.get("stacks") or {}).items()):
        lines += [f"rank {rank} {where}" for where in _other_threads(threads)]
    for rank, waits in sorted(dict(data.get("locks") or {}).items()):
        lines += [f"rank {rank} {wait}" for wait in waits]
    for rank, source in sorted(dict(data.get("source") or {}).items()):
        if source != "agent":
            lines.append(f"rank {rank}: {source}")
    return "\n".join(lines) or "no rank answered"


def _other_threads(threads: Sequence[dict[str, Any]]) -> list[str]:
    """Return ``thread writer at job.py:30 in run`` of the threads inside the program."""
    found = []
    for thread in threads:
        frames = [(str(f[0]), int(f[1]), str(f[2])) for f in thread.get("frames") or ()]
        if not thread.get("main") and any(map(is_user, frames)):
            found.append(f"thread {thread.get('thread')} at {place(frames)}")
    return found


def _raised(data: dict[str, Any], rank: int) -> bool:
    """Return whether the rank is held at an exception: its frames are those of the traceback."""
    stacks = dict(data.get("stacks") or {})
    threads = stacks.get(rank) or stacks.get(str(rank)) or []
    return any(thread.get("inside") == "exception" for thread in threads if thread.get("main"))


def _tail(file: str) -> str:
    """Return the last two parts of a path, which identify the file."""
    return "/".join(str(file).split("/")[-2:])


MAX_ROWS = 30
"""Differing tensors listed."""


def answers(data: Mapping[str, Any], *, compare: bool = False) -> list[str]:
    """Return the lines of a reply for the console or a terminal."""
    by_rank = {int(rank): dict(answer) for rank, answer in dict(data.get("answers") or {}).items()}
    if not by_rank:
        return ["no rank was asked"]
    good = {rank: answer for rank, answer in by_rank.items() if answer.get("ok")}
    lines = [f"rank {rank}: {answer.get('error') or 'no answer'}"
             for rank, answer in by_rank.items() if not answer.get("ok")]  # fmt: skip
    raised = {rank: answer for rank, answer in good.items() if answer.get("raised")}
    if compare and raised:
        good = {rank: answer for rank, answer in good.items() if rank not in raised}
        # Errors are not equal values: ranks on which there is none stand apart.
        lines = [
            *(f"{rank:>5} ✗ {' '.join(str(answer.get('text', '')).split())}"
              for rank, answer in sorted(raised.items())), *lines,
        ]  # fmt: skip
        if not good:
            return [*lines, "nothing to compare: no rank has a value"]
    if compare and good:
        hashed = any("hashes" in answer for answer in good.values())
        return [*(_hashes(good) if hashed else _beside(good)), *lines]
    return [*_texts(good), *lines]


def _texts(good: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return each different answer once, with its ranks."""
    if len(good) == 1:
        return str(next(iter(good.values())).get("text", "")).splitlines() or [""]
    same: dict[str, list[int]] = {}
    for rank, answer in sorted(good.items()):
        same.setdefault(str(answer.get("text", "")), []).append(rank)
    lines = []
    for text, ranks in same.items():
        rows = text.splitlines() or [""]
        label = f"{ranks_text(ranks)}: "
        lines += [label + rows[0], *(" " * len(label) + row for row in rows[1:])]
    return lines


def _beside(good: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return a row per rank: the value, and its difference from the most frequent one."""
    keys = {rank: answer.get("hash") or answer.get("text", "") for rank, answer in good.items()}
    usual = _most(keys)
    odd = [rank for rank, key in sorted(keys.items()) if key != usual]
    base = next((s.get("number") for r, s in good.items() if keys[r] == usual), None)
    lines = []
    for rank, answer in sorted(good.items()):
        text = " ".join(str(answer.get("text", "")).split())
        mark, number = "≠" if rank in odd else "=", answer.get("number")
        if rank in odd and isinstance(number, float) and isinstance(base, float):
            text += f"   {number - base:+.3g}"
        lines.append(f"{rank:>5} {mark} {text}")
    if odd:
        lines.append(f"{ranks_text(odd)} {agreed('differs', odd)};"
                     f" the first is rank {odd[0]}")  # fmt: skip
    else:
        lines.append(f"equal on {len(good)} ranks" if len(good) > 1 else "only one rank answered")
    return lines


def _hashes(good: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return the first tensor whose replicas differ, and the number of such tensors."""
    tables = {rank: dict(answer.get("hashes") or {}) for rank, answer in sorted(good.items())}
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
