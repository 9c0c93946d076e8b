"""Commands about this machine: its live runs, a check of requirements, the native build."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

from pardbg.cli.common import JSON, echo, trouble
from pardbg.errors import UserError
from pardbg.words import binary_size, duration

if TYPE_CHECKING:
    from pardbg.hub.run.runs import Run
    from pardbg.hub.target import Target


@click.command()
@JSON
@click.option("--dead", is_flag=True,
              help="List killed runs: rings for postmortem, untold exit codes.")  # fmt: skip
def ls(json_: bool, dead: bool) -> None:
    """List live runs."""
    from pardbg.hub.run.config import refused_roots
    from pardbg.hub.run.runs import list_run_rings, list_runs, tidy

    tidy()
    for line in refused_roots():
        echo(f"pardbg: {line}", err=True)
    runs, killed = list_runs(), list_run_rings()
    if json_:
        echo(json.dumps([found.as_dict() for found in (killed if dead else runs)], indent=2))
        return
    for found in killed if dead else runs:
        echo(found.line())
    boxes = [found.run for found in killed if found.num_rings]
    if dead and not killed:
        echo("no killed run left its rings behind", err=True)
    elif not dead and not runs:
        echo("no live run; start one with `pardbg demo` or `pardbg watch -- CMD`", err=True)
    if boxes:
        echo(
            f"{len(boxes)} killed: `pardbg postmortem {boxes[-1]} -o S.mcap`"
            + ("" if dead else ", `pardbg ls --dead` lists them"),
            err=True,
        )


@click.command()
@JSON
def doctor(json_: bool) -> int:
    """Check what pardbg needs on this machine; exit 1 if something is missing."""
    results = [_answer(check) for check in (*CHECKS, *DEVICE_CHECKS)]
    if json_:
        echo(json.dumps([asdict(result) for result in results], indent=2))
    for result in () if json_ else results:
        echo(f"{MARKS[result.status]} {result.name:<14} {result.text}")
    return 0 if all(result.status != "bad" for result in results) else 1


def _answer(check: Callable[[], Check]) -> Check:
    name = check.__name__.lstrip("_")
    try:
        return check()
    except OSError as error:
        return Check(name, "bad", f"not checked: {trouble(error) or error}")
    except subprocess.TimeoutExpired as error:
        late = f"no answer in {duration(int(error.timeout) * 10**9)}"
        return Check(name, "warn", f"{late}: overloaded machine, or `import torch` hangs")


def find_live(name: str | None) -> Run:
    """Return the live run of that name, or the only live run. Raises UserError."""
    from pardbg.hub.run.runs import find_run, list_runs

    if name is None and len(runs := list_runs()) > 1:
        for found in runs:
            echo(found.line(), err=True)
        raise UserError(f"{len(runs)} runs are live: name one; a prefix is enough")
    return find_run(name)


def find_target(name: str | None, key: Path | None) -> Target:
    """Return a live run by its name or address. Raises UserError."""
    from pardbg.hub.target import elsewhere, local

    if name is not None and name.startswith(("tcp:", "ssh:")):
        return elsewhere(name, key, os.environ)
    return local(find_live(name).path)


@click.group(no_args_is_help=False)
def native() -> None:
    """Run the agent's hot path in C++: an op costs a tenth of what it costs in Python."""


@native.command()
@click.option("--python", default=sys.executable, help="The Python that runs the job.")
def build(python: str) -> int:
    """Build it for this Python's torch.

    It takes half a minute, once per torch, and goes into the user's cache; later jobs use it.
    """
    from pardbg.hub.run.native_build import command

    try:
        return subprocess.run(command(python), check=False).returncode
    except OSError as error:
        raise UserError(f"--python {python}: {error.strerror}") from None


Status = Literal["ok", "warn", "bad"]
MARKS: dict[Status, str] = {"ok": "✓", "warn": "!", "bad": "✗"}
TESTED_TORCH = (2, 4), (2, 15)
"""Oldest and newest release in README's table."""
PROBE_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    status: Status
    text: str
    """Result, with the remedy for ``warn`` and ``bad``."""


def _version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _python() -> Check:
    return Check("python", "ok", f"{platform.python_version()}  {sys.executable}")


def _torch() -> Check:
    version = _version("torch")
    if version is None:
        return Check("torch", "warn", "not installed: replay and report work, "
                     "demos need pip install 'pardbg[train]'")  # fmt: skip
    oldest, newest = TESTED_TORCH
    if not oldest <= tuple(map(int, version.split(".")[:2])) <= newest:
        tested = " to ".join(".".join(map(str, release)) for release in TESTED_TORCH)
        return Check("torch", "warn", f"{version}; tested with {tested}")
    return Check("torch", "ok", version)


def _agent() -> Check:
    version = _version("pardbg-agent")
    if version is None:
        return Check("agent", "bad", "pardbg-agent is not installed: pip install pardbg-agent")
    return Check("agent", "ok", version)


def _native() -> Check:
    from pardbg_agent import native

    try:
        return Check("native", "ok", f"ops are seen in C++: {native.state()}")
    except native.Unusable as error:
        return Check("native", "warn", f"ops are seen in Python, which costs more: {error}")


def _hooks() -> Check:
    """Check that the agent's hooks can be installed in this torch."""
    version = _version("torch")
    if version is None:
        return Check("hooks", "ok", "no torch here")
    from pardbg.hub.run.native_build import agents_main

    ran = subprocess.run(
        agents_main(sys.executable, "hooks"), env={**os.environ, "PARDBG_NATIVE": "off"},
        capture_output=True, text=True, timeout=PROBE_TIMEOUT_S,
    )  # fmt: skip
    if ran.returncode:
        said = ran.stderr.strip().splitlines() or ["no message"]
        return Check("hooks", "bad", f"none with torch {version}: {said[-1][:200]}")
    missing = json.loads(ran.stdout.strip().splitlines()[-1])
    if missing:
        return Check("hooks", "warn", f"not recorded, as torch {version} lacks it: "
                     + ", ".join(missing)[:300])  # fmt: skip
    return Check("hooks", "ok", f"all find their places in torch {version}")


def _probe(code: str, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a line of Python in the environment of a job's rank."""
    return subprocess.run(
        [sys.executable, *options, "-c", code], env={**os.environ, **env}, capture_output=True,
        text=True, timeout=PROBE_TIMEOUT_S,
    )  # fmt: skip


def _started(**env: str) -> subprocess.CompletedProcess[str]:
    """Print whether a Python process loads the agent, with PARDBG naming an empty directory."""
    with tempfile.TemporaryDirectory() as nowhere:
        code = "import sys; print('pardbg_agent.autostart' in sys.modules)"
        return _probe(code, PARDBG=nowhere, **env)


def _pth() -> Check:
    """Check whether the wheel's .pth file starts the agent in this environment."""
    if _started().stdout.strip() == "True":
        return Check("start (.pth)", "ok", "active: programs of this environment need no change")
    return Check("start (.pth)", "warn",
                 "not active here; pardbg starts the agent by PYTHONPATH instead")  # fmt: skip


def _injection() -> Check:
    """Check the start by PYTHONPATH, which serves environments without the wheel."""
    import pardbg_agent

    boot = str(Path(pardbg_agent.__file__).parent / "boot")
    path = os.pathsep.join(filter(None, [boot, os.environ.get("PYTHONPATH")]))
    found = _started(PYTHONPATH=path)
    if found.stdout.strip() == "True":
        return Check("start (path)", "ok", "active: works in environments without the wheel")
    return Check("start (path)", "bad", "PYTHONPATH start failed: "
                 + (found.stderr.strip().splitlines() or ["no message"])[-1])  # fmt: skip


def _shared_memory() -> Check:
    from pardbg.hub.run.config import has_room

    where = Path("/dev/shm")
    if not (where.is_dir() and os.access(where, os.W_OK) and has_room(where)):
        return Check("shared memory", "warn", "no writable /dev/shm with 1 MiB left; rings go to "
                     "the run directory")  # fmt: skip
    total, _, free = shutil.disk_usage(where)
    if 0 < total < 128 << 20:
        return Check("shared memory", "warn", f"/dev/shm has {binary_size(total)}: rings take a "
                     "quarter of it, less than 4 MiB each if there are 8")  # fmt: skip
    return Check("shared memory", "ok", f"/dev/shm, {binary_size(free)} free")


def _run_directory() -> Check:
    from pardbg.hub.run import config

    problems = []
    for root in config.roots():
        try:
            config.private_dir(root)
        except OSError as error:
            problems.append(str(error))
            continue
        if os.access(root, os.W_OK):
            return Check("run directory", "ok", str(root))
        problems.append(f"{root} cannot be written to")
    return Check("run directory", "bad",
                 f"{problems[0]}; set XDG_RUNTIME_DIR to a writable place")  # fmt: skip


def _zeromq() -> Check:
    version = _version("pyzmq")
    if _probe("import zmq; zmq.curve_keypair()", "-I").returncode != 0:
        return Check("zeromq", "warn", f"pyzmq {version} without CURVE: runs stay on this machine")
    return Check("zeromq", "ok", f"pyzmq {version} with CURVE")


def _stacks() -> Check:
    """Check py-spy, which reads stacks of ranks that hold the GIL and needs ptrace."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    if shutil.which("py-spy", path=path) is None:
        return Check("py-spy", "warn", "not on PATH: no stacks of a rank that holds the GIL")
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    level = int(scope.read_text()) if scope.exists() else 0
    if level > 1 and os.geteuid() != 0:
        return Check("py-spy", "warn", f"kernel.yama.ptrace_scope={level} forbids it; as root: "
                     "sysctl kernel.yama.ptrace_scope=1")  # fmt: skip
    return Check("py-spy", "ok", "stacks can be read from outside")


def _terminal() -> Check:
    if not sys.stdout.isatty():
        return Check("terminal", "ok", "none here (output is piped): demo and watch run headless")
    size = shutil.get_terminal_size()
    text = f"{size.columns}×{size.lines}, TERM={os.environ.get('TERM', '')}"
    if size.columns < 80 or size.lines < 24:
        return Check("terminal", "warn", f"{text}; 80×24 or more reads better")
    return Check("terminal", "ok", text)


def _nccl() -> Check:
    """Check NCCL's settings for its own reports, and whether RAS answers on this host."""
    from pardbg.hub.serve.nccl_reports import answer
    from pardbg.nccl import ras

    names = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_INSPECTOR_DUMP_DIR")
    parts = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    try:
        status = ras.parse(answer(os.environ.get("NCCL_RAS_ADDR", ""), timeout_s=1.0))
        parts.append(f"RAS of NCCL {status.nccl_version}, {len(status.comms)} communicators")
    except (OSError, ValueError):
        parts.append("no RAS answers on this host")
    return Check("NCCL", "ok", ", ".join(parts))


def _devices() -> Check:
    """Check whether the hub can read clocks and errors of devices."""
    from pardbg.hub.ranks.device_meters import DeviceMeters

    meters = DeviceMeters()
    if not meters.begin():
        return Check("NVML", "ok", "no NVIDIA device can be read (`pip install pardbg[nvml]`)")
    meters.read()
    meters.close()
    text = ", ".join(f"{one.index}: {one.name} {one.celsius} °C" for one in meters.took())
    return Check("NVML", "ok", text)


def _runs() -> Check:
    from pardbg.hub.run.runs import list_runs

    runs = list_runs()
    return Check("live runs", "ok", ", ".join(found.name for found in runs) or "none")


CHECKS: Final[tuple[Callable[[], Check], ...]] = (
    _python, _torch, _agent, _hooks, _native, _pth, _injection, _shared_memory, _run_directory,
    _zeromq, _stacks, _terminal, _runs,
)  # fmt: skip
"""Checks of ``doctor``, in the order of its output."""
DEVICE_CHECKS: Final[tuple[Callable[[], Check], ...]] = (_nccl, _devices)
COMMANDS = (ls, doctor, native)
