"""Rules that ranks' ops must agree on before issue, and the message about a rank that differs.

Pure: posts in, text out. The rules are those of the analysis' verdicts (op, root, dtype, size, in
this order), with one more: a fact that a rank does not know disagrees with nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pardbg_agent.control.posts import Post
from pardbg_agent.tables.c10d_ops import Side, kind_of
from pardbg_agent.wire import REDUCE
from pardbg_agent.words import duration, ranks_text


def differs(mine: Post, other: Post) -> str:
    """Return how two ranks differ: ``op``, ``root``, ``dtype``, ``size``; empty: not known to."""
    if mine.op != other.op:
        return "op"
    if mine.reduce != other.reduce and min(mine.reduce, other.reduce) >= 0:
        return "op"
    kind = kind_of(mine.op)
    if kind.rooted and mine.peer != other.peer:
        return "root"
    if mine.dtype and other.dtype and mine.dtype != other.dtype:
        return "dtype"
    if kind.equal is Side.NEITHER:
        return ""
    if kind.equal is not Side.IN:  # uneven shares may add up: see verdict
        return "size" if mine.out_bytes != other.out_bytes else ""
    return "size" if mine.in_bytes != other.in_bytes else ""


def verdict(mine: Post, others: Mapping[int, Post], members: int, where: str) -> str:
    """Return the message about this rank if its op differs from the others'; empty if it does not.

    A rank is held if its op differs from one that another rank is in, or about to issue: the two
    must not meet, whichever is right. A held rank meets no other, so ranks that come after it may
    join the ranks they agree with. ``members``: number of ranks in the group. ``where``: ``dp
    #42``."""
    apart = [post for post in others.values() if differs(mine, post)]
    if not apart:
        return _shares(mine, others, members, where) if mine.op == "all_gather" else ""
    if all(post.held for post in apart):
        return ""
    side = _largest(apart)
    with_me = [rank for rank, post in others.items() if not differs(mine, post)]
    theirs = others[min(side)]
    reduces = mine.reduce != theirs.reduce
    agree = f" (as {ranks_text(with_me)})" if with_me else ""
    return f"wants {words(mine, reduces)} on {where}{agree}, {ranks_text(side)} came with " + (
        words(theirs, reduces) + _in_bytes(mine, theirs)
    )


def _shares(mine: Post, others: Mapping[int, Post], members: int, where: str) -> str:
    """Return the message about all_gather shares that do not add up, if this rank is the last."""
    whole = {mine.rank: mine, **others}
    if len(whole) != members or len({post.in_bytes for post in whole.values()}) == 1:
        return ""
    total = sum(post.in_bytes for post in whole.values())
    if total == mine.out_bytes:
        return ""
    shares = ", ".join(f"rank {rank} {whole[rank].in_bytes}" for rank in sorted(whole)[:6])
    return (
        f"wants {words(mine, False)} on {where}, and the shares do not add up: {shares} bytes, in"
        f" all {total} of {mine.out_bytes}"
    )


def _largest(apart: Iterable[Post]) -> list[int]:
    sides: list[list[Post]] = []
    for post in apart:
        side = next((side for side in sides if not differs(side[0], post)), None)
        if side is None:
            sides.append([post])
        else:
            side.append(post)
    return sorted(post.rank for post in max(sides, key=len))


def pair(mine: Post, other: Post, peer: int) -> str:
    """Return how a send and its receive differ in bytes or dtype, else empty; ``mine`` is later."""
    other_dtype = bool(mine.dtype and other.dtype and mine.dtype != other.dtype)
    if mine.in_bytes == other.in_bytes and not other_dtype:
        return ""
    way = "to" if mine.op == "send" else "from"
    return (
        f"wants {mine.op} {tensor(mine)} {way} rank {peer}, rank {peer} came with {other.op}"
        f" {tensor(other)}" + _in_bytes(mine, other)
    )


def words(post: Post, with_reduce: bool) -> str:
    """Return text such as ``all_reduce float32[1024]``, ``broadcast float32[4, 2] root 0``"""
    reduce = ""
    if with_reduce and 0 <= post.reduce < len(REDUCE):
        reduce = f" {REDUCE[post.reduce]}"
    root = f" root {post.peer}" if kind_of(post.op).rooted and post.peer >= 0 else ""
    return f"{post.op}{reduce} {tensor(post)}".rstrip() + root


def tensor(post: Post) -> str:
    """Return text like ``float32[4, 2]``, with the number of tensors if there are several."""
    if not post.dtype:
        return ""
    several = f"×{post.tensors}" if post.tensors > 1 else "" if post.tensors else " and more"
    return f"{post.dtype}[{post.shape}]{several}"


def _in_bytes(mine: Post, theirs: Post) -> str:
    """Return the numbers of bytes, where the shapes do not show the difference."""
    if tensor(mine) != tensor(theirs) or differs(mine, theirs) != "size":
        return ""
    here, there = (max(post.in_bytes, post.out_bytes) for post in (mine, theirs))
    return f" ({here} bytes here, {there} bytes there)"


def late(
    mine: Post, others: Mapping[int, Post], limit_ns: float, where: str, since_ns: int = 0
) -> str:
    """Return the message about this last rank's lateness, if the first rank has waited above the
    limit. Waiting counts from ``since_ns`` at the earliest."""
    if not others:
        return ""
    first = min(others.values(), key=lambda post: (post.t_ns, post.rank))
    waited = mine.t_ns - max(first.t_ns, since_ns)
    if waited <= limit_ns:
        return ""
    return (
        f"last to {words(mine, False)} on {where}, {duration(waited)} after rank {first.rank},"
        " the first"
    )


def odd_ones(values: Mapping[int, object]) -> tuple[list[int], list[int]]:
    """Return (ranks that differ from the majority, the majority); both empty: no majority."""
    sides: dict[object, list[int]] = {}
    for rank in sorted(values):
        sides.setdefault(values[rank], []).append(rank)
    first, *rest = sorted(sides.values(), key=len, reverse=True)
    if not rest or len(rest[0]) == len(first):
        return [], []
    return sorted(rank for side in rest for rank in side), first
