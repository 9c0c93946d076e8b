"""Training steps and their phases, without any call from the program.

A step ends with an optimizer's step (with several of them: ``Cycle``). Without any optimizer a
pipeline schedule's step() is the step. ``pardbg_agent.step()`` from the program replaces all of
this."""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from typing import Any

import torch
import torch.optim.optimizer as optimizers

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks import context, kept_gradients, patching
from pardbg_agent.hooks.context import LOCAL, Context, local
from pardbg_agent.hooks.device.device_records import HOOK
from pardbg_agent.hooks.memory import saved_tensors, usage
from pardbg_agent.hooks.ops import native_way, works
from pardbg_agent.hooks.patching import Patches, spend, unframed, wait_gate
from pardbg_agent.hooks.tensors import parameters_of
from pardbg_agent.hooks.training.backward_loss import before_scale, see_loss
from pardbg_agent.hooks.training.batch_loss import BatchLoss
from pardbg_agent.hooks.training.cycle import Cycle, is_outer
from pardbg_agent.hooks.watch import diverge, not_finite, probes
from pardbg_agent.life.late_imports import LateImports
from pardbg_agent.wire import NONE, Flag, Gate, Kind, Lane

_PHASE, _LANE = int(Kind.PHASE), int(Lane.PHASE)
_FAILED, _INFERRED, _TIMED = int(Flag.FAILED), int(Flag.INFERRED), int(Flag.DEVICE)
_MIN_INFERRED_NS = 1_000


def install(patches: Patches, late: LateImports) -> list[Any]:
    """Hook optimizers, backward, DDP's forward and data loaders; return the handles to remove."""
    native_way.register_callbacks(see_loss, after_backward)
    patches.attempt("targets of losses", lambda: vars(torch._C._autograd.SavedTensor)["data"])
    original = torch.autograd.backward
    patches.around(
        torch.autograd, "backward", "backward", before_backward, after_backward, _in_a_run
    )
    native_way.quick_call(patches, torch.autograd, "backward", original, "b")
    scaler = getattr(torch.amp, "GradScaler", None)
    patches.around(scaler, "scale", "scale", before_scale)
    patches.wrap(optimizers.Optimizer, "__init__", _made)
    patches.around(optimizers.Optimizer, "zero_grad", "zero_grad", _clears)
    patches.around(
        torch.nn.Module, "zero_grad", "zero_grad", _module_clears,
        idle=lambda: not kept_gradients.noted,
    )  # fmt: skip
    late.when_imported(
        "torch.nn.parallel.distributed", lambda m: _hook_ddp(patches, m.DistributedDataParallel)
    )
    late.when_imported(
        "torch.utils.data.dataloader",
        lambda m: patches.around(
            m._BaseDataLoaderIter, "__next__", "data", _before_data, _after_data
        ),
    )
    late.when_imported(
        "torch.distributed.checkpoint.state_dict",
        lambda m: patches.around(
            m, "_init_optim_state", "optimizer state", _before_state, _after_state
        ),
    )
    return [
        optimizers.register_optimizer_step_pre_hook(native_way.quick_hook(_step_comes, "o")),
        optimizers.register_optimizer_step_post_hook(native_way.quick_hook(_stepped, "e")),
    ]


def _hook_ddp(patches: Patches, ddp: Any) -> None:
    original = ddp.forward
    patches.around(ddp, "forward", "ddp.forward", before_forward, after_forward)
    native_way.quick_call(patches, ddp, "forward", original, "f")


# -- phases


def phase_begins(c: _core.Core, x: Context, name: str, t0: int) -> None:
    """Enter a phase of the main loop."""
    if not x.loop.begun:
        x.loop.begun = True
        if c.step == 0:
            c.step_t0 = x.loop.anchor_ns = t0  # earlier time was set-up, not a step
    x.loop.phase = c.defs.name(name)
    c.status.now(c.step, x.loop.phase, 0, NONE, NONE, t0)
    if c.device is not None:
        c.guard.call(HOOK, c.device.phase_begins, t0)


def phase_ends(
    c: _core.Core, x: Context, name: str, t0: int, t1: int, failed: bool = False
) -> None:
    """Leave a phase of the main loop."""
    flags = _FAILED if failed else 0
    if c.device is not None and c.guard.call(HOOK, c.device.phase_ended, c.defs.name(name)):
        flags |= _TIMED
    c.span_ended(_PHASE, _LANE, flags, c.defs.name(name), t0, t1, c.step, NONE, NONE, 0, 0)
    x.loop.phase = 0


def _before_data(c: _core.Core, loader: Any, *_: Any) -> int:
    t0 = now_ns()
    if c.loader is None or c.loader() is not loader:
        c.loader = weakref.ref(loader)
    local().nest.optimizer = None  # an optimizer whose step() raised did not end it
    phase_begins(c, context.of(c), "data", t0)
    return t0


def _after_data(c: _core.Core, t0: int, t1: int, failed: bool) -> None:
    x = context.of(c)
    if failed:  # StopIteration: there was no batch
        x.loop.phase = 0
        c.status.now(c.step, 0, 0, NONE, NONE, t1)
        return
    phase_ends(c, x, "data", t0, t1)
    _anchor(c, x, t1)


def before_forward(c: _core.Core, module: Any, *_: Any, **__: Any) -> Any:
    """Begin the outermost forward of a wrapped model (DDP, FSDP)."""
    nest = LOCAL.state.nest
    if nest.forward or nest.action or nest.backward or nest.pipeline:
        return None
    x = c.context or context.of(c)
    x.loop.wrapped = True
    _take_off(c, x, 0)
    count = saved_tensors.begin(c, module) if torch.is_grad_enabled() else None
    t0 = now_ns()
    phase_begins(c, x, "forward", t0)
    nest.forward += 1
    return t0, count


def after_forward(c: _core.Core, what: Any, t1: int, failed: bool) -> None:
    """End the outermost forward of a wrapped model."""
    t0, count = what
    local().nest.forward -= 1
    x = context.of(c)
    if count is not None:
        x.loop.saved, x.recomputed_bytes = count, 0
        usage.activations(c, saved_tensors.end(c, count), t1)
    x.loop.forward_seen = True
    if c.watches.memory is not None:
        usage.watch(c)
    phase_ends(c, x, "forward", t0, t1, failed)


def _in_a_run() -> bool:
    return bool(LOCAL.state.nest.pipeline)


def before_backward(c: _core.Core, tensors: Any, *_: Any, **__: Any) -> Any:
    """Begin a backward from ``tensors``."""
    x, nest = c.context or context.of(c), LOCAL.state.nest
    if nest.action:  # a pipeline stage's own
        if not nest.pipeline and not nest.backward:
            see_loss(c, x, tensors)
        return None
    if nest.backward or nest.pipeline:
        return None  # reentrant checkpointing; a loss that begins it in parts, whose forward it is
    t0 = now_ns()
    _take_off(c, x, t0)
    if not x.loop.forward_seen and 0 < x.loop.anchor_ns < t0 - _MIN_INFERRED_NS:
        context.phase_record(c, _PHASE, _LANE, _INFERRED, "forward", x.loop.anchor_ns, t0)
    see_loss(c, x, tensors)
    if c.watches.memory is not None:
        usage.watch(c)
    phase_begins(c, x, "backward", t0)
    nest.backward += 1
    return t0


def after_backward(c: _core.Core, t0: int, t1: int, failed: bool) -> None:
    """End a backward."""
    state = LOCAL.state
    state.nest.backward -= 1
    if state.futures:
        works.backward_ended(c, t1)
    x = context.of(c)
    if kept_gradients.followed():
        c.guard.call(HOOK, kept_gradients.backward_ended, c, x.part(Cycle).only)
    if x.loop.saved is not None:
        if x.recomputed_bytes:
            usage.activations(c, x.loop.saved.num_bytes, t1, x.recomputed_bytes)
        x.loop.saved = None
    phase_ends(c, x, "backward", t0, t1, failed)
    _anchor(c, x, t1)


def _anchor(c: _core.Core, x: Context, t: int) -> None:
    """Anchor a possible forward: from here on the host may be in one. Where nothing wraps the
    model, the tensors that autograd saves from here to the backward are its activations."""
    x.loop.anchor_ns, x.loop.forward_seen = t, False
    nest = LOCAL.state.nest
    if x.loop.wrapped or x.actions is not None or nest.open is not None:
        return
    if not torch.is_grad_enabled():
        return
    nest.open = saved_tensors.begin_without(
        c, lambda: itertools.chain.from_iterable(map(parameters_of, x.optimizers))
    )


def stop_counting() -> None:
    """Take the saved-tensor hooks off autograd, before the agent's hooks are removed."""
    c = _core.CURRENT
    if c is not None:
        _take_off(c, context.of(c), 0)


def _take_off(c: _core.Core, x: Context, t: int) -> None:
    """End the count that ``_anchor`` began; its result is used if ``t`` is not 0."""
    nest = LOCAL.state.nest
    count = nest.open
    if count is None:
        return
    num_bytes = saved_tensors.take_off(c, count)
    if num_bytes is None:
        return  # the program's own hooks are above it
    nest.open = None
    if t and num_bytes:
        x.loop.saved, x.recomputed_bytes = count, 0
        usage.activations(c, num_bytes, t)


# -- optimizers and steps


def _made(original: Any) -> Any:
    """Hook Optimizer.__init__: the first round ends when all optimizers made have stepped."""

    @unframed
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        with contextlib.suppress(Exception):  # one that cannot be hashed
            context.current().made.add(self)
            to_come = context.current().part(Cycle).to_come
            if not is_outer(self, to_come):
                to_come.add(self)
                if _core.CURRENT is not None:
                    native_way.disable_native_step_end(_core.CURRENT)

    return init


def _clears(c: _core.Core, optimizer: Any, *_: Any, **__: Any) -> None:
    x = c.context or context.of(c)
    known = x.part(kept_gradients.Clearing)
    kept_gradients.clears(c, known, optimizer, x.loop.anchor_ns)
    kept_gradients.clearing(c)


def _module_clears(c: _core.Core, *_: Any, **__: Any) -> None:
    kept_gradients.clearing(c)


def _before_state(*_: Any, **__: Any) -> bool:
    """Begin a checkpoint's load, which makes the state it is to fill by a step() with a learning
    rate of 0: that is not training."""
    local().nest.initializing += 1
    return True


def _after_state(*_: Any) -> None:
    local().nest.initializing -= 1


def _step_comes(optimizer: Any, args: Any, kwargs: Any) -> None:
    if not patching.compiling():
        diverge.optimizer_begins(optimizer)
        _optimizer_begins(optimizer)


def _stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    if not patching.compiling():
        diverge.optimizer_ended(optimizer)
        probes.optimizer_ended(optimizer)
        _optimizer_ended(optimizer)  # last: the step's number moves on


def _optimizer_begins(optimizer: Any) -> None:
    c, nest = _core.CURRENT, LOCAL.state.nest
    if c is None or c.level == 0 or "optimizer" in c.guard.disabled or nest.initializing:
        return
    outer = nest.optimizer
    if outer is not None and outer[0]() not in (None, optimizer):
        context.of(c).part(Cycle).to_come.discard(optimizer)
        return  # ZeroRedundancyOptimizer steps its local one inside
    begun = now_ns()
    c.guard.call("optimizer", _enter, c, optimizer)
    spend(c, begun)


def _enter(c: _core.Core, optimizer: Any) -> None:
    if c.gate.closed:
        watch = c.watches.nan
        if watch is not None:
            c.guard.call("watch nan", not_finite.gradients, c, watch, optimizer)
        wait_gate(c, Gate.OPTIMIZER, f"optimizer.step {c.step}")
    x = context.of(c)
    c.guard.call("start", usage.look_at_start, c, x, optimizer)
    t0, nest = now_ns(), LOCAL.state.nest
    nest.optimizer = (weakref.ref(optimizer), t0)
    if nest.inside is None:
        _phase_begins(c, x, t0)


def _phase_begins(c: _core.Core, x: Context, t0: int) -> None:
    _take_off(c, x, 0)
    if x.actions is not None:
        x.actions.phase_pauses(t0)
    phase_begins(c, x, "optimizer", t0)


def _optimizer_ended(optimizer: Any) -> None:
    c, nest = _core.CURRENT, LOCAL.state.nest
    outer = nest.optimizer
    if c is None or outer is None or outer[0]() is not optimizer:
        return
    nest.optimizer = None
    c.guard.call("optimizer", _leave, c, optimizer, outer[1], now_ns())


def _leave(c: _core.Core, optimizer: Any, t0: int, t1: int) -> None:
    x = context.of(c)
    x.optimizers.add(optimizer)
    inside = local().nest.inside
    if inside is not None:
        inside.setdefault(optimizer, []).extend(parameters_of(optimizer))
        return
    phase_ends(c, x, "optimizer", t0, t1)
    round_ended(c, x, optimizer, t1)


def hook_wrapper(patches: Patches, owner: Any) -> None:
    """Hook the step() of an optimizer's wrapper."""
    patches.around(owner, "step", "optimizer wrapper", _before_wrapper, _after_wrapper)


def _before_wrapper(c: _core.Core, *_: Any, **__: Any) -> Any:
    """Begin a wrapper's step(), which steps its optimizer once for each group of parameters: one
    phase and one round, including its gathers and copies."""
    if local().nest.inside is not None:
        return None
    t0 = now_ns()
    local().nest.inside = {}
    _phase_begins(c, context.of(c), t0)
    return t0


def _after_wrapper(c: _core.Core, t0: int, t1: int, failed: bool) -> None:
    """End a wrapper's step(); the round goes on if it stepped no optimizer (an overflow)."""
    x, inside = context.of(c), local().nest.inside
    phase_ends(c, x, "optimizer", t0, t1, failed)
    try:
        if inside and not failed:
            round_ended(c, x, next(reversed(inside)), t1)
            return
    finally:
        local().nest.inside = None
    _anchor(c, x, t1)
    if x.actions is not None:
        x.actions.phase_resumes(t1)


def round_ended(c: _core.Core, x: Context, optimizer: Any, t1: int) -> None:
    """Note an optimizer's step, which ended at ``t1``; perhaps it ends a training step."""
    x.part(BatchLoss).clear()
    if x.part(Cycle).stepped(optimizer):
        if x.optimizers:  # else their parameters live elsewhere
            c.guard.call("memory", usage.sample, c, x, t1)
        spend(c, t1)
        step_ended(c, x)
        _leave_to_native(c, x)
        t1 = now_ns()
    _anchor(c, x, now_ns())
    if x.actions is not None:
        x.actions.phase_resumes(x.loop.anchor_ns)
    spend(c, t1)


def _leave_to_native(c: _core.Core, x: Context) -> None:
    """Let C++ end the steps in which nothing is counted, compared or read, if each step ends with
    the same optimizer's."""
    if c.native is None:
        return
    known = x.part(usage.Usage)
    if not known.graded or c.num_over:
        native_way.disable_native_step_end(c)
        return
    step = c.step
    while not (
        step < usage.FIRST_STEPS
        or step % usage.COUNT_EVERY == 0
        or step % probes.EVERY == 0
        or saved_tensors.due(step + 1)
    ):
        step += 1
    c.native.set_native_until(x.part(Cycle).only, step, known.total_ns + usage.TOTAL_EVERY_NS)


def step_ended(c: _core.Core, x: Context) -> None:
    """End a training step: write its record, pass its gate. The program's own step() has
    precedence."""
    x.loop.num_schedules = 0
    if c.explicit_steps:
        return
    c.step_end()
    x.loop.phase = 0
    c.status.now(c.step, 0, 0, NONE, NONE, c.step_t0)
    if c.gate.closed:
        wait_gate(c, Gate.STEP, f"step {c.step}")


def schedule_begins(c: _core.Core, x: Context) -> None:
    """End the previous step when a schedule's step() begins, if no optimizer ends steps."""
    if x.part(Cycle).used or c.explicit_steps:
        return
    if x.loop.num_schedules:
        step_ended(c, x)
    elif c.gate.closed:
        wait_gate(c, Gate.STEP, f"step {c.step}")
