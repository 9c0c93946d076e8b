"""Every hooked call in every form that Python and torch allow: none may break a hook, and each
does what it does without one."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
from torch import nn
from torch.distributed import rpc
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import pardbg_agent
from pardbg_agent import core, hooks
from pardbg_agent.hooks.comm import host_calls
from pardbg_agent.life import calls
from pardbg_agent.wire import Kind
from tests.distributed.programs.watched import make_run, read_rank


@pytest.fixture(scope="module")
def c(tmp_path_factory: pytest.TempPathFactory) -> Iterator[core.Core]:
    """Hooks in place around a real gloo group of this one process."""
    patch = pytest.MonkeyPatch()
    patch.setenv("PARDBG", make_run(tmp_path_factory.mktemp("forms"))["PARDBG"])
    hooks.install()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield core.ensure()
    dist.destroy_process_group()
    hooks.uninstall()
    core.shutdown()
    patch.undo()


class Sub(torch.Tensor):
    """A tensor subclass that says nothing of its own."""


def dense() -> torch.Tensor:
    return torch.arange(6.0).reshape(2, 3)


TENSORS: dict[str, Callable[[], Any]] = {
    "dense": dense,
    "subclass": lambda: dense().as_subclass(Sub),
    "parameter": lambda: nn.Parameter(dense(), requires_grad=False),
    "view": lambda: dense()[1],
    "empty": lambda: torch.empty(0),
    "scalar": lambda: torch.tensor(2.0),
    "whole numbers": lambda: torch.arange(4),
    "bfloat16": lambda: dense().bfloat16(),
    "complex": lambda: torch.complex(dense(), dense()),
    "sparse": lambda: dense().to_sparse(),
}
OPS: dict[str, Callable[[Any], Any]] = {
    "all_reduce by place": lambda t: dist.all_reduce(t, dist.ReduceOp.SUM, None, False),
    "all_reduce by name": lambda t: dist.all_reduce(
        tensor=t, op=dist.ReduceOp.SUM, group=dist.group.WORLD, async_op=False
    ),
    "all_reduce async": lambda t: dist.all_reduce(tensor=t, async_op=True).wait(),
    "broadcast by name": lambda t: dist.broadcast(tensor=t, src=0),
    "broadcast from nobody": lambda t: dist.broadcast(t, src=7),
    "reduce": lambda t: dist.reduce(t, dst=0),
    "all_gather": lambda t: dist.all_gather([torch.empty_like(t)], t),
    "barrier": lambda t: dist.barrier(group=None, async_op=False),
    "objects": lambda t: dist.broadcast_object_list(object_list=[1, "a"], src=0),
}


@pytest.mark.parametrize("tensor", TENSORS)
@pytest.mark.parametrize("op", OPS)
def test_collectives(c: core.Core, op: str, tensor: str) -> None:
    """In a group of one nothing changes a tensor; what gloo refuses stays refused."""
    made = TENSORS[tensor]()
    before = made.to_dense().clone()
    with contextlib.suppress(RuntimeError, ValueError, TypeError, NotImplementedError):
        OPS[op](made)
    assert torch.equal(made.to_dense(), before)
    assert c.guard.disabled == set()


def weight() -> nn.Parameter:
    return nn.Parameter(torch.ones(3))


def loss(w: Any) -> Any:
    return (w * torch.tensor([1.0, 2.0, 3.0])).sum()


def _scaled(scale: Callable[[Any], Any]) -> None:
    w = weight()
    scale(loss(w)).backward()


def _vector(w: Any) -> None:
    (w * 2).backward(gradient=torch.ones(3))


BACKWARDS: dict[str, Callable[[Any], Any]] = {
    "method": lambda w: loss(w).backward(),
    "method by name": lambda w: loss(w).backward(gradient=None, retain_graph=True),
    "function by place": lambda w: torch.autograd.backward(loss(w)),
    "function by name": lambda w: torch.autograd.backward(tensors=loss(w), grad_tensors=None),
    "a list": lambda w: torch.autograd.backward([loss(w), loss(w)]),
    "a tuple by name": lambda w: torch.autograd.backward(tensors=(loss(w),)),
    "a vector": _vector,
    "a subclass": lambda w: loss(w).as_subclass(Sub).backward(),
    "inputs": lambda w: torch.autograd.backward(loss(w), inputs=[w]),
    "divided": lambda w: (loss(w) / 4).backward(),
    "divided by a tensor": lambda w: (loss(w) / w.detach().sum()).backward(),
    "complex": lambda w: torch.view_as_real(w * 1j).sum().backward(),
    "a complex number": lambda w: (loss(w) * 1j).backward(torch.ones((), dtype=torch.complex64)),
    "hooks of a tensor": lambda w: loss(w).register_hook(lambda g: None) and None,
}


@pytest.mark.parametrize("form", BACKWARDS)
def test_backward(c: core.Core, form: str) -> None:
    BACKWARDS[form](weight())
    assert c.guard.disabled == set()


SCALES: dict[str, Callable[[Any, Any], Any]] = {
    "by place": lambda s, value: s.scale(value),
    "by name": lambda s, value: s.scale(outputs=value),
    "a list": lambda s, value: s.scale([value])[0],
}


@pytest.mark.parametrize("form", SCALES)
def test_gradient_scaler(c: core.Core, form: str) -> None:
    scaler = torch.amp.GradScaler("cpu", enabled=True)
    _scaled(functools.partial(SCALES[form], scaler))
    assert c.guard.disabled == set()


def _sparse(w: Any) -> Any:
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1, 3])).sum().backward()
    return table.weight


def _used(w: Any) -> Any:
    loss(w).backward()
    return w


def _mixed() -> list[Any]:
    """One with a gradient, one without."""
    return [_used(weight()), weight()]


def _closure() -> float:
    return 1.0


STEPS: dict[str, Callable[[], Any]] = {
    "plain": lambda: torch.optim.SGD(_mixed(), lr=0.1).step(),
    "by name": lambda: torch.optim.SGD(params=_mixed(), lr=0.1).step(closure=None),
    "a closure": lambda: torch.optim.SGD(_mixed(), lr=0.1).step(_closure),
    "a closure by name": lambda: torch.optim.SGD(_mixed(), lr=0.1).step(closure=_closure),
    "sparse gradients": lambda: torch.optim.SparseAdam([_sparse(None)]).step(),
    "groups": lambda: torch.optim.Adam([{"params": _mixed()}, {"params": [weight()]}]).step(),
    "state of any shape": lambda: torch.optim.LBFGS([_used(weight())]).step(lambda: loss(weight())),
    "no gradients": lambda: torch.optim.AdamW([weight()]).step(),
    "fused": lambda: torch.optim.Adam([_used(weight())], fused=True).step(),
}


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")  # torch 2.8's LBFGS
@pytest.mark.parametrize("form", STEPS)
def test_optimizer_step(c: core.Core, form: str) -> None:
    steps = len(read_rank(Path(str(c.ring.path))).of(Kind.STEP))
    c.step = 0  # sizes are counted in the first steps
    STEPS[form]()
    assert c.guard.disabled == set()
    assert len(read_rank(Path(str(c.ring.path))).of(Kind.STEP)) >= steps


DDPS: dict[str, Callable[[Any], Any]] = {
    "by place": lambda m: DistributedDataParallel(m),
    "by name": lambda m: DistributedDataParallel(module=m, device_ids=None),
    "a subclass": lambda m: type("Mine", (DistributedDataParallel,), {})(module=m),
}


@pytest.mark.parametrize("form", DDPS)
def test_wrapped_models(c: core.Core, form: str) -> None:
    model = DDPS[form](nn.Linear(3, 1))
    model(torch.ones(1, 3)).sum().backward()
    model.forward(torch.ones(1, 3))
    assert c.guard.disabled == set()


def test_saved_tensors_of_any_kind(c: core.Core) -> None:
    """Sparse operands are saved for backward in a sampled step."""
    c.step = 1
    model = DistributedDataParallel(nn.Linear(3, 3))
    x = model(torch.ones(1, 3))
    torch.sparse.mm(torch.eye(3).to_sparse(), x.T).sum().backward()

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor, *, sparse: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = torch.sparse.mm(sparse, self.inner(x).T)
            return made

    c.step = 1
    wrapped = DistributedDataParallel(Around())
    wrapped(torch.ones(1, 3), sparse=torch.eye(3).to_sparse()).sum().backward()
    assert c.guard.disabled == set()


def test_loaders(c: core.Core) -> None:
    for kwargs in ({"batch_size": 2}, {"batch_size": None}):
        assert list(iter(DataLoader(TensorDataset(torch.arange(4)), **kwargs)))
    assert c.guard.disabled == set()


@pytest.fixture(scope="module")
def worker(c: core.Core, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """This process as the one RPC worker."""
    store = tmp_path_factory.mktemp("rpc") / "store"
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{store}")  # type: ignore[attr-defined]
    with warnings.catch_warnings():  # of torch about itself
        warnings.simplefilter("ignore")
        rpc.init_rpc(name="me", rank=0, world_size=1, rpc_backend_options=options)
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rpc.shutdown()


ARGS = (torch.ones(2), torch.ones(2))
TWO = torch.full((2,), 2.0)
REMOTE: dict[str, Callable[[], Any]] = {
    "by place": lambda: rpc.rpc_sync("me", torch.add, ARGS),
    "by name": lambda: rpc.rpc_sync(to="me", func=torch.add, args=ARGS, kwargs=None, timeout=30),
    "to a number": lambda: rpc.rpc_sync(0, torch.add, args=ARGS),
    "to a worker": lambda: rpc.rpc_sync(rpc.get_worker_info("me"), func=torch.add, args=ARGS),
    "nameless": lambda: rpc.rpc_sync("me", functools.partial(torch.add, *ARGS)),
    "through api": lambda: rpc.api.rpc_sync("me", torch.add, args=ARGS),
    "async": lambda: rpc.rpc_async("me", torch.add, args=ARGS).wait(),
    "async by name": lambda: rpc.rpc_async(args=ARGS, func=torch.add, to="me").wait(),
    "remote": lambda: rpc.remote("me", torch.add, args=ARGS).to_here(),
    "remote by name": lambda: rpc.remote(to="me", func=torch.add, args=ARGS).to_here(),
}


@pytest.mark.parametrize("form", REMOTE)
def test_remote_calls(c: core.Core, worker: None, form: str) -> None:
    assert torch.equal(REMOTE[form](), TWO)
    assert c.guard.disabled == set()


def test_a_call_that_waits_for_a_worker_tells_whom_it_asks(c: core.Core, worker: None) -> None:
    """Of a worker that there is not, torch tells the program."""
    path = Path(str(c.ring.path))
    before = [len(read_rank(path).of(kind)) for kind in (Kind.CALL_BEGIN, Kind.CALL)]
    rpc.rpc_sync("me", torch.sub, ARGS)
    with pytest.raises(RuntimeError):
        rpc.rpc_sync("nobody", torch.sub, ARGS)
    assert c.guard.disabled == set()
    told = read_rank(path)
    assert [len(told.of(kind)) for kind in (Kind.CALL_BEGIN, Kind.CALL)] == [n + 2 for n in before]
    of = {d["reduce"]: d["root"] for d in told.defined("op") if d["op"] == "rpc_sync"}
    assert [root for text, root in of.items() if "sub → " in text] == [0, -1]


TRAINED: dict[str, Callable[[int, Any, Any], Any]] = {
    "by place": lambda at, roots, optimizer: (
        dist_autograd.backward(at, roots),
        optimizer.step(at),
    ),
    "by name": lambda at, roots, optimizer: (
        dist_autograd.backward(contextId=at, roots=roots, retain_graph=True),
        optimizer.step(context_id=at),
    ),
    "two roots": lambda at, roots, optimizer: (
        dist_autograd.backward(at, [roots[0], roots[0] * 1]),
        optimizer.step(at),
    ),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch compiles optimizers by an old way
@pytest.mark.parametrize("form", TRAINED)
def test_training_over_workers(c: core.Core, worker: None, form: str) -> None:
    from torch.distributed.optim import DistributedOptimizer

    steps, w = c.step, weight()
    optimizer = DistributedOptimizer(torch.optim.SGD, [rpc.RRef(w)], lr=0.1)
    with dist_autograd.context() as at:
        TRAINED[form](at, [loss(w)], optimizer)
    assert not torch.equal(w, torch.ones(3)) and c.step > steps
    assert c.guard.disabled == set()


FILES: dict[str, Callable[[Any], Any]] = {
    "save by place": lambda f: torch.save([1], f),
    "save by name": lambda f: torch.save(obj=[1], f=f),
    "load by place": lambda f: torch.load(f, "cpu"),
    "load by name": lambda f: torch.load(map_location="cpu", f=f),
}


@pytest.mark.filterwarnings("ignore:You are using `torch.load`")  # before torch 2.6
def test_files_are_named_as_they_are(
    c: core.Core, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by another argument: a load that says where tensors go is no load of "cpu"."""
    said: list[str] = []
    monkeypatch.setattr(calls, "alone", lambda c, name, detail="", **_: said.append(detail))
    at = str(tmp_path / "x.pt")
    for form in FILES.values():
        form(at)
    assert said == [at] * len(FILES)


def test_an_address_is_told_alike_from_a_url_and_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ranks of one group may give it in different ways (torchrl's collectors)."""
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    by_url = host_calls._init("gloo", "tcp://10.0.0.1:29500", rank=0, world_size=2)
    assert by_url == host_calls._init("gloo", rank=1, world_size=2)


def test_a_store_called_wrongly_is_the_programs_mistake(c: core.Core) -> None:
    with pytest.raises(TypeError):
        dist.HashStore().get(key="a")  # type: ignore[call-arg]
    assert c.guard.disabled == set()


CALLS: dict[str, Callable[[], Any]] = {
    "log nothing": lambda: pardbg_agent.log(),
    "an action": lambda: pardbg_agent.action("F", 0, 0).__enter__().__exit__(None, None, None),
    "an action by name": lambda: pardbg_agent.action(kind="B", stage=1, mb=2),
    "no kind": lambda: pardbg_agent.action("X", 0, 0),
    "no numbers": lambda: pardbg_agent.action("F", "a", None),  # type: ignore[arg-type]
    "too large": lambda: pardbg_agent.action("F", 1 << 20, 0),
    "a plan": lambda: pardbg_agent.plan("1f1b", ranks=[0], microbatches=2),
    "a plan without numbers": lambda: pardbg_agent.plan("1f1b", [0]),
    "an unknown plan": lambda: pardbg_agent.plan("mine", [0], 2),
    "an odd order": lambda: pardbg_agent.plan("mine", [0], order={0: ["x"]}),
    "no ranks": lambda: pardbg_agent.plan("1f1b", None, 2),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("form", CALLS)
def test_the_programs_own_calls(c: core.Core, form: str) -> None:
    CALLS[form]()
    assert c.guard.disabled == set()
