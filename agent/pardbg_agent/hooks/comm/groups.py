"""Process groups: one id per group, a key that is equal on all members, ranks, axis, backend."""

from __future__ import annotations

import weakref
import zlib
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import torch.distributed.distributed_c10d as c10d

from pardbg_agent import core as _core
from pardbg_agent.hooks.context import Context, Group, of
from pardbg_agent.life import calls

UNKNOWN: Final = -2
"""Rank of a member whose global rank is unknown. (As a peer, NONE means any sender.)"""
_MAX_AXES = 4096
_AXES = frozenset(("dp", "dp_replicate", "dp_shard", "fsdp", "tp", "sp", "cp", "pp", "ep"))
"""Mesh axis names that programs use: a group whose description is one of them is on that axis."""


class _Process:
    """State of the process that outlives a detach, so that group names keep their meaning."""

    def __init__(self) -> None:
        self.axes: dict[str, str] = {}
        """Group name -> mesh axis, as DeviceMesh objects give it."""
        self.source = ""
        """Where ops are hooked, "native" or "dispatcher"; sent in the PROCESS definition."""
        self.module: Any = None
        """C++ module that hooks the ops; None where Python hooks them."""
        self.generation = 0
        """Number of default groups made so far: group names start over with each."""
        self.made = weakref.WeakKeyDictionary[Any, str]()
        """Groups that c10d does not know -> their keys."""
        self.numbers: Counter[tuple[str, int]] = Counter()
        """(name, size) -> number of such groups so far."""
        self.default: Any = None
        """Weak reference to the last default group; a new attach must not count it again."""


PROCESS: Final = _Process()


def group_of(x: Context, pg: Any) -> Group:
    """Return the group's facts; a dict look-up after the first time."""
    known = x.groups.get(id(pg))
    if known is not None and known.ref() is pg:
        return known
    return _meet(x, pg)


def default_made(pg: Any) -> None:
    """Register the rank when the default group is set, before its first op."""
    if pg is None:
        return
    if PROCESS.default is None or PROCESS.default() is not pg:
        if PROCESS.default is not None:
            PROCESS.axes.clear()  # of groups that are gone: the new ones have the same names
        PROCESS.generation, PROCESS.default = PROCESS.generation + 1, weakref.ref(pg)
    c = _core.ensure()
    _started(c)
    if c.level and PROCESS.generation > 1:  # before its first definition or record
        c.guard.call("groups", lambda: c.meet_again(int(pg.rank()), int(pg.size())))
    if c.level:
        c.guard.call("groups", lambda: group_of(of(c), pg))


def _started(c: _core.Core) -> None:
    if calls.group_formed(c):  # the program may have set its own hooks meanwhile
        c.guard.call("excepthook", _core.UNCAUGHT.install)


def mesh_made(mesh: Any) -> None:
    """Note which group is which mesh axis, and update groups that are already defined."""
    axes = getattr(mesh, "mesh_dim_names", None)
    groups = getattr(mesh, "_dim_group_names", None)
    if groups is None:  # before torch 2.8: (tag, ranks, name) of each
        groups = [info[2] for info in getattr(mesh, "_dim_group_infos", ())]
    if not axes or not groups or len(axes) != len(groups) or len(PROCESS.axes) > _MAX_AXES:
        return
    for axis, name in zip(axes, groups, strict=True):
        if name is not None and PROCESS.axes.get(name) != axis:
            _note(name, axis)


def name_axes(holder: Any, axes: Mapping[str, str]) -> None:
    """Note groups that a framework keeps in attributes of ``holder``, or in dicts there (``axes``:
    attribute -> axis). A group with a description of its own keeps that name."""
    for attribute, axis in axes.items():
        value = getattr(holder, attribute, None)
        for pg in value.values() if isinstance(value, dict) else (value,):
            if not isinstance(pg, c10d.ProcessGroup) or pg.size() < 2:
                continue
            name = c10d._world.pg_names.get(pg)
            if name and name not in PROCESS.axes and _described(pg, name) == name:
                _note(name, axis)


def place_on(axis: str) -> tuple[int, int] | None:
    """Return (size, own rank) of this rank's group on a mesh axis; None if it has none."""
    for pg in c10d._world.pg_names:
        if _axis(pg, _torch_name(pg)) == axis and pg.rank() >= 0:
            return pg.size(), pg.rank()
    return None


def _note(name: str, axis: str) -> None:
    PROCESS.axes[name] = axis
    c = _core.CURRENT
    if c is not None and c.level:
        for pg in [pg for pg, known in c10d._world.pg_names.items() if known == name]:
            _meet(of(c), pg)


def _meet(x: Context, pg: Any) -> Group:
    c = x.core
    torch_name = _torch_name(pg)
    ranks = _ranks(c, pg)
    # torch's names repeat after destroy_process_group and a new init: the generation keeps those
    # apart, and the ranks keep apart what replicas name alike.
    key = f"{torch_name}@{zlib.crc32(repr(ranks).encode()):08x}"
    axis = _axis(pg, torch_name)
    name = axis or ("default" if pg is c10d._world.default_pg else _described(pg, torch_name))
    place = int(pg.rank()) if UNKNOWN in ranks else None
    if place is not None:
        key, name = _key_of(pg, torch_name), f"{name} of {len(ranks)}"
    if PROCESS.generation > 1:
        key = f"{PROCESS.generation}.{key}"
    backend = _backend(pg)
    group_id = c.defs.group(key, name, axis, ranks, backend, _timeout_ns(pg), place)
    x.groups = {i: g for i, g in x.groups.items() if g.ref() is not None}
    x.signatures = {k: s for k, s in x.signatures.items() if s.ref() is not None}
    group = x.groups[id(pg)] = Group(key, group_id, name, ranks, backend, weakref.ref(pg), axis)
    _identify(c, pg)
    _started(c)  # a program may make all its groups by hand
    return group


def _identify(c: _core.Core, pg: Any) -> None:
    """Set the process's rank from its default group, or else from its first group."""
    if PROCESS.source:
        c.defs.identify(hooks=PROCESS.source)
    default = c10d._world.default_pg
    if default is not None:
        pg = default
    elif c.identity.rank >= 0:
        return
    c.set_rank(int(pg.rank()), int(pg.size()))


def _torch_name(pg: Any) -> str:
    """Return torch's name of a group: equal on all members, which make groups in the same order."""
    known = c10d._world.pg_names.get(pg)
    if known:
        return str(known)
    try:
        return str(pg.group_name) or type(pg).__name__
    except (RuntimeError, ValueError):  # a ProcessGroup made by hand, or torchft's, has no name
        return type(pg).__name__


def _ranks(c: _core.Core, pg: Any) -> tuple[int, ...]:
    """Return the members' global ranks. They are unknown for a ProcessGroup made by hand
    (torchft's), unless it is as large as the world and this rank has its own number in it."""
    known = c10d._world.pg_group_ranks.get(pg)
    if known:
        # int(): nanotron makes its groups of numpy's numbers
        return tuple(int(rank) for rank in sorted(known, key=known.__getitem__))
    size, own = int(pg.size()), c.identity.rank
    like_world = (size, int(pg.rank())) == (c.identity.world_size, own)
    if own < 0 or like_world or pg in c10d._world.pg_names:  # its ranks are set a moment later
        return tuple(range(size))
    return (own,) if size == 1 else (UNKNOWN,) * size


def _key_of(pg: Any, name: str) -> str:
    """Return a key that members of a group made by hand agree on: all of them make it, so the count
    of such groups so far is equal; where it is not, the members' places do not fit together."""
    if pg not in PROCESS.made:
        PROCESS.numbers[name, pg.size()] += 1
        PROCESS.made[pg] = f"{name}@{pg.size()}#{PROCESS.numbers[name, pg.size()]}"
    return PROCESS.made[pg]


def _axis(pg: Any, torch_name: str) -> str | None:
    known = PROCESS.axes.get(torch_name)
    if known is not None:
        return known
    try:
        description = str(pg.group_desc)
    except (RuntimeError, AttributeError):
        return None
    if description in _AXES:  # new_group(group_desc="ep")
        return description
    axis = description.removeprefix("mesh_")
    if axis == description or axis == "default" or axis.startswith("dim_"):
        return None
    return axis


def _described(pg: Any, torch_name: str) -> str:
    """Return the name given by ``new_group(group_desc=…)``, else torch's group name."""
    try:
        description = str(pg.group_desc)
    except (RuntimeError, AttributeError):
        return torch_name
    return torch_name if description in ("", "undefined") else description


def _timeout_ns(pg: Any) -> int | None:
    """Return the group's op timeout; None where the backend has none (fake ones)."""
    try:
        options = pg._get_backend(pg._device_types[0]).options
        return int(options._timeout.total_seconds() * 1e9)
    except (AttributeError, IndexError, RuntimeError, TypeError):
        return None


def _backend(pg: Any) -> str:
    known = c10d._world.pg_map.get(pg)
    name = str(known[0]) if known else ""
    if name not in ("", "undefined"):
        return name
    try:  # init_process_group() without a backend: each kind of device has its own
        kinds = {str(pg._get_backend(device).name()) for device in pg._device_types}
        return "+".join(sorted(kinds)) or str(pg.name())
    except (AttributeError, RuntimeError):
        return name or "?"
