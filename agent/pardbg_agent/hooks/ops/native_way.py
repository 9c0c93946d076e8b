"""Native op hooks: ops are hooked in C++ (``pardbg_agent.native``), which asks Python where it
must.

The kernel in C++ numbers, times and records ops, and follows them to their completion, without the
GIL. It calls ``ask`` before it issues an op while a gate is closed or watched, and where the op is
of a new kind, is not on the host, or carries values that are not finite. Python and C++ share one
ring index and one op table: the C++ ones."""

from __future__ import annotations

import functools
import os
import weakref
from typing import Any, Final, cast

import torch

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks import context, kept_gradients, patching
from pardbg_agent.hooks.comm import groups
from pardbg_agent.hooks.context import LOCAL, Op, StateTypes
from pardbg_agent.hooks.device import cuda_runtime
from pardbg_agent.hooks.memory import saved_tensors
from pardbg_agent.hooks.ops import issue
from pardbg_agent.hooks.patching import Patches, unseen
from pardbg_agent.hooks.watch import op_watches, probes
from pardbg_agent.life.own_frames import hide_own
from pardbg_agent.native import Unusable, check_age, loaded, state
from pardbg_agent.op_table import OpsState, as_state
from pardbg_agent.tables import code_files
from pardbg_agent.tables.c10d_ops import C10D_OPS
from pardbg_agent.wire import (
    CALLS,
    RING_DATA_OFFSET,
    RUN_FILE,
    STATUS_NEWEST_OFFSET,
    STATUS_NOW_OFFSET,
    STATUS_OP_OFFSET,
)

OFFSETS: Final = RING_DATA_OFFSET, STATUS_OP_OFFSET, STATUS_NEWEST_OFFSET, STATUS_NOW_OFFSET
"""Offsets in the ring file that the C++ table writes at."""


class _Process:
    def __init__(self) -> None:
        self.module: Any = None
        self.why_not = ""
        self.groups: dict[int, Any] = {}
        """Address of a ProcessGroup in C++ -> weak reference to its Python object."""


_process: Final = _Process()


def module() -> Any:
    """Return the C++ module, or None; then ``why_not`` returns the reason."""
    try:
        path = state()
        if _process.module is None:
            check_age(path, os.path.join(os.environ.get("PARDBG", ""), RUN_FILE))
            _process.module = loaded(path)
            _process.module.set_up(
                ask, _waited, list(C10D_OPS), code_files.PROGRAMS, code_files.LIBRARIES
            )
            os.register_at_fork(after_in_child=_forked)
    except Unusable as error:
        _process.why_not = str(error)
        return None
    return _process.module


def usable() -> bool:
    """Return whether the C++ module loads and this process's Core (if any) can take its table."""
    c = _core.CURRENT or _core.resumable()
    return (c is None or c.native is not None or _is_new(c)) and module() is not None


def why_not() -> str:
    """Return the reason, in words, why ops are not hooked in C++."""
    return _process.why_not or "the agent was attached another way before"


def _forked() -> None:
    _process.module.forked()
    _process.groups = {}


class NativeWay:
    """Op hooks as C++ kernels, for all ops that this torch has."""

    name = "native"

    @property
    def types(self) -> StateTypes:
        """Return the C++ types of the state that it shares with Python."""
        made = _process.module
        return StateTypes(made.Nesting, made.LoopState, made.UnitState)

    def install(self) -> None:
        _core.ON_START = _adopt
        if _core.CURRENT is not None:
            _adopt(_core.CURRENT)
        _process.module.install()
        groups.PROCESS.module = _process.module

    def uninstall(self) -> None:
        """Unregister the kernels. Completion of ops still open is recorded all the same."""
        _core.ON_START = groups.PROCESS.module = None
        _process.module.uninstall()
        _process.module.detach()

    def wait_of(self, original: Any) -> Any:
        """Return Work.wait, hooked in C++."""
        return _process.module.wait_of(original)


def quick(patches: Patches, owner: Any, name: str, original: Any, *what: Any) -> None:
    """Put a C++ fast path in front of a pipeline stage method's hook, if ops are hooked there: an
    ordinary call is recorded in one call. ``what``: pipeline.hpp's Quick."""
    if groups.PROCESS.source == NativeWay.name:
        made = _process.module.quick(original, getattr(owner, name), *what)
        patches.set(owner, name, _process.module.method(made))


def register_callbacks(see_loss: Any, after_backward: Any) -> None:
    """Pass to C++ the step hooks' functions that it calls (native/phases.hpp)."""
    if groups.PROCESS.source == NativeWay.name:
        _process.module.register_callbacks(see_loss, after_backward, vars(torch.compiler))


def register_units(named: Any, streams_of: Any, unsharded: Any) -> None:
    """Pass to C++ the functions that find FSDP2's units and their streams, and the state of a
    gathered one (native/fsdp.hpp)."""
    if groups.PROCESS.source == NativeWay.name:
        _process.module.register_units(named, streams_of, unsharded)


def quick_call(patches: Patches, owner: Any, name: str, original: Any, kind: str) -> None:
    """Add a C++ fast path like ``quick`` to a call that Dynamo may trace: it must find Python."""
    if groups.PROCESS.source != NativeWay.name:
        return
    made = _process.module.quick(original, getattr(owner, name), kind, kind, False)

    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if patching.tracing():
            return original(*args, **kwargs)
        try:
            return made(*args, **kwargs)
        except BaseException as error:
            hide_own(error)
            raise

    patches.set(owner, name, watched)


def quick_hook(hook: Any, kind: str) -> Any:
    """Return an optimizer hook with a C++ fast path in front of it."""
    if groups.PROCESS.source != NativeWay.name:
        return hook
    made = _process.module.quick(None, hook, kind, kind, False)

    def watched(*args: Any) -> None:
        if not patching.tracing():
            made(*args)

    return watched


def disable_native_step_end(c: _core.Core) -> None:
    """Leave the detection of the next step ends to Python."""
    if c.native is not None:
        c.native.set_native_until(None, 0, 0)


def _is_new(c: _core.Core) -> bool:
    """Return whether no op is numbered yet, so that the table can change hands."""
    return not c.ops.num_ever and c.ops.unused


def _adopt(c: _core.Core) -> None:
    made = _process.module
    if c.run is None:
        made.turn_off()
        return
    if c.native is None and _is_new(c):
        ring = c.ring
        table = made.Table(ring.buffer, *OFFSETS, ring.capacity, ring.record)
        c.native = ops = NativeTable(table)
        c.record = table.adopt(ring)
        c.span_ended = ring.span_ended
        c.ops = cast(Any, ops)
        ops.idle()
        c.sums.more = table.sums
        c.gate.inside_native = table.inside
    if c.native is not None:
        x = context.of(c)
        c.native.attach(c, x, x.loop, c.budget)
        x.labels = c.native.table.labels
        c.call_site = c.native.place
        c.pollers.append(c.native.poll)
        c.changed = c.gate.changed = functools.partial(_tell, c)
        _tell(c)


def _tell(c: _core.Core) -> None:
    """Update C++ on each change of the step, the level, the gate or the watches. Any thread; one
    that was interrupted in between must not undo another thread's change."""
    said = None
    while (known := _facts(c)) != said:
        c.native.table.set(*known)
        said = known


def _facts(c: _core.Core) -> tuple[int, int, bool, bool, bool, bool, bool]:
    x = c.context  # None: detached; facts noted now are for the next Core
    known = None if x is None else x.part(probes.Probes)
    probing = known is not None and known.on and known.told < probes.MAX_TOLD
    return (
        c.level, c.step, c.gate.closed, c.watches.slow is not None, probing,
        probing and known is not None and known.gathered < probes.MAX_GATHERED,
        not c.guard.disabled and not saved_tensors.due(c.step) and c.watches.few
        and (known is None or not known.ask_gradients) and not kept_gradients.followed(),
    )  # fmt: skip


class NativeTable:
    """Methods and properties of op_table.OpTable over the C++ table, which has most of them."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self.cost = table.cost  # at each step's end: __getattr__ would take longer than the call
        self.unused = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.table, name)

    @property
    def num_open(self) -> int:
        """Return the number of ops that a backend has; blocking calls are not counted."""
        return sum(not op[0].startswith(CALLS) for op in self.table.rows()[0])

    def snapshot(self) -> OpsState:
        return as_state(*self.table.rows())

    def poll(self) -> bool:
        """Poll ops on a device, and report ended ops to watch slow; the agent's thread calls it.
        Return whether there were such ops."""
        c = _core.CURRENT
        if c is None or c.native is not self:
            return False
        with cuda_runtime.relaxed(c.identity.device):  # it may ask Works
            ended, some = self.table.poll()
        for name_id, t0, step, seq, group_id, flags, stage, mb, peer, a, b, t1 in ended:
            op = Op(0, name_id, t0, step, seq, group_id, flags, stage, mb, peer, a, b, True)
            c.guard.call("watch slow", op_watches.op_ended, c, op, t1)
        if self.table.errors():
            c.guard.failed("native", RuntimeError(f"{self.table.errors()} errors in C++"))
        return bool(some)


# -- called from C++, holding the GIL


_begin: Final = tuple(issue.make_begin(spec) for spec in C10D_OPS)
"""Begin hooks by the number of an op, which is its index in C10D_OPS, in C++ too."""


@unseen
def ask(
    number: int, pg: Any, address: int, reduce: int, look: bool | None, args: list[Any]
) -> Any:  # fmt: skip
    """Return the facts the kernel needs of an op about to enter the backend: the fields of an Op,
    its group's key and ranks. None: the op is not recorded. Waits at the gate. ``look``: at its
    input on a device; None: not decided."""
    entered = now_ns()
    try:
        c = _core.CURRENT or _core.ensure()
        if c.run is None:
            return None
        state = LOCAL.state
        outer = state.group, state.reduce, state.look
        state.group, state.reduce, state.look = pg, reduce, look
        try:
            op: Op | None = _begin[number](c, args, state)
        finally:
            state.group, state.reduce, state.look = outer
        c.hook_ns += now_ns() - entered
        c.hook_calls += 1
        if op is None:
            return None
        return _known(c, op, pg, address)
    except BaseException as error:
        hide_own(error)
        raise


def _known(c: _core.Core, op: Op, pg: Any, address: int) -> Any:
    if c.native is None:
        c.ops.completed(op.token)
        return None
    if address not in _process.groups or _process.groups[address]() is not pg:
        table = c.native.table
        table.forget(address)

        def gone(ref: Any) -> None:
            if _process.groups.get(address) is ref:
                del _process.groups[address]
                table.forget(address)

        _process.groups[address] = weakref.ref(pg, gone)
    group = groups.group_of(context.of(c), pg)
    return (*op, group.key, group.ranks)


@unseen
def _waited() -> None:
    LOCAL.state.own_ns = now_ns()
