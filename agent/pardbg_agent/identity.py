"""Identity of this process: (epoch, host, pid). Its rank comes from its groups."""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from pardbg_agent import clock
from pardbg_agent.life.secret_words import without_secrets

ENV_HOST: Final = "PARDBG_HOST"
"""Name of this host in recordings, where its own name is meaningless or confidential."""

_MAX_ARG, _MAX_ARGS = 256, 32
MAX_PARENTS: Final = 12
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Identity:
    """Fields of a PROCESS definition."""

    proc: str
    """``epoch.host.pid``, ascii: the process's name on the wire and its DEALER identity."""
    rank: int
    """Global rank; -1 until known."""
    world_size: int
    local_rank: int
    host: str
    pid: int
    epoch: int
    """torchelastic's restart count: a restarted rank is another process of the same rank."""
    boot_id: str
    start_ns: int
    wall_ns: int
    device: str = "cpu"
    extra: dict[str, Any] = field(default_factory=dict)

    def fields(self, level: str) -> dict[str, Any]:
        """Return the fields of a PROCESS definition and of Hello."""
        known = {name: getattr(self, name) for name in self.__slots__ if name != "extra"}
        return {
            **known,
            "python": platform.python_version(),
            "torch": str(getattr(sys.modules.get("torch"), "__version__", "")),
            "argv": [arg[:_MAX_ARG] for arg in without_secrets(map(str, _argv()[:_MAX_ARGS]))],
            "level": level,
            "job": job_name(),
            **self.extra,
        }


def of_this_process() -> Identity:
    """Return the identity from the environment (torchrun's variables, if set) and the system."""
    pid, host = os.getpid(), host_name()
    node = env_int("GROUP_RANK")
    epoch = max(0, env_int("TORCHELASTIC_RESTART_COUNT", 0))
    return Identity(
        proc=f"{epoch}.{host}.{pid}",
        rank=env_int("RANK"),
        world_size=env_int("WORLD_SIZE", 0),
        local_rank=env_int("LOCAL_RANK"),
        host=host,
        pid=pid,
        epoch=epoch,
        boot_id=boot_id(),
        start_ns=clock.now_ns(),
        wall_ns=clock.wall_ns(),
        extra={"cpus": num_cpus()} | ({} if node < 0 else {"group_rank": node}),
    )


def above(ring_dir: str) -> list[str]:
    """Return this run's processes above this one, nearest first, by the names of their rings: for
    example a launcher whose environment has a rank."""
    try:
        names = [name[: -len(".ring")] for name in os.listdir(ring_dir) if name.endswith(".ring")]
    except OSError:
        return []
    known = {name.rpartition(".")[2]: name for name in names}
    return [known[pid] for pid in map(str, _parents()) if pid in known] if known else []


def _parents() -> list[int]:
    found: list[int] = []
    pid = os.getppid()
    while pid > 1 and len(found) < MAX_PARENTS:
        found.append(pid)
        fields = stat_fields(pid)
        pid = int(fields[1]) if fields else 0
    return found


def _argv() -> list[str]:
    """Return the program's arguments; the interpreter's while it is still starting."""
    return getattr(sys, "argv", None) or sys.orig_argv[1:]


def num_cpus() -> int:
    """Return the number of cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def job_name() -> str:
    """Return a text that tells the processes of one job from those of another beside it: torchrun's
    run id and the rendezvous address. Empty if neither is in the environment."""
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
    return ":".join(os.environ.get(name, "")[:64] for name in names).rstrip(":")


def host_name() -> str:
    """Return this host's short name, or PARDBG_HOST's; safe in file names and dotted ids."""
    short = (os.environ.get(ENV_HOST) or socket.gethostname()).split(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]", "-", short)[:63] or "host"


def env_int(name: str, default: int = -1) -> int:
    """Return the whole number of an environment variable, or the default."""
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return default


# -- what the kernel says: the one place that reads /proc


def boot_id() -> str:
    """Return an id of the monotonic clock, equal for processes that share it; empty if unknown."""
    boot = read_text("/proc/sys/kernel/random/boot_id").strip()
    shift = _namespace_offset()
    return f"{boot}+{shift}" if boot and shift else boot


def _namespace_offset() -> str:
    """Return ``seconds.nanoseconds`` by which this process's time namespace (a restored
    container's, say) shifts the boot's clock; empty without a shift."""
    for line in read_text("/proc/self/timens_offsets").splitlines():
        words = line.split()
        if len(words) == 3 and words[0] in ("monotonic", "1") and words[1:] != ["0", "0"]:
            return f"{words[1]}.{words[2]}"
    return ""


def read_text(path: str) -> str:
    """Return a small file's text; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def cgroup_directories(text: str, root: str, controller: str) -> Iterator[tuple[int, str]]:
    """Yield (version, directory) of each cgroup in a ``/proc/PID/cgroup``, up to the top (mounted
    at ``root``). In a container the path may be the host's: then only the top exists."""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            version, top = 2, root
        elif controller in controllers.split(","):
            version, top = 1, os.path.join(root, controller)
        else:
            continue
        while path.strip("/"):
            yield version, os.path.join(top, path.strip("/"))
            path = os.path.dirname(path.rstrip("/"))
        yield version, top


def resident_bytes() -> int:
    """Return the resident set size of this process, in bytes."""
    fd = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)  # a third of what open() takes
    try:
        return int(os.read(fd, 256).split()[1]) * _PAGE
    finally:
        os.close(fd)


def stat_fields(pid: int, *, ended: bool = False) -> list[str]:
    """/proc/PID/stat from the state on; empty for no process, or a zombie unless ``ended``."""
    fields = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return [] if len(fields) < 20 or (fields[0] in "ZX" and not ended) else fields


def started(pid: int) -> str:
    """Return when a process began (kernel ticks, as text); empty if it is gone or a zombie."""
    fields = stat_fields(pid)
    return fields[19] if fields else ""
