"""On a CUDA device nothing waits for it, and completion is never taken from a host wait."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from pardbg_agent.wire import Flag, Kind  # noqa: E402
from tests.distributed.programs.watched import make_run, read_run  # noqa: E402
from tests.processes import Finished  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
PROGRAM = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(0)
t = torch.ones(1 << 20, device="cuda")
for _ in range(3):
    dist.all_reduce(t)
torch.cuda.synchronize()
import time; time.sleep(0.2)
dist.destroy_process_group()
"""


@pytest.mark.timeout(120)
def test_nccl_completion_is_the_devices(
    torchrun: Callable[..., Finished], run_dir: Path, tmp_path: Path
) -> None:
    program = tmp_path / "nccl.py"
    program.write_text(PROGRAM)
    done = torchrun(str(program), nproc=1, env=make_run(run_dir))
    assert done.code == 0, done.err
    rank = read_run(run_dir)[0]
    assert [r.a for r in rank.of(Kind.OP_ISSUE, "all_reduce")] == [4 << 20] * 3
    ways = Flag.DONE_WAITED | Flag.DONE_POLLED | Flag.DONE_COMPLETED | Flag.DONE_DEVICE
    assert [r.flags & ways for r in rank.of(Kind.OP_DONE, "all_reduce")] == [Flag.DONE_DEVICE] * 3
    assert rank.defined("error") == []
