"""FSDP2 where this torch has it."""

from __future__ import annotations

try:
    from torch.distributed.fsdp import fully_shard

    PACKAGE = "torch.distributed.fsdp._fully_shard"
except ImportError:  # before torch 2.6
    from torch.distributed._composable.fsdp import fully_shard  # type: ignore[no-redef]

    PACKAGE = "torch.distributed._composable.fsdp"

__all__ = ["PACKAGE", "fully_shard"]
