"""Tensors in words and in numbers: statistics, digests, bytes, sums of bits."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
from torch.utils._python_dispatch import _disable_current_modes

_LOCAL_SGD: Final = "PostLocalSGDState"
WORDS: Final = ("params", "grads", "optimizer")
"""Words ``hash`` knows without an expression: the tensors of all optimizers of the program."""
BINS: Final = 20
_BARS: Final = " ▁▂▃▄▅▆▇█"
MAX_TENSORS: Final = 4_000
SAMPLED: Final = 512
"""Minimum number of elements of a sample, of a tensor that has more; twice as many at most. One
block of a GPU reduces them, so torch needs no memory beside."""
_SAMPLED: Final = frozenset((torch.float64, torch.float32, torch.float16, torch.bfloat16))
_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def describe(value: Any) -> dict[str, Any] | None:
    """Return shape, dtype, device, min, mean, max, norm, counts of NaN and infinities, a histogram.
    None: not a tensor. It waits for the device: only at a gate, on request."""
    tensor = _tensor(value)
    if tensor is None:
        return None
    with torch.no_grad():
        head = f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')} {tensor.device}"
        if not tensor.numel():
            return {"text": f"{head}  empty"}
        values = tensor.detach().flatten().to(torch.float64 if tensor.is_cpu else torch.float32)
        if torch.is_complex(tensor):
            values = tensor.detach().abs().flatten()
        finite = values[torch.isfinite(values)]
        nan, bad = int(torch.isnan(values).sum()), values.numel() - finite.numel()
        lines = [head]
        if finite.numel():
            low, high = float(finite.min()), float(finite.max())
            mean, norm = float(finite.mean()), float(finite.norm())
            lines.append(f"min {low:.6g}  mean {mean:.6g}  max {high:.6g}  norm {norm:.6g}")
            if high > low:
                lines.append(f"{low:.3g} ▕{_histogram(finite, low, high)}▏ {high:.3g}")
        if bad:
            lines.append(f"{nan} NaN, {bad - nan} infinite of {values.numel()}")
    return {"text": "\n".join(lines), "not_finite": bad, **(measure(value) or {})}


def measure(value: Any) -> dict[str, Any] | None:
    """Return {"hash": …, and "number" if it is a single element}; None: not a tensor."""
    tensor = _tensor(value)
    if tensor is None:
        return None
    out: dict[str, Any] = {"hash": digest(tensor)}
    if tensor.numel() == 1 and not torch.is_complex(tensor):
        number = float(tensor.item())
        if math.isfinite(number):
            out["number"] = number
    return out


def digest(tensor: torch.Tensor) -> str:
    """Return a hash of bits, shape and dtype: equal for equal replicas."""
    with torch.no_grad():
        data = tensor.detach().cpu().contiguous()
        body = data.view(torch.uint8) if data.dim() else data.reshape(1).view(torch.uint8)
        head = f"{tuple(data.shape)} {data.dtype}".encode()
        return hashlib.blake2b(body.numpy().tobytes() + head, digest_size=8).hexdigest()


def named(value: Any) -> dict[str, str]:
    """Return name -> digest of a tensor, a module's parameters and buffers, or a dict or list of
    tensors. Raises TypeError."""
    if isinstance(value, torch.nn.Module):
        pairs = [*value.named_parameters(), *value.named_buffers()]
    elif isinstance(value, dict):
        pairs = [(str(name), item) for name, item in value.items()]
    elif isinstance(value, (list, tuple)):
        pairs = [(str(at), item) for at, item in enumerate(value)]
    else:
        pairs = [("value", value)]
    found = {name: digest(t) for name, item in pairs if (t := _tensor(item)) is not None}
    if not found:
        raise TypeError(f"{type(value).__name__} holds no tensor")
    return dict(list(found.items())[:MAX_TENSORS])


def known(word: str, optimizers: Iterable[Any]) -> dict[str, str]:
    """Return name -> digest of the tensors of the program's optimizers: parameters, their
    gradients, or the optimizers' own state. Named by position, as all replicas make them in the
    same order. Raises TypeError if no optimizer has stepped."""
    optimizers = list(optimizers)
    if not optimizers:
        raise TypeError("no optimizer has stepped yet: name what to hash, as in `hash model`")
    found: dict[str, str] = {}
    for optimizer in optimizers:
        for at, parameter in enumerate(parameters_of(optimizer)):
            for name, item in _of(word, optimizer, parameter):
                tensor = _tensor(item)
                if tensor is not None and len(found) < MAX_TENSORS:
                    found[f"{at}{name} {tuple(parameter.shape)}"] = digest(tensor)
    return found


def parameters_of(optimizer: Any) -> list[Any]:
    """Return all parameters of an optimizer, in its order."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def _of(word: str, optimizer: Any, parameter: Any) -> list[tuple[str, Any]]:
    if word == "params":
        return [("", parameter)]
    if word == "grads":
        return [("", parameter.grad)]
    return [(f".{key}", item) for key, item in optimizer.state.get(parameter, {}).items()]


def bits_sum(tensor: Any) -> Any:
    """Return the sum of a tensor's bits as integers: a tensor on the same device. Reads eight bytes
    at a time where they are aligned, which is fastest."""
    flat = tensor.detach().contiguous().view(-1)
    size = flat.element_size()
    if flat.numel() * size % 8 == 0 and flat.storage_offset() * size % 8 == 0:
        return flat.view(torch.int64).sum()
    return flat.view(_BITS[min(8, size)]).sum(dtype=torch.int64)


def sampled_largest(tensor: Any) -> Any:
    """Return the largest of SAMPLED of a tensor's elements or some more, without sign, as one on
    its device: finite if all of them are, where a sum may overflow; None for a tensor of another
    kind than plain numbers, and where the program sees each op."""
    plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and not counts_ops()
    known = plain and tensor.dtype in _SAMPLED and tensor.is_contiguous()
    if not known or not tensor.numel():
        return None
    with torch.no_grad():
        flat = tensor.detach().view(-1)
        return torch.linalg.vector_norm(flat[:: max(1, flat.numel() // SAMPLED)], math.inf)


def counts_ops() -> bool:
    """Return whether the program sees each op (a TorchDispatchMode): then add none of ours."""
    return bool(torch._C._len_torch_dispatch_stack())


def unseen() -> AbstractContextManager[Any]:
    """Return a context in which no mode of the program sees ops."""
    return _disable_current_modes() if counts_ops() else nullcontext()


def number_of(scalar: Any) -> float:
    """Return the value of one number, by ops that no mode of the program sees."""
    with unseen():
        return float(scalar.detach().item())


def replicated(module: Any) -> Iterable[tuple[str, Any]]:
    """Yield (name, parameter) that a DistributedDataParallel keeps equal on its ranks: none where
    torch's hook for local SGD sums gradients within groups of ranks."""
    ignored = getattr(module, "parameters_to_ignore", None) or ()
    states = {type(state).__name__ for _, state in getattr(module, "_comm_hooks", ())}
    for name, p in module.module.named_parameters() if _LOCAL_SGD not in states else ():
        if name not in ignored and type(p) is torch.nn.Parameter:
            yield name, p


def local_part(value: Any) -> Any:
    """Return the tensor that holds this rank's bytes: a DTensor's shard, or the result of a
    functional collective before any wait; else the value itself. Calls no collective."""
    for inside in ("_local_tensor", "elem"):
        if type(value) is not torch.Tensor:
            value = getattr(value, inside, value)
    if getattr(value, "layout", torch.strided) is torch.strided:
        return value
    values = getattr(value, "_values", None) or getattr(value, "values", None)  # sparse, nested
    return values() if callable(values) else value if values is None else values


def is_pending(value: Any) -> bool:
    """Return whether a value is the result of a functional collective without a wait so far
    (AsyncCollectiveTensor, torch/distributed/_functional_collectives.py): the backend may still
    write it."""
    shard = getattr(value, "_local_tensor", value)
    return getattr(shard, "completed", True) is False


def bytes_of(tensor: Any) -> int:
    """Return the bytes that a tensor of any kind has on this rank, for a sparse one its values and
    indices; 0 if unknown."""
    try:
        return int(local_part(tensor).nbytes) + sum(int(part.nbytes) for part in _places(tensor))
    except (RuntimeError, NotImplementedError, AttributeError):
        return 0


def _places(tensor: Any) -> tuple[Any, ...]:
    layout = getattr(tensor, "layout", torch.strided)
    if layout is torch.sparse_coo:
        return (tensor._indices(),)
    if layout is torch.sparse_csr:
        return tensor.crow_indices(), tensor.col_indices()
    return ()


def _tensor(value: Any) -> torch.Tensor | None:
    value = local_part(value)
    return value if isinstance(value, torch.Tensor) and not value.is_meta else None


def _histogram(finite: torch.Tensor, low: float, high: float) -> str:
    counts = torch.histc(finite, BINS, low, high)
    most = float(counts.max())
    steps = len(_BARS) - 1
    return "".join(_BARS[math.ceil(steps * float(n) / most)] for n in counts)


def first_floating(out: Any) -> Any:
    """Return the first floating-point tensor in a module's output, or None."""
    if isinstance(out, torch.Tensor):
        plain = type(out) is torch.Tensor or hasattr(out, "device_mesh")
        return out if plain and out.dim() and out.is_floating_point() else None
    items = out.values() if isinstance(out, dict) else out if isinstance(out, tuple | list) else ()
    return next((item for item in map(first_floating, items) if item is not None), None)
