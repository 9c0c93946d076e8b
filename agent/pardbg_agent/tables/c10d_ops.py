"""Ops of torch.distributed: one table, read by all parts that need to know them.

``KINDS`` has the rules that ranks must agree on, by the op's name in records. ``C10D_OPS`` has a
row per dispatcher op of torch: its kind and the places of its arguments. The hooks in Python read
their arguments by it, and C++ gets the same rows when the hooks are installed. Standard library
only."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final


class Side(enum.Enum):
    """Bytes of an op that must be equal on all ranks of the group."""

    IN = "in"
    OUT = "out"
    SHARES = "shares"
    """Output, and input unless the shares add up to the output."""
    NEITHER = "neither"


class Traffic(enum.Enum):
    """Bytes on the busiest link, as a multiple of the op's bytes (nccl-tests)."""

    NONE = "none"
    SHARE = "share"
    """(n-1)/n"""
    TWO_SHARES = "two shares"
    """2(n-1)/n"""
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class OpKind:
    """Kind of op, whatever torch function issues it."""

    name: str
    label: str
    """Two or three letters where there is no room for the name; empty: none."""
    traffic: Traffic
    equal: Side = Side.IN
    rooted: bool = False
    """Whether all ranks of the group must name the same root."""


_KINDS: Final = (
    OpKind("all_reduce", "AR", Traffic.TWO_SHARES),
    OpKind("broadcast", "BC", Traffic.WHOLE, rooted=True),
    OpKind("reduce", "RE", Traffic.WHOLE, rooted=True),
    OpKind("all_gather", "AG", Traffic.SHARE, Side.SHARES),
    OpKind("reduce_scatter", "RS", Traffic.SHARE),
    OpKind("gather", "GA", Traffic.SHARE, rooted=True),
    OpKind("scatter", "SC", Traffic.SHARE, Side.OUT, rooted=True),
    OpKind("all_to_all", "A2A", Traffic.SHARE, Side.NEITHER),
    OpKind("barrier", "BA", Traffic.NONE, Side.NEITHER),
    OpKind("monitored_barrier", "", Traffic.NONE, Side.NEITHER),
    OpKind("send", "", Traffic.WHOLE),
    OpKind("recv", "", Traffic.WHOLE),
)
KINDS: Final = {kind.name: kind for kind in _KINDS}
"""Kinds of ops by name."""
_OTHER: Final = OpKind("", "", Traffic.WHOLE)


def kind_of(name: str) -> OpKind:
    """Return the kind of an op by its name in records; a generic kind for an unknown name."""
    return KINDS.get(name, _OTHER)


class Tensors(enum.Enum):
    """Layout of an op's tensors in its arguments."""

    NONE = "none"
    """Tensors of a barrier, which only give the device and carry no data."""
    IN_PLACE = "in place"
    """One list, which is input and output."""
    SINGLE = "single"
    LISTS = "lists"
    MANY_OUT = "many out"
    """One list as input, a list of lists as output."""
    MANY_IN = "many in"


class Parts(enum.Enum):
    """Argument that gives the bytes for each rank of the group."""

    TENSORS = "tensors"
    """One tensor per rank."""
    ROWS = "rows"
    """Numbers of rows of the one tensor per rank; empty: equal parts."""


@dataclass(frozen=True, slots=True)
class C10dOp:
    """Dispatcher op of torch. Places are those of its arguments; -1: it has no such argument."""

    torch_name: str
    kind: str
    """Name of the op's OpKind."""
    tensors: Tensors
    group: int
    """Place of the process group."""
    root: int = -1
    """Place of the root, or of a p2p op's peer: a group rank."""
    tag: int = -1
    is_async: int = -1
    """Place of async_op, which is absent from the arguments if it is True."""
    reduce: int = -1
    """Place of the reduction."""
    p2p: bool = False
    send: bool = False
    future: bool = True
    """Whether the Work has a future on CPU backends that completes when the op does."""
    coalesced: bool = False
    functional: bool = False
    """Whether torch._c10d_functional issues it too, and waits by output tensor."""
    parts: Parts | None = None
    methods: tuple[str, ...] = ()
    """Methods of ProcessGroup that issue the op, in any version of torch."""

    @property
    def input(self) -> int:
        """Place of the input; -1: no input that counts."""
        if self.tensors is Tensors.NONE:
            return -1
        return 0 if self.tensors is Tensors.IN_PLACE else 1

    @property
    def output(self) -> int:
        """Place of the output; -1: no output that counts. Read by native/module.hpp."""
        return -1 if self.tensors is Tensors.NONE else 0

    @property
    def gathers(self) -> bool:
        """Whether each rank's input goes to others as it is, and is at hand before the op."""
        whole = self.tensors in (Tensors.SINGLE, Tensors.MANY_OUT) and not self.coalesced
        return whole and self.kind in ("all_gather", "all_to_all")

    @property
    def probed(self) -> bool:
        """Whether NaN in its input spreads, and its input is at hand before the op: an input of
        lists per rank is not read."""
        reduces = self.reduce >= 0 and self.tensors is not Tensors.MANY_IN
        return self.send or self.gathers or reduces


def _p2p(torch_name: str, kind: str, root: int, tag: int, method: str) -> C10dOp:
    return C10dOp(torch_name, kind, Tensors.IN_PLACE, 1, root=root, tag=tag, p2p=True,
                  send=kind == "send", future=False, methods=(method,))  # fmt: skip


C10D_OPS: Final = (
    C10dOp("allreduce_", "all_reduce", Tensors.IN_PLACE, 1, is_async=4, reduce=2, functional=True,
           methods=("allreduce",)),
    C10dOp("allreduce_coalesced_", "all_reduce", Tensors.IN_PLACE, 1, is_async=3, reduce=2,
           functional=True, coalesced=True, methods=("allreduce_coalesced",)),
    C10dOp("broadcast_", "broadcast", Tensors.IN_PLACE, 1, root=2, is_async=4, functional=True,
           methods=("broadcast",)),
    C10dOp("reduce_", "reduce", Tensors.IN_PLACE, 1, root=3, is_async=5, reduce=2,
           methods=("reduce",)),
    C10dOp("allgather_", "all_gather", Tensors.MANY_OUT, 2, is_async=3, methods=("allgather",)),
    C10dOp("_allgather_base_", "all_gather", Tensors.SINGLE, 2, is_async=3, functional=True,
           methods=("_allgather_base", "all_gather_single")),
    C10dOp("allgather_into_tensor_coalesced_", "all_gather", Tensors.LISTS, 2, is_async=3,
           functional=True, coalesced=True,
           methods=("allgather_into_tensor_coalesced", "all_gather_single_coalesced")),
    C10dOp("allgather_coalesced_", "all_gather", Tensors.MANY_OUT, 2, is_async=3, coalesced=True,
           methods=("allgather_coalesced",)),
    C10dOp("reduce_scatter_", "reduce_scatter", Tensors.MANY_IN, 2, is_async=4, reduce=3,
           future=False, methods=("reduce_scatter",)),
    C10dOp("_reduce_scatter_base_", "reduce_scatter", Tensors.SINGLE, 2, is_async=4, reduce=3,
           functional=True, future=False,
           methods=("_reduce_scatter_base", "reduce_scatter_single")),
    C10dOp("reduce_scatter_tensor_coalesced_", "reduce_scatter", Tensors.LISTS, 2, is_async=4,
           reduce=3, functional=True, future=False, coalesced=True,
           methods=("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced")),
    C10dOp("gather_", "gather", Tensors.MANY_OUT, 2, root=3, is_async=4, methods=("gather",)),
    C10dOp("scatter_", "scatter", Tensors.MANY_IN, 2, root=3, is_async=4, methods=("scatter",)),
    C10dOp("alltoall_", "all_to_all", Tensors.LISTS, 2, is_async=3, parts=Parts.TENSORS,
           methods=("alltoall",)),
    C10dOp("alltoall_base_", "all_to_all", Tensors.SINGLE, 2, is_async=5, functional=True,
           parts=Parts.ROWS, methods=("alltoall_base", "all_to_all_single")),
    C10dOp("barrier", "barrier", Tensors.NONE, 1, is_async=3, methods=("barrier",)),
    _p2p("send", "send", 2, 3, "send"),
    _p2p("recv_", "recv", 2, 3, "recv"),
    _p2p("recv_any_source_", "recv", -1, 2, "recv_anysource"),
)  # fmt: skip
"""Every op that programs can reach. Both byte counts of a p2p op are the message's."""
MONITORED_BARRIER: Final = C10dOp(
    "monitored_barrier", "monitored_barrier", Tensors.NONE, 1, is_async=2
)
"""gloo's own op, which bypasses the dispatcher: (None, group, async_op)."""

_PYTHON_NAMES: Final = {
    "all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter",
    "all_gather": "all_gather", "all_reduce": "all_reduce", "all_to_all": "all_to_all",
}  # fmt: skip
_BY_ANY_NAME: Final = {
    name: op.kind for op in C10D_OPS for name in (op.torch_name.rstrip("_"), *op.methods)
} | {"all_to_all_base": "all_to_all", **_PYTHON_NAMES}


def kind_named(name: str) -> str:
    """Return the name in records for torch's own name of an op; unknown names as they are."""
    return _BY_ANY_NAME.get(name, name)
