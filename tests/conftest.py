"""Fixtures for every test: ports, short run directories, ranks, and no process left behind."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hook_ways import NATIVE, WAYS
from tests.processes import MARK, SHARED, Finished, command, end_tree, marked, run_ranks

ROOT = Path(__file__).parent.parent
KINDS = ("distributed", "faults", "gpu")
"""Directories whose tests carry the marker of the same name."""
NIGHTLY = pytest.mark.skipif(
    os.environ.get("PARDBG_SIEGE") != "1", reason="more of the same; `make siege` runs it"
)
FIRST = (
    "distributed/test_recipes_losses.py", "distributed/test_debugger.py", "ui/snapshots",
    "faults/test_siege.py", "accelerator/test_watched.py", "distributed/test_rehearse.py",
    "distributed/test_cli.py", "faults/test_on_hang.py",
    "faults", "distributed", "accelerator",
)  # fmt: skip
"""What starts ranks begins first, the longest files before the others: no worker is left alone with
one at the end, and what waits runs beside what computes."""


LONG = frozenset({
    "accelerator/test_losses.py", "accelerator/test_out_of_memory.py",
    "accelerator/test_recipes.py", "accelerator/test_watched.py",
    "distributed/test_async_checkpoint.py", "distributed/test_attach_agent.py",
    "distributed/test_crashes.py", "distributed/test_debugger.py", "distributed/test_entering.py",
    "distributed/test_explain.py", "distributed/test_held_time.py",
    "distributed/test_launched_ranks.py", "distributed/test_live_replay.py",
    "distributed/test_made_groups.py", "distributed/test_mcp.py",
    "distributed/test_meeting_again.py", "distributed/test_metrics.py",
    "distributed/test_own_processes.py", "distributed/test_recipes_data.py",
    "distributed/test_recipes_losses.py", "distributed/test_recipes_sharded.py",
    "distributed/test_recording.py", "distributed/test_rehearse.py", "distributed/test_same.py",
    "distributed/test_same_tutorial.py", "distributed/test_schedule_lint.py",
    "distributed/test_serve_live.py", "distributed/test_the_users_job.py", "faults/test_attach.py",
    "faults/test_findings_device.py", "faults/test_hub_faults.py", "faults/test_nodes.py",
    "faults/test_on_exception.py", "faults/test_on_hang.py", "faults/test_pause_long.py",
    "faults/test_recipe_faults.py", "faults/test_siege.py", "gpu/test_harness.py",
    "packaging/test_deploy.py", "packaging/test_distributions.py", "ui/test_lessons.py",
    "unit/analysis/test_horizon.py", "unit/test_siege.py",
})  # fmt: skip
"""Every recipe and lesson, small draws of the campaigns, doors that wait: half of the time.
`make test-long` runs them, and so does CI. What each is about has a test in `make test`, too."""


def _path(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT / "tests").as_posix()


def _turn(item: pytest.Item) -> int:
    path = _path(item)
    turns = (turn for turn, begin in enumerate(FIRST) if path.startswith(begin))
    return next(turns, len(FIRST))


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # a third of collection's time: what is imported and collected stays
    os.environ[MARK] = f"{os.getpid()}-{uuid.uuid4().hex}"
    # A shell that runs this in the background has it ignore Ctrl-C, and so all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # A pytest that runs inside a watched job is not part of it.
    os.environ.pop("PARDBG", None)
    if not hasattr(config, "workerinput"):  # the one that starts the workers, if there are any
        shared = tempfile.mkdtemp(prefix="pardbg-shared-")
        os.environ[SHARED] = shared
        (Path(shared) / MARK).write_text(f"{os.getpid()}-ranks")
        config.add_cleanup(lambda: shutil.rmtree(shared, ignore_errors=True))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of which `-m` selects nothing are not imported: each worker collects all others."""
    chosen, path = config.option.markexpr, collection_path
    if not path.match("test_*.py") or chosen not in ("long", "not long"):
        return None
    if path.relative_to(ROOT / "tests").as_posix() in LONG:
        return True if chosen == "not long" else None
    return True if chosen == "long" and b"mark.long" not in path.read_bytes() else None


@pytest.hookimpl(tryfirst=True)  # markers are there before `-m` selects by them
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        path = _path(item)
        if (kind := path.partition("/")[0]) in KINDS:
            item.add_marker(kind)
        if path in LONG:
            item.add_marker("long")
    items.sort(key=_turn)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture
def free_port() -> Callable[..., int]:
    """Gives a TCP port that nobody uses, another each time; of ``row`` in a row the first. Below
    those that the kernel gives to whoever connects meanwhile (from 32768 on)."""
    given: set[int] = set()
    draw = random.Random()

    def next_port(row: int = 1) -> int:
        while True:
            port = draw.randrange(20_000, 32_000, 10)
            if port not in given and all(map(_is_free, range(port, port + row))):
                given.add(port)
                return port

    return next_port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """An empty 0700 directory whose path is short: a unix socket's path ends at 107 bytes, and
    pytest's tmp_path is often longer than that."""
    path = Path(tempfile.mkdtemp(prefix="pdb-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def small_tmpfs(run_dir: Path) -> Iterator[Path]:
    """2 MB of memory as a file system, for root."""
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "none", str(run_dir)], check=False
        ).returncode
    ):
        pytest.skip("needs root and mount(2)")
    yield run_dir
    subprocess.run(["umount", "-l", str(run_dir)], check=True)


@pytest.fixture
def torchrun() -> Callable[..., Finished]:
    """``torchrun("-m", "package.module", "--steps", "3", nproc=4, env={}, timeout_s=50)`` runs to
    the end, with OMP_NUM_THREADS=1, and gives code, out and err. Nothing of it outlives a
    timeout."""
    return run_ranks


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the agent sees ops, here and in ranks that the test starts: it runs each way."""
    name = str(request.param)
    monkeypatch.setenv("PARDBG_HOOKS", name)
    if name == "native":
        monkeypatch.setenv("PARDBG_NATIVE", NATIVE)
    return name


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Fails a test that leaves processes behind, and ends them."""
    before = set(marked())
    yield
    _end_and_fail(before)


@pytest.fixture(autouse=True)
def _no_leaks_where_ranks_run(request: pytest.FixtureRequest) -> Iterator[None]:
    if not any(request.node.get_closest_marker(kind) for kind in KINDS):
        yield
        return
    before = set(marked())
    yield
    _end_and_fail(before)


@pytest.fixture(autouse=True, scope="session")
def _nothing_left_at_the_end() -> Iterator[None]:
    yield
    _end_and_fail(set())


SETTLE_S = 3.0
"""How long a process that is already on its way out may take."""


def _end_and_fail(before: set[int]) -> None:
    deadline = time.monotonic() + SETTLE_S
    while left := {pid: p for pid, p in marked().items() if pid not in before}:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    words = [f"{pid}: {command(process)}" for pid, process in left.items()]
    for pid in left:
        end_tree(pid)
    if words:
        pytest.fail("processes left behind:\n" + "\n".join(words), pytrace=False)
