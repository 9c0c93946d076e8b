"""Tensors in the arguments of c10d ops, located by ``pardbg_agent.tables.c10d_ops``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from pardbg_agent.hooks.tensors import bytes_of
from pardbg_agent.tables.c10d_ops import C10dOp, Parts, Tensors

Args = Sequence[Any]
Contents = tuple[Any, int, int]
"""(one tensor of the op or None, bytes in, bytes out)"""


def contents_of(spec: C10dOp) -> Callable[[Args], Contents]:
    """Return the function that reads an op's Contents from its arguments. It raises RuntimeError
    or NotImplementedError for tensors without a single storage (see ``any_contents``)."""
    return _READERS[spec.tensors]


def any_contents(args: Args) -> Contents:
    """Return the Contents of an op with sparse or nested tensors."""
    found = [t for arg in args for t in (arg if isinstance(arg, (list, tuple)) else (arg,))
             if isinstance(t, torch.Tensor)]  # fmt: skip
    total = sum(map(bytes_of, found))
    return (found[0] if found else None), total, total


def inputs(spec: C10dOp, args: Args) -> Sequence[Any]:
    """Return the tensors whose values this rank gives to the op (none for a barrier)."""
    if spec.input < 0:
        return ()
    given = args[spec.input]
    if not isinstance(given, (list, tuple)):
        return (given,)
    if given and isinstance(given[0], (list, tuple)):
        return [tensor for part in given for tensor in part]
    return given


def bytes_per_rank(spec: C10dOp, args: Args, num_ranks: int, side: int = 1) -> Sequence[int]:
    """Return the bytes that an op with ``parts`` sends to each rank of the group; ``side`` 0: the
    bytes that it expects from each rank."""
    if spec.parts is Parts.TENSORS:
        return [t.nbytes for t in args[side]]
    tensor, rows = args[side], args[3 + side]
    if not rows:
        return [tensor.nbytes // num_ranks] * num_ranks
    row_bytes = tensor.nbytes // max(1, tensor.shape[0])
    return [n * row_bytes for n in rows]


def _num_bytes(tensors: Sequence[Any]) -> int:
    if len(tensors) == 1:
        return int(tensors[0].nbytes)
    return sum(t.nbytes for t in tensors)


def _in_place(args: Args) -> Contents:
    tensors = args[0]
    n = tensors[0].nbytes if len(tensors) == 1 else _num_bytes(tensors)
    return (tensors[0] if tensors else None), n, n


def _single(args: Args) -> Contents:
    out, tensor = args[0], args[1]
    return tensor, tensor.nbytes, out.nbytes


def _lists(args: Args) -> Contents:
    outs, ins = args[0], args[1]
    return (ins or outs or (None,))[0], _num_bytes(ins), _num_bytes(outs)


def _many_out(args: Args) -> Contents:
    outs, ins = args[0], args[1]
    return (ins or (None,))[0], _num_bytes(ins), sum(_num_bytes(part) for part in outs)


def _many_in(args: Args) -> Contents:
    outs, ins = args[0], args[1]
    return (outs or (None,))[0], sum(_num_bytes(part) for part in ins), _num_bytes(outs)


_READERS: Final = {
    Tensors.NONE: lambda args: (args[0], 0, 0), Tensors.IN_PLACE: _in_place,
    Tensors.SINGLE: _single, Tensors.LISTS: _lists, Tensors.MANY_OUT: _many_out,
    Tensors.MANY_IN: _many_in,
}  # fmt: skip
