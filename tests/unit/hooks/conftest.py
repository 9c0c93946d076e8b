"""A rank of a fake world, with the hooks in place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from pardbg_agent import core, hooks
from tests.distributed.programs.watched import make_run


@pytest.fixture
def watched(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fake world of 4 ranks, this one is rank 1, hooks in place; gives the ring's path."""
    monkeypatch.setenv("PARDBG", make_run(tmp_path)["PARDBG"])
    hooks.install()
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    assert core.CURRENT is not None and core.CURRENT.ring.path is not None
    yield Path(core.CURRENT.ring.path)
    dist.destroy_process_group()
    hooks.uninstall()
    core.shutdown()
