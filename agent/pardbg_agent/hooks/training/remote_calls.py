"""torch.distributed.rpc: workers are ranks, their calls spans.

A program may have no process group at all then. The tensors of the calls are not recorded
(TensorPipe moves them, no c10d op does), and a note in the recording says so. Distributed
autograd's backward and DistributedOptimizer's step are phases of the worker that calls them."""

from __future__ import annotations

import functools
import os
from typing import Any

import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks import context
from pardbg_agent.hooks.patching import Patches, unframed
from pardbg_agent.hooks.training import step_phases
from pardbg_agent.life import calls
from pardbg_agent.life.late_imports import LateImports
from pardbg_agent.wire import NONE, NOTE_RPC, DefKind

_MAX_NAME = 60


def install(patches: Patches, late: LateImports) -> None:
    """Hook the calls where torch was built with RPC."""
    if not rpc.is_available():
        return
    for owner in (rpc.api, rpc):
        if hasattr(owner, "init_rpc"):
            patches.set(owner, "init_rpc", _joined(owner.init_rpc))
        for name in ("rpc_sync", "rpc_async", "remote"):
            patches.around(owner, name, "rpc", functools.partial(_before_call, name), _after_call)
    patches.around(
        dist_autograd, "backward", "rpc.backward", _before_backward, step_phases.after_backward
    )
    late.when_imported(
        "torch.distributed.optim.optimizer",
        lambda module: patches.around(
            getattr(module, "DistributedOptimizer", None), "step", "rpc.optimizer", _before_step,
            _after_step,
        ),
    )  # fmt: skip


def _joined(original: Any) -> Any:
    """Hook init_rpc, which makes this process a rank, also without a group."""

    @unframed
    @functools.wraps(original)
    def init_rpc(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        c = _core.ensure()
        c.guard.call("rpc", _met, c)
        return result

    return init_rpc


def _met(c: _core.Core) -> None:
    worker = rpc.get_worker_info()
    c.defs.put(DefKind.NOTE, key=NOTE_RPC, value=str(worker.name)[:_MAX_NAME])
    if c.identity.rank < 0:
        c.set_rank(int(worker.id), int(os.environ.get("WORLD_SIZE", 0)))
    calls.group_formed(c)


# -- calls


def _before_call(kind: str, c: _core.Core, to: Any, func: Any, *_: Any, **__: Any) -> Any:
    """Begin a call: ``rpc_async`` and ``remote`` return at once, so their span is the sending
    alone; ``rpc_sync`` waits for its worker, so its begin is reported as a call of this rank."""
    name = getattr(func, "__qualname__", None) or getattr(func, "__name__", "call")
    text = f"{name} → {getattr(to, 'name', to)}"[:_MAX_NAME]
    call = calls.alone(c, kind, text, _rank_of(to)) if kind == "rpc_sync" else None
    return f"{kind} {text}", now_ns(), call


def _rank_of(to: Any) -> int:
    """Return a worker's rank; NONE for an unknown one, for which torch raises an error."""
    try:
        return to if isinstance(to, int) else int(rpc.get_worker_info(getattr(to, "name", to)).id)
    except RuntimeError:
        return NONE


def _after_call(c: _core.Core, what: Any, t1: int, failed: bool) -> None:
    name, t0, call = what
    if call is not None:
        calls.end(c, call, failed)
    if c.level > 1:
        c.span(name, (0, 0, -1), t0, t1, failed)


# -- training over workers


def _before_backward(c: _core.Core, *args: Any, roots: Any = (), **_: Any) -> Any:
    roots = roots or (args[1] if len(args) > 1 else ())  # a C function names no parameters
    return step_phases.before_backward(c, roots[0] if len(roots) == 1 else None)


def _before_step(c: _core.Core, optimizer: Any, *_: Any, **__: Any) -> Any:
    t0 = now_ns()
    step_phases.phase_begins(c, context.of(c), "optimizer", t0)
    return optimizer, t0


def _after_step(c: _core.Core, what: Any, t1: int, failed: bool) -> None:
    optimizer, t0 = what
    x = context.of(c)
    step_phases.phase_ends(c, x, "optimizer", t0, t1, failed)
    if not failed:
        step_phases.round_ended(c, x, optimizer, t1)
