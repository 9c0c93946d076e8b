"""What each c10d dispatcher op carries, and where in its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from pardbg_agent.hooks.tensors import bytes_of

Tensors = Sequence[Any]
Args = Sequence[Any]
Parts = Callable[[Args, int], Sequence[int]]
"""(arguments, number of ranks) -> bytes for each"""


@dataclass(frozen=True, slots=True)
class Spec:
    """One dispatcher op: our name for it, and the places of its arguments."""

    torch_name: str
    op: str
    tensors: Callable[[Args], tuple[Any, int, int]]
    """-> (one tensor of it or None, bytes in, bytes out)"""
    group: int
    root: int = -1
    """Place of the root rank, or of the peer of a p2p op."""
    tag: int = -1
    is_async: int = -1
    """Place of async_op, which is left out of the arguments where it is True."""
    p2p: bool = False
    send: bool = False
    future: bool = True
    """Its Work has a future on CPU backends that completes when the op does."""
    coalesced: bool = False
    reduces: bool = False
    functional: bool = False
    """torch._c10d_functional issues it too, and waits by output tensor."""
    parts: Parts | None = None
    """Bytes that go to each rank of the group, where that is more than one number."""


def num_bytes(tensors: Tensors) -> int:
    """Return the bytes of all tensors together."""
    if len(tensors) == 1:
        return int(tensors[0].nbytes)
    return sum(t.nbytes for t in tensors)


def whatever(args: Args) -> tuple[Any, int, int]:
    """Return (one tensor, bytes in, bytes out) of an op whose tensors have no single storage."""
    found = [t for arg in args for t in (arg if isinstance(arg, (list, tuple)) else (arg,))
             if isinstance(t, torch.Tensor)]  # fmt: skip
    total = sum(map(bytes_of, found))
    return (found[0] if found else None), total, total


def _in_place(args: Args) -> tuple[Any, int, int]:
    tensors = args[0]
    n = tensors[0].nbytes if len(tensors) == 1 else num_bytes(tensors)
    return (tensors[0] if tensors else None), n, n


def _two(args: Args) -> tuple[Any, int, int]:
    out, tensor = args[0], args[1]
    return tensor, tensor.nbytes, out.nbytes


def _lists(args: Args) -> tuple[Any, int, int]:
    outs, ins = args[0], args[1]
    return (ins or outs or (None,))[0], num_bytes(ins), num_bytes(outs)


def _many_out(args: Args) -> tuple[Any, int, int]:
    outs, ins = args[0], args[1]
    return (ins or (None,))[0], num_bytes(ins), sum(num_bytes(part) for part in outs)


def _many_in(args: Args) -> tuple[Any, int, int]:
    outs, ins = args[0], args[1]
    return (outs or (None,))[0], sum(num_bytes(part) for part in ins), num_bytes(outs)


def _parts_of_list(args: Args, num_ranks: int) -> Sequence[int]:
    return [t.nbytes for t in args[1]]


def _parts_of_one(args: Args, num_ranks: int) -> Sequence[int]:
    return parts_of(args[1], args[4], num_ranks)


def parts_of(tensor: Any, rows: Sequence[int], num_ranks: int) -> Sequence[int]:
    """Return the bytes of a tensor's parts along its first dimension: equal without ``rows``."""
    if not rows:
        return [tensor.nbytes // num_ranks] * num_ranks
    row = tensor.nbytes // max(1, tensor.shape[0])
    return [n * row for n in rows]


def _barrier(args: Args) -> tuple[Any, int, int]:
    return args[0], 0, 0


def inputs(spec: Spec, args: Args) -> Tensors:
    """Return the tensors whose values this rank gives to the op (none for a barrier)."""
    place = _INPUTS.get(spec.tensors)
    given = args[place] if place is not None else ()
    if not isinstance(given, (list, tuple)):
        return (given,)
    if given and isinstance(given[0], (list, tuple)):
        return [tensor for part in given for tensor in part]
    return given


def given(args: Args) -> tuple[Any, int, int]:
    """Return (a tensor, bytes in, bytes out) from the argument places of ``public``'s Specs."""
    return args[1], args[2], args[3]


_INPUTS: Final[dict[Callable[[Args], tuple[Any, int, int]], int]] = {
    _in_place: 0, _two: 1, _lists: 1, _many_out: 1, _many_in: 1, given: 0,
}  # fmt: skip
"""Places of the inputs, by where the Spec takes its tensors from."""

SPECS: Final = (
    Spec("allreduce_", "all_reduce", _in_place, 1, is_async=4, reduces=True, functional=True),
    Spec("allreduce_coalesced_", "all_reduce", _in_place, 1, is_async=3, reduces=True,
         functional=True, coalesced=True),
    Spec("broadcast_", "broadcast", _in_place, 1, root=2, is_async=4, functional=True),
    Spec("reduce_", "reduce", _in_place, 1, root=3, is_async=5, reduces=True),
    Spec("allgather_", "all_gather", _many_out, 2, is_async=3),
    Spec("_allgather_base_", "all_gather", _two, 2, is_async=3, functional=True),
    Spec("allgather_into_tensor_coalesced_", "all_gather", _lists, 2, is_async=3,
         functional=True, coalesced=True),
    Spec("allgather_coalesced_", "all_gather", _many_out, 2, is_async=3, coalesced=True),
    Spec("reduce_scatter_", "reduce_scatter", _many_in, 2, is_async=4, reduces=True, future=False),
    Spec("_reduce_scatter_base_", "reduce_scatter", _two, 2, is_async=4, reduces=True,
         functional=True, future=False),
    Spec("reduce_scatter_tensor_coalesced_", "reduce_scatter", _lists, 2, is_async=4, reduces=True,
         functional=True, future=False, coalesced=True),
    Spec("gather_", "gather", _many_out, 2, root=3, is_async=4),
    Spec("scatter_", "scatter", _many_in, 2, root=3, is_async=4),
    Spec("alltoall_", "all_to_all", _lists, 2, is_async=3, parts=_parts_of_list),
    Spec("alltoall_base_", "all_to_all", _two, 2, is_async=5, functional=True,
         parts=_parts_of_one),
    Spec("barrier", "barrier", _barrier, 1, is_async=3),
    Spec("send", "send", _in_place, 1, root=2, tag=3, p2p=True, send=True, future=False),
    Spec("recv_", "recv", _in_place, 1, root=2, tag=3, p2p=True, future=False),
    Spec("recv_any_source_", "recv", _in_place, 1, tag=2, p2p=True, future=False),
)  # fmt: skip
"""Every op that programs can reach. Both byte counts of a p2p op are the message's."""
