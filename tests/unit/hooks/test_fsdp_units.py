"""What watching a unit of FSDP2 costs where nothing times it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pardbg_agent import core
from pardbg_agent.hooks import context
from tests.unit.hooks.fsdp2 import fully_shard


def test_on_the_host_no_hook_looks_at_what_a_unit_computes(watched: Path) -> None:
    """Without a device's clock there is nothing to time: a hook that asked would fail here."""
    net: Any = torch.nn.Sequential(torch.nn.Linear(4, 8))
    fully_shard(net)
    now = core.CURRENT
    assert now is not None and now.device is None
    context.of(now).fsdp_computes = None
    net(torch.ones(2, 4)).sum().backward()
    assert not {"fsdp.forward", "fsdp.backward"} & now.guard.disabled
