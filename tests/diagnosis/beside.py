"""What torch's own tools say of the same job, pardbg not being in it.

- Flight Recorder's analyser (``torchfrtrace``) over the dumps of the CPU recorder;
- what the ranks say by themselves under ``TORCH_DISTRIBUTED_DEBUG=DETAIL``;
- the debug server's text. Its pages show what the worker servers of the ranks answer: each rank's
  stack, and the recorder's entries as the analyser above reads them. So the worker servers are
  asked, as its front end asks them (which needs packages that torch does not bring).

As a rank's program: ``-m tests.diagnosis.beside FOLDER MODULE ARGUMENTS…`` starts torch's worker
server in the rank and then runs the module.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import runpy
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tests.diagnosis.cases import Case
from tests.processes import end_tree

Dump = dict[str, Any]
LONGEST_S = 40.0
"""A job that goes on is asked after so long."""
STOOD_S = 3.0
"""One that stands, after so long."""
ANSWER_S = 3.0
_TELLS = re.compile(r"Detected mismatch|monitoredBarrier|^\[rank\d+\]: \S*(Error|Exception)\b")


def rank_program() -> None:
    folder, module, *words = sys.argv[1:]
    from torch._C._distributed_c10d import _WorkerServer

    server = _WorkerServer("::", 0)
    Path(folder, f"port{os.environ['RANK']}").write_text(str(server.port))
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def says(case: Case) -> tuple[str, str]:
    """Of torchfrtrace and of the debug server a line each: what it says, or that it says
    nothing."""
    with tempfile.TemporaryDirectory(prefix="pardbg-beside-") as name:
        folder = Path(name)
        job = subprocess.Popen(
            _argv(case, folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_FR_BUFFER_SIZE": "2000"},
            start_new_session=True,
        )  # fmt: skip
        try:
            dumps = _wait(folder, job)
            stacks = _of_all(folder, "dump_traceback")
        finally:
            end_tree(job.pid)  # torchrun's workers have sessions of their own
            job.wait()
        return _recorded(dumps, folder / "dumps"), _stood(stacks)


def detail(case: Case) -> str:
    """What the job itself says under TORCH_DISTRIBUTED_DEBUG=DETAIL, which has each collective
    compared, and ranks that do not come named by a monitored barrier, when the group's timeout is
    over: the first such line within LONGEST_S."""
    with tempfile.TemporaryFile(mode="w+") as said:
        job = subprocess.Popen(
            case.argv, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
        )  # fmt: skip
        try:
            job.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            end_tree(job.pid)
            job.wait()
        said.seek(0)
        lines = [line.strip() for line in said if _TELLS.search(line)]
    return re.sub(r"^\[rank\d+\]:\s*", "", lines[0])[:300] if lines else "says nothing"


def _recorded(answers: dict[int, str | None], folder: Path) -> str:
    """torchfrtrace's verdict."""
    dumps: dict[int, Dump] = {
        rank: {"entries": [], **json.loads(text)}
        for rank, text in answers.items() if text is not None
    }  # fmt: skip
    if not dumps:
        return "no rank is left to be asked"
    _write(dumps, folder)
    said = _verdict(folder)
    if not said.startswith("fails"):
        return said
    _fill_groups(dumps)
    _write(dumps, folder)
    return f"{said}; with the groups' ranks filled in: {_verdict(folder)}"


def _stood(answers: dict[int, str | None]) -> str:
    """Where each rank stands, to be judged by who reads it: the page says no more."""
    at: dict[str, list[int]] = {}
    for rank, text in answers.items():
        at.setdefault("no answer" if text is None else _innermost(text), []).append(rank)
    if not at or list(at) == ["no answer"]:
        return "no rank is left to be asked"
    places = (f"{', '.join(map(str, ranks))} {place}" for place, ranks in at.items())
    return f"no verdict; stacks of ranks {'; '.join(places)}"


def _innermost(text: str) -> str:
    """The main thread's last place outside of torch and Python: it comes last."""
    main = text.rsplit("Thread 0x", 1)[-1].rsplit("Current thread", 1)[-1]
    frames = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', main)
    own = [f for f in frames if not re.search(r"/torch/|/lib/python3|<frozen", f[0])]
    if not own:
        return "no frame of the program"
    path, number, name = own[0]
    return f"{Path(path).name}:{number} in {name}"


def _argv(case: Case, folder: Path) -> list[str]:
    """The same command, with the worker server in each rank."""
    argv = list(case.argv)
    at = max(i for i, word in enumerate(argv) if word == "-m") + 1
    return [*argv[:at], "tests.diagnosis.beside", str(folder), *argv[at:]]


def _wait(folder: Path, job: subprocess.Popen[bytes]) -> dict[int, str | None]:
    """The ranks' recorders when they have stood for a while, or after the longest time. Of a job
    that ended, as all of them last were."""
    begun = changed = time.monotonic()
    dumps: dict[int, str | None] = {}
    whole: dict[int, str | None] = {}
    last: list[str] = []
    while job.poll() is None and time.monotonic() - begun < LONGEST_S:
        dumps = _of_all(folder, "fr_trace_json")
        if None not in dumps.values():
            whole = dumps
        now = [re.sub(r'"state":\s*"[^"]*"', "", text or "") for text in dumps.values()]
        if now != last or not any('"record_id"' in text for text in now):
            last, changed = now, time.monotonic()
        elif time.monotonic() - changed > STOOD_S:
            return dumps
        time.sleep(0.3)
    return dumps if job.poll() is None else whole


def _of_all(folder: Path, what: str) -> dict[int, str | None]:
    """What each rank's worker server answers, all asked at once."""
    ports = {int(p.name.removeprefix("port")): p for p in folder.glob("port*")}
    ranks = sorted(ports)
    with ThreadPoolExecutor(max(1, len(ranks))) as pool:
        said = pool.map(lambda rank: _fetch(ports[rank], what), ranks)
        return dict(zip(ranks, said, strict=True))


def _fetch(port: Path, what: str) -> str | None:
    """What a rank's worker server answers; None: it does not."""
    url = f"http://localhost:{port.read_text()}/handler/{what}"
    try:
        with urllib.request.urlopen(url, data=b"", timeout=ANSWER_S) as answer:
            said: bytes = answer.read()
    except (OSError, HTTPException):
        return None
    return said.decode(errors="replace")


def _write(dumps: dict[int, Dump], folder: Path) -> None:
    """As torchfrtrace reads them."""
    folder.mkdir(exist_ok=True)
    for rank, dump in dumps.items():
        (folder / f"rank_{rank}").write_bytes(pickle.dumps(dump))


def _fill_groups(dumps: dict[int, Dump]) -> None:
    """The CPU recorder's dump has no table of groups on gloo. Every rank is in every group of these
    jobs, so it can be written by hand: the analyser shall not fail for that alone."""
    for dump in dumps.values():
        groups = {tuple(entry["process_group"]) for entry in dump["entries"]}
        dump["pg_config"] = {
            name: {"name": name, "desc": desc, "ranks": str(sorted(dumps))} for name, desc in groups
        }


def _verdict(dumps: Path) -> str:
    tool = Path(sys.executable).with_name("torchfrtrace")
    done = subprocess.run(
        [str(tool), "--allow-incomplete-ranks", str(dumps), "-p", "rank_"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    text = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if done.returncode:
        return f"fails: {lines[-1] if lines else 'no word'}"[:200]
    told = [line for line in lines if re.search(r"mismatch|missing|not joined|error|rank", line)]
    return " / ".join(told[:3])[:300] if told else "says nothing"


if __name__ == "__main__":
    rank_program()
