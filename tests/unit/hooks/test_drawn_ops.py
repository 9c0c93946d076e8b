"""Collectives and messages drawn from a seed: dtypes, reductions, roots, groups, forms of the call.
What each has to say of itself is worked out beside the call; first seen or again, in any order."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pardbg_agent.wire import Kind
from tests.unit.hooks.recorded import rank

Said = tuple[str, str, str, int, int, int]
"""op, dtype, reduction, root or peer (-1: none), bytes in, bytes out"""
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8)
REDUCTIONS = ("sum", "max", "min", "product")
WORLD, ME, NUM = 4, 1, 150


def _reduced(draw: random.Random) -> tuple[Any, str]:
    name = draw.choice(REDUCTIONS)
    return getattr(dist.ReduceOp, name.upper()), name


def _drawn(draw: random.Random, group: Any) -> tuple[Callable[[], Any], Said]:
    """A call and what must be recorded of it."""
    dtype, num = draw.choice(DTYPES), draw.randrange(1, 9)
    t = torch.zeros(num, dtype=dtype)
    one, name, root = t.nbytes, str(dtype).removeprefix("torch."), draw.randrange(WORLD)
    each = [torch.zeros_like(t) for _ in range(WORLD)]
    op, reduce = _reduced(draw)
    more = {"group": group, "async_op": draw.random() < 0.5}
    peer = draw.choice([r for r in range(WORLD) if r != ME])
    calls: dict[str, tuple[Callable[[], Any], Said]] = {
        "all_reduce": (lambda: dist.all_reduce(t, op, **more),
                       ("all_reduce", name, reduce, -1, one, one)),
        "broadcast": (lambda: dist.broadcast(t, root, **more),
                      ("broadcast", name, "", root, one, one)),
        "reduce": (lambda: dist.reduce(tensor=t, dst=root, op=op, **more),
                   ("reduce", name, reduce, root, one, one)),
        "all_gather": (lambda: dist.all_gather(each, t, **more),
                       ("all_gather", name, "", -1, one, WORLD * one)),
        "reduce_scatter": (lambda: dist.reduce_scatter(t, each, op, **more),
                           ("reduce_scatter", name, reduce, -1, WORLD * one, one)),
        "gather": (lambda: dist.gather(t, each if root == ME else None, root, **more),
                   ("gather", name, "", root, one, WORLD * one if root == ME else 0)),
        "scatter": (lambda: dist.scatter(t, each if root == ME else None, root, **more),
                    ("scatter", name, "", root, WORLD * one if root == ME else 0, one)),
        "all_to_all": (lambda: dist.all_to_all(each, [e.clone() for e in each], **more),
                       ("all_to_all", name, "", -1, WORLD * one, WORLD * one)),
        "send": (lambda: dist.send(t, peer, group), ("send", name, "", peer, one, one)),
        "recv": (lambda: dist.recv(t, peer, group), ("recv", name, "", peer, one, one)),
    }  # fmt: skip
    return calls[draw.choice(list(calls))]


@pytest.mark.parametrize("seed", range(3))
def test_every_op_says_what_it_is(watched: Path, seed: int) -> None:
    draw = random.Random(seed)
    groups = (None, dist.new_group(range(WORLD)))
    already, expected = len(rank(watched).of(Kind.OP_ISSUE)), []
    for _ in range(NUM):
        call, said = _drawn(draw, draw.choice(groups))
        work = call()
        if work is not None and hasattr(work, "wait"):
            work.wait()
        expected.append(said)
    issued = rank(watched).of(Kind.OP_ISSUE)[already:]
    seen = [(r.name, r.says[1], r.says[0], r.peer, int(r.a), r.b) for r in issued]
    assert seen == expected
