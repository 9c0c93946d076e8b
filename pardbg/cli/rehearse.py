"""``pardbg rehearse``: the program as every rank of a large job, on this machine alone."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from pardbg.cli.common import echo, new_file, talk
from pardbg.errors import UserError
from pardbg.words import duration

if TYPE_CHECKING:
    from pardbg.analysis.findings.finding import Finding
    from pardbg.lab.rehearse.order import Transport
    from pardbg.lab.rehearse.rank_trace import Trace
    from pardbg.lab.rehearse.server import Plan

PYTHONS: Final = ("python", "python3")
PREFIX: Final = "rehearsal-"
SAY_S: Final = 2.0
"""Time between two lines of progress, s."""
KEEP_MEMORY: Final = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 28), "MALLOC_MMAP_THRESHOLD_": str(1 << 28),
    "MALLOC_TOP_PAD_": str(1 << 24),
}  # fmt: skip
"""glibc setting: a rank lives for a tenth of a second; it need not give memory back in between."""
NEEDS: Final = (
    ("a GPU", ("NVIDIA", "CUDA", "cuda", "nccl", "NCCL", "HIP")),
    ("the network", ("Connection", "ConnectError", "gaierror", "TimeoutError", "URLError", "HTTP",
                     "socket", "Network")),
    ("another world size", ("AnotherWorld", "world_size", "world size", "WORLD_SIZE",
                            "number of ranks", "num_ranks")),
)  # fmt: skip
"""Missing requirement -> words of the first error of a program that needs it."""


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--world-size", "-n", type=click.IntRange(1, 32767), required=True, help="Ranks of the job."
)
@click.option("--ranks", metavar="RANKS", help="Run only these ranks: 0-15, 3,7 (default: all).")
@click.option(
    "--steps", type=click.IntRange(1), default=None, help="End each rank after N training steps."
)
@click.option(
    "--per-node", type=click.IntRange(1), default=8, show_default=True, help="Ranks on a node."
)
@click.option(
    "--transport", type=click.Choice(["rendezvous", "buffered", "pair"]), default="rendezvous",
    show_default=True, help="When a send blocks: the model to use.",
)  # fmt: skip
@click.option("--jobs", type=click.IntRange(1), default=None, help="Ranks at a time [cores].")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Session file to write.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option("--json", "json_", is_flag=True, help="Print findings and figures as JSON.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def rehearse(
    ctx: click.Context, world_size: int, ranks: str | None, steps: int | None, per_node: int,
    transport: Transport, jobs: int | None, output: Path | None, force: bool, json_: bool,
    program: tuple[str, ...],
) -> int:  # fmt: skip
    """Run PROGRAM as every rank of a large job on this machine, without GPUs or a network.

    Each rank runs by itself on torch's fake backend; what all of them issue is then played against
    each other: order, sizes, dtypes and roots of collectives, sends against receives, deadlock.
    The result is a session like any other. docs/rehearse.md says what cannot be known so.

        pardbg rehearse --world-size 1024 -- python train.py --tp 8
    """
    from pardbg.lab.rehearse.server import Plan

    argv = script_of([*program, *(ctx.obj or ())])
    chosen = _chosen(ranks, world_size)
    path = output or Path(f"rehearsal-{world_size}.mcap")
    with new_file(path, force or output is None) as fresh, _folder() as folder:
        plan = Plan(
            str(folder), tuple(argv), world_size, chosen, min(per_node, world_size), steps or 0,
            jobs or len(os.sched_getaffinity(0)),
        )  # fmt: skip
        traces, interrupted = _run(plan, folder)
        _refuse(traces)
        found = _recorded(fresh, plan, traces, transport, interrupted)
    _tell(found, plan, traces, path, json_)
    return 130 if interrupted else int(any(f.severity == "error" for f in found))


def script_of(words: Sequence[str]) -> list[str]:
    """Return a script (or ``-m`` and a module) and its arguments, from the command that starts the
    job with python or torchrun. Raises UserError."""
    rest = list(words)
    launcher = bool(rest) and Path(rest[0]).name == "torchrun"
    if rest and (launcher or Path(rest[0]).name.startswith(PYTHONS)):
        rest.pop(0)
    if rest[:2] in (["-m", "torch.distributed.run"], ["-m", "torch.distributed.launch"]):
        rest, launcher = rest[2:], True
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        option = rest.pop(0)
        if launcher and "=" not in option and option != "--standalone" and rest:
            rest.pop(0)
    if not rest or rest == ["-m"]:
        raise UserError("give the program: `pardbg rehearse --world-size 64 -- python train.py`")
    if rest[0] != "-m" and not Path(rest[0]).is_file():
        raise UserError(f"no such file: {rest[0]}; give a Python script, or -m and a module")
    return rest


def _chosen(text: str | None, world: int) -> tuple[int, ...]:
    if text is None:
        return tuple(range(world))
    from pardbg.control.language.ranksets import unseen

    try:
        found = unseen(text) or tuple(range(world))
    except UserError as error:
        raise UserError(f"--ranks: {error}") from None
    if found[-1] >= world:
        raise UserError(f"--ranks {text}: there are ranks 0 to {world - 1}")
    return found


@contextmanager
def _folder() -> Iterator[Path]:
    """Yield a run directory, in memory if possible; those of killed rehearsals are removed first.
    Removed at SIGTERM, too. Raises UserError."""
    from pardbg.hub.removal import RINGS_DIR, mark, remove_run
    from pardbg.hub.run import config as files

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    in_memory = os.access("/dev/shm", os.W_OK)
    root = files.shm_root() if in_memory else files.roots()[-1] / "rehearsed"
    try:
        files.private_dir(root)
        for old in root.glob(f"{PREFIX}*"):
            with suppress(OSError), _held(old):
                remove_run(old)
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
    except OSError as error:
        raise UserError(f"cannot store the ranks' records: {error}") from None
    with _held(folder):
        for made in (folder, folder / RINGS_DIR):
            made.mkdir(mode=0o700, exist_ok=True)
            mark(made, folder.name)
        said = {"run": folder.name, "ring_dir": str(folder / RINGS_DIR)}
        (folder / "run.json").write_text(json.dumps(said), encoding="utf-8")
        try:
            yield folder
        finally:
            remove_run(folder)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Lock a folder for this process. Raises OSError if another process has locked it."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


def _run(plan: Plan, folder: Path) -> tuple[list[Trace], bool]:
    from pardbg.hub.run.own_process import argv as own_process
    from pardbg.lab.rehearse.rank_trace import collect
    from pardbg.lab.rehearse.server import HOST

    plan.write(folder / "plan")
    env = {**KEEP_MEMORY, **os.environ, "PARDBG": str(folder), "PARDBG_NATIVE": "off",
           "PARDBG_PROBES": "off", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
           "PARDBG_LEVEL": "full"}  # fmt: skip
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        env.pop(name, None)
    traces: list[Trace] = []
    server = subprocess.Popen(
        own_process("pardbg.lab.rehearse.server", str(folder / "plan"), isolated=False),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, start_new_session=True,
    )  # fmt: skip
    interrupted = False
    assert server.stdout is not None and server.stdin is not None
    with server, _progress(len(plan.ranks)) as done:
        try:
            for line in server.stdout:
                rank, pid, code, cpu_ms = map(int, line.split())
                traces.append(collect(folder, rank, pid, HOST, code, cpu_ms))
                done(min(len(traces), len(plan.ranks)))
        except KeyboardInterrupt:
            interrupted = True
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the session is being written
        finally:
            server.stdin.close()  # that ends the server and its ranks
    if server.returncode and not traces and not interrupted:
        raise UserError("the rehearsal's process ended: is torch installed for this Python?")
    return sorted(traces, key=lambda trace: trace.rank), interrupted


@contextmanager
def _progress(length: int) -> Iterator[Callable[[int], None]]:
    if not sys.stderr.isatty():
        said = [time.monotonic()]

        def line(number: int) -> None:
            if time.monotonic() - said[0] >= SAY_S:
                said[0] = time.monotonic()
                talk(f"{number:,} of {length:,} ranks")

        yield line
        return
    with click.progressbar(length=length, label="ranks", file=sys.stderr, show_pos=True) as bar:
        yield lambda number: bar.update(number - bar.pos)


def _refuse(traces: Sequence[Trace]) -> None:
    """Raise UserError with one line if the first rank could not run for lack of a requirement."""
    if not traces:
        return
    first = traces[0]
    if first.why and not len(first.records):
        need = next((n for n, words in NEEDS if any(word in first.why for word in words)), None)
        said = f"rank {first.rank}: {first.why}"[:300]
        if need is None:
            raise UserError(f"the program ends before it creates a process group: {said}")
        raise UserError(f"the program needs {need}: {said}")


def _recorded(
    path: Path, plan: Plan, traces: Sequence[Trace], transport: Transport, interrupted: bool
) -> tuple[Finding, ...]:
    from pardbg.analysis.base.asof import View
    from pardbg.analysis.findings import findings
    from pardbg.lab.rehearse.order import play
    from pardbg.lab.rehearse.record import Rehearsal, write
    from pardbg.session.reader import load
    from pardbg_agent.life.secret_words import without_secrets

    gc.disable()  # a thousand ranks' definitions, which stay to the end
    played = play(traces, transport, bool(plan.steps))
    command = ("pardbg", "rehearse", "--world-size", str(plan.world), "--",
               *without_secrets(plan.program))  # fmt: skip
    write(path, Rehearsal(command, plan.world, plan.ranks, transport, interrupted), played)
    return findings(View(load(path), None))


def _tell(
    found: Sequence[Finding], plan: Plan, traces: Sequence[Trace], path: Path, json_: bool
) -> None:
    from pardbg.analysis.findings.finding import facts_json
    from pardbg.lab.rehearse.record import also_run

    cpu_s = sum(trace.cpu_ms for trace in traces) / 1e3
    if json_:
        told = ("kind", "severity", "ranks", "culprits", "group", "seq", "where", "text")
        said = [
            {name: getattr(finding, name) for name in told} | {"facts": facts_json(finding.facts)}
            for finding in found
        ]
        echo(json.dumps({"ranks": len(traces), "findings": said, "session": str(path)}, indent=2))
    for finding in () if json_ else found:
        where = f" at {finding.where}" if finding.where else ""
        echo(f"{finding.severity} {finding.kind}{where}: {finding.text}")
    if not found and not json_:
        echo(f"nothing found: {len(traces):,} ranks issue the same ops in the same order")
    if more := also_run(plan.ranks, (trace.rank for trace in traces)):
        talk(more)
    failed = Counter(trace.why for trace in traces if trace.why)
    for why, number in failed.most_common(3):
        talk(f"{number} of {len(traces)} ranks ended with {why}")
    took = duration(cpu_s * 1e9)
    talk(f"{len(traces):,} ranks in {took} of CPU; wrote {path}: pardbg replay {path}")


COMMANDS = (rehearse,)
