"""Probes of values: NaN and infinity before a collective spreads them, and checksums of replicas.

- **nan**: the input of a send, or of a reducing collective of 16 KiB or more, on the CPU, is summed
  before the op is issued (NaN or infinity in it shows in the sum); if the sum is not finite, each
  element is checked, and at the next optimizer step the parameters' gradients. A reduction of a few
  numbers counts if gradients are not finite then: it is their norm, over ranks, before clipping.
  Inputs of gathers are checked likewise, and recorded as **nan gathered**.
- **checksum**: every EVERY steps, after the optimizer, the bits of the parameters that
  DistributedDataParallel replicates are added up as integers: equal replicas give equal sums, which
  the analysis compares. Ranks exchange nothing. Without DDP (gradients averaged by hand, optimizers
  that shard their state) all plain parameters that the optimizer steps are added up, and their
  gradients: ranks with equal gradients are replicas, however they exchange them.

The modules of a replica, or those that FSDP shards, are recorded with its checksum
(``module_settings``); and for a step with a checksum, the numbers its loss was multiplied by before
backward, the ops that made the loss, and the bytes of the rank's inputs to sums that were all
zeros. Whether gradients are cleared is checked after such a step, too (``kept_gradients``).

NaN: tensors in host memory only. At most SHARE of the time for each probe (a few elements of each
input are always checked); ``PARDBG_PROBES=off`` disables them."""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import struct
import weakref
from collections.abc import Iterable, Sequence
from functools import partial
from time import thread_time_ns
from typing import Any, Final

import torch
import torch.distributed.distributed_c10d as c10d

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks import context, kept_gradients, module_settings, optimizer_settings
from pardbg_agent.hooks.comm import groups
from pardbg_agent.hooks.context import LOCAL, Op
from pardbg_agent.hooks.kept_gradients import FEW_ELEMENTS
from pardbg_agent.hooks.patching import Patches, spend
from pardbg_agent.hooks.read_numbers import captures, read_numbers, readable
from pardbg_agent.hooks.tensors import bits_sum, counts_ops, local_part, parameters_of, replicated
from pardbg_agent.life.late_imports import LateImports
from pardbg_agent.settings import complain
from pardbg_agent.wire import NONE, Flag, Kind, Lane

ENV: Final = "PARDBG_PROBES"
LEAST_BYTES: Final = 16_384
FEW_BYTES: Final = 64
"""Maximum bytes of an op's input that may be the norm of gradients."""
MAX_FEW: Final = 8
"""Non-finite inputs of few values with finite gradients, before such inputs are ignored."""
EVERY: Final = 10
"""Steps between two checksums; the first step has one too."""
FIRST_STEPS: Final = 25
"""Number of first steps in which modules are recorded, however long checksums took."""
SHARE: Final = 0.0005
"""Share of the time that probes of inputs may take; checksums may take as much CPU time again."""
SAMPLED: Final = 16
"""Elements of an input that are checked if there is no time for all of them."""
_EXPONENTS: Final = {
    torch.float32: (ctypes.c_uint32, 0x7F800000),
    torch.float64: (ctypes.c_uint64, 0x7FF0000000000000),
    torch.float16: (ctypes.c_uint16, 0x7C00),
    torch.bfloat16: (ctypes.c_uint16, 0x7F80),
}
"""Dtype -> (type to read its elements as, bits that are all set only in NaN and infinity). A few
reads in Python take a fifth of the time that a slice and a sum in torch take."""
FREE_NS: Final = 20_000_000
"""Time probes may take before SHARE counts, as the first steps are slow."""
MAX_TOLD: Final = 64
"""Maximum number of NaN records of a process."""
MAX_GATHERED: Final = 16
"""Maximum number of ``nan gathered`` records, beside: a program may well gather infinities."""
MAX_RECORDS: Final = 16
"""Records of one checksum: each has the sums of as many parameters, in up to 8 parts."""
MAX_LOOKS: Final = 64
"""Maximum number of optimizer steps within a training step that have checksums."""
MAX_STEPPED: Final = 1024
"""Maximum number of parameters without DDP that a checksum reads."""
MAX_ELEMENTS: Final = 1 << 18
"""Maximum number of a parameter's elements that a checksum reads; another part each time."""

_Tensor, _strided = torch.Tensor, torch.strided  # where the caches are cold, torch's dict is far
_PROBE, _LANE = int(Kind.PROBE), int(Lane.COUNTER)
_P2P_FLAGS = int(Flag.P2P | Flag.SEND)
_HOOK: Final = "probe"
_MASK: Final = (1 << 63) - 1


class Allowance:
    """Time budget of one kind of probe."""

    __slots__ = ("since_ns", "spent_ns")

    def __init__(self) -> None:
        self.spent_ns, self.since_ns = 0, now_ns()

    @property
    def left(self) -> bool:
        """Return whether the time spent is within FREE_NS and SHARE of the time."""
        return self.spent_ns < FREE_NS + SHARE * (now_ns() - self.since_ns)


_inputs: Final = Allowance()
_checksums: Final = Allowance()
"""Budgets of the process: attach() after detach() gives no new one."""


class Probes:
    """State of the probes of one Core."""

    def __init__(self) -> None:
        self.on = os.environ.get(ENV) != "off"
        """Whether inputs of ops are probed."""
        self.told = self.few = self.gathered = 0
        self.ask_gradients = self.asked_parameters = False
        self.replicas: Any = weakref.WeakKeyDictionary()
        """DistributedDataParallel module -> its number, in the order they were made."""
        self.number = itertools.count()
        self.zeros = (NONE, 0)
        """(step with checksums, bytes of its inputs to sums that are all zeros)"""
        self.looks = (NONE, 0)
        """(step with checksums, optimizer steps in it so far)"""
        self.names: Any = weakref.WeakKeyDictionary()
        """Module -> ((weak reference to a parameter, its name), ...)."""


def install(patches: Patches, late: LateImports) -> None:
    """Hook DDP's constructor, the functions that clip gradients, and ``eval()`` of modules."""
    kept_gradients.forget()
    optimizer_settings.install(patches, late)
    wanted = os.environ.get(ENV, "")
    if wanted not in ("", "on", "off"):
        complain(f"{ENV}={wanted}: it is on or off; taken as on")
    patches.around(torch.nn.Module, "eval", "probe.eval", module_settings.evaluates)
    late.when_imported(
        "torch.nn.parallel.distributed",
        lambda m: patches.around(
            m.DistributedDataParallel, "__init__", "probe.ddp", _made, _is_made
        ),
    )


# -- NaN


def sizes(reduces: bool, probed: bool) -> tuple[float, int]:
    """Return (least, few): inputs of an op of ``least`` bytes or more, or of ``few`` or fewer, are
    probed."""
    return (LEAST_BYTES if reduces else 1, FEW_BYTES) if probed else (math.inf, -1)


def check_input(
    c: _core.Core, tensor: Any, gathers: bool = False, sums: bool = False,
) -> tuple[int, int] | None:  # fmt: skip
    """Return (number of values that are not finite, index of the first) of an op's input; None: all
    are finite, or it was not checked. Without time for all elements, SAMPLED of them are checked,
    which finds a tensor that is wrong throughout; none if they are not contiguous, or of a dtype
    not in _EXPONENTS. Inputs of ``sums`` are checked for zeros, too. Never raises."""
    known = context.of(c).part(Probes)
    if c.level < 2 or not known.on or known.told >= MAX_TOLD or _HOOK in c.guard.disabled:
        return None
    if gathers and known.gathered >= MAX_GATHERED:
        return None
    if type(tensor) is not _Tensor or tensor.layout is not _strided:
        return None
    try:
        t0, large = now_ns(), tensor.numel() > SAMPLED
        whole = large and _inputs.left
        bits = None if whole else _EXPONENTS.get(tensor.dtype)
        if bits is not None and tensor.is_contiguous():
            if _seems_finite(tensor, *bits, t0):
                return None
        elif large and not whole:
            return None
        found = not_finite(tensor)
        if sums and found is None and c.step % EVERY == 0 and tensor.nbytes >= LEAST_BYTES:
            _count_zeros(known, c.step, tensor)
        _inputs.spent_ns += now_ns() - t0 if whole else 0
        return found
    except Exception as error:  # noqa: BLE001 - the guard; a call less for each op
        c.guard.failed(_HOOK, error)
        return None


def _count_zeros(known: Probes, step: int, tensor: Any) -> None:
    """Count the bytes of an input of a sum if it is all zeros, in a step with checksums."""
    if counts_ops():
        return
    with torch.no_grad():
        values = tensor.detach()
        if not values[(0,) * values.dim()].item() and not values.any().item():
            before = known.zeros[1] if known.zeros[0] == step else 0
            known.zeros = step, before + tensor.nbytes


def _seems_finite(tensor: Any, word: Any, mask: int, t: int) -> bool:
    """Check SAMPLED / 4 elements, or two if there are fewer than LEAST_BYTES: C++ checks all
    SAMPLED in the time of one."""
    num, address, size = tensor.numel(), tensor.data_ptr(), ctypes.sizeof(word)
    every = num // (2 if num * size < LEAST_BYTES else SAMPLED // 4) or 1
    for at in range(t % every, num, every) if address else ():
        if word.from_address(address + at * size).value & mask == mask:
            return False
    return True


def not_finite(tensor: Any) -> tuple[int, int] | None:
    """Return (number of values that are not finite, index of the first) of a tensor in host memory;
    None: all are finite."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    if counts_ops():
        return None
    with torch.no_grad():
        values = summed = tensor.detach()
        if values.is_complex():
            summed = torch.view_as_real(values.resolve_conj())
        elif values.element_size() == 1:
            values = summed = values.float()  # float8 cannot be summed
        if math.isfinite(summed.sum().item()):
            return None
        bad = torch.isfinite(values).logical_not_().flatten()  # a sum may also overflow
        count = int(bad.count_nonzero().item())  # a sum takes 15 times as long
        return (count, int(bad.to(torch.uint8).argmax().item())) if count else None


def tell(c: _core.Core, op: Op, bad: tuple[int, int], gathers: bool = False) -> None:
    """Write the PROBE record of an op that spreads values that are not finite. In a gather they may
    be intended: its record has a name of its own, and tells only the rank that they came from."""
    known = context.of(c).part(Probes)
    if gathers:
        known.gathered += 1
    elif op.a <= FEW_BYTES and not op.flags & Flag.P2P:
        known.few += 1
        if known.few > MAX_FEW or not any(_tell_gradients(c, one) for one in c.optimizers()):
            return
        known.few = 0
    else:
        known.ask_gradients = True
    known.told += not gathers
    c.changed()
    name = c.defs.name("nan gathered" if gathers else "nan")
    c.record(
        _PROBE, _LANE, op.flags & _P2P_FLAGS, name, op.t0, op.t0, op.step, op.seq, op.group_id,
        op.stage, op.mb, op.peer, *bad,
    )  # fmt: skip


def _tell_gradients(c: _core.Core, optimizer: Any) -> bool:
    """Write the PROBE record of parameters whose gradient is not finite, if any: their number, and
    the last one in the model's order. Backward runs from the last to the first, so the last is
    closest to the source."""
    grads = (getattr(p, "grad", None) for p in parameters_of(optimizer))
    return _tell_bad(c, optimizer, "nan grad", grads, -1)


def loss_not_finite(c: _core.Core) -> None:
    """Write the PROBE record ``nan parameter NAME`` where the first loss that is not finite began
    with such parameters: their number, and the first one. Of each MAX_ELEMENTS are read."""
    known = context.of(c).part(Probes)
    if c.level < 2 or not known.on or known.asked_parameters or counts_ops():
        return
    known.asked_parameters = True
    with torch.no_grad():
        for one in c.optimizers():
            values = (window(local_part(p), 0) for p in parameters_of(one))
            _tell_bad(c, one, "nan parameter", values, 0)


def _tell_bad(
    c: _core.Core, optimizer: Any, head: str, values: Iterable[Any], which: int
) -> bool:  # fmt: skip
    """Write the record of tensors, one for each parameter, of which some are not finite."""
    bad: list[tuple[int, Any, int]] = []
    for at, (p, value) in enumerate(zip(parameters_of(optimizer), values, strict=False)):
        if type(value) is not _Tensor or not value.is_cpu or value.layout is not _strided:
            continue
        if found := not_finite(value):
            bad.append((at, p, found[0]))
    if bad:
        (at, p, count), t, known = bad[which], now_ns(), context.of(c).part(Probes)
        names = {id(of): name for m in list(known.replicas) for of, name in _named(known, m)}
        name = names.get(id(p), f"parameter {at}")
        c.mark(Kind.PROBE, f"{head} {name}", t, count, at, len(bad))
    return bool(bad)


# -- replicas


def _made(c: _core.Core, module: Any, *_: Any, **__: Any) -> Any:
    return weakref.ref(module)


def _is_made(c: _core.Core, ref: Any, t1: int, failed: bool) -> None:
    module = ref()
    if module is not None and not failed:
        known = context.of(c).part(Probes)
        known.replicas[module] = next(known.number)


def replicas(c: _core.Core) -> list[tuple[Any, int]]:
    """Return DistributedDataParallel modules with their numbers, which are equal on all ranks."""
    return sorted(context.of(c).part(Probes).replicas.items(), key=lambda item: int(item[1]))


def _named(probes: Probes, module: Any) -> Iterable[tuple[Any, str]]:
    """Return (parameter, name) of the parameters that a module keeps equal on all its ranks."""
    known = probes.names.get(module)
    if known is None:
        known = probes.names[module] = tuple(
            (weakref.ref(p), name) for name, p in replicated(module) if _summed(p)
        )
    return [(p, name) for ref, name in known if (p := ref()) is not None]


def _summed(parameter: Any) -> bool:
    """Return whether a parameter's bits are added up; on a device not if it had to be copied."""
    return readable(parameter) and (parameter.is_cpu or parameter.is_contiguous())


def optimizer_ended(optimizer: Any) -> None:
    """Probe after an outermost optimizer's step, before the training step's number moves on."""
    c = _core.CURRENT
    if c is None or c.level < 2 or _HOOK in c.guard.disabled:
        return
    known, outer = context.of(c).part(Probes), LOCAL.state.nest.optimizer
    due = c.step % EVERY == 0 and (bool(known.replicas) or c.identity.world_size > 1)
    outermost = outer is not None and outer[0]() is optimizer
    due &= not captures(c)
    if not known.on or not outermost or not (due or known.ask_gradients) or counts_ops():
        return
    t0, of_core = now_ns(), thread_time_ns()
    look = known.looks[1] if known.looks[0] == c.step else 0
    known.looks = (c.step, look + 1)
    c.guard.call(_HOOK, _look_at_all, c, known, optimizer, look if due else NONE)
    _checksums.spent_ns += thread_time_ns() - of_core
    spend(c, t0)


def _look_at_all(c: _core.Core, known: Probes, optimizer: Any, look: int) -> None:
    """Check gradients and write checksums that are due. ``look``: number of this checksum in the
    step, NONE for none; each has rows of its own, as not every rank can afford the same ones."""
    with torch.no_grad():
        if known.ask_gradients:
            known.ask_gradients = False
            _tell_gradients(c, optimizer)
        if look == 0:
            kept_gradients.note(c, optimizer)
        if look >= 0 and known.zeros[0] == c.step:
            _tell_zeros(c, known.zeros[1])
        wrapped = [(m, look + MAX_LOOKS * number) for m, number in list(known.replicas.items())]
        if 0 <= look < MAX_LOOKS and (_checksums.left or c.step < FIRST_STEPS):
            for module, row in wrapped:
                kept = [p for p, _ in _named(known, module)]
                module_settings.tell(c, module.modules(), row, parameters=kept)
            if not wrapped:
                module_settings.tell_unwrapped(c, optimizer, look)
        if 0 <= look < MAX_LOOKS and _checksums.left:
            for module, row in wrapped:
                _checksum(c, list(_named(known, module)), module.process_group, "checksum", row)
            if not wrapped and c10d._world.default_pg is not None:
                stepped = _stepped(optimizer)
                _checksum(c, stepped, c10d._world.default_pg, "checksum-own", look)
                _tell_gradients_sum(c, stepped, look)
            optimizer_settings.tell(c, optimizer, look)


def _tell_gradients_sum(c: _core.Core, stepped: list[tuple[Any, str]], look: int) -> None:
    """Write the PROBE record ``gradients``: a = sum of the bits of all gradients that the optimizer
    used, of each its first FEW_ELEMENTS; b = number of gradients. One that is not contiguous is
    left out, as it would have to be copied whole."""
    grads = [(i, p.grad) for i, (p, _) in enumerate(stepped)]
    plain = [
        (i, grad) for i, grad in grads
        if type(grad) is _Tensor and grad.layout is _strided and grad.is_contiguous()
    ]  # fmt: skip
    step = c.step

    def told(sums: Sequence[int]) -> None:
        whole = sum((2 * i + 1) * int(one) for (i, _), one in zip(plain, sums, strict=True))
        c.mark(Kind.PROBE, "gradients", now_ns(), whole & _MASK, len(plain), look, step)

    read_numbers(c, [bits_sum(grad.detach().view(-1)[:FEW_ELEMENTS]) for _, grad in plain], told)


def _tell_zeros(c: _core.Core, num_bytes: int) -> None:
    """Write the PROBE record ``zeros`` of a step: a = bytes of its inputs to sums that are all
    zeros, b = minimum bytes of such an input."""
    c.mark(Kind.PROBE, "zeros", now_ns(), num_bytes, LEAST_BYTES)


def tell_loss(
    c: _core.Core, step: int, t: int, scaled: tuple[float, float], ops: str, targets: int
) -> None:
    """Write the PROBE records of a step's first backward: ``loss by OP …``, the newest ops that
    made its loss (a = a checksum of the targets that these compared with, 0: none is known), and
    ``loss scale``: a = the plain numbers that it was multiplied by last (float64), b = the loss
    after that (a float64's bits): both are ``scaled``."""
    if c.level < 2 or not context.of(c).part(Probes).on:
        return
    (bits,) = struct.unpack("<q", struct.pack("<d", scaled[1]))
    c.mark(Kind.PROBE, f"loss by {ops}", t, targets, step=step)
    c.mark(Kind.PROBE, "loss scale", t, float(scaled[0]), bits, step=step)


def _stepped(optimizer: Any) -> list[tuple[Any, str]]:
    """Return (parameter, name) of plain parameters that an optimizer steps and that are summed."""
    return [
        (p, f"parameter-{at}")
        for at, p in enumerate(parameters_of(optimizer))
        if type(p) is torch.nn.Parameter and p.layout is torch.strided and _summed(p)
    ][:MAX_STEPPED]


def _checksum(c: _core.Core, named: list[tuple[Any, str]], pg: Any, head: str, number: int) -> None:
    """Write PROBE records ``checksum A B …``: a = sum of the bits of these parameters, b = a byte
    for each part, which shows where replicas differ. seq: the record's number in the step, the same
    on all ranks."""
    if named:
        group_id = groups.group_of(context.of(c), pg).group_id
        sums = [bits_sum(window(p, c.step // EVERY)) for p, _ in named]
        names = [name for _, name in named]
        read_numbers(c, sums, partial(_tell_sums, c, (head, names, number), (c.step, group_id)))


def _tell_sums(
    c: _core.Core, of: tuple[str, list[str], int], at_step: tuple[int, int], sums: Sequence[int]
) -> None:
    """``of``: (head, names, number) as above; ``at_step``: (step, group's id)."""
    (head, names, number), (step, group_id) = of, at_step
    each = max(8, -(-len(names) // MAX_RECORDS))
    for at in range(0, len(names), each):
        part = names[at : at + each]
        whole, bytes_ = 0, 0
        size = -(-len(part) // 8)
        for place in range(0, len(part), size):
            inside = sums[at + place : at + min(place + size, len(part))]
            folded = sum((2 * (place + i) + 1) * int(one) for i, one in enumerate(inside))
            whole += folded
            bytes_ |= _byte(folded) << (8 * (place // size))
        text = f"{head} " + " ".join(part_name(part[i : i + size])
                                      for i in range(0, len(part), size))  # fmt: skip
        t = now_ns()
        c.record(
            _PROBE, _LANE, 0, c.defs.name(text), t, t, step, number * MAX_RECORDS + at // each,
            group_id, NONE, NONE, NONE, whole & _MASK, _signed(bytes_),
        )  # fmt: skip


def part_name(part: Sequence[str]) -> str:
    """Return the name of a run of parameters: its first and last name."""
    return part[0] if len(part) == 1 else f"{part[0]}..{part[-1]}"


def window(tensor: Any, turn: int) -> Any:
    """Return a tensor flattened, or MAX_ELEMENTS of a large one, another part each ``turn``."""
    flat = tensor.detach().contiguous().view(-1)
    begin = turn % max(1, -(-flat.numel() // MAX_ELEMENTS)) * MAX_ELEMENTS
    return flat[begin : begin + MAX_ELEMENTS]


def _byte(value: int) -> int:
    value &= _MASK
    for shift in (32, 16, 8):
        value ^= value >> shift
    return value & 0xFF


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
