"""Which of a launcher's tasks this is, and how those of one host meet."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pardbg.hub import place
from pardbg.hub.launched_tasks import Tasks, tasks_of
from pardbg.hub.run import runs
from pardbg.hub.run.run_files import (
    JobEnd,
    Launch,
    Process,
    first_code,
    write_end,
    write_launch,
)  # fmt: skip

TORCHRUN = {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}  # fmt: skip
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


def slurm(number: int, local: int, tasks: str, total: int, node: int = 0) -> dict[str, str]:
    return {
        "SLURM_PROCID": str(number), "SLURM_LOCALID": str(local), "SLURM_NODEID": str(node),
        "SLURM_STEP_NUM_TASKS": str(total), "SLURM_STEP_TASKS_PER_NODE": tasks,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (TORCHRUN, (9, 16, 1, 8)),
        (OPEN_MPI, (3, 4, 3, 4)),
        (MPICH, (1, 2, 1, 2)),
        (slurm(5, 1, "4,2", 6, node=1), (5, 6, 1, 2)),
        (slurm(9, 1, "4(x2),2", 10, node=2), (9, 10, 1, 2)),
        (slurm(0, 0, "1(x4)", 4), (0, 4, 0, 1)),
        (slurm(7, 7, "8", 8), (7, 8, 7, 8)),
        (slurm(1, 0, "1(x2)", 2, node=1) | TORCHRUN, (9, 16, 1, 8)),  # torchrun is the inner one
        (slurm(0, 0, "1", 1), None),
        ({"RANK": "1", "WORLD_SIZE": "4"}, None),  # of PyTorchJob, on each pod
        ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8"}, None),  # a batch script
        (OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "x"}, None),
        (OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "4"}, None),
    ],
)
def test_a_task_knows_its_place(
    env: dict[str, str], expected: tuple[int, int, int, int] | None
) -> None:
    found = tasks_of(env)
    assert (found and (found.number, found.total, found.local, found.here)) == expected


def test_recordings_side_by_side_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "n7.cluster")
    tasks = Tasks(5, 8, 1, 4, "X")
    again = {"TORCHELASTIC_RESTART_COUNT": "2"}
    for beside, alone, env, name in (
        (False, False, {}, "s.mcap"), (True, False, {}, "s.n7.mcap"),
        (True, True, {}, "s.n7.1.mcap"),
        (False, False, again, "s.life2.mcap"), (True, True, again, "s.n7.1.life2.mcap"),
    ):  # fmt: skip
        assert tasks.file(Path("/a/s.mcap"), beside, alone, env) == Path("/a", name)


def test_tasks_meet_by_their_launcher_also_below_a_script() -> None:
    """A task is a child of the launcher, or of a shell that the launcher started as the task."""
    code = (
        "from pardbg.hub.launched_tasks import Tasks;"
        "print(Tasks(0, 2, 0, 2, 'MINE').meeting_file())"
    )
    env = os.environ | {"MINE": "1"}
    direct = [sys.executable, "-c", code]
    below = [sys.executable, "-c", f"import subprocess; subprocess.run({direct})"]
    found = {
        subprocess.run(words, env=env, capture_output=True, text=True, timeout=50).stdout.strip()
        for words in (direct, below)
    }
    own = psutil.Process()
    name = f"tasks-{own.pid}-{round(own.create_time())}.json"
    (path,) = map(Path, found)
    assert path.name == name
    left = path.with_name("tasks-4194305-1.json")  # the kernel's greatest number is 4194304
    left.touch()
    assert Tasks(0, 2, 0, 2, "MINE").meeting_file().parent == left.parent and not left.exists()


def test_a_task_whose_first_does_not_record_is_recorded_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(place, "TASKS_S", 0.1)
    said: list[str] = []
    assert place.find_place(None, None, None, None, [], MPICH, said.append) is None
    assert len(said) == 1


def test_tasks_of_several_hosts_meet_on_theirs_unless_a_folder_is_shared(tmp_path: Path) -> None:
    said: list[str] = []
    env = TORCHRUN | {"RANK": "8", "LOCAL_RANK": "0"}
    found = place.find_place(None, None, None, None, [], env, said.append)
    assert found is not None and (found.node, found.nnodes) == (0, 8)
    assert found.hub.startswith("tcp://127.0.0.1:") and len(said) == 1
    env |= {"RANK": "0", "PARDBG_SHARED": str(tmp_path), "SLURM_JOB_ID": "7", "SLURM_NODEID": "1"}
    found = place.find_place(None, None, None, None, [], env, said.append)
    assert found is not None and (found.node, found.nnodes) == (0, 16)
    assert len(said) == 1


def test_a_host_lists_a_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks 0 and 1 of a run; node 2 of one whose hub is elsewhere; one of a single node."""
    places = {"a": ("tcp://h:1", 0), "b": ("tcp://h:1", 1), "c": ("tcp://i:1", 2), "d": ("", 0)}
    made = {
        Path(name): runs.Run(name, name, Path(name), (), Path("s"), 0, True, True, at)
        for name, at in places.items()
    }
    monkeypatch.setattr(runs, "_run_dirs", lambda: list(made))
    monkeypatch.setattr(runs, "_look", made.get)
    assert [run.run for run in runs.list_runs()] == ["a", "c", "d"]


def test_the_code_of_a_first_process_is_the_jobs(tmp_path: Path) -> None:
    write_launch(tmp_path, Launch(job=Process(7, "1")))
    assert first_code(tmp_path, 7) is None  # it runs
    for end, code in ((JobEnd(3), 3), (JobEnd(137, 9), -9), (JobEnd(0), 0)):
        write_end(tmp_path, end)
        assert (first_code(tmp_path, 7), first_code(tmp_path, 8)) == (code, None)
