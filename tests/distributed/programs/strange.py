"""``strange.py KIND``: programs that reach torch by ways of their own, exact losses."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from tests.distributed.programs.sharded import batch, model, say, train


def sgd(net: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1)


class Reduced(torch.autograd.Function):
    """A collective of the program's own inside a backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        found = grads[0].clone()
        dist.all_reduce(found, group=ctx.group)
        return found, None


def backwards_in_threads() -> None:
    groups = [dist.new_group() for _ in range(2)]
    found = [0.0, 0.0]

    def backward(at: int) -> None:
        net = torch.nn.Linear(16, 4)
        torch.nn.init.constant_(net.weight, 0.5)
        Reduced.apply(net(batch(at)), groups[at]).sum().backward()
        assert net.weight.grad is not None
        found[at] = float(net.weight.grad.sum())

    threads = [threading.Thread(target=backward, args=(at,)) for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    say(" ".join(value.hex() for value in found))


def own_mode() -> None:
    """It sees each op, those of c10d too."""
    seen: list[str] = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(f))
            return f(*args, **(kwargs or {}))

    net = DistributedDataParallel(model())
    with Mode():
        train(net, sgd(net))
        dist.barrier()
    say(" ".join(seen))


def own_kernel() -> None:
    """Of a c10d op, above the agent's; it sees those that C++ issues, too."""
    calls, library = [], torch.library.Library("c10d", "IMPL")
    op = torch.ops.c10d.allreduce_.default
    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.AutogradCPU)

    def kernel(keyset: Any, *args: Any) -> Any:
        calls.append(1)
        return op.redispatch(keyset & below, *args)

    library.impl("allreduce_", kernel, "AutogradCPU", with_keyset=True)
    net = DistributedDataParallel(model())
    train(net, sgd(net))
    say(f"{len(calls)}")
    library._destroy()


def transforms() -> None:
    net = model()
    weights = {name: p.detach() for name, p in net.named_parameters()}

    def loss(of: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(net, of, (x,)).square().mean()

    for step in range(3):
        each = vmap(grad(loss), in_dims=(None, 0))(weights, batch(step))
        for name, found in each.items():
            mean = found.mean(0).contiguous()
            dist.all_reduce(mean)
            weights[name] = weights[name] - 0.1 * mean
        say(float(loss(weights, batch(step))).hex())


def inference() -> None:
    with torch.inference_mode():
        for step in range(3):
            y = model()(batch(step))
            dist.all_reduce(y)
            say(float(functional.all_reduce(y, "sum", dist.group.WORLD).sum()).hex())


def recomputed() -> None:
    """A collective in what is computed again."""

    def inner(x: Tensor) -> Tensor:
        total = (x * 2).detach()
        dist.all_reduce(total)
        return x.sin() * total

    x = torch.ones(4, requires_grad=True)
    for _ in range(3):
        checkpoint(inner, x, use_reentrant=False).sum().backward()
        assert x.grad is not None
        say(float(x.grad.sum()).hex())


def half(bucket: Tensor) -> Any:
    work = dist.all_reduce(bucket / 2, async_op=True)
    assert work is not None
    return work.get_future().then(lambda future: future.value()[0])


def hooks_of_ddp() -> None:
    net = DistributedDataParallel(model())
    # torch takes no annotation that is a string
    net.register_comm_hook(None, lambda _, bucket: half(bucket.buffer()))
    train(net, sgd(net))


def caught() -> None:
    """What c10d or the backend refuses, and ops of that kind afterwards."""
    for _ in range(2):
        try:
            dist.broadcast(torch.ones(2), src=7)
        except (RuntimeError, ValueError) as error:
            say("refused" if "root" in str(error) else str(error))
        t = torch.full((2,), float(dist.get_rank()))
        dist.broadcast(t, src=1)
        say(str(t.tolist()))


KINDS: dict[str, Callable[[], None]] = {
    "backwards": backwards_in_threads, "mode": own_mode, "kernel": own_kernel,
    "transforms": transforms, "inference": inference, "recomputed": recomputed,
    "comm hooks": hooks_of_ddp, "caught": caught,
}  # fmt: skip

if __name__ == "__main__":
    dist.init_process_group("gloo")
    KINDS[sys.argv[1]]()
    gc.collect()
    dist.destroy_process_group()
