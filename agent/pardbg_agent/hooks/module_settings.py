"""What the modules of a model are set to, where ranks should have equal ones.

- **modes** (of what nothing wraps **modes-own**): how many modules are in training mode.
- **modules CLASS(NAME=VALUE,…) …**: the classes of torch.nn among them, each with its numbers that
  are no sizes (a dropout's p, a norm's eps and momentum) and its options; and how many parameters
  DDP keeps equal, or the optimizer steps, that are not frozen.

They are told at an optimizer's step that has checksums.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Final

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks import context
from pardbg_agent.hooks.tensors import parameters_of
from pardbg_agent.wire import NO_GROUP, NONE, Kind, Lane

MAX_EVALUATED: Final = 8
MAX_PARAMETERS: Final = 1024
"""Parameters of an optimizer by which its model is found."""
MAX_TEXT: Final = 512
"""Letters of the classes of a model that are told; of one that has more nothing is."""
_PROBE, _LANE = int(Kind.PROBE), int(Lane.COUNTER)


class Evaluated(list[weakref.ref[Any]]):
    """Modules that the program has put into eval mode, the newest last."""


def evaluates(c: _core.Core, module: Any, *_: Any) -> None:
    """Note a module that is put into eval mode."""
    known = context.of(c).part(Evaluated)
    others = [ref for ref in known if (m := ref()) is not None and m is not module]
    known[:] = [*others[-MAX_EVALUATED:], weakref.ref(module)]


def tell_unwrapped(c: _core.Core, optimizer: Any, look: int) -> None:
    """Tell of the modules of all FSDP units; without any, of the largest module with a parameter
    that the optimizer steps, of those that were in eval mode before: 0 of 0 where none was."""
    if units := list(context.of(c).fsdp_groups):
        roots = [root for unit in units for root in getattr(unit, "modules", ())]
        tell(c, {id(m): m for root in roots for m in root.modules()}.values(), look)
        return
    stepped = parameters_of(optimizer)[:MAX_PARAMETERS]
    ids = {id(p) for p in stepped}
    found = [m for ref in context.of(c).part(Evaluated) if (m := ref()) is not None]
    models = [list(m.modules()) for m in found if any(id(p) in ids for p in m.parameters())]
    largest: list[Any] = max(models, key=len, default=[])
    tell(c, largest, look, "modes-own", stepped)


def tell(
    c: _core.Core, modules: Iterable[Any], number: int, head: str = "modes",
    parameters: Sequence[Any] = (),
) -> None:  # fmt: skip
    """Write the PROBE records of a model: its modes (a = how many modules are in training mode, b =
    how many it has), and what classes they are of."""
    found = list(modules)
    training = [module.training for module in found].count(True)
    _record(c, head, number, training, len(found))
    words = {_class_of(module) for module in found} - {""}
    trained = sum(p.requires_grad for p in parameters)
    text = " ".join([*sorted(words), *([f"parameters(trained={trained})"] if parameters else [])])
    if 0 < len(text) <= MAX_TEXT:
        _record(c, f"modules {text}", number, 0, 0)


def _record(c: _core.Core, name: str, number: int, a: int, b: int) -> None:
    t = now_ns()
    c.record(
        _PROBE, _LANE, 0, c.defs.name(name), t, t, c.step, number, NO_GROUP, NONE, NONE, NONE, a, b
    )


def _class_of(module: Any) -> str:
    """Return a module's class and settings; empty if it is none of torch.nn, which says what its
    settings are (``__constants__``): whole numbers are sizes, which tensor parallel ranks cut."""
    of = type(module)
    if not of.__module__.startswith("torch.nn.modules."):
        return ""
    known = {name: vars(module).get(name) for name in getattr(of, "__constants__", ())}
    options = (f"{name}={v}" for name, v in known.items() if type(v) in (float, str))
    return f"{of.__name__}({','.join(options)})"
