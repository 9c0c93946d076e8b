"""Every collective and p2p op through torch's own hooks, from torch 2.14 on.

What ``ProcessGroup.register_pre_hook`` and ``register_post_hook`` are (torch 2.14.1 and 2.15.0:
their headers, and tried):

- Torch's kernels of the c10d ops call them, below the dispatcher: Python's calls, DDP's reducer,
  functional collectives and compiled code all pass. On the fake backend an empty pair costs 0.6 us
  an op, an empty Python kernel 4.2.
- The thread that issues the op runs them, holding the GIL only for the call; so a gate may wait in
  the pre-hook, and the backend is entered without the GIL.
- Before: kind of op, async_op, input and output tensors, root or peer. After: the Work. An
  exception in a hook reaches the program; in a pre-hook the op is then not issued. If the backend
  refuses the op, no post-hook follows.
- They do not say the group, the tag of a p2p op and the reduction: those come from the Python
  method that runs, and are unknown for ops that C++ issues. In 2.14 coalesced ops look like the
  others (several tensors in one op tell them); 2.15 has names for them.
- They belong to one ProcessGroup, whose unguarded table torch walks without the GIL: no hook may
  come or go while ops are issued. So a group gets its hooks when it is made; groups that exist when
  we come only if no other thread is there that could be issuing, else the dispatcher's way is taken
  (``installable``). Taken off by the same rule: otherwise they stay, and do nothing.
- Nobody is told of waits: ``_c10d_functional::wait_tensor`` keeps its Python kernel.

Not seen: groups built by hand, unknown to torch.distributed, before an ``attach`` later on."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final, cast

import torch
import torch.distributed.distributed_c10d as c10d

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks import context
from pardbg_agent.hooks.comm import collectives, dispatcher, works
from pardbg_agent.hooks.comm.op_arguments import Spec, given, num_bytes
from pardbg_agent.hooks.context import LOCAL, Op, local
from pardbg_agent.hooks.patching import Patches, unframed, unseen
from pardbg_agent.settings import complain
from pardbg_agent.wire import NONE, Flag, Kind, Lane

HOOKS_NS: Final = 600
"""Cost of calling two empty hooks; our own clock readings lie inside."""
HOOK_ID: Final = 0x706172646267
"""Hooks are told apart by a number of their owner's choice: "pardbg"."""
HOST_BACKENDS: Final = ("gloo", "mpi", "fake", "cpu:gloo")
"""Backends whose barrier, which has no tensor to tell, is over when its wait returns."""

_ISSUE, _COMM, _ASYNC = int(Kind.OP_ISSUE), int(Lane.COMM), int(Flag.ASYNC)
_PG: Any = torch._C._distributed_c10d.ProcessGroup
_MAX_ISSUING = 16


class _Process:
    """What outlives a detach: hooks that could not be taken off pass until the next attach."""

    def __init__(self) -> None:
        self.active = False
        self.watched: dict[int, Watch] = {}
        """id(ProcessGroup) -> its hooks."""


_process: Final = _Process()


def available() -> bool:
    """Return whether this torch has public hooks, for ops that we all know. 2.15 renamed some: a
    later one that does it again would have us miss them, and the dispatcher does not."""
    if not (hasattr(_PG, "register_pre_hook") and hasattr(_PG, "register_post_hook")):
        return False
    return bool(_KINDS) and all(n in _BY_NAME or n in _NO_OPS for n in _NAMES)


def installable() -> bool:
    """Return whether the existing groups can get their hooks without a race."""
    return _alone() or all(_is_watched(pg) for pg in list(c10d._world.pg_map))


def _alone() -> bool:
    """No other thread that could be issuing ops."""
    me = threading.current_thread()
    return all(t is me or t.name == "pardbg" for t in threading.enumerate())


class PublicHooks:
    """Hooks on every process group, from when it is made."""

    name = "public"

    def __init__(self) -> None:
        self._patches = Patches()
        self._waits: Any = None

    def install(self) -> None:
        """Watch the groups there are, and those to come."""
        _process.active = True
        self._patches.set(_PG, "__init__", _made(_PG.__init__, 0))
        register = "_register_process_group"
        self._patches.set(c10d, register, _made(getattr(c10d, register), 1))
        for method in ("send", "recv", "recv_anysource"):
            self._patches.set(_PG, method, _tagged(getattr(_PG, method)))
        for pg in list(c10d._world.pg_map):
            watch(pg)
        self._waits = dispatcher.watch_waits()

    def uninstall(self) -> None:
        """From here on ops pass; the hooks go too where that cannot race with an op."""
        _process.active = False
        self._patches.undo()
        if self._waits is not None:
            self._waits._destroy()
            self._waits = None
        if _alone():
            for known in list(_process.watched.values()):
                known.remove()


class Watch:
    """One group's hooks. They know the group weakly: it owns them."""

    __slots__ = ("ref",)

    def __init__(self, pg: Any) -> None:
        key = id(pg)
        self.ref = weakref.ref(pg, lambda ref: _forget(key, ref))
        _process.watched[key] = self
        pg.register_pre_hook(HOOK_ID, functools.partial(_before, self))
        pg.register_post_hook(HOOK_ID, functools.partial(_after, self))

    def remove(self) -> None:
        """Off this group; only while nothing can be issuing on it."""
        pg = self.ref()
        if pg is not None:
            pg.unregister_pre_hook(HOOK_ID)
            pg.unregister_post_hook(HOOK_ID)
            _process.watched.pop(id(pg), None)


def watch(pg: Any) -> None:
    """Hook a process group's ops, once."""
    if not _is_watched(pg):
        Watch(pg)


def _is_watched(pg: Any) -> bool:
    known = _process.watched.get(id(pg))
    return known is not None and known.ref() is pg


def _forget(key: int, ref: Any) -> None:
    known = _process.watched.get(key)
    if known is not None and known.ref is ref:
        del _process.watched[key]


# -- the ops


def _spec(op: str, coalesced: bool = False, **fields: Any) -> Spec:
    """Return what ``_begin`` needs: (inputs, tensor, bytes in, bytes out, root, tag, async_op)."""
    word = f"{op} of many" if coalesced else op
    return Spec(
        word, op, given, 0, root=4 if fields.pop("rooted", False) else -1, tag=5, is_async=6,
        coalesced=coalesced, **fields,
    )  # fmt: skip


class _Kind:
    """One HookOpName: how its records look."""

    __slots__ = ("begin", "begin_many", "both", "count", "hook", "spec")

    def __init__(
        self, op: str, *, both: bool = False, many: bool = False, coalesced: bool = False,
        **fields: Any,
    ) -> None:  # fmt: skip
        self.spec = _spec(op, coalesced, **fields)
        self.hook = f"c10d.{op}"
        self.both = both
        """In place, or a message: one list of tensors is what goes in and what comes out."""
        self.begin = self.begin_many = collectives.make_begin(self.spec)
        self.count = collectives.make_count(self.spec)
        if many:  # the same name for coalesced ones
            self.begin_many = collectives.make_begin(_spec(op, True, **fields))


def _kinds() -> dict[str, _Kind]:
    reduce_scatter: dict[str, Any] = {"reduces": True, "future": False}
    return {
        "SEND": _Kind("send", both=True, rooted=True, p2p=True, send=True, future=False),
        "RECV": _Kind("recv", both=True, rooted=True, p2p=True, future=False),
        "BROADCAST": _Kind("broadcast", both=True, rooted=True),
        "ALLREDUCE": _Kind("all_reduce", both=True, many=True, reduces=True),
        "ALLREDUCE_COALESCED": _Kind("all_reduce", both=True, coalesced=True, reduces=True),
        "REDUCE": _Kind("reduce", both=True, rooted=True, reduces=True),
        "ALLGATHER": _Kind("all_gather", many=True),
        "ALLGATHER_BASE": _Kind("all_gather"),
        "ALLGATHER_COALESCED": _Kind("all_gather", coalesced=True),
        "ALLGATHER_INTO_TENSOR_COALESCED": _Kind("all_gather", coalesced=True),
        "REDUCE_SCATTER": _Kind("reduce_scatter", many=True, **reduce_scatter),
        "REDUCE_SCATTER_BASE": _Kind("reduce_scatter", **reduce_scatter),
        "REDUCE_SCATTER_TENSOR_COALESCED": _Kind(
            "reduce_scatter", coalesced=True, **reduce_scatter
        ),
        "ALLTOALL": _Kind("all_to_all"),
        "ALLTOALL_BASE": _Kind("all_to_all"),
        "BARRIER": _Kind("barrier"),
        "SCATTER": _Kind("scatter", rooted=True),
        "GATHER": _Kind("gather", rooted=True),
    }


_NO_OPS: Final = ("SPLIT", "NEW_WINDOW", "UNKNOWN")
_NAMES: Final[dict[str, Any]] = dict(
    getattr(getattr(torch._C._distributed_c10d, "HookOpName", None), "__members__", {})
)
_BY_NAME: Final = _kinds()
_KINDS: Final = {value.value: _BY_NAME[n] for n, value in _NAMES.items() if n in _BY_NAME}
"""By HookOpName's values."""


@unseen
def _before(watch: Watch, args: Any) -> None:
    """The pre-hook: gate, number, name; what ``_after`` needs goes on the thread's stack."""
    issuing = LOCAL.state.issuing
    if issuing:
        _drop_refused(issuing, watch)
    if not _process.active:
        return
    entered = now_ns()
    c = _core.CURRENT or _core.ensure()
    kind = _KINDS.get(args.name.value)
    if kind is None:
        return
    state = LOCAL.state
    state.numbered = False
    try:
        op = _begin(c, watch, kind, args)
        if op is not None:
            issuing.append((watch, op, kind))
        state.numbered = True
    except Exception as error:  # noqa: BLE001 - the guard
        collectives.lost(c, kind.hook, error)
    if not state.numbered:
        c.guard.call("c10d.count", _count, c, watch, kind, args)
    c.hook_ns += now_ns() - entered


def _count(c: _core.Core, watch: Watch, kind: _Kind, args: Any) -> None:
    """The op's number, where nothing else of it is kept."""
    state, tensors = local(), args.input_tensors or args.output_tensors
    put = (tensors, tensors[0] if tensors else None, 0, 0, args.root, state.tag, args.async_op)
    outer = state.group
    state.group = watch.ref() if outer is None else outer
    if state.group is not None:
        kind.count(c, put, state)
    state.group = outer


def _begin(c: _core.Core, watch: Watch, kind: _Kind, args: Any) -> Op | None:
    """The dispatcher's own beginning of an op, with the arguments in the places of ``_spec``."""
    state, ins, outs = local(), args.input_tensors, args.output_tensors
    tensors = ins or outs
    if kind.both:
        a = b = num_bytes(tensors)
    else:
        a, b = num_bytes(ins), num_bytes(outs)
    begin = kind.begin
    if kind.begin_many is not begin and _is_coalesced(kind, ins, outs):
        begin = kind.begin_many
    put = (ins, tensors[0] if tensors else None, a, b, args.root, state.tag, args.async_op)
    pg = state.group
    if pg is not None:
        op: Op | None = begin(c, put, state)
    else:
        pg = watch.ref()
        if pg is None:
            return None
        state.group, state.reduce = pg, NONE
        try:
            op = begin(c, put, state)
        finally:
            state.group = None
        if op is not None:  # functional collectives and messages wait by tensor
            works.expect_tensor(c, op, outs or ins)
    if op is not None and not tensors and not _is_on_host(pg):
        op = op._replace(host_waits=False)
    return op


def _is_coalesced(kind: _Kind, ins: Any, outs: Any) -> bool:
    """More than one tensor on the side that has one otherwise."""
    return len(outs if kind.spec.op == "reduce_scatter" else ins) > 1


def _is_on_host(pg: Any) -> bool:
    """Is an op without tensors complete when its wait returns?"""
    known = c10d._world.pg_map.get(pg)
    return known is None or known[0] in HOST_BACKENDS


@unseen
def _after(watch: Watch, args: Any) -> None:
    t1 = now_ns()
    issuing = LOCAL.state.issuing
    if not issuing or (issuing[-1][0] is not watch and not _uncover(issuing, watch)):
        return
    _, op, kind = issuing.pop()
    c = _core.CURRENT
    if c is None:
        return
    try:
        if c.level > 1:
            _, name_id, t0, step, seq, group_id, flags, stage, mb, peer, a, b, _ = op
            c.record(
                _ISSUE, _COMM, flags, name_id, t0, t1, step, seq, group_id, stage, mb, peer, a, b
            )
        if op.flags & _ASYNC:
            (c.context or context.of(c)).sites.note(op.t0)
        state = local()
        if state.group is not None:
            state.op = op  # the method that Python called ties it to its Work
        elif kind.spec.future or not op.host_waits:
            work = args.work
            works.follow(c, op, None if work is None else work.boxed())
    except Exception as error:  # noqa: BLE001 - the guard
        c.guard.failed(kind.hook, error)
    c.hook_ns += now_ns() - t1 + HOOKS_NS
    c.hook_calls += 1


# -- ops that were begun and never issued


# A group issues one op at a time on a thread, so its hooks need no number to know their op.


def _uncover(issuing: list[Any], watch: Watch) -> bool:
    """Is this group's op among them? Those begun after it were refused by their backend."""
    if all(entry[0] is not watch for entry in issuing):
        return False
    while issuing[-1][0] is not watch:
        _refused(_core.CURRENT, issuing.pop())
    return True


def _drop_refused(issuing: list[Any], watch: Watch) -> None:
    """Drop what is left of an earlier op of this group: it was refused, and C++ had issued it
    (``raised`` sees to Python's)."""
    for entry in [e for e in issuing if e[0] is watch] or issuing[:-_MAX_ISSUING]:
        issuing.remove(entry)
        _refused(_core.CURRENT, entry)


def raised(c: _core.Core) -> None:
    """Drop the ops that the raising Python method had begun: they are not issued."""
    issuing = LOCAL.state.issuing
    while issuing:
        _refused(c, issuing.pop())


def _refused(c: _core.Core | None, entry: Any) -> None:
    if c is not None:
        c.guard.call("refused", collectives.failed, c, entry[1])


# -- groups, and what only Python knows


def _made(original: Any, place: int) -> Callable[..., Any]:
    """``original``, whose argument at ``place`` is a group that is new."""

    @unframed
    @functools.wraps(original)
    def made(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        try:
            if _process.active and len(args) > place:
                watch(args[place])
        except Exception as error:  # noqa: BLE001 - the guard
            complain(f"a process group is not watched: {type(error).__name__}: {error}")
        return result

    return cast(Callable[..., Any], made)


def _tagged(original: Any) -> Callable[..., Any]:
    """A p2p method; its last argument is the tag."""

    @unframed
    @functools.wraps(original)
    def tagged(*args: Any, **kwargs: Any) -> Any:
        tag = kwargs.get("tag", args[-1])
        state = LOCAL.state
        state.tag = tag if type(tag) is int else 0
        try:
            return original(*args, **kwargs)
        finally:
            state.tag = 0

    return cast(Callable[..., Any], tagged)
