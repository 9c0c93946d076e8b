"""Settings of a model's modules that ranks should have equal.

- **modes** (**modes-own** for models without a wrapper): how many modules are in training mode.
- **modules CLASS(NAME=VALUE,…) …**: the classes of torch.nn among them, each with its numbers that
  are not sizes (a dropout's p, a norm's eps and momentum) and its options; and how many parameters
  that DDP keeps equal, or the optimizer steps, are not frozen, or how many of FSDP's no optimizer
  has.

They are recorded at an optimizer's step that has checksums."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Final

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks import context
from pardbg_agent.hooks.tensors import parameters_of
from pardbg_agent.wire import NONE, Kind

MAX_EVALUATED: Final = 8
MAX_PARAMETERS: Final = 1024
"""Maximum number of an optimizer's parameters by which its model is found."""
MAX_TEXT: Final = 512
"""Maximum length of a model's class list, in characters; a longer one is not recorded."""


class Evaluated(list[weakref.ref[Any]]):
    """Modules that the program has put into eval mode, the newest last."""


def evaluates(c: _core.Core, module: Any, *_: Any) -> None:
    """Note a module that is put into eval mode."""
    known = context.of(c).part(Evaluated)
    others = [ref for ref in known if (m := ref()) is not None and m is not module]
    known[:] = [*others[-MAX_EVALUATED:], weakref.ref(module)]


def tell_unwrapped(c: _core.Core, optimizer: Any, look: int) -> None:
    """Record the modules of all FSDP units; without units, those of the largest module that was in
    eval mode before and has a parameter that the optimizer steps: 0 of 0 if there is none."""
    if units := list(context.of(c).fsdp_groups):
        roots = [root for unit in units for root in getattr(unit, "modules", ())]
        modules = {id(m): m for root in roots for m in root.modules()}.values()
        trained = {id(p) for m in modules for p in m._parameters.values() if _is_trained(p)}
        given = {id(p) for one in context.of(c).made for p in parameters_of(one)}
        tell(c, modules, look, left_out=len(trained - given))
        return
    stepped = parameters_of(optimizer)[:MAX_PARAMETERS]
    ids = {id(p) for p in stepped}
    found = [m for ref in context.of(c).part(Evaluated) if (m := ref()) is not None]
    models = [list(m.modules()) for m in found if any(id(p) in ids for p in m.parameters())]
    largest: list[Any] = max(models, key=len, default=[])
    tell(c, largest, look, "modes-own", stepped)


def tell(
    c: _core.Core, modules: Iterable[Any], number: int, head: str = "modes",
    parameters: Sequence[Any] = (), left_out: int = NONE,
) -> None:  # fmt: skip
    """Write the PROBE records of a model: its modes (a = number of modules in training mode, b =
    number of modules), and the classes of its modules. ``left_out``: number of trained parameters
    that are no optimizer's; ``NONE``: not known."""
    found = list(modules)
    training = [module.training for module in found].count(True)
    c.mark(Kind.PROBE, head, now_ns(), training, len(found), number)
    words = {_class_of(module) for module in found} - {""}
    count = f"trained={sum(map(_is_trained, parameters))}" if parameters else ""
    if left_out != NONE:
        count = f"left_out={left_out}"
    text = " ".join([*sorted(words), *([f"parameters({count})"] if count else [])])
    if 0 < len(text) <= MAX_TEXT:
        c.mark(Kind.PROBE, f"modules {text}", now_ns(), seq=number)


def _is_trained(parameter: Any) -> bool:
    return parameter is not None and bool(parameter.requires_grad)


def _class_of(module: Any) -> str:
    """Return a module's class and settings; empty outside of torch.nn, whose ``__constants__`` name
    the settings. Whole numbers are left out: they are sizes, which tensor parallel ranks cut."""
    of = type(module)
    if not of.__module__.startswith("torch.nn.modules."):
        return ""
    known = {name: vars(module).get(name) for name in getattr(of, "__constants__", ())}
    options = (f"{name}={v}" for name, v in known.items() if type(v) in (float, str))
    return f"{of.__name__}({','.join(options)})"
