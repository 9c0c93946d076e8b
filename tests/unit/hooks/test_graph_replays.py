"""Replays of captured graphs, where torch has them."""

from __future__ import annotations

import pytest
import torch

from pardbg_agent.hooks.patching import Patches
from pardbg_agent.hooks.training import graph_replays
from pardbg_agent.life.late_imports import LateImports


@pytest.mark.parametrize(("module", "name"), [("", "accelerator"), ("accelerator", "Graph")])
def test_an_older_torch_has_its_own_graphs_watched(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    """Before 2.6 there is no torch.accelerator, and its Graph came later still."""
    owner = getattr(torch, module, None) if module else torch
    if owner is None:
        pytest.skip("torch has no accelerator")
    monkeypatch.delattr(owner, name, raising=False)
    original, patches = torch.cuda.CUDAGraph.replay, Patches()
    graph_replays.install(patches, LateImports(lambda text: None))
    assert torch.cuda.CUDAGraph.replay is not original and not patches.missing
    patches.undo()
    assert torch.cuda.CUDAGraph.replay is original
