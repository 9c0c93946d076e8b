"""FSDP2 (fully_shard): unshard, reshard and reduce of each unit; on a device also the unit's
forward and backward; and the root's forward."""

from __future__ import annotations

import functools
import math
from functools import partial
from types import ModuleType
from typing import Any, Final

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks import context
from pardbg_agent.hooks.context import local
from pardbg_agent.hooks.device.device_records import HOOK
from pardbg_agent.hooks.ops import native_way
from pardbg_agent.hooks.patching import Patches, unframed
from pardbg_agent.hooks.training import step_phases
from pardbg_agent.life.late_imports import LateImports
from pardbg_agent.wire import NO_GROUP, NONE, WAIT_UNSHARD, Flag, Kind, Lane

_FSDP, _COMM = int(Kind.FSDP), int(Lane.COMM)
_FAILED, _TIMED = int(Flag.FAILED), int(Flag.DEVICE)
_LETTERS: Final = {"unshard": "u", WAIT_UNSHARD: "w", "reshard": "r", "reduce": "p"}
"""Letters of the verbs in C++."""
_PACKAGES: Final = "torch.distributed.fsdp._fully_shard", "torch.distributed._composable.fsdp"
"""Package from torch 2.6 on, and package before."""


def install(patches: Patches, late: LateImports) -> None:
    """Hook FSDP's classes as soon as the program imports them."""
    for package in _PACKAGES:
        late.when_imported(f"{package}._fsdp_param_group", functools.partial(_hook_units, patches))
        late.when_imported(f"{package}._fsdp_state", functools.partial(_hook_root, patches))


def _hook_units(patches: Patches, module: ModuleType) -> None:
    unit = module.FSDPParamGroup
    # Will a call do anything? FSDP calls these in pairs, and most of them find it done.
    # Else Dynamo may trace them and must find Python, or they are another torch's.
    quick = hasattr(module, "_dynamo_disable") and hasattr(module, "ShardedState")
    if quick:
        native_way.register_units(named, streams_of, module.ShardedState.UNSHARDED)
    for name, verb, moves in (
        ("unshard", "unshard", lambda u: u._all_gather_result is None and not u.is_unsharded),
        ("wait_for_unshard", WAIT_UNSHARD, lambda u: u._all_gather_result is not None),
        ("reshard", "reshard", lambda u: u.is_unsharded),
        ("post_backward", "reduce", lambda u: u.reduce_grads),
    ):
        original = getattr(unit, name, None)
        patches.around(unit, name, f"fsdp.{name}", _before(verb, moves), _after)
        if quick and original is not None:
            native_way.quick(patches, unit, name, original, "u", _LETTERS[verb], False)
    for verb in ("forward", "backward"):
        may, begun, computed = (partial(hook, verb) for hook in (_may_time, _begun, _computed))
        patches.around(unit, f"pre_{verb}", f"fsdp.{verb}", may, begun, _untimed)
        patches.around(unit, f"post_{verb}", f"fsdp.{verb}", computed, idle=_untimed)


# -- what a unit computes on its device, from the end of pre_forward or pre_backward on


def _untimed() -> bool:
    c = _core.CURRENT
    return c is None or c.device is None


def _may_time(verb: str, c: _core.Core, unit: Any, *_: Any, **__: Any) -> Any:
    begun = context.of(c).fsdp_computes.get(unit)
    if begun is not None and begun[0] == verb == "backward":  # pre_backward comes per output
        return None
    return unit if c.level > 1 and unit.device.type != "cpu" else None


def _begun(verb: str, c: _core.Core, unit: Any, t1: int, failed: bool) -> None:
    _computed("", c, unit)  # a failed computation's span
    span = c.guard.call(HOOK, c.device.begin, t1) if c.device is not None else None
    if span is not None:
        context.of(c).fsdp_computes[unit] = verb, t1, span


def _computed(verb: str, c: _core.Core, unit: Any, *_: Any, **__: Any) -> None:
    x, t1 = context.of(c), now_ns()
    begun, t0, span = x.fsdp_computes.pop(unit, ("", 0, None))
    known = x.fsdp_units.get(unit)
    if span is None or c.device is None:
        return
    if begun != verb or known is None:
        c.guard.call(HOOK, c.device.drop, span)
        return
    name = _name(c, unit, known, verb)
    if c.guard.call(HOOK, c.device.ended, span, _COMM, name):
        c.record(
            _FSDP, _COMM, _TIMED, name, t0, t1, c.step, 0, NO_GROUP, NONE, NONE, NONE,
            known.num_bytes, x.loop.gathered_bytes,
        )  # fmt: skip


def _new_unit(group: Any) -> Any:
    unit = context.TYPES.unit()
    unit.names = {}
    unit.num_bytes = sum(
        math.prod(p._orig_size) * p.sharded_param.element_size() for p in group.fsdp_params
    )
    return unit


def named(x: context.Context, unit: Any, letter: str) -> tuple[Any, int, bool] | None:
    """Return the state of a unit, the name id of a verb of it, and whether it is on a device; None
    before the unit or the name is known."""
    known = x.fsdp_units.get(unit)
    verb = next(verb for verb, its in _LETTERS.items() if its == letter)
    name = known.names.get(verb) if known is not None else None
    return None if name is None else (known, name, unit.device.type != "cpu")


def _before(verb: str, moves: Any) -> Any:
    def before(c: _core.Core, unit: Any, *_: Any, **__: Any) -> Any:
        if not moves(unit):
            return None
        x = context.of(c)
        known = x.fsdp_units.get(unit)
        if known is None:
            x.fsdp_groups.add(unit)
            known = x.fsdp_units[unit] = _new_unit(unit)
        t0, span, ends_on = now_ns(), None, None
        if c.device is not None and unit.device.type != "cpu":
            begins_on, ends_on = streams_of(unit, _LETTERS[verb])
            span = c.guard.call(HOOK, c.device.begin, t0, begins_on)
        return verb, unit, known, t0, span, ends_on

    return before


def streams_of(unit: Any, letter: str) -> tuple[Any, Any]:
    """Return the streams on which an FSDP operation of a unit begins and ends; None: the current
    one."""
    streams = unit.comm_ctx
    try:
        if letter == "u":
            found: tuple[Any, Any] = streams.get_all_gather_streams(False, unit._training_state)
            return found
        if letter == "p":
            replicated = unit._is_hsdp and unit.all_reduce_grads
            return None, getattr(
                streams, "all_reduce_stream" if replicated else "reduce_scatter_stream"
            )
    except AttributeError:  # before its first use it has none
        pass
    return None, None


def _after(c: _core.Core, what: Any, t1: int, failed: bool) -> None:
    verb, unit, known, t0, span, ends_on = what
    x = context.of(c)
    whole = bool(unit.is_unsharded)
    if whole != known.whole:
        known.whole = whole
        x.loop.gathered_bytes += known.num_bytes if whole else -known.num_bytes
    if verb == "reshard":
        if whole:  # kept for backward
            if span is not None and c.device is not None:
                c.guard.call(HOOK, c.device.drop, span)
            return
        known.resharded_ns = t1
    elif verb == "reduce":
        t0 = max(t0, known.resharded_ns)  # it resharded first, which has a record of its own
        if span is not None:
            span.issued_ns = t0
    if c.level > 1:
        flags, name = _FAILED if failed else 0, _name(c, unit, known, verb)
        if span is not None and c.device is not None and c.guard.call(
            HOOK, c.device.ended, span, _COMM, name, NONE, NONE, ends_on
        ):  # fmt: skip
            flags |= _TIMED
        c.record(
            _FSDP, _COMM, flags, name, t0, t1, c.step, 0, NO_GROUP, NONE, NONE, NONE,
            known.num_bytes, x.loop.gathered_bytes,
        )  # fmt: skip


def _name(c: _core.Core, unit: Any, known: Any, verb: str) -> int:
    """Return the name id of ``layers.0 unshard``, say; module names come with a forward."""
    name = known.names.get(verb)
    if name is None:
        fqn = getattr(unit, "_module_fqn", None)
        name = c.defs.name(f"{fqn or 'root'} {verb}")
        if fqn is not None:
            known.names[verb] = name
    return int(name)


def _hook_root(patches: Patches, module: ModuleType) -> None:
    """Hook the root: its forward begins in ``_root_pre_forward`` and ends when its outputs get
    their pre-backward hook. Both are looked up on each call: modules sharded earlier count, too."""
    state = module.FSDPState
    for name, hooked in (
        ("_root_pre_forward", _root_begins), ("_register_pre_backward_hook", _root_ended),
    ):  # fmt: skip
        patches.wrap(state, name, hooked)


def _root_begins(original: Any) -> Any:
    @unframed
    @functools.wraps(original)
    def root_pre_forward(self: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        c = _core.CURRENT
        outer = self._state_ctx.iter_forward_root
        if c is not None and c.level and outer is None and local().fsdp is None:
            local().fsdp = c.guard.call("fsdp.forward", step_phases.before_forward, c, module)
        return original(self, module, *args, **kwargs)

    return root_pre_forward


def _root_ended(original: Any) -> Any:
    @unframed
    @functools.wraps(original)
    def register_pre_backward_hook(self: Any, *args: Any, **kwargs: Any) -> Any:
        begun, c = local().fsdp, _core.CURRENT
        if begun is not None and self._state_ctx.iter_forward_root is self:
            local().fsdp = None
            if c is not None:
                c.guard.call("fsdp.forward", step_phases.after_forward, c, begun, now_ns(), False)
        return original(self, *args, **kwargs)

    return register_pre_backward_hook
