"""A rank before its groups, and calls that block: what counts as a rank, and what is recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pardbg_agent import autostart, core, wire
from pardbg_agent.life import calls
from pardbg_agent.op_table import OpsState
from pardbg_agent.ring import RingReader
from pardbg_agent.settings import load_run

ROOT = Path(__file__).parents[3]
BOOT = ROOT / "agent" / "pardbg_agent" / "boot"


@pytest.mark.parametrize(
    ("command", "is_no_rank"),
    [
        ("train.py --steps 3", False),
        ("-u -m pipeline.train", False),
        ("-m torch.distributed.run --nproc-per-node 2 train.py", True),
        ("-u /usr/bin/torchrun train.py", True),
        ("-m pip install x", True),
        ("-c from|multiprocessing.spawn|import|spawn_main --multiprocessing-fork", True),
        ("-c import|pipeline;|pipeline.main()", False),
    ],
)  # fmt: skip
def test_whose_command_line_is_no_ranks(command: str, is_no_rank: bool) -> None:
    assert autostart._is_no_rank([word.replace("|", " ") for word in command.split()]) == is_no_rank


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes another user's files")
@pytest.mark.parametrize("whose", ["", wire.RUN_FILE, "rings", "ctrl"])
def test_a_run_of_another_user_is_not_followed(run_dir: Path, whose: str) -> None:
    """Nor one whose rings or sockets are: one line, and the program goes on unwatched."""
    (run_dir / "rings").mkdir()
    (run_dir / "ctrl").touch()
    settings = {"v": 1, "run": "t", "ring_dir": str(run_dir / "rings"),
                "data": f"ipc://{run_dir}/data", "ctrl": f"ipc://{run_dir}/ctrl"}  # fmt: skip
    (run_dir / wire.RUN_FILE).write_text(json.dumps(settings))
    os.chown(run_dir / whose, 1234, 1234)
    code = "from pardbg_agent import core; print(core.ensure().run, core.ensure().level)"
    env = {"PARDBG": str(run_dir), "RANK": "0", "WORLD_SIZE": "1", "PATH": os.environ["PATH"],
           "PYTHONPATH": os.pathsep.join([str(BOOT), str(ROOT / "agent")])}  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True,
                          timeout=30, check=True)  # fmt: skip
    assert done.stdout.split()[0] == "None" and not any((run_dir / "rings").iterdir())
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"pardbg: {run_dir}")


def rings_of(run_dir: Path, program: str, **env: str) -> list[str]:
    """Command lines of the processes that reported, by what their PROCESS definitions say."""
    (run_dir / "rings").mkdir()
    settings = {"v": 1, "run": "t", "ring_dir": str(run_dir / "rings")}
    (run_dir / wire.RUN_FILE).write_text(json.dumps(settings))
    path = os.pathsep.join([str(BOOT), str(ROOT / "agent")])
    subprocess.run(
        [sys.executable, "-c", program], check=False, timeout=30, stderr=subprocess.DEVNULL,
        env={**os.environ, "PARDBG": str(run_dir), "PYTHONPATH": path, **env},
    )  # fmt: skip
    return sorted(path.name for path in (run_dir / "rings").glob("*.ring"))


def test_a_rank_that_dies_at_import_is_known_and_its_helpers_are_none(run_dir: Path) -> None:
    """It starts another Python first, which inherits RANK and is no rank."""
    program = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import json'], check=True);"
        "import no_such_module"
    )
    (ring,) = rings_of(run_dir, program, RANK="1", WORLD_SIZE="2")
    defs = load_run(str(run_dir)).ring_dir + "/" + ring.replace(".ring", ".defs")
    said = Path(defs).read_bytes()
    assert b"ModuleNotFoundError: No module named 'no_such_module'" in said
    assert RingReader.open(f"{run_dir}/rings/{ring}").header.rank == 1


def test_a_rank_that_got_its_place_as_it_ran_has_helpers_that_are_none(run_dir: Path) -> None:
    """As ranks do that a program forks, or that set their own environment, before their group."""
    program = (
        "import os, subprocess, sys; os.environ.update(RANK='1', WORLD_SIZE='2');"
        "from pardbg_agent import core; core.ensure();"
        "subprocess.run([sys.executable, '-c', 'import json'], check=True)"
    )
    (ring,) = rings_of(run_dir, program)
    assert RingReader.open(f"{run_dir}/rings/{ring}").header.rank == 1


def test_without_a_rank_in_the_environment_nothing_is_started(run_dir: Path) -> None:
    assert rings_of(run_dir, "import json") == []


def test_calls_are_open_ops_that_no_gate_knows() -> None:
    c = core._off_core()
    one = calls.begin(c, "new_group", "ranks 0,1", calls.together((0, 1, 2)), (0, 1, 2))
    two = calls.alone(c, "exit")
    assert c.ops.revision == 2 * 2 - 2 and c.ops.num_open == 0  # two issued, two open
    assert c.ops.snapshot() == OpsState((), {}, {})
    calls.end(c, two)
    calls.end(c, one, failed=True)
    assert c.ops.revision == 2 * 2
