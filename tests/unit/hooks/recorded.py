"""What a test reads of the ring of its own process, and options of ops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pardbg_agent.wire import Kind
from tests.distributed.programs.watched import Rank, read_rank

SAYS_ASYNC = len(torch.ops.c10d.allreduce_.default._schema.arguments) > 5
"""From torch 2.7 on an op says whether it is asynchronous; before, each counts as it."""


def ops(path: Path) -> list[tuple[str, int, int, int, int]]:
    """(op, seq, peer, bytes in, bytes out) of every issue, in order."""
    return [(r.name, r.seq, r.peer, int(r.a), r.b) for r in read_rank(path).of(Kind.OP_ISSUE)]


def rank(path: Path) -> Rank:
    return read_rank(path)


def options(name: str) -> Any:
    return getattr(torch._C._distributed_c10d, name)()
