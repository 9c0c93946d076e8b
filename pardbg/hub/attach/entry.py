"""``pardbg attach --agent``: the agent's entrance into all ranks of a running job at one moment.

Each rank comes to the end of an optimizer's step and is held (``pardbg_agent.life.entering``). They
begin when all stand at the same line of the program at once; where they do not, all run on to the
next step's end: some were a step ahead."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgpack
import zmq

import pardbg_agent
from pardbg.hub.attach.job_ranks import JobRank, why_no_stack
from pardbg.hub.ranks.processes import start_time
from pardbg.hub.removal import remove_empty
from pardbg.hub.run.config import private_dir, write_json
from pardbg.hub.run.own_process import argv as own_process
from pardbg.hub.run.start import RunHandle, start_run
from pardbg.words import duration

TIMEOUT_S: Final = 30.0
AT_ONCE: Final = 8
"""Maximum number of gdb processes at a time."""
NO_REMOTE: Final = 9
_REMOTE: Final = f"""import sys
if not hasattr(sys, "remote_exec"):
    sys.exit({NO_REMOTE})
sys.remote_exec(int(sys.argv[1]), sys.argv[2])
"""
_GDB: Final = (
    "gdb", "-nx", "-nh", "-batch", "-iex", "set auto-load off", "-iex", "set auto-solib-add off",
    "-iex", "set debuginfod enabled off",
)  # fmt: skip
_MMAP: Final = "((char*(*)(void*,unsigned long,int,int,int,long))mmap)"
_ADDED: Final = "pardbg: added"
_TRYING: Final = threading.Lock()


def run_in_each(ranks: Sequence[JobRank], script: Path) -> dict[int, str]:
    """Have each process run the script; return rank -> reason of a failure. Returns before they
    have run it: a process that waits outside Python does so when it comes back.

    By ``sys.remote_exec`` (Python 3.14), else by gdb, which stops the process for some tenths of a
    second. gdb calls ``mmap`` and ``Py_AddPendingCall`` in it: neither needs the GIL, nor a lock
    that the stopped thread may hold. The pending call, ``PyRun_SimpleString``, runs between two
    bytecodes."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        whys = pool.map(lambda one: _run_in(one.pid, script), ranks)
        return {one.rank: why for one, why in zip(ranks, whys, strict=True) if why}


def _run_in(pid: int, script: Path) -> str:
    """Have one process run the script; return the reason of a failure, else empty."""
    if not _is_same_file(pid, script):
        return "its container does not have this machine's files: attach from inside"
    try:
        remote = [f"/proc/{pid}/exe", "-I", "-S", "-c", _REMOTE, str(pid), str(script)]
        done = subprocess.run(remote, capture_output=True, text=True, timeout=TIMEOUT_S)
        if done.returncode == 0:
            return ""
        return _by_gdb(pid, script)
    except subprocess.TimeoutExpired:
        return f"no answer within {duration(TIMEOUT_S * 1e9)}"
    except OSError as error:
        return error.strerror or str(error)


def _is_same_file(pid: int, script: Path) -> bool:
    try:
        return os.path.samefile(f"/proc/{pid}/root{script}", script)
    except OSError:
        return False


def _by_gdb(pid: int, script: Path) -> str:
    if shutil.which("gdb") is None:
        return "Python before 3.14 needs gdb here: install it (apt-get install gdb)"
    with _TRYING:
        if why := gdb_refuses():
            return why
    code = script.with_suffix(".code")  # all ranks get the same
    size = code.stat().st_size
    commands = (
        "sharedlibrary libpython", "sharedlibrary libc[-.]",
        f"set $at = {_MMAP}(0, {size}, 3, 34, -1, 0)",  # to read and write; private, of no file
        f"restore {code} binary $at",
        "set $not = ((int(*)(void*,void*))Py_AddPendingCall)((void*)PyRun_SimpleString, $at)",
        f'printf "{_ADDED} %d\\n", $not',
    )  # fmt: skip
    return _gdb(pid, commands, f"{_ADDED} 0")


def _gdb(pid: int, commands: Sequence[str], wanted: str) -> str:
    """Run gdb commands in a process; return the reason if the wanted output is missing."""
    argv = [*_GDB, "-p", str(pid), *(word for one in commands for word in ("-ex", one))]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S,
                          stdin=subprocess.DEVNULL)  # fmt: skip
    if wanted in done.stdout:
        return ""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    refused = next((line for line in lines if "ermitted" in line or "ermission" in line), "")
    return why_no_stack(refused) if refused else f"gdb: {lines[-1] if lines else 'no answer'}"[:200]


@cache
def gdb_refuses() -> str:
    """Return the reason why gdb cannot call functions in processes of this machine, tried on one of
    our own; empty: it can. A gdb that does not know all registers of a newer processor fails half
    way, and the system call that it interrupted then fails in the process, with error 514."""
    words = [sys.executable, "-I", "-S", "-c", "print(flush=True); input()"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as own:
        assert own.stdout is not None
        own.stdout.readline()  # libc is loaded
        called = ("sharedlibrary libc[-.]", 'printf "%d\\n", ((int(*)(void))getpid)()')
        try:
            why = _gdb(own.pid, called, f"{own.pid}\n")
        except subprocess.TimeoutExpired:
            why = "gdb: no answer"
        own.kill()
    return (
        why and f"{why.rstrip('.')} (tried on a process of pardbg's own: the rank was left alone)"
    )


def write_script(path: Path, text: str) -> None:
    """Write a script for ``run_in_each``, 0600, and the code by which gdb has a process run it."""
    path.write_text(text, encoding="utf-8")
    run = (
        f"try:\n  with open({str(path)!r}) as file: text = file.read()\n"
        f"  exec(compile(text, {str(path)!r}, 'exec'), {{}})\nexcept Exception: pass"
    )
    # In a namespace of its own: PyRun_SimpleString's is the program's.
    path.with_suffix(".code").write_bytes(
        f"__import__('builtins').exec({run!r}, {{}})".encode() + b"\0"
    )
    for one in (path, path.with_suffix(".code")):
        one.chmod(0o600)


FOLDER: Final = "entering"
"""Folder of the entrance in the run's directory."""
RANKS_FILE: Final = "attached.json"
STAND_IN: Final = "pardbg.hub.attach.stand_in"
END_S: Final = 10.0
POLL_S: Final = 0.02
ORDERS_EVERY_S: Final = 0.5
AGAIN_S: Final = 1.0
"""Time in s after which ranks that stand still, not all at the same place, run on; longer each
time, as ranks of a slow program come to the end of a step one after the other."""
MAX_AGAIN_S: Final = 8.0
"""Maximum of that time: no rank is held for longer at a time."""
_STUB: Final = """import json, os, sys
try:
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise RuntimeError("free-threaded Python: not supported")
    same = sys.version_info[:2] == {python!r}
    more = [one for one in {path!r} if one not in sys.path and (same or one == {agent!r})]
    sys.path += more
    try:
        from pardbg_agent.life import entering
    finally:
        for one in more:
            sys.path.remove(one)
    entering.{call}
except Exception as error:
    said = {{"state": "failed", "why": type(error).__name__ + ": " + str(error)}}
    with open({folder!r} + "/%d.json" % os.getpid(), "w") as file:
        json.dump(said, file)
"""


def join(
    ranks: Sequence[JobRank], session: Path, name: str, allow_eval: bool, wait_s: float
) -> tuple[RunHandle, Entrance]:  # fmt: skip
    """Start a run for existing ranks, and have the agent enter them. If it cannot, the run is
    ended, and nothing is recorded. Raises UserError."""
    handle = start_run(
        own_process(STAND_IN), name=name, session=session, allow_eval=allow_eval,
        attached=tuple(ranks[0].command.split()),
    )  # fmt: skip
    try:
        write_ranks(handle.run_dir, ranks)
        entrance = enter(ranks, handle.run_dir, wait_s)
    except BaseException:
        handle.kill()
        raise
    if entrance.failed:
        handle.kill()
        handle.wait_recorded(END_S)
        os.truncate(session, 0)
        remove_empty(session)
    return handle, entrance


@dataclass(frozen=True, slots=True)
class Entrance:
    """Outcome of an entrance: rank -> why its agent did not enter. Empty: all did."""

    failed: Mapping[int, str]
    seconds: float


def enter(ranks: Sequence[JobRank], run_dir: Path, wait_s: float) -> Entrance:
    """Have the agent enter these ranks. If it cannot enter one, it stays in none."""
    begun = time.monotonic()
    folder = _folder(run_dir)
    order = _Orders(folder)
    agent, more = _places()
    call = f"enter({str(folder)!r}, {str(run_dir)!r}, {wait_s!r}, more)"
    script = _script(folder, "enter.py", call, agent, more)
    with ThreadPoolExecutor(1) as pool:  # while the last is reached, the first want to hear of us
        reached = pool.submit(run_in_each, ranks, script)
        while not wait([reached], ORDERS_EVERY_S).done:
            order.give()
    failed = reached.result()
    failed = failed or _together(ranks, folder, order, begun + wait_s)
    if failed:
        order.give(over=True)
        leave(ranks, run_dir)
    return Entrance(failed, time.monotonic() - begun)


def leave(ranks: Sequence[JobRank], run_dir: Path, wait_s: float = 5.0) -> dict[int, str]:
    """Remove the agent from these ranks; return rank -> why it is still there. Raises OSError."""
    folder = _folder(run_dir)
    inside = [one for one in ranks if _said(folder, one).get("state") == "in"]
    agent, more = _places()
    script = _script(folder, "leave.py", f"leave({str(folder)!r})", agent, more)
    left = run_in_each(inside, script)
    until = time.monotonic() + wait_s
    while True:
        late = [one for one in inside if one.rank not in left and os.path.exists(f"/proc/{one.pid}")
                and _said(folder, one).get("state") != "out"]  # fmt: skip
        if not late or time.monotonic() > until:
            return left | {one.rank: "it is not in Python now" for one in late}
        time.sleep(POLL_S)


def write_ranks(run_dir: Path, ranks: Sequence[JobRank]) -> None:
    """Write the processes that the run consists of. Raises OSError."""
    rows = [(one.rank, one.pid, start_time(one.pid)) for one in ranks]
    write_json(run_dir / RANKS_FILE, {"ranks": rows})


def read_ranks(run_dir: Path) -> list[JobRank]:
    """Return the run's ranks that are alive."""
    try:
        rows = json.loads((run_dir / RANKS_FILE).read_bytes())["ranks"]
    except (OSError, ValueError, KeyError):
        return []
    return [JobRank(pid, rank, 0, (), "", True) for rank, pid, start in rows
            if start_time(pid) == start]  # fmt: skip


def is_forsaken(run_dir: Path) -> bool:
    """Return whether the attaching process died before any rank began: none will."""
    from pardbg_agent.life.entering import ORDERS_FILE, SILENT_S

    folder = run_dir / FOLDER
    try:
        if time.time() - (folder / ORDERS_FILE).stat().st_mtime < 2 * SILENT_S:
            return False
        return not any(b'"in"' in one.read_bytes() for one in folder.glob("[0-9]*.json"))
    except OSError:
        return False


class _Orders:
    """Orders that held ranks read (``entering.ORDERS_FILE``)."""

    def __init__(self, folder: Path) -> None:
        from pardbg_agent.life.entering import ORDERS_FILE

        self._path = folder / ORDERS_FILE
        self._given_at = 0.0
        self.turn = 0
        self.ready = False
        self.give()

    def give(self, go: bool = False, over: bool = False) -> None:
        orders = {"turn": self.turn, "ready": self.ready, "go": go, "over": over}
        write_json(self._path, orders)
        self._given_at = time.monotonic()

    def renew(self) -> None:
        if time.monotonic() - self._given_at > ORDERS_EVERY_S:
            self.give()


def _together(
    ranks: Sequence[JobRank], folder: Path, order: _Orders, until: float
) -> dict[int, str]:  # fmt: skip
    """Have the ranks begin when all are held at one place; return rank -> reason of a failure."""
    went, again_s, since = False, AGAIN_S, time.monotonic()
    before: Mapping[int, Mapping[str, Any]] = {}
    while True:
        said = {one.rank: _said(folder, one) for one in ranks}
        if failed := _failed(ranks, said):
            return failed
        if all(one.get("state") == "in" for one in said.values()):
            return {}
        if time.monotonic() > until + AGAIN_S:
            return {rank: _missing(one, order.ready) for rank, one in said.items()}
        if said != before:
            before, since = said, time.monotonic()
        if not order.ready and all(said.values()):
            order.ready = True
            order.give()
        if not went and _at_one_place(list(said.values()), order.turn):
            went = True
            order.give(go=True)
        elif not went and time.monotonic() - since > again_s and _held(said):
            again_s = min(2 * again_s, MAX_AGAIN_S)
            order.turn = max(int(one["turn"]) for one in _held(said))
            order.give()
            since = time.monotonic()
        if not went:
            order.renew()
        time.sleep(POLL_S)


def _held(said: Mapping[int, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [one for one in said.values() if one.get("state") == "held"]


def _at_one_place(said: Sequence[Mapping[str, Any]], turn: int) -> bool:
    """Return whether all ranks are held at one place after ``turn`` with equal op counts."""
    if any(one.get("state") != "held" or int(one["turn"]) <= turn for one in said):
        return False
    if len({one["place"] for one in said}) > 1:
        return False
    numbers: dict[str, int] = {}
    return all(
        numbers.setdefault(group, number) == number
        for one in said
        for group, number in one["numbers"].items()
    )


def _failed(
    ranks: Sequence[JobRank], said: Mapping[int, Mapping[str, Any]]
) -> dict[int, str]:  # fmt: skip
    failed = {}
    for one in ranks:
        if said[one.rank].get("state") == "failed":
            failed[one.rank] = str(said[one.rank].get("why", ""))
        elif not os.path.exists(f"/proc/{one.pid}"):
            failed[one.rank] = "it has ended"
    return failed


def _missing(said: Mapping[str, Any], all_ready: bool) -> str:
    if not said:
        return "its main thread is not in Python"
    steps = all_ready and said.get("state") == "ready"
    return "no optimizer's step() ended" if steps else "the others did not come"


def _said(folder: Path, rank: JobRank) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = json.loads((folder / f"{rank.pid}.json").read_bytes())
        return found
    except (OSError, ValueError):
        return {}


def _folder(run_dir: Path) -> Path:
    private_dir(run_dir / FOLDER)
    return run_dir / FOLDER


def _script(folder: Path, name: str, call: str, agent: str, more: list[str]) -> Path:
    text = _STUB.format(call=call, agent=agent, path=[agent, *more], folder=str(folder),
                        python=sys.version_info[:2])  # fmt: skip
    write_script(folder / name, text)
    return folder / name


def _places() -> tuple[str, list[str]]:
    """Return the agent's directory, and library directories for a rank of the same Python."""
    found = [str(Path(str(one.__file__)).parents[1]) for one in (pardbg_agent, msgpack, zmq)]
    return found[0], list(dict.fromkeys(found[1:]))
