"""Makes Megatron-core run on gloo/CPU: the few CUDA-only lines, stubbed. Import before megatron."""

import torch

if not torch.cuda.is_available():
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.set_device = lambda *a: None
    torch.cuda.synchronize = lambda *a, **k: None
    torch.cuda.nvtx.range_push = lambda *a, **k: None
    torch.cuda.nvtx.range_pop = lambda *a, **k: None
    torch.Tensor.cuda = lambda self, *a, **k: self
    torch.nn.Module.cuda = lambda self, *a, **k: self

    def _fix(f):
        def g(*a, **k):
            d = k.get("device")
            if d is not None and (d == "cuda" or getattr(d, "type", None) == "cuda"):
                k["device"] = "cpu"
            return f(*a, **k)

        return g

    for n in ("zeros", "empty", "ones", "tensor", "rand", "randn", "full", "arange"):
        setattr(torch, n, _fix(getattr(torch, n)))
