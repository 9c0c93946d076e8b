"""What torch's own tools say of the same job: Flight Recorder's analyser (``torchfrtrace``) over
the dumps of the CPU recorder, as the debug server fetches them.

As a rank's program: ``-m tests.diagnosis.beside FOLDER MODULE ARGUMENTS…`` starts torch's worker
server in the rank and then runs the module. pardbg is not in that job.
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
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.diagnosis.cases import Case
from tests.processes import end_tree

Dump = dict[str, Any]
AFTER_S = 12.0
"""After its start: the fault has struck and ranks have stood for some seconds."""
ANSWER_S = 3.0


def rank_program() -> None:
    folder, module, *words = sys.argv[1:]
    from torch._C._distributed_c10d import _WorkerServer

    server = _WorkerServer("::", 0)
    Path(folder, f"port{os.environ['RANK']}").write_text(str(server.port))
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def says(case: Case) -> str:
    """One line: torchfrtrace's verdict, or that there is none."""
    with tempfile.TemporaryDirectory(prefix="pardbg-beside-") as name:
        folder = Path(name)
        job = subprocess.Popen(
            _argv(case, folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_FR_BUFFER_SIZE": "2000"},
            start_new_session=True,
        )  # fmt: skip
        try:
            _wait(folder, job)
            ports = {int(p.name.removeprefix("port")): p for p in folder.glob("port*")}
            answers = {rank: _fetch(port) for rank, port in sorted(ports.items())}
        finally:
            end_tree(job.pid)  # torchrun's workers have sessions of their own
            job.wait()
        dumps = {rank: dump for rank, dump in answers.items() if dump is not None}
        if not dumps:
            return "the job had ended: no dump to read"
        _write(dumps, folder / "dumps")
        said = _verdict(folder / "dumps")
        if not said.startswith("fails"):
            return said
        _fill_groups(dumps)
        _write(dumps, folder / "dumps")
        return f"{said}; with the groups' ranks filled in: {_verdict(folder / 'dumps')}"


def _argv(case: Case, folder: Path) -> list[str]:
    """The same command, with the worker server in each rank."""
    argv = list(case.argv)
    at = max(i for i, word in enumerate(argv) if word == "-m") + 1
    return [*argv[:at], "tests.diagnosis.beside", str(folder), *argv[at:]]


def _wait(folder: Path, job: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + AFTER_S
    while time.monotonic() < until and job.poll() is None:
        time.sleep(0.1)


def _fetch(port: Path) -> Dump | None:
    """One rank's recorder."""
    url = f"http://localhost:{port.read_text()}/handler/fr_trace_json"
    try:
        with urllib.request.urlopen(url, data=b"", timeout=ANSWER_S) as answer:
            said: Dump = json.loads(answer.read())
    except (OSError, ValueError, urllib.error.URLError):
        return None
    return {"entries": [], **said}


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
