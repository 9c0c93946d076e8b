"""A rank of a fake world, with the hooks in place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from pardbg_agent import core, hooks
from tests.distributed.programs.watched import make_run


def fake_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world_size: int = 4
) -> Iterator[Path]:
    """Rank 1 of ``world_size``; gives its ring's path."""
    monkeypatch.setenv("PARDBG", make_run(tmp_path)["PARDBG"])
    hooks.install()
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=world_size)
    assert core.CURRENT is not None and core.CURRENT.ring.path is not None
    yield Path(core.CURRENT.ring.path)
    dist.destroy_process_group()
    hooks.uninstall()
    core.shutdown()
