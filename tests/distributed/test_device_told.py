"""A rank whose tensors are on a device says so, in both ways of seeing ops."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.programs.watched import BOOT, make_run, read_run
from tests.hook_ways import NATIVE, WAYS

OPS = """
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
_setup_privateuseone_for_python_backend("npy")  # tensors of a device, without memory
dist.Backend.backend_capability["fake"].append("npy")
dist.init_process_group("cpu:fake,npy:fake", store=FakeStore(), rank=0, world_size=2)
dist.all_reduce(torch.ones(3, device=DEVICE) if DEVICE == "cpu" else
                torch._C._acc.create_empty_tensor((3,), torch.float32))
dist.destroy_process_group()
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("device", ["cpu", "npy"])
def test_the_first_op_on_a_device_says_which(tmp_path: Path, way: str, device: str) -> None:
    env = make_run(tmp_path) | {
        "PYTHONPATH": str(BOOT), "PARDBG_HOOKS": way, "PARDBG_NATIVE": NATIVE,
    }  # fmt: skip
    program = OPS.replace("DEVICE", repr(device))
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | env, capture_output=True, text=True,
        timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (rank,) = read_run(tmp_path).values()
    assert rank.defined("process")[-1]["device"] == device
    assert rank.defined("error") == []
