"""The table's rows: every way to wait for other ranks that torch.distributed offers.

A row is a generator that all ranks of a trio run: what is set up before, ``yield``, where the one
that sleeps falls asleep, and the wait. ``covers`` names the public API in which the others stand.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Trio:
    """Three ranks with a group of their own; one of them sleeps in each row."""

    group: Any
    ranks: tuple[int, ...]
    me: int
    """0..2; the rank's place."""
    sleeper: int

    @property
    def asleep(self) -> int:
        """The sleeper's global rank."""
        return self.ranks[self.sleeper]

    @property
    def waiter(self) -> int:
        """The global rank of one that waits."""
        return self.ranks[(self.sleeper + 1) % 3]

    @property
    def sleeps(self) -> bool:
        return self.me == self.sleeper

    @property
    def waits(self) -> bool:
        """Whether this rank is ``waiter``."""
        return self.ranks[self.me] == self.waiter

    @property
    def mesh(self) -> DeviceMesh:
        return DeviceMesh.from_group(self.group, "cpu")


Row = Callable[[Trio], Iterator[None]]
ROWS: Final[dict[str, Row]] = {}
COVERS: Final[dict[str, tuple[str, ...]]] = {}
"""Row -> public names that it stands in."""


HOLDERS: Final[dict[str, object]] = {
    "": dist, "functional": functional, "futures": torch.futures, "Work": dist.Work,
    "Future": torch.futures.Future,
}  # fmt: skip


def is_there(public: str) -> bool:
    """Return whether this torch has a public name, as far as releases differ: classes they all
    have."""
    holder, _, name = public.rpartition(".")
    return name[:1].isupper() or holder not in HOLDERS or hasattr(HOLDERS[holder], name)


def row(*covers: str) -> Callable[[Row], Row]:
    """One more row of the table, where this torch has the first of what it covers: the op of the
    row, which others are names of."""

    def add(function: Row) -> Row:
        if all(map(is_there, covers[:1])):
            name = function.__name__.strip("_")
            ROWS[name], COVERS[name] = function, covers
        return function

    return add


def call(name: str, wait: Callable[[Trio], object], *covers: str) -> None:
    """One more row: a call that issues and waits."""

    def run(trio: Trio) -> Iterator[None]:
        yield
        wait(trio)

    run.__name__ = name
    row(*covers)(run)


def ones(number: int = 6) -> torch.Tensor:
    return torch.ones(number)


def parts(number: int = 6) -> list[torch.Tensor]:
    return [torch.ones(number) for _ in range(3)]


# -- collectives whose call returns when the op is complete
call("all_reduce", lambda t: dist.all_reduce(ones(), group=t.group), "all_reduce")
call("broadcast", lambda t: dist.broadcast(ones(), t.asleep, group=t.group), "broadcast")
call("reduce", lambda t: dist.reduce(ones(), t.waiter, group=t.group), "reduce")
call("all_gather", lambda t: dist.all_gather(parts(), ones(), group=t.group), "all_gather")
call("all_gather_into_tensor", lambda t: dist.all_gather_into_tensor(
    ones(18), ones(), group=t.group), "all_gather_into_tensor")  # fmt: skip
call("reduce_scatter", lambda t: dist.reduce_scatter(
    ones(), parts(), group=t.group), "reduce_scatter")  # fmt: skip
call("reduce_scatter_tensor", lambda t: dist.reduce_scatter_tensor(
    ones(), ones(18), group=t.group), "reduce_scatter_tensor")  # fmt: skip
call("all_gather_single", lambda t: dist.all_gather_single(
    ones(18), ones(), group=t.group), "all_gather_single")  # fmt: skip
call("reduce_scatter_single", lambda t: dist.reduce_scatter_single(
    ones(), ones(18), group=t.group), "reduce_scatter_single")  # fmt: skip
call("gather", lambda t: dist.gather(
    ones(), parts() if t.waits else None, t.waiter, group=t.group), "gather")  # fmt: skip
call("scatter", lambda t: dist.scatter(
    ones(), parts() if t.sleeps else None, t.asleep, group=t.group), "scatter")  # fmt: skip
call("all_to_all", lambda t: dist.all_to_all(parts(), parts(), group=t.group), "all_to_all")
call("all_to_all_single", lambda t: dist.all_to_all_single(
    ones(), ones(), group=t.group), "all_to_all_single")  # fmt: skip
call("barrier", lambda t: dist.barrier(group=t.group), "barrier")
call("monitored_barrier", lambda t: dist.monitored_barrier(t.group), "monitored_barrier")
call("all_gather_object", lambda t: dist.all_gather_object(
    [None] * 3, "x", group=t.group), "all_gather_object")  # fmt: skip
call("broadcast_object_list", lambda t: dist.broadcast_object_list(
    ["x"], t.asleep, group=t.group), "broadcast_object_list")  # fmt: skip
call("gather_object", lambda t: dist.gather_object(
    "x", [None] * 3 if t.waits else None, t.waiter, group=t.group), "gather_object")  # fmt: skip
call("scatter_object_list", lambda t: dist.scatter_object_list(
    [None], ["a", "b", "c"], t.asleep, group=t.group), "scatter_object_list")  # fmt: skip


# -- messages
@row("recv", "send")
def recv(t: Trio) -> Iterator[None]:
    yield
    if t.sleeps:
        dist.send(ones(), t.waiter, group=t.group)
    if t.waits:
        dist.recv(ones(), t.asleep, group=t.group)


@row("recv_object_list", "send_object_list")
def recv_object_list(t: Trio) -> Iterator[None]:
    yield
    if t.sleeps:
        dist.send_object_list(["x"], t.waiter, group=t.group)
    if t.waits:
        dist.recv_object_list([None], t.asleep, group=t.group)


@row("irecv", "isend", "Work.wait")
def irecv(t: Trio) -> Iterator[None]:
    yield
    if t.sleeps:
        work = dist.isend(ones(), t.waiter, group=t.group)
        assert work is not None
        work.wait()
    if t.waits:
        work = dist.irecv(ones(), t.asleep, group=t.group)
        assert work is not None
        work.wait()


@row("isend", "Work.wait")
def isend_large(t: Trio) -> Iterator[None]:
    """Too large for a buffer: the sender waits for the receiver."""
    yield
    many = ones(1 << 22)
    if t.waits:
        work = dist.isend(many, t.asleep, group=t.group)
        assert work is not None
        work.wait()
    if t.sleeps:
        dist.recv(many, t.waiter, group=t.group)


@row("batch_isend_irecv", "P2POp")
def batch_isend_irecv(t: Trio) -> Iterator[None]:
    """A ring: each sends to the next one and receives from the one before."""
    yield
    after, before = t.ranks[(t.me + 1) % 3], t.ranks[(t.me + 2) % 3]
    ops = [
        dist.P2POp(dist.isend, ones(), after, group=t.group),
        dist.P2POp(dist.irecv, ones(), before, group=t.group),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


# -- asynchronous ops, and how one waits for them
def issued(t: Trio) -> Any:
    return dist.all_reduce(ones(), group=t.group, async_op=True)


call("wait", lambda t: issued(t).wait(), "Work.wait")
call("wait_with_timeout", lambda t: issued(t).wait(timeout=dist.default_pg_timeout), "Work.wait")
call("future_wait", lambda t: issued(t).get_future().wait(), "Work.get_future", "Future.wait")
call("future_then", lambda t: issued(t).get_future().then(lambda f: f.value()).wait(),
     "Future.then", "Future.value")  # fmt: skip
call("collect_all", lambda t: torch.futures.collect_all([issued(t).get_future()]).wait(),
     "futures.collect_all")  # fmt: skip
call("wait_all", lambda t: torch.futures.wait_all([issued(t).get_future()]), "futures.wait_all")


@row("Work.wait")
def wait_elsewhere(t: Trio) -> Iterator[None]:
    """Issued before everybody else does something, and waited for later."""
    yield
    work = issued(t)
    for _ in range(3):
        torch.ones(100, 100) @ torch.ones(100, 100)
    _settle(work)


def _settle(work: Any) -> None:
    work.wait()


@row("Work.wait")
def wait_in_thread(t: Trio) -> Iterator[None]:
    yield
    thread = threading.Thread(target=lambda: issued(t).wait(), name="exchange")
    thread.start()
    thread.join()


@row("all_reduce_coalesced")
def all_reduce_coalesced(t: Trio) -> Iterator[None]:
    yield
    dist.all_reduce_coalesced([ones(), ones()], group=t.group)


@row("all_gather_coalesced")
def all_gather_coalesced(t: Trio) -> Iterator[None]:
    yield
    dist.all_gather_coalesced([[ones()], [ones()], [ones()]], [ones()], group=t.group)


@row("_coalescing_manager")
def coalescing_manager(t: Trio) -> Iterator[None]:
    yield
    with dist._coalescing_manager(t.group, async_ops=True) as manager:
        dist.all_reduce(ones(), group=t.group)
        dist.all_reduce(ones(), group=t.group)
    manager.wait()


# -- functional collectives
call("functional_wait_tensor", lambda t: functional.wait_tensor(
    functional.all_reduce(ones(), "sum", t.group)), "functional.wait_tensor")  # fmt: skip
call("functional_used", lambda t: functional.all_reduce(ones(), "sum", t.group) + 1,
     "functional.all_reduce")  # fmt: skip
call("functional_op", lambda t: torch.ops._c10d_functional.wait_tensor(
    torch.ops._c10d_functional.all_reduce(ones(), "sum", t.group.group_name)),
    "_c10d_functional.wait_tensor")  # fmt: skip
call("functional_all_gather", lambda t: functional.all_gather_tensor(ones(), 0, t.group) + 1,
     "functional.all_gather_tensor")  # fmt: skip
call("functional_reduce_scatter", lambda t: functional.reduce_scatter_tensor(
    ones(), "sum", 0, t.group) + 1, "functional.reduce_scatter_tensor")  # fmt: skip
call("functional_all_to_all", lambda t: functional.all_to_all_single(
    ones(), [2] * 3, [2] * 3, t.group) + 1, "functional.all_to_all_single")  # fmt: skip
call("functional_coalesced", lambda t: functional.all_reduce_coalesced(
    [ones(), ones()], "sum", t.group)[1] + 1, "functional.all_reduce_coalesced")  # fmt: skip
call("functional_broadcast", lambda t: functional.broadcast(ones(), t.sleeper, t.group) + 1,
     "functional.broadcast")  # fmt: skip
call("functional_permute", lambda t: functional.permute_tensor(ones(), [1, 2, 0], t.group) + 1,
     "functional.permute_tensor")  # fmt: skip
call("functional_all_gather_coalesced", lambda t: functional.all_gather_into_tensor_coalesced(
    [ones(), ones()], t.group)[1] + 1, "functional.all_gather_into_tensor_coalesced",
    "functional.all_gather_single_coalesced")  # fmt: skip
call("functional_reduce_scatter_coalesced", lambda t: functional.reduce_scatter_tensor_coalesced(
    [ones(), ones()], "sum", [0, 0], t.group)[1] + 1, "functional.reduce_scatter_tensor_coalesced",
    "functional.reduce_scatter_single_coalesced")  # fmt: skip


@row("functional.irecv_inplace", "functional.isend_inplace")
def functional_irecv(t: Trio) -> Iterator[None]:
    """torch takes ranks in the group here."""
    yield
    if t.sleeps:
        functional.isend_inplace(ones(), (t.sleeper + 1) % 3, 0, t.group) + 1
    if t.waits:
        functional.irecv_inplace(ones(), t.sleeper, 0, t.group) + 1


@row("functional.batch_p2p_ops_inplace")
def functional_batch_p2p(t: Trio) -> Iterator[None]:
    yield
    peers = [(t.me + 1) % 3, (t.me + 2) % 3]
    for part in functional.batch_p2p_ops_inplace(
        ["isend", "irecv"], peers, [0, 0], [ones(), ones()], t.group
    ):
        part + 1


# -- what wraps a model, an optimizer or a tensor
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))


@row("DistributedDataParallel")
def ddp_wraps(t: Trio) -> Iterator[None]:
    yield
    DistributedDataParallel(model(), process_group=t.group)


@row("DistributedDataParallel.forward")
def ddp_buffers(t: Trio) -> Iterator[None]:
    wrapped = DistributedDataParallel(model(), process_group=t.group)
    wrapped(torch.ones(4, 6)).sum().backward()
    yield
    wrapped(torch.ones(4, 6))


@row("DistributedDataParallel.backward")
def ddp_backward(t: Trio) -> Iterator[None]:
    wrapped = DistributedDataParallel(nn.Linear(6, 6), process_group=t.group)
    loss = wrapped(torch.ones(4, 6)).sum()
    yield
    loss.backward()


@row("DistributedDataParallel.join")
def ddp_join(t: Trio) -> Iterator[None]:
    wrapped = DistributedDataParallel(nn.Linear(6, 6), process_group=t.group)
    yield
    with wrapped.join():
        wrapped(torch.ones(4, 6)).sum().backward()


@row("ZeroRedundancyOptimizer.step")
def zero_step(t: Trio) -> Iterator[None]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6))
    optimizer = ZeroRedundancyOptimizer(
        net.parameters(), torch.optim.SGD, process_group=t.group, lr=0.1
    )
    net(torch.ones(4, 6)).sum().backward()
    yield
    optimizer.step()


def fsdp1(t: Trio) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    cpu = torch.device("cpu")
    return FullyShardedDataParallel(nn.Linear(6, 6), process_group=t.group, device_id=cpu)


def fsdp2(t: Trio) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    return fully_shard(nn.Linear(6, 6), mesh=t.mesh)


@row("FullyShardedDataParallel.forward")
def fsdp1_forward(t: Trio) -> Iterator[None]:
    wrapped = fsdp1(t)
    yield
    wrapped(torch.ones(4, 6))


@row("FullyShardedDataParallel.backward")
def fsdp1_backward(t: Trio) -> Iterator[None]:
    wrapped = fsdp1(t)
    loss = wrapped(torch.ones(4, 6)).sum()
    yield
    loss.backward()


@row("fully_shard.forward")
def fsdp2_forward(t: Trio) -> Iterator[None]:
    net = fsdp2(t)
    yield
    net(torch.ones(4, 6))


@row("fully_shard.backward")
def fsdp2_backward(t: Trio) -> Iterator[None]:
    net = fsdp2(t)
    loss = net(torch.ones(4, 6)).sum()
    yield
    loss.backward()


def placed(t: Trio) -> Any:
    from torch.distributed.tensor import Shard, distribute_tensor

    return distribute_tensor(ones(), t.mesh, [Shard(0)], src_data_rank=t.sleeper)


@row("tensor.distribute_tensor")
def dtensor_distribute(t: Trio) -> Iterator[None]:
    yield
    placed(t)


@row("DTensor.redistribute")
def dtensor_redistribute(t: Trio) -> Iterator[None]:
    from torch.distributed.tensor import Replicate

    tensor = placed(t)
    yield
    tensor.redistribute(placements=[Replicate()]).to_local() + 1


@row("DTensor.full_tensor")
def dtensor_full_tensor(t: Trio) -> Iterator[None]:
    tensor = placed(t)
    yield
    tensor.full_tensor()


# -- the set-up's own
@row("new_group")
def new_group(t: Trio) -> Iterator[None]:
    yield
    dist.new_group(list(t.ranks), use_local_synchronization=True)
