"""torch.compile sees the program as if there were no hooks: the same graphs, the same breaks."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.programs.watched import make_run
from tests.processes import rank_env

pytestmark = pytest.mark.usefixtures("way")
PROGRAM = """
import json, os, sys, warnings
import torch, torch.distributed as dist, torch._dynamo as dynamo
import torch.distributed._functional_collectives as functional
warnings.simplefilter("ignore")
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
ddp = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()))
model = torch.compile(ddp, backend="aot_eager")
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for _ in range(3):
    loss = model(torch.ones(2, 8)).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
whole = torch.compile(lambda x: functional.all_reduce(x, "sum", dist.group.WORLD) + 1,
                      backend="aot_eager", fullgraph=True)
out = whole(torch.ones(3)) + whole(torch.ones(3))
counters = dynamo.utils.counters
print("RESULT " + json.dumps([loss.item().hex(), out.tolist(), dict(counters["stats"]),
                              sorted(k[:80] for k in counters["graph_break"])]))
if sys.argv[1:] == ["watched"]:
    from pardbg_agent import core
    c = core.CURRENT
    assert c is not None and c.guard.errors == 0 and c.step == 3, (c.guard.disabled, c.step)
dist.destroy_process_group()
# Not through the interpreter's end: torch alone aborts there now and then ("terminate called
# without an active exception"), and how a process ends is the subject of other tests.
sys.stdout.flush()
os._exit(0)
"""


def result(env: dict[str, str], *args: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *args], env=rank_env(env), capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (line,) = [x for x in done.stdout.splitlines() if x.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))


@cache
def plain() -> Any:
    """What it prints without an agent, whichever way another has its hooks."""
    return result({})


@pytest.mark.timeout(250)
def test_a_compiled_program_is_compiled_as_without_hooks(run_dir: Path) -> None:
    assert result(make_run(run_dir), "watched") == plain()
