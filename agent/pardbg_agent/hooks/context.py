"""State of the hooks: per thread (State), and per Core (Context, with one object for each hook).

A Core gets its Context with its first hook, and loses it with detach or fork. State recorded before
a Core exists (optimizers made before the first group) carries over to the next Core."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

from pardbg_agent import core as _core
from pardbg_agent.hooks.call_sites import CallSites
from pardbg_agent.hooks.device import device_records
from pardbg_agent.wire import NO_GROUP, NONE, NOTE_THREAD, DefKind, Flag

T = TypeVar("T")


class Op(NamedTuple):
    """An op between issue and completion: numbers only, no tensor, no Work."""

    token: int
    name_id: int
    t0: int
    step: int
    seq: int
    group_id: int
    flags: int
    stage: int
    mb: int
    peer: int
    a: int
    b: int
    host_waits: bool
    """Work.wait returns at the op's completion (CPU), not once a stream waits for it."""


class Group(NamedTuple):
    """Process group as records refer to it."""

    key: str
    group_id: int
    name: str
    ranks: tuple[int, ...]
    """Global ranks by group rank."""
    backend: str
    ref: Any
    """Weak reference to the ProcessGroup: the id in the cache is only valid while it lives."""
    axis: str | None = None


class Signature(NamedTuple):
    """Facts that all ops of one kind on one group share, found by one look-up per op."""

    ref: Any
    """Weak reference to the ProcessGroup: the id in the key is only valid while it lives."""
    group_key: str
    group_id: int
    name_id: int
    peer: int
    """Global rank of the root or the peer, or NONE."""
    next_seq: Callable[[], int]


# State that C++ shares: its own types where it sees ops (native/held.hpp), else these.


@dataclass(slots=True, eq=False)
class Nesting:
    """Hooked calls that enclose the code that runs now on a thread."""

    forward: int = 0
    """Depth of wrapped models' forwards."""
    action: int = 0
    """Depth of pipeline actions."""
    backward: int = 0
    pipeline: int = 0
    """Depth of pipeline schedules' step() calls."""
    initializing: int = 0
    """Depth of optimizers' step() calls that only create their state."""
    coalescing: int = 0
    """Between a backend's group start and end: no gate may hold; all ops share one Work."""
    inside: dict[Any, list[Any]] | None = None
    """Within a wrapper's step(): the optimizers that it stepped, each with its parameters."""
    open: Any = None
    """Count of activations that began after a step and ends with the next backward."""
    optimizer: Any = None
    """(weak reference to the outermost optimizer whose step() runs, start time of that step())"""


@dataclass(slots=True, eq=False)
class LoopState:
    """Place of the program in its training loop."""

    phase: int = 0
    """Name id of the current phase."""
    anchor_ns: int = 0
    """Earliest time from which the host may have been in a forward that no hook sees."""
    forward_seen: bool = False
    """Whether a forward was measured since the anchor."""
    begun: bool = False
    """Whether a first phase was seen."""
    wrapped: bool = False
    """Whether a wrapped model's forward was seen: activations are then counted there."""
    num_schedules: int = 0
    """Schedule steps since a step ended: the next one ends the step if no optimizer does."""
    saved: Any = None
    """saved_tensors.Count of sampled steps, kept from a forward's end to its backward's."""
    gathered_bytes: int = 0
    """Bytes of unsharded parameters of all FSDP units at the moment."""


@dataclass(slots=True, eq=False)
class UnitState:
    """State of an FSDP unit, whose parameters are gathered and freed together."""

    num_bytes: int = 0
    """Bytes of the unit's unsharded parameters."""
    names: Any = None
    """Verb -> name id."""
    whole: bool = False
    """Whether the unit's parameters are unsharded, according to the records so far."""
    resharded_ns: int = 0


class StateTypes(NamedTuple):
    """Types of the state that Python and C++ share."""

    nesting: Any
    loop: Any
    unit: Any


IN_PYTHON: Final = StateTypes(Nesting, LoopState, UnitState)
TYPES = IN_PYTHON
"""Types of the shared state in this process; set by ``use_types``."""


@dataclass(slots=True, eq=False)
class State:
    """State of one thread."""

    group: Any = None
    """ProcessGroup whose Python method is running: the next op is the one that it issues."""
    reduce: int = -1
    look: bool | None = None
    """Whether the input of the op is to be looked at on its device; None: C++ does not decide."""
    op: Op | None = None
    """Op issued inside that method, not yet tied to its Work."""
    sync_id: int = 0
    sync_op: Op | None = None
    """Synchronous op, with the id of its Work: the very next wait is for it."""
    thread: int = 0
    """Flag set on the ops of this thread: OTHER_THREAD unless it is the main thread."""
    numbered: bool = False
    """Whether the op that is being begun already has its sequence number."""
    futures: list[tuple[Op, Any]] = field(default_factory=list)
    """Ops issued in the current backward, with their futures; emptied when it ends."""
    batch: list[Op] = field(default_factory=list)
    """Ops of the current batch whose completion is to be polled."""
    nest: Any = field(default_factory=lambda: TYPES.nesting())
    recompute: int = 0
    """Depth of checkpointed regions that are being recomputed."""
    fsdp: Any = None
    """Result of before_forward for the FSDP root whose forward runs."""
    counting: Any = None
    """Active count of the tensors that autograd saves (saved_tensors.Count)."""
    own_ns: int = 0
    """Under ``watch slow``: time since which this thread has not waited for another rank."""
    own_step: int = NONE
    own_at: int = 0
    """Number of ops and actions of that step so far."""
    unscaled: tuple[Any, float] | None = None
    """(loss that a GradScaler has just scaled for the next backward, factor to divide it by)"""


_MAX_THREADS = 16
_told: list[str] = []
"""Thread names reported so far, limited in number: programs may start a thread each step."""


class _Local(threading.local):
    def __init__(self) -> None:
        self.state = State()
        # Autograd's threads, which Python does not know, issue ops while the main one waits.
        known = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
        if known is not None and known is not threading.main_thread():
            self.state.thread = int(Flag.OTHER_THREAD)
            c = _core.CURRENT
            if c is not None and c.run is not None and len(_told) < _MAX_THREADS:
                _told.append(known.name)
                note = partial(c.defs.put, key=NOTE_THREAD, value=known.name[:80])
                c.guard.call("threads", note, DefKind.NOTE)


LOCAL = _Local()


def local() -> State:
    """Return this thread's state: one look-up, then plain attributes. Code that runs for every op
    reads ``LOCAL.state`` itself."""
    return LOCAL.state


@dataclass(slots=True, eq=False)
class OpenWorks:
    """Ops whose completion is still to be seen, by the object that will tell it."""

    live: dict[Any, tuple[Op, bool]] = field(default_factory=dict)
    """Weak reference to a Work -> (its op, whether nothing else will tell its completion), while
    the program keeps the Work."""
    tensors: dict[int, Op] = field(default_factory=dict)
    """Storage of an output -> op, for wait_tensor."""
    polled: dict[int, tuple[Op, Any]] = field(default_factory=dict)
    """Ops on a device, with their Works, by token, until they are waited for."""
    followed: set[int] = field(default_factory=set)
    """Tokens of ops whose future will call into Python."""
    no_future: set[tuple[int, int]] = field(default_factory=set)
    """(group id, op) whose Works turned out to have no future."""
    gone: Any = None
    """Callback for a weak reference in ``live`` whose Work is gone; made once."""


@dataclass(slots=True, eq=False)
class Context:
    """State of all hooks for one Core."""

    core: _core.Core = field(default_factory=lambda: cast(Any, None))
    """Core of this context; unset while state is recorded before a Core exists."""
    sites: CallSites = field(default_factory=CallSites)
    parts: dict[type, Any] = field(default_factory=dict)
    """States of the other hooks, by their type (see ``part``)."""
    works: OpenWorks = field(default_factory=OpenWorks)
    groups: dict[int, Group] = field(default_factory=dict)
    """Groups by id(ProcessGroup)."""
    names: dict[Any, int] = field(default_factory=dict)
    """Op signature -> name id."""
    signatures: dict[Any, Signature] = field(default_factory=dict)
    """(dispatcher op, id(ProcessGroup), dtype, ...) -> Signature of such ops."""
    labels: Any = field(default_factory=dict)
    """(data_ptr, send) -> (F or B, stage, microbatch) of p2p ops that a stage prepared: a dict, or
    native_way.Labels."""
    loop: Any = field(default_factory=lambda: TYPES.loop())
    recomputed_bytes: int = 0
    """Most bytes that one recomputed region held in the current backward."""
    never_counted: bool = False
    """Whether the program forbids saved-tensor hooks somewhere, which ends counting activations."""
    optimizers: Any = field(default_factory=weakref.WeakSet)
    """Optimizers that have stepped; ``made``: all of them."""
    made: Any = field(default_factory=weakref.WeakSet)
    fsdp_groups: Any = field(default_factory=weakref.WeakSet)
    fsdp_units: Any = field(default_factory=weakref.WeakKeyDictionary)
    """FSDPParamGroup -> UnitState"""
    fsdp_computes: Any = field(default_factory=weakref.WeakKeyDictionary)
    """FSDPParamGroup -> (forward or backward, start time, span on the device)."""
    schedules: Any = field(default_factory=weakref.WeakKeyDictionary)
    """Schedule -> {has_backward: this rank's planned compute actions}."""
    actions: Any = None
    """Pipeline actions of this rank (hooks.training.pipeline_actions); None before the first."""

    def part(self, kind: type[T]) -> T:
        """Return one hook's state, of type ``kind``; made on first use."""
        found = self.parts.get(kind)
        if found is None:
            found = self.parts.setdefault(kind, kind())
        return cast(T, found)


class _Next:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.context = Context()


_next = _Next()


def of(c: _core.Core) -> Context:
    x: Context | None = c.context
    return _bind(c) if x is None else x


def current() -> Context:
    """Return the context of this process's Core, or of its next one."""
    c = _core.CURRENT
    return _next.context if c is None else of(c)


def _bind(c: _core.Core) -> Context:
    with _next.lock:
        x: Context | None = c.context
        if x is None:
            x, _next.context = _next.context, Context()
            x.core = c
            c.optimizers = partial(list, x.optimizers)
            c.call_site = x.sites.find
            c.context = x
        return x


def forget() -> None:
    """Drop the state of all hooks (after detach)."""
    global _next
    _next = _Next()
    c = _core.CURRENT
    if c is not None:
        device_records.stop(c)
        c.context = None
        c.optimizers = list
        c.pollers.clear()


def use_types(types: StateTypes) -> None:
    """Hold the shared state in objects of these types from now on; drop the hooks' state. Threads
    that already have their state keep it, and C++ leaves their calls to Python."""
    global TYPES
    if TYPES is not types:
        TYPES = types
        LOCAL.state.nest = types.nesting()
    forget()


os.register_at_fork(after_in_child=forget)


def phase_record(
    c: _core.Core, kind: int, lane: int, flags: int, name: str, t0: int, t1: int
) -> None:
    """Write a record that has no group, stage or peer."""
    c.record(
        kind, lane, flags, c.defs.name(name), t0, t1, c.step, 0, NO_GROUP, NONE, NONE, NONE, 0, 0
    )
