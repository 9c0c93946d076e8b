"""Which node this is, from options, torchrun's words and what batch systems set."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from pardbg.hub.place import find_place
from pardbg.hub.run.config import ConfigError, Endpoints, Place
from pardbg.hub.serve.sockets import make_keys

HUB = "tcp://node0:29700"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key.json"
    path.write_text(json.dumps(make_keys()))
    path.chmod(0o600)
    return path


def place(
    key: Path | None, argv: str = "torchrun train.py", node: int | None = None,
    nnodes: int | None = None, hub: str | None = HUB, **env: str,
) -> Place | None:  # fmt: skip
    return find_place(hub, key, node, nnodes, argv.split(), env, lambda text: None)


def test_one_node_needs_nothing() -> None:
    assert place(None, hub=None) is None
    assert place(None, hub=None, SLURM_NODEID="3") is None


@pytest.mark.parametrize(
    ("argv", "env", "node", "nnodes"),
    [
        ("torchrun --nnodes 4 --node-rank 2 t.py", {}, 2, 4),
        ("torchrun --nnodes=2:4 --node_rank=1 t.py", {}, 1, 4),
        ("torchrun --nnodes 4 --node-rank 2 t.py", {"SLURM_NODEID": "1"}, 2, 4),
        ("srun t.py", {"SLURM_NODEID": "1", "SLURM_NNODES": "8"}, 1, 8),
        ("t.py", {"PET_NODE_RANK": "5", "PET_NNODES": "6", "SLURM_NODEID": "1"}, 5, 6),
        ("t.py", {"JOB_COMPLETION_INDEX": "3"}, 3, 0),
        ("t.py", {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, 1, 2),
        ("t.py", {"PMI_RANK": "2", "PMI_SIZE": "3", "RANK": "7"}, 2, 3),
        ("t.py", {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "job-master-0"}, 1, 4),
    ],
)
def test_the_node_is_found(
    key: Path, argv: str, env: dict[str, str], node: int, nnodes: int
) -> None:
    found = place(key, argv, **env)
    assert found is not None and (found.hub, found.node, found.nnodes) == (HUB, node, nnodes)


def test_what_was_said_outranks_what_was_found(key: Path) -> None:
    found = place(key, "torchrun --node-rank 2 t.py", node=0, nnodes=3)
    assert found is not None and (found.node, found.nnodes) == (0, 3)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"hub": None, "node": 1}, "go with --hub"),
        ({"hub": None, "nnodes": 2}, "go with --hub"),
        ({}, "which node is this"),
        ({"node": 2, "nnodes": 2}, "nodes count from 0"),
        ({"node": 1, "hub": "node0:29700"}, "is not of the form tcp://HOST:PORT"),
        ({"node": 1, "hub": "tcp://node0:65535"}, "is not of the form tcp://HOST:PORT"),
        ({"node": 1, "key": None}, "--key FILE"),
        ({"node": 1, "key": None, "PARDBG_KEY": "{"}, "PARDBG_KEY"),
        ({"node": 1, "key": None, "PARDBG_KEY": '{"server": 1}'}, "does not hold"),
        ({"hub": None, "node": 1, "PARDBG_SHARED": "/tmp"}, "needs a job id"),
    ],
)
def test_mistakes_are_one_line(key: Path, given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as error:
        place(**{"key": key, **given})
    assert "\n" not in str(error.value)


def test_the_first_node_makes_the_key_and_others_must_not_read_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "key.json"
    first = place(path, node=0)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    second = place(path, node=1)
    assert first is not None and second is not None and first.keys == second.keys
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        place(path, node=1)


def test_nodes_meet_in_a_shared_directory_past_what_the_step_before_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda: "127.0.0.1")
    env = {"PARDBG_SHARED": str(tmp_path), "SLURM_JOB_ID": "77"}
    before = place(None, node=0, hub=None, **env)  # its hub is gone: nobody listens there
    found: list[Place | None] = []
    waiting = threading.Thread(
        target=lambda: found.append(place(None, node=1, hub=None, **env)), daemon=True
    )
    waiting.start()
    waiting.join(0.5)
    assert not found
    first = place(None, node=0, hub=None, **env)
    assert first is not None and before is not None and first.keys != before.keys
    with socket.create_server(("", int(first.hub.rpartition(":")[2]))):
        waiting.join(50)
    assert found and found[0] is not None
    assert found[0].hub == first.hub and found[0].keys == first.keys
    monkeypatch.setattr(socket, "getfqdn", lambda: "localhost")  # says /etc/hosts of some nodes
    monkeypatch.setattr(socket, "gethostname", lambda: "node7")
    named = place(None, node=0, hub=None, **env)
    assert named is not None and named.hub.startswith("tcp://node7:")


def test_endpoints_are_three_ports_in_a_row() -> None:
    found = Endpoints("tcp://[fe80::1%eth0]:29700")
    assert (found.ctrl, found.data, found.pub) == (
        "tcp://[fe80::1%eth0]:29700", "tcp://[fe80::1%eth0]:29701", "tcp://[fe80::1%eth0]:29702",
    )  # fmt: skip
    assert Endpoints("tcp://node0:29700").everywhere().ctrl == "tcp://*:29700"


def test_what_cannot_work_is_said_at_once(key: Path) -> None:
    """RFC 6761: no name below .invalid is ever known; RFC 5737: nobody has 192.0.2.1."""
    said: list[str] = []
    for hub, node in (
        ("tcp://x.invalid:29700", 1), ("tcp://192.0.2.1:29700", 0), ("tcp://192.0.2.1:29700", 1),
        ("tcp://127.0.0.1:29700", 0), ("tcp://[::1]:29700", 1),
    ):  # fmt: skip
        assert find_place(hub, key, node, 2, [], {}, said.append) is not None
    assert said == [
        "cannot resolve x.invalid (yet): check --hub",
        "node 0 runs the hub, but 192.0.2.1 is another machine: check --node-rank",
    ]
