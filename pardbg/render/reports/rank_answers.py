"""What held ranks answered about themselves, in words: one rank's answer, or all beside each other
with the differences marked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from pardbg.words import rank_set

MAX_ROWS = 30
"""Differing tensors listed."""


def answers(data: Mapping[str, Any], *, compare: bool = False) -> list[str]:
    """Lines for the console or a terminal; ``data`` is the reply's."""
    by_rank = {int(rank): dict(said) for rank, said in dict(data.get("answers") or {}).items()}
    if not by_rank:
        return ["no rank was asked"]
    good = {rank: said for rank, said in by_rank.items() if said.get("ok")}
    lines = [f"rank {rank}: {said.get('error') or 'no answer'}"
             for rank, said in by_rank.items() if not said.get("ok")]  # fmt: skip
    raised = {rank: said for rank, said in good.items() if said.get("raised")}
    if compare and raised:
        good = {rank: said for rank, said in good.items() if rank not in raised}
        lines = [*_raised(raised), *lines]
        if not good:
            return [*lines, "nothing to compare: no rank has a value"]
    if compare and good:
        hashed = any("hashes" in said for said in good.values())
        return [*(_hashes(good) if hashed else _beside(good)), *lines]
    return [*_texts(good), *lines]


def _raised(raised: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Ranks on which there is no value but an exception: errors are not equal values."""
    return [
        f"{rank:>5} ✗ {' '.join(str(said.get('text', '')).split())}"
        for rank, said in sorted(raised.items())
    ]


def _texts(good: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Each different answer once, with the ranks that gave it."""
    if len(good) == 1:
        return str(next(iter(good.values())).get("text", "")).splitlines() or [""]
    same: dict[str, list[int]] = {}
    for rank, said in sorted(good.items()):
        same.setdefault(str(said.get("text", "")), []).append(rank)
    lines = []
    for text, ranks in same.items():
        rows = text.splitlines() or [""]
        label = f"rank {rank_set(ranks)}: "
        lines += [label + rows[0], *(" " * len(label) + row for row in rows[1:])]
    return lines


def _beside(good: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """A row per rank: the value, and how it differs from what most ranks have."""
    keys = {rank: said.get("hash") or said.get("text", "") for rank, said in good.items()}
    usual = _most(keys)
    odd = [rank for rank, key in sorted(keys.items()) if key != usual]
    base = next((s.get("number") for r, s in good.items() if keys[r] == usual), None)
    lines = []
    for rank, said in sorted(good.items()):
        text = " ".join(str(said.get("text", "")).split())
        mark = "≠" if rank in odd else "="
        lines.append(f"{rank:>5} {mark} {text}{_apart(said.get('number'), base, rank in odd)}")
    if odd:
        lines.append(f"rank {rank_set(odd)} differ{'s' if len(odd) == 1 else ''};"
                     f" the first is rank {odd[0]}")  # fmt: skip
    else:
        lines.append(f"equal on {len(good)} ranks" if len(good) > 1 else "only one rank answered")
    return lines


def _apart(number: Any, base: Any, odd: bool) -> str:
    if not odd or not isinstance(number, float) or not isinstance(base, float):
        return ""
    return f"   {number - base:+.3g}"


def _hashes(good: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """The first tensor whose replicas differ, and how many do."""
    tables = {rank: dict(said.get("hashes") or {}) for rank, said in sorted(good.items())}
    names = list(dict.fromkeys(name for table in tables.values() for name in table))
    rows = []
    for name in names:
        have = {rank: table[name] for rank, table in tables.items() if name in table}
        usual = _most(have)
        odd = [rank for rank, value in have.items() if value != usual]
        odd += [rank for rank in tables if rank not in have]
        if odd:
            rows.append(f"  {name}: rank {rank_set(sorted(odd))} differs")
    if not rows:
        return [f"{len(names)} tensors, equal on {len(tables)} ranks"]
    more = [f"  … and {len(rows) - MAX_ROWS} more"] if len(rows) > MAX_ROWS else []
    return [f"{len(rows)} of {len(names)} tensors differ; the first:", *rows[:MAX_ROWS], *more]


def _most(values: Mapping[int, Any]) -> Any:
    """What most ranks have; the lowest rank's where none is more frequent."""
    counted = Counter(values.values()).most_common()
    best = counted[0][1]
    return next(value for _, value in sorted(values.items()) if dict(counted)[value] == best)
