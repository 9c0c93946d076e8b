"""What memory a rank may have, from a cgroup's files as the kernel writes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pardbg_agent import core, hooks
from pardbg_agent.control.watches import Watch, Watches
from pardbg_agent.hooks.memory import memory_limit
from pardbg_agent.hooks.memory.usage import parts_now
from pardbg_agent.wire import Kind
from tests.distributed.programs.watched import make_run, read_rank

MIB = 1 << 20


def files(root: Path, **values: str) -> None:
    """``job__memory_max="5"``: 5 in job/memory.max."""
    for name, text in values.items():
        *folders, file = name.split("__")
        path = root.joinpath(*folders)
        path.mkdir(parents=True, exist_ok=True)
        (path / file.replace("_", ".", 1)).write_text(f"{text}\n")


def found(tmp_path: Path, text: str) -> tuple[int, int, str]:
    of = tmp_path / "cgroup"
    of.write_text(text)
    limit, version, directory = memory_limit.cgroup(str(of), str(tmp_path / "fs"))
    return limit, version, str(Path(directory).relative_to(tmp_path)) if directory else ""


def test_the_tightest_limit_above_a_rank_is_its_limit(tmp_path: Path) -> None:
    """v2: the job may have 512 MiB, its step "max", the slice above 1 GiB."""
    files(tmp_path / "fs", slice__memory_max=str(1024 * MIB), slice__job__memory_max=str(512 * MIB),
          slice__job__step__memory_max="max")  # fmt: skip
    assert found(tmp_path, "0::/slice/job/step\n") == (512 * MIB, 2, "fs/slice/job")


def test_a_container_sees_its_own_limit_at_the_top(tmp_path: Path) -> None:
    """v1: /proc says the host's path, which is not there."""
    files(tmp_path / "fs", memory__memory_limit_in_bytes="268435456")
    text = "5:cpu,cpuacct:/docker/1a\n4:memory:/docker/1a\n0::/docker/1a\n"
    assert found(tmp_path, text) == (256 * MIB, 1, "fs/memory")


@pytest.mark.parametrize("said", ["max", str((1 << 63) - 4096), ""])
def test_no_limit_is_none(tmp_path: Path, said: str) -> None:
    files(tmp_path / "fs", memory__job__memory_limit_in_bytes=said, job__memory_max=said)
    assert found(tmp_path, "4:memory:/job\n0::/job\n") == (0, 0, "")


def test_page_cache_that_the_kernel_would_give_up_does_not_count(tmp_path: Path) -> None:
    files(tmp_path, job__memory_current="1000", job__memory_stat="anon 700\ninactive_file 250")
    assert memory_limit.used_bytes(2, str(tmp_path / "job")) == 750


@pytest.fixture
def c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[core.Core]:
    monkeypatch.setenv("PARDBG", make_run(tmp_path)["PARDBG"])
    hooks.install()
    yield core.ensure()
    hooks.uninstall()
    core.shutdown()


def test_a_limit_is_recorded_at_a_steps_end(
    c: core.Core, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files(tmp_path, job__memory_current="1000", job__memory_stat="inactive_file 250")
    monkeypatch.setattr(memory_limit, "cgroup", lambda: (4096, 2, str(tmp_path / "job")))
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(3):
        model(torch.randn(2, 2)).sum().backward()
        optimizer.step()
    assert c.ring.path is not None
    said = [r for r in read_rank(Path(c.ring.path)).of(Kind.MEMORY) if r.name == "limit"]
    assert [(r.a, r.b) for r in said] == [(4096, 750)]  # again after 5 s


def refuse(_: core.Core) -> None:
    raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")


@pytest.mark.parametrize("lacks", ["statistics", "keys", "limit"])
def test_what_an_allocator_does_not_say_costs_nothing_else(
    c: core.Core, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    """A pluggable one (RMM's) raises where torch's own gives out what it counted."""
    c.computes_on("cuda")
    said: Any = {"allocated_bytes": {"all": {"current": 96}}}
    memory = memory_limit.device_memory
    monkeypatch.setattr(memory, "stats", refuse if lacks == "statistics" else lambda _: said)
    monkeypatch.setattr(memory, "limit_bytes", refuse if lacks == "limit" else lambda _: 4096)
    c.watch(Watches([Watch(1, "memory", 1 << 40)]))
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(3):
        optimizer.step()
    assert c.ring.path is not None
    rank = read_rank(Path(c.ring.path))
    off = {"statistics": {"allocator"}, "keys": set(), "limit": {"device limit"}}
    assert c.guard.disabled == off[lacks] and len(rank.of(Kind.STEP)) == 3
    assert [r.a for r in rank.of(Kind.MEMORY, "parameters")] == [24, 24, 24]
    assert [r.a for r in rank.of(Kind.MEMORY, "limit")] == ([] if lacks == "limit" else [4096])
    assert bool(rank.of(Kind.MEMORY, "rss")) is (lacks == "statistics")
    held = rank.of(Kind.MEMORY, "allocated")
    assert [(r.a, r.b) for r in held] == ([] if lacks == "statistics" else [(96, 96)])


def test_a_request_that_failed_is_reported_by_an_allocator_that_says_nothing(
    c: core.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    c.computes_on("cuda")
    monkeypatch.setattr(memory_limit.device_memory, "stats", refuse)
    monkeypatch.setattr(memory_limit.device_memory, "_index", lambda c: 0)
    monkeypatch.setattr(torch, "get_device_module", lambda device: None)
    monkeypatch.delattr(torch._C, "_cuda_attach_out_of_memory_observer", raising=False)
    memory_limit.device_memory.watch(c, "cuda", parts_now)
    assert c.out_of_memory is not None
    c.out_of_memory(torch.OutOfMemoryError("Tried to allocate 2.00 GiB."))
    assert c.ring.path is not None
    (said,) = read_rank(Path(c.ring.path)).defined("out_of_memory")
    assert (said["asked"], said["limit"], said["free"], said["allocated"]) == (2 << 30, 0, None, 0)
