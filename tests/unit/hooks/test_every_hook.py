"""Every function that a hook replaces, found by putting all hooks in place: the replacement takes
each form of call that the original takes, and so does what runs before it."""

from __future__ import annotations

import functools
import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, NamedTuple

import pytest

from pardbg_agent import core, hooks
from pardbg_agent.hooks import patching
from pardbg_agent.hooks.comm import host_calls
from tests.distributed.programs.watched import make_run
from tests.unit.hooks.fsdp2 import PACKAGE

MODULES = (
    "torch.distributed.checkpoint.state_dict_loader",
    "torch.distributed.checkpoint.state_dict_saver",
    f"{PACKAGE}._fsdp_param_group",
    f"{PACKAGE}._fsdp_state",
    "torch.distributed.fsdp.fully_sharded_data_parallel",
    "torch.distributed.optim",
    "torch.distributed.pipelining.schedules",
    "torch.distributed.pipelining.stage",
    "torch.distributed.rpc",
    "torch.nn.parallel.distributed",
    "torch.utils.checkpoint",
)
"""Hooks that wait for a module go into these."""


PYTHON = (FunctionType, functools.partial)


class Hooked(NamedTuple):
    name: str
    original: Callable[..., Any]
    takes: Callable[..., Any]  # what gets the call's arguments
    placed: bool  # ... after a Core, leading names in their places


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Hooked]]:
    found: list[Hooked] = []
    patch = pytest.MonkeyPatch()
    patch.setenv("PARDBG", make_run(tmp_path_factory.mktemp("every"))["PARDBG"])
    with warnings.catch_warnings():  # of torch about itself
        warnings.simplefilter("ignore")
        for module in MODULES:
            importlib.import_module(module)
    around, replace, watched = patching.around, patching.Patches.set, host_calls._watched

    def seen_around(original: Any, hook: str, before: Any, *rest: Any) -> Any:
        found.append(Hooked(f"{hook}: {original.__qualname__}", original, before, True))
        return around(original, hook, before, *rest)

    def seen_set(self: Any, owner: Any, name: str, new: Any) -> None:
        label, old = f"{getattr(owner, '__name__', owner)}.{name}", getattr(owner, name)
        found.append(Hooked(label, old, new, False))
        replace(self, owner, name, new)

    def seen_watched(name: str, original: Any, describe: Any) -> Any:
        found.append(Hooked(f"call {name}", original, describe, False))
        return watched(name, original, describe)

    patch.setattr(patching, "around", seen_around)
    patch.setattr(host_calls, "_watched", seen_watched)
    patch.setattr(patching.Patches, "set", seen_set)
    hooks.install()
    yield found
    hooks.uninstall()
    core.shutdown()
    patch.undo()


def forms(function: Callable[..., Any]) -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    """Calls that a function takes: what it must be given and all that it can be given, by place
    and by name (but a method's object, which always comes by place)."""
    parameters = list(inspect.signature(function).parameters.values())
    named = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    first = [p for p in parameters if p.kind is p.POSITIONAL_ONLY] + [
        p for p in named[:1] if p.name == "self"
    ]
    named = [p for p in named if p.name != "self"]
    only = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    more: tuple[Any, ...] = ("more",) if any(p.kind is p.VAR_POSITIONAL for p in parameters) else ()
    extra = {"extra": 1} if any(p.kind is p.VAR_KEYWORD for p in parameters) else {}
    start = tuple(p.name for p in first)
    needed = [p.name for p in named if p.default is p.empty]
    must = {p.name: p.name for p in only if p.default is p.empty}
    every = [p.name for p in named]
    return {
        "needed by place": ((*start, *needed), must),
        "needed by name": (start, dict.fromkeys(needed, 1) | must),
        "all by place": ((*start, *every, *more), {p.name: 1 for p in only} | extra),
        "all by name": (start, dict.fromkeys([*every, *(p.name for p in only)], 1) | extra),
        "the last by name": ((*start, *every[:-1]), dict.fromkeys(every[-1:], 1) | must),
    }


def test_each_takes_every_form_of_call(hooked: list[Hooked]) -> None:
    wrong = []
    for name, original, takes, placed in hooked:
        if not isinstance(original, FunctionType) or not isinstance(takes, PYTHON):
            continue  # of C: it has no names
        accepts = inspect.signature(takes, follow_wrapped=False)
        for form, (args, kwargs) in forms(original).items():
            given = args, kwargs
            if placed:
                at_place, rest = patching._placed(patching._names(original), args, kwargs)
                given = ("core", *at_place), rest
            try:
                accepts.bind(*given[0], **given[1])
            except TypeError as error:
                wrong.append(f"{name}, {form}: {error}")
    assert not wrong, "\n".join(wrong)


def test_it_reaches_the_hooks(hooked: list[Hooked]) -> None:
    """At least one of each part that hooks functions; a hook that is gone here is not tested."""
    names = " ".join(h.name for h in hooked)
    for part in ("probe.ddp", "backward", "pipeline.step", "pipeline.forward_one_chunk",
                 "fsdp.unshard", "rpc", "recompute", "wrapper", "scale", "loader",
                 "init_process_group", "new_group", "save", "DeviceMesh"):  # fmt: skip
        assert part in names, part
    assert len(hooked) > 60, len(hooked)
