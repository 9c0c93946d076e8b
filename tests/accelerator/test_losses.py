"""Training on the simulated accelerator computes what the CPU computes, to the last bit."""

from __future__ import annotations

import math

import pytest

from tests.accelerator.conftest import Run


@pytest.mark.timeout(200)
def test_losses_are_the_cpus_to_the_last_bit(run: Run) -> None:
    ranks = run("losses", nproc=2)
    for rank in ranks:
        kinds = rank["losses"]
        assert set(kinds) == {"ddp", "fsdp2", "tp", "1f1b", "interleaved", "zb", "zbv"}
        for kind, (on_cpu, on_device) in kinds.items():
            assert on_cpu == on_device, kind
            assert all(map(math.isfinite, on_cpu)), kind
        # The backend saw what each way of training communicates.
        assert {
            "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "send", "recv",
            "aten::addmm",
        } <= set(rank["ops"])  # fmt: skip
    trained = ranks[0]["losses"]["ddp"][1]
    assert trained[-1] < trained[0]
