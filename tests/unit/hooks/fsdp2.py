"""FSDP2 where this torch has it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

try:
    from torch.distributed.fsdp import fully_shard

    PACKAGE = "torch.distributed.fsdp._fully_shard"
except ImportError:  # before torch 2.6
    from torch.distributed._composable import fsdp as _fsdp

    PACKAGE = "torch.distributed._composable.fsdp"

    def fully_shard(module: Any, **options: Any) -> Any:  # type: ignore[no-redef]
        """Shard a module; skip the test where there is no GPU, of which this torch asks streams."""
        if not torch.cuda.is_available():
            pytest.skip("FSDP2 of this torch does not run on CPUs")
        return _fsdp.fully_shard(module, **options)  # type: ignore[attr-defined]


__all__ = ["PACKAGE", "fully_shard"]
