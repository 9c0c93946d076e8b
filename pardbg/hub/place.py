"""This node's place in a job of several: its number, the hub's address, the run's keys."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pardbg.hub.launched_tasks import Tasks, tasks_of
from pardbg.hub.run.config import ConfigError, Endpoints, Place, read_json, write_json

ENV_HUB, ENV_SHARED = "PARDBG_HUB", "PARDBG_SHARED"
WAIT_S: Final = 300.0
"""Maximum wait, in s, for the file of node 0."""
TASKS_S: Final = 30.0
"""Maximum wait, in s, for the first of a launcher's tasks on this host."""
POLL_S: Final = 0.2
FRESH_S: Final = 3600.0
"""Age in s beyond which a shared file is another job's."""
LISTENS_S: Final = 60.0
"""Maximum wait, in s, for a newer file if its hub does not listen: it may be an earlier step's."""
_NODE: Final = (
    "PET_NODE_RANK", "SLURM_NODEID", "JOB_COMPLETION_INDEX", "GROUP_RANK", "OMPI_COMM_WORLD_RANK",
    "PMI_RANK", "RANK",
)  # fmt: skip
"""Variables of torchrun, Slurm, indexed Kubernetes jobs, torchrun's workers, mpirun, PyTorchJob."""
_NODES: Final = (
    "PET_NNODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "GROUP_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE", "WORLD_SIZE",
)  # fmt: skip
_JOB: Final = (
    "SLURM_JOB_ID", "PET_RDZV_ID", "TORCHELASTIC_RUN_ID", "PBS_JOBID", "LSB_JOBID",
    "PMIX_NAMESPACE",
)  # fmt: skip


def find_place(
    hub: str | None, key: Path | None, node: int | None, nnodes: int | None,
    argv: Sequence[str], env: Mapping[str, str], say: Callable[[str], None],
) -> Place | None:  # fmt: skip
    """Return the place from options, command line and environment; None: a job of one node. Waits
    for node 0's keys. Of a launcher's tasks each is a node. Raises ConfigError."""
    hub = hub or env.get(ENV_HUB)
    shared, tasks = env.get(ENV_SHARED), tasks_of(env)
    if not hub and not shared:
        if any(one is not None for one in (key, node, nnodes)):
            raise ConfigError("--key, --node-rank and --nnodes go with --hub tcp://HOST:PORT")
        return None if tasks is None else _on_this_host(tasks, say)
    if tasks is not None and tasks.here > 1 and node is None is nnodes:
        node, nnodes = tasks.number, tasks.total
    number = _number(node, ("--node-rank", "--node_rank"), argv, _NODE, env)
    if number is None:
        raise ConfigError("which node is this? give --node-rank N (0: the hub runs there)")
    total = _number(nnodes, ("--nnodes",), argv, _NODES, env) or 0
    if total and not 0 <= number < total:
        raise ConfigError(f"node {number} of {total}: nodes count from 0")
    if hub is None:
        assert shared is not None
        found = _rendezvous(Path(shared), number, argv, env, say)
        return Place(found["hub"], number, total, found["keys"])
    _check_host(Endpoints(hub).host, number, say)
    return Place(hub, number, total, _keys(key, number, env, say))


def _on_this_host(tasks: Tasks, say: Callable[[str], None]) -> Place | None:
    """Return the place among the tasks on this host, which meet by a file; None: this one is alone.
    The launcher ends the whole job if a task fails, so nothing here raises."""
    if tasks.total > tasks.here:
        say(f"each host records its own tasks; for one recording of all {tasks.total} set "
            f"{ENV_SHARED} to a folder that all hosts see, or give --hub")  # fmt: skip
    if tasks.here == 1:
        return None
    try:
        path = tasks.meeting_file()
        found = (
            _wait_for(path, "node 0", lambda _: None, fresh=True, wait_s=TASKS_S)
            if tasks.local else _made(path, _loopback())
        )  # fmt: skip
        return Place(str(found["hub"]), tasks.local, tasks.here, found["keys"])
    except (ConfigError, KeyError, OSError) as error:
        say(f"this task is recorded alone: {error}")
        return None


def _loopback() -> str:
    """Return IPv4's loopback address, or where there is none, IPv6's."""
    return "127.0.0.1" if _is_ours(socket.AF_INET, ("127.0.0.1", 0)) else "[::1]"


def _check_host(host: str, node: int, say: Callable[[str], None]) -> None:
    """Warn about an address that does not work now; it may become known later, or lead here."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        say(f"cannot resolve {host} (yet): check --hub")
        return
    if node == 0 and host != "*" and not any(_is_ours(family, at) for family, *_, at in found):
        say(f"node 0 runs the hub, but {host} is another machine: check --node-rank")


def _is_ours(family: int, address: Any) -> bool:
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind(address)
        return True
    return False


def _number(
    option: int | None, options: tuple[str, ...], argv: Sequence[str], names: tuple[str, ...],
    env: Mapping[str, str],
) -> int | None:  # fmt: skip
    """Return a number from our option, torchrun's or the environment; for ``2:4`` the larger."""
    if option is not None:
        return option
    texts = [env[name] for name in reversed(names) if env.get(name)]
    for text in reversed([*texts, *_option_values(argv, *options)]):
        if re.fullmatch(r"[0-9]{1,6}(:[0-9]{1,6})?", text, re.ASCII):
            return int(text.rpartition(":")[2])
    return None


def _keys(
    path: Path | None, node: int, env: Mapping[str, str], say: Callable[[str], None]
) -> dict[str, Any]:
    from pardbg.hub.serve.sockets import check_keys, keys_of_environment, keys_to_look, make_keys

    if path is None and (found := keys_of_environment(env)) is not None:
        return found
    if path is None:
        raise ConfigError(
            "--hub needs --key FILE, the same on every node (node 0 creates it), or PARDBG_KEY"
        )
    if node == 0 and not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            keys, to_look = make_keys(), path.with_name(f"{path.name}.view")
            write_json(path, keys)
            write_json(to_look, keys_to_look(keys))
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from None
        say(f"keys for the other nodes are in {path}, view-only keys in {to_look}")
    return check_keys(_wait_for(path, "the key", say), str(path))


def _rendezvous(
    folder: Path, node: int, argv: Sequence[str], env: Mapping[str, str], say: Callable[[str], None]
) -> dict[str, Any]:
    """Return the hub's address and keys, exchanged by a file in a folder that all nodes share."""
    from pardbg.hub.serve.sockets import check_keys

    known = [env[name] for name in _JOB if env.get(name)]
    job = next(iter(known or _option_values(argv, "--rdzv-id", "--rdzv_id")), "")
    if not job:
        raise ConfigError(f"{ENV_SHARED} needs a job id ({_JOB[0]} or --rdzv-id), or use --hub")
    path = folder / f"pardbg-{re.sub(r'[^A-Za-z0-9_-]+', '-', job)[:64]}.json"
    if node == 0:
        name = socket.getfqdn()  # "localhost" on a host that calls itself 127.0.0.1
        name = socket.gethostname() if name.startswith("localhost") else name
        return _made(path, name)
    found = _wait_for(path, "node 0", say, fresh=True)
    Endpoints(str(found.get("hub")))
    return {"hub": str(found["hub"]), "keys": check_keys(found.get("keys"), str(path))}


def _made(path: Path, host: str) -> dict[str, Any]:
    """Write address and keys of the hub that this node is about to start."""
    from pardbg.hub.serve.sockets import make_keys

    made = {"hub": f"tcp://{host}:{_free_ports()}", "keys": make_keys()}
    try:
        write_json(path, made)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    return made


def _option_values(argv: Sequence[str], *options: str) -> list[str]:
    parts = ((at, *word.partition("=")) for at, word in enumerate(argv))
    return [
        value if equals else "".join(argv[at + 1 : at + 2])
        for at, name, equals, value in parts if name in options
    ]  # fmt: skip


def _wait_for(
    path: Path, what: str, say: Callable[[str], None], fresh: bool = False, wait_s: float = WAIT_S
) -> dict[str, Any]:
    """Return a JSON file's content once it exists; refuse one that others can read."""
    begun, told = time.monotonic(), False
    while True:
        try:
            found = path.stat()
            if found.st_mode & 0o077:
                raise ConfigError(f"{path} can be read by others: chmod 600 it")
            value = read_json(path)
            if value is not None and (not fresh or _is_of_now(value, found.st_mtime, begun)):
                return value
        except FileNotFoundError:
            pass
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from None
        if time.monotonic() > begun + wait_s:
            raise ConfigError(f"{path} did not appear: did node 0 start?")
        if not told:
            told = True
            say(f"waiting for {what}: {path}")
        time.sleep(POLL_S)


def _is_of_now(found: dict[str, Any], written_s: float, begun: float) -> bool:
    """Return whether the file is this job's: recent, and its hub listens, or none appears within
    ``LISTENS_S`` from ``begun`` on."""
    if time.time() - written_s >= FRESH_S:
        return False
    with contextlib.suppress(OSError):
        hub = Endpoints(str(found.get("hub")))
        address = hub.host, int(hub.ctrl.rpartition(":")[2])
        socket.create_connection(address, timeout=2).close()
        return True
    return time.monotonic() - begun > LISTENS_S


def _free_ports() -> int:
    for port in range(29_700 + os.getpid() % 1000 * 3, 60_000, 3):
        try:
            for number in range(3):
                with socket.socket() as probe:
                    probe.bind(("", port + number))
            return port
        except OSError:
            continue
    raise ConfigError("no three free ports in a row")
