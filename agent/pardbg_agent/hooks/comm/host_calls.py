"""Calls that block outside of collectives: making and destroying groups, waiting for the store,
writing checkpoints. Begin and end of each are reported (pardbg_agent.life.calls).

Only the outermost such call of a thread counts: init_device_mesh makes groups, and
init_process_group waits at the store."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.distributed import device_mesh

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks import call_sites, patching
from pardbg_agent.hooks.comm.groups import group_of
from pardbg_agent.hooks.context import current
from pardbg_agent.hooks.patching import Patches
from pardbg_agent.identity import env_int
from pardbg_agent.life import calls
from pardbg_agent.life.late_imports import LateImports
from pardbg_agent.life.own_frames import hide_own
from pardbg_agent.op_table import Call

MAX_RANKS: Final = 16
"""Maximum number of a group's ranks to name."""
CALLBACKS_NS: Final = 50_000_000
"""Maximum delay of a group's destruction while its ops are under way."""
DROPPED_S: Final = 0.002
"""Time a backend's worker thread needs to drop the tensors its callbacks held."""
_INIT: Final = (
    "backend", "init_method", "timeout", "world_size", "rank", "store", "group_name",
)  # fmt: skip


_GROUPS: Final = (c10d, dist, device_mesh)


class About(NamedTuple):
    """Description of a blocking call, made before it begins."""

    detail: str
    members: Sequence[int] | None
    """Ranks that all make this call, in the same order; None: it concerns this rank alone."""
    group: int = 0
    """Id of the one group that the call is about."""
    meets: str = ""
    """Address at which the call looks for the other ranks, HOST:PORT."""


Describe = Callable[..., About | None]
"""Describes a call by its arguments; None if the call is not to be watched."""


class _Here(threading.local):
    inside = False


_here = _Here()


def install(patches: Patches, late: LateImports) -> None:
    """Hook set-up calls, store reads and checkpoints, also in modules that are imported later."""
    for modules, prefix, name, describe in (
        (_GROUPS, "", "init_process_group", _init),
        (_GROUPS, "", "destroy_process_group", _destroy),
        (_GROUPS, "", "new_group", _new_group), (_GROUPS, "", "split_group", _split_group),
        ((device_mesh, dist), "", "init_device_mesh", _mesh),
        ((c10d.Store,), "Store.", "get", _key), ((c10d.Store,), "Store.", "wait", _key),
        ((torch, torch.serialization), "torch.", "save", functools.partial(_file, 1)),
        ((torch, torch.serialization), "torch.", "load", functools.partial(_file, 0)),
    ):  # fmt: skip
        original = getattr(modules[0], name, None)
        if original is not None:
            watched = _watched(prefix + name, original, describe)
            for module in modules:
                if getattr(module, name, None) is original:
                    patches.set(module, name, watched)
    for name in ("saver", "loader"):
        late.when_imported(
            f"torch.distributed.checkpoint.state_dict_{name}",
            functools.partial(_checkpoint, patches, "save" if name == "saver" else "load"),
        )


def _checkpoint(patches: Patches, name: str, module: ModuleType) -> None:
    describe = functools.partial(_file, 1)
    patches.wrap(module, name, lambda call: _watched(f"checkpoint.{name}", call, describe))


def _watched(name: str, original: Any, describe: Describe) -> Any:
    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if patching.compiling():
            return original(*args, **kwargs)
        c, call = (None, None) if _here.inside else _begin(name, describe, args, kwargs)
        _here.inside, failed = _here.inside or call is not None, True
        try:
            result = original(*args, **kwargs)
            failed = False
        except BaseException as error:
            hide_own(error)
            raise
        finally:
            if c is not None and call is not None:
                _here.inside = False
                c.guard.call("calls", calls.end, c, call, failed)
        return result

    return watched


def _begin(
    name: str, describe: Describe, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[_core.Core | None, Call | None]:
    c = _core.CURRENT
    try:
        if c is None and name == "init_process_group":
            c = _spawned(args, kwargs)
        if c is None or not c.level or "calls" in c.guard.disabled:
            return None, None
        about = describe(*args, **kwargs)
        if about is None:
            return None, None
        at = call_sites.here
        if about.members is None:
            return c, calls.alone(c, name, about.detail, group=about.group, at=at)
        key = calls.together(about.members)
        return c, calls.begin(c, name, about.detail, key, about.members, at=at, meets=about.meets)
    except Exception as error:  # noqa: BLE001 - the guard
        if c is not None:
            c.guard.failed("calls", error)
        return None, None


def _spawned(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _core.Core | None:
    """Return the Core of a spawned process whose rank comes from this call, not from RANK."""
    given = _given(args, kwargs)
    rank, size = _rank_and_size(given)
    if rank < 0 or size <= 0:
        return None
    c = _core.ensure()
    if not c.defs.process.get("job"):
        c.defs.identify(job=f":{_where(given)}")
    c.set_rank(rank, size)
    return c


def _given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**dict(zip(_INIT, args, strict=False)), **kwargs}


def _rank_and_size(given: dict[str, Any]) -> tuple[int, int]:
    """Return (rank, world size) as init_process_group takes them; (-1, -1) if not known yet."""
    rank, size = given.get("rank"), given.get("world_size")
    known_rank = rank if isinstance(rank, int) and rank >= 0 else env_int("RANK")
    known_size = size if isinstance(size, int) and size > 0 else env_int("WORLD_SIZE")
    return known_rank, known_size


def _init(*args: Any, **kwargs: Any) -> About | None:
    given = _given(args, kwargs)
    _, size = _rank_and_size(given)
    if size <= 0:
        return None
    backend = given.get("backend") or "default backend"
    return About(f"world size {size}, {backend}", range(size), meets=_where(given))


def _where(given: dict[str, Any]) -> str:
    """Return the rendezvous address of the ranks."""
    method = given.get("init_method")
    if given.get("store") is not None:
        return "a store of the program"
    if method is None or str(method).startswith("env:"):
        return f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
    return str(method).partition("?")[0].removeprefix("tcp://")


def _world() -> range | None:
    if dist.is_initialized():
        return range(dist.get_world_size())
    size = env_int("WORLD_SIZE")
    return range(size) if size > 0 else None


def _ranks(ranks: Any) -> str:
    if ranks is None:
        return "all ranks"
    known = [int(rank) for rank in ranks]
    more = "…" if len(known) > MAX_RANKS else ""
    return f"ranks {','.join(map(str, known[:MAX_RANKS]))}{more}"


def _new_group(
    ranks: Any = None, timeout: Any = None, backend: Any = None, pg_options: Any = None,
    use_local_synchronization: bool = False, *_: Any, **__: Any,
) -> About | None:  # fmt: skip
    members = _world()
    if use_local_synchronization and ranks is not None:
        members = sorted(int(rank) for rank in ranks)  # type: ignore[assignment]
    return None if members is None else About(_ranks(ranks), members)


def _split_group(
    parent_pg: Any = None, split_ranks: Any = None, *_: Any, **__: Any
) -> About | None:
    members = dist.get_process_group_ranks(parent_pg) if parent_pg is not None else _world()
    return None if members is None else About(str(split_ranks), members)


def _mesh(device_type: Any = "", mesh_shape: Any = (), *_: Any, **kwargs: Any) -> About | None:
    members = _world()
    names = kwargs.get("mesh_dim_names")
    text = f"{tuple(mesh_shape)}{f' {tuple(names)}' if names else ''}"
    return None if members is None else About(text, members)


def let_callbacks_run() -> None:
    """Wait, before a group is destroyed, until callbacks of completed ops have run: callbacks need
    the GIL, and so does dropping tensors that Python has made. A model in a local of ``main()``
    takes the group's last reference with it as that returns; ``~ProcessGroupGloo``, with the GIL
    held, then joins the thread that drops them. Ops hooked in C++ have no callbacks, but the
    program's own tensors and Works are dropped there all the same."""
    c = _core.CURRENT
    if c is None or c.context is None or not c.ops.num_ever:
        return
    followed, until = c.context.works.followed, now_ns() + CALLBACKS_NS
    while followed and now_ns() < until:
        time.sleep(0.0005)
    time.sleep(DROPPED_S)


def _destroy(group: Any = None) -> About:
    let_callbacks_run()
    if group is None or group is dist.group.WORLD:  # with the world go all others
        return About("", None)
    members = _ranks(dist.get_process_group_ranks(group))
    return About(members, None, group_of(current(), group).group_id)


def _key(store: Any, keys: Any = "", *_: Any, **__: Any) -> About:
    """Describe a wait for a store key: any rank may set the key, so no rank is named."""
    return About(", ".join(keys) if isinstance(keys, (list, tuple)) else str(keys), None)


def _file(place: int, *args: Any, **kwargs: Any) -> About:
    target = kwargs.get("checkpoint_id") or kwargs.get("f") or (*args, "", "")[place]
    return About(str(target) if isinstance(target, (str, os.PathLike)) else "", None)
