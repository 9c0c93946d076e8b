"""How many processes and threads may still be started."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from pardbg.hub.ranks import processes
from pardbg.hub.ranks.processes import NO_LIMIT, free_tasks

ME = os.getuid()


def machine(
    tmp_path: Path, *, caps: int = 0, uid_map: str = "0 0 4294967295", everybody: int = 500,
    threads: tuple[int, ...] = (3, 5), **limits: str,
) -> tuple[str, str]:  # fmt: skip
    """A /proc with two processes of ours, and a cgroup ``job``; ``limits`` by file name."""
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroups"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/job\n")
    (proc / "self" / "uid_map").write_text(f"   {uid_map}\n")
    (proc / "self" / "status").write_text(f"Name:\tx\nCapEff:\t{caps:016x}\n")
    (proc / "loadavg").write_text(f"0.1 0.2 0.3 2/{everybody} 4711\n")
    for pid, number in enumerate(threads):
        for thread in range(number):
            (proc / str(pid + 1) / "task" / str(thread)).mkdir(parents=True)
    for name, said in limits.items():
        file = cgroups / name.replace("__", "/").replace("_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(said + "\n")
    return str(proc), str(cgroups)


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A user who may have 600 tasks, and is not root."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (600, 600))
    monkeypatch.setattr(processes.os, "getuid", lambda: ME or 1000)
    return monkeypatch


def test_the_tightest_cgroup_counts(tmp_path: Path, allowed: pytest.MonkeyPatch) -> None:
    allowed.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    said = machine(tmp_path, job__pids_max="max", job__pids_current="9", pids_max="90",
                   pids_current="40")  # fmt: skip
    assert free_tasks(*said) == 50


def test_no_limit(tmp_path: Path, allowed: pytest.MonkeyPatch) -> None:
    allowed.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert free_tasks(*machine(tmp_path)) == NO_LIMIT


def test_threads_of_the_user_count(tmp_path: Path, allowed: pytest.MonkeyPatch) -> None:
    allowed.setattr(processes.os, "getuid", lambda: ME)
    allowed.setattr(processes, "_exempt", lambda _: False)
    assert free_tasks(*machine(tmp_path)) == 600 - 8


def test_a_machine_with_few_tasks_is_not_searched(
    tmp_path: Path, allowed: pytest.MonkeyPatch
) -> None:
    """All tasks of the machine are fewer than may be started."""
    assert free_tasks(*machine(tmp_path, everybody=300)) == 300


@pytest.mark.parametrize(
    ("caps", "uid_map", "free"),
    [(1 << 24, "0 0 4294967295", NO_LIMIT), (1 << 21, "0 0 4294967295", NO_LIMIT),
     (1 << 1, "0 0 4294967295", 300), (1 << 24, "0 1000 65536", 300)],
)  # fmt: skip
def test_who_is_exempt(
    tmp_path: Path, allowed: pytest.MonkeyPatch, caps: int, uid_map: str, free: int
) -> None:
    """Two capabilities are, unless in a user namespace of one's own."""
    assert free_tasks(*machine(tmp_path, caps=caps, uid_map=uid_map, everybody=300)) == free
