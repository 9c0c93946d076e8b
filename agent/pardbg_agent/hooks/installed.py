"""Installed hooks, and how to remove them."""

from __future__ import annotations

import functools
import os
from typing import Any, Final, Protocol

import torch
import torch.distributed.distributed_c10d as c10d
from torch.distributed import device_mesh

from pardbg_agent import core as _core
from pardbg_agent.hooks import context, frameworks, patching
from pardbg_agent.hooks.comm import groups, host_calls
from pardbg_agent.hooks.context import StateTypes
from pardbg_agent.hooks.memory import saved_tensors, wrappers
from pardbg_agent.hooks.ops import dispatcher, native_way, works
from pardbg_agent.hooks.patching import Patches, unframed
from pardbg_agent.hooks.training import (
    fsdp,
    graph_replays,
    pipeline,
    recompute,
    remote_calls,
    sampling,
    step_phases,
    uneven_inputs,
)
from pardbg_agent.hooks.watch import initial_values, module_gates, probes, tensor_capture
from pardbg_agent.life.late_imports import LateImports
from pardbg_agent.settings import complain

_HOOKS: Final[tuple[Any, ...]] = (
    host_calls, probes, step_phases, pipeline, frameworks, wrappers, fsdp, recompute,
    remote_calls, graph_replays, sampling, uneven_inputs, initial_values, tensor_capture,
    module_gates,
)  # fmt: skip


class OpHooks(Protocol):
    """Interface of the two implementations that hook every collective and p2p op."""

    name: str

    @property
    def types(self) -> StateTypes:
        """Return the types of the state that this implementation shares with the other hooks."""

    def install(self) -> None:
        """Install the hooks that record ops and hold them at gates."""

    def uninstall(self) -> None:
        """Stop intercepting ops."""


class Installed:
    """All hooks of this process."""

    def __init__(self) -> None:
        self._patches = Patches()
        self.missing = self._patches.missing
        self._late = LateImports(self._lacks)
        self._handles: list[Any] = []
        self._ops: OpHooks | None = None

    @property
    def awaited(self) -> list[str]:
        """Return the modules whose import triggers further hooks."""
        return self._late.awaited

    def _lacks(self, text: str) -> None:
        self.missing.append(text)
        complain(text)

    def install(self) -> None:
        """Install each hook by itself; if the op hooks fail, install none."""
        try:
            self._install()
        except BaseException:
            self.uninstall()
            raise

    def _install(self) -> None:
        compiler = torch.compiler
        patching.use_compiling(compiler.is_compiling, compiler.is_dynamo_compiling)
        self._ops = choose()
        context.use_types(self._ops.types)
        groups.PROCESS.source = self._ops.name
        self._ops.install()
        patches = self._patches
        works.install(patches, getattr(self._ops, "wait_of", None))
        saved_tensors.install(patches)
        patches.wrap(c10d.ProcessGroup, "monitored_barrier", dispatcher.monitored)
        default_made = functools.partial(_then, then=groups.default_made)
        patches.wrap(c10d, "_update_default_pg", default_made)
        mesh_made = functools.partial(_then, then=groups.mesh_made)
        patches.wrap(device_mesh.DeviceMesh, "__init__", mesh_made)
        for hook in _HOOKS:
            installed = functools.partial(hook.install, patches, self._late)
            name = hook.__name__.rpartition(".")[2]
            self._handles += patches.attempt(name, installed) or ()
        default = c10d._world.default_pg
        if default is not None:  # attached in the middle of a program
            groups.default_made(default)

    def uninstall(self) -> None:
        """Remove the hooks, newest first."""
        self._late.stop()
        step_phases.stop_counting()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._patches.undo()
        if self._ops is not None:
            self._ops.uninstall()
            self._ops = None
        context.forget()


def choose() -> OpHooks:
    """Return the native hooks if they are built, else the dispatcher's. ``PARDBG_HOOKS`` chooses
    one of them."""
    wanted = os.environ.get("PARDBG_HOOKS", "")
    if wanted not in ("", "native", "dispatcher"):
        complain(f"PARDBG_HOOKS={wanted}: it is native or dispatcher; ignored")
    if wanted != "dispatcher":
        if native_way.usable():
            return native_way.NativeWay()
        if wanted == "native":
            complain(f"PARDBG_HOOKS=native: {native_way.why_not()}")
    return dispatcher.Dispatcher()


def _then(original: Any, then: Any) -> Any:
    @unframed
    @functools.wraps(original)
    def followed(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        try:
            then(args[0] if args else None)
        except Exception as error:  # noqa: BLE001 - the guard, also where there is no Core yet
            c = _core.CURRENT
            if c is not None:
                c.guard.failed("groups", error)
        return result

    return followed
