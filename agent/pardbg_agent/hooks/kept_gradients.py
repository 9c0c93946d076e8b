"""Gradients after the optimizer's step that used them: kept, added to, changed, or cleared again.

At a sampled optimizer step, one gradient is noted as the step left it, by its version; in host
memory by its bits, too.

- **gradients kept**: whether the next backward begins with that gradient. Where other optimizers
  take turns that may be as it should be (a GAN's critic clears its own later), so ranks are
  compared.
- **gradients added**: whether all backwards up to the next step and the one after it began with
  that gradient, and the last of them added to it. Only where one optimizer ends each step: then the
  step between used the gradients of the step before, too. A gradient that the program fills by a
  copy (a float32 copy of the parameters) is changed by no backward.
- **gradients late**: the gradient changed before it was cleared, and no backward has come: a sum
  over ranks that came after the step.
- **cleared again**: an optimizer clears gradients for the second time without a backward, a step or
  a batch of a data loader in between. Programs may do so as a matter of course, so ranks are
  compared here, too: a rank that leaves out an iteration does it once more than the others."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks.tensors import bits_sum, counts_ops, local_part, parameters_of
from pardbg_agent.wire import NONE, Kind

MAX_TRIED: Final = 8
"""Maximum number of parameters searched for one with a gradient."""
FEW_ELEMENTS: Final = 1 << 12
"""Maximum number of a gradient's elements in its sum of bits."""
MAX_CLEARED: Final = 64
"""Maximum number of ``cleared again`` records of a process."""
_Tensor, _strided = torch.Tensor, torch.strided


@dataclass(slots=True)
class Noted:
    """Gradient as an optimizer's step left it."""

    parameter: Any
    """Weak reference, like ``optimizer``."""
    optimizer: Any
    address: int
    version: int
    bits: int
    step: int
    since: int = NONE
    """Step whose first backward began with the gradient; NONE: no backward yet."""
    cleared: bool = False


noted: Final[list[Noted]] = []
"""The gradient that is followed; empty: none."""


def followed() -> bool:
    """Return whether Python must see a backward from its begin to its end."""
    return bool(noted) and noted[0].since != NONE


def forget() -> None:
    """Stop following a gradient."""
    noted.clear()


def note(c: _core.Core, optimizer: Any) -> None:
    """Follow one of the optimizer's gradients after a sampled step."""
    _drop(c)
    for p in parameters_of(optimizer)[:MAX_TRIED]:
        grad = _plain(p)
        if grad is not None and (bits := _bits(grad)):
            refs = weakref.ref(p), weakref.ref(optimizer)
            noted.append(Noted(*refs, grad.data_ptr(), grad._version, bits, c.step))
            return


def backward_begins(c: _core.Core, only: Any) -> None:
    """Write ``gradients kept`` before the first backward after the noted step: a = 1 if the
    gradient is as the step left it. Follow such a gradient further if its optimizer is ``only``: a
    weak reference to the optimizer each of whose steps ends a training step, or None."""
    if counts_ops():
        return
    one = noted[0]
    with torch.no_grad():
        grad = _plain(one.parameter())
        same = grad is not None and grad.data_ptr() == one.address
        if one.since != NONE:
            again = c.step == one.since and not grad.is_cpu if same else True
            if again or not _bits(grad):  # cleared, or on a device, where that is not seen
                _drop(c)
            else:
                one.version = grad._version
            return
        kept = same and grad._version == one.version and _bits(grad) == one.bits
    c.mark(Kind.PROBE, "gradients kept", now_ns(), int(kept), step=one.step)
    if kept and _refer_to_one(only, one.optimizer):
        one.since = c.step
        c.changed()
    else:
        _drop(c)


def backward_ended(c: _core.Core, only: Any) -> None:
    """Write ``gradients added`` after a later step's backward that added to the gradient."""
    one = noted[0]
    if c.step == one.since:
        return
    grad = _plain(one.parameter())
    added = grad is not None and grad.data_ptr() == one.address and grad._version > one.version
    if added and _refer_to_one(only, one.optimizer):
        c.mark(Kind.PROBE, "gradients added", now_ns(), 1, step=one.step)
    _drop(c)


def clearing(c: _core.Core) -> None:
    """Write ``gradients late`` before the first zero_grad after the noted step. A gradient that the
    program set to zero itself is not late."""
    one = next(iter(noted), None)  # another thread's step may have ended the following of it
    if one is None or one.cleared or one.since != NONE or counts_ops():
        return
    one.cleared = True
    with torch.no_grad():
        grad = _plain(one.parameter())
        if grad is None or grad.data_ptr() != one.address:
            return
        bits = _bits(grad)
        if bits and (bits, grad.is_cpu or grad._version) != (one.bits, grad.is_cpu or one.version):
            c.mark(Kind.PROBE, "gradients late", now_ns(), 1, step=one.step)


@dataclass(slots=True)
class Clearing:
    """Last gradient clearing of each optimizer."""

    since: dict[int, int] = field(default_factory=dict)
    """Optimizer's id -> time since which, at its last zero_grad, the program had not run backward,
    stepped or taken a batch."""
    told: int = 0


def clears(c: _core.Core, known: Clearing, optimizer: Any, since_ns: int) -> None:
    """Write ``cleared again`` if nothing happened since the optimizer's last zero_grad."""
    if known.since.get(id(optimizer)) == since_ns != 0 and known.told < MAX_CLEARED:
        known.told += 1
        c.mark(Kind.PROBE, "cleared again", now_ns(), 1)
    if len(known.since) >= MAX_CLEARED:
        known.since.clear()
    known.since[id(optimizer)] = since_ns


def _refer_to_one(ref: Any, other: Any) -> bool:
    return ref is not None and ref() is not None and ref() is other()


def _drop(c: _core.Core) -> None:
    was = followed()
    noted.clear()
    if was:
        c.changed()


def _plain(parameter: Any) -> Any:
    """Return a parameter's gradient (local shard) if its bytes can be read in place, else None."""
    grad = None if parameter is None else local_part(parameter.grad)
    plain = type(grad) is _Tensor and grad.layout is _strided and grad.is_contiguous()
    return grad if plain else None


def _bits(grad: Any) -> int:
    """Return a sum of the bits of a gradient's first elements; 1 for a gradient on a device, whose
    reading would wait."""
    return int(bits_sum(grad.detach().view(-1)[:FEW_ELEMENTS])) if grad.is_cpu else 1
