"""Record the sessions that are kept in sessions/, and write their README.

    python -m tests.sessions              all of them
    python -m tests.sessions 1f1b ddp     these
    python -m tests.sessions --readme     none: the README alone

Nothing of this machine gets into them: ranks run in a directory, with paths and under a host name
that are the same everywhere. A session over the limit is refused, and the one that was there kept.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

from tests.sessions.wanted import ALL, FAULTS, RECIPES, Wanted

ROOT = Path(__file__).parents[2]
SESSIONS = ROOT / "sessions"
HERE = Path("/tmp/pardbg-sessions")
"""Where the ranks run: what a session says of paths begins with this."""
HOST = "node0"
MAX_BYTES = 300 << 10
MAX_TOTAL_BYTES = 6 << 20
TIMEOUT_S = 120


def main(words: list[str]) -> int:
    names = [word for word in words if word != "--readme"]
    unknown = sorted(set(names) - {wanted.recipe for wanted in ALL})
    if unknown:
        print(f"no session is kept of {', '.join(unknown)}", file=sys.stderr)
        return 2
    refused: list[str] = []
    if "--readme" not in words:
        neutral_place()
        try:
            for wanted in ALL:
                if not names or wanted.recipe in names:
                    refused += record(wanted)
        finally:
            shutil.rmtree(HERE)
    write_readme()
    total = sum(path.stat().st_size for path in SESSIONS.glob("*.mcap"))
    if total > MAX_TOTAL_BYTES:
        refused.append(f"{total >> 10} KiB together are more than {MAX_TOTAL_BYTES >> 10}")
    for error in refused:
        print(f"refused: {error}", file=sys.stderr)
    return 1 if refused else 0


def neutral_place() -> None:
    """A Python at a path that says nothing of where it is installed, and this tree beside it."""
    shutil.rmtree(HERE, ignore_errors=True)
    python = HERE / "python"
    (python / "bin").mkdir(parents=True)
    base = Path(sys.base_prefix)
    executable = Path("bin") / f"python{sys.version_info.major}.{sys.version_info.minor}"
    (HERE / "base").symlink_to(base)
    (HERE / "src").symlink_to(ROOT)
    (python / "bin" / "python").symlink_to(HERE / "base" / executable)
    (python / "lib").symlink_to(Path(sys.prefix) / "lib")
    (python / "pyvenv.cfg").write_text(f"home = {HERE / 'base' / 'bin'}\n")


def record(wanted: Wanted) -> list[str]:
    """Record one session; why it was refused, in a line, if it was."""
    made = HERE / wanted.file
    argv = [str(HERE / "python/bin/python"), "-m", "pardbg.cli", "demo", *wanted.demo.split()]
    t0 = time.monotonic()
    done = subprocess.run(
        [*argv, "-o", str(made)], cwd=HERE, env=environment(), capture_output=True, text=True,
        timeout=TIMEOUT_S,
    )  # fmt: skip
    if (done.returncode != 0) != wanted.ends_badly:
        return [f"{wanted.recipe} ended with exit code {done.returncode}: {done.stderr[-2000:]}"]
    size = made.stat().st_size
    print(f"{wanted.demo:<85} {size >> 10:>4} KiB  {time.monotonic() - t0:.0f} s", flush=True)
    if size > MAX_BYTES:
        return [f"{wanted.file} has {size >> 10} KiB, the limit is {MAX_BYTES >> 10}"]
    shutil.move(made, SESSIONS / wanted.file)
    return []


def environment() -> dict[str, str]:
    paths = os.pathsep.join([str(HERE / "src"), str(HERE / "src" / "agent")])
    return {
        "PATH": os.defpath, "HOME": str(HERE), "PYTHONPATH": paths, "OMP_NUM_THREADS": "1",
        "XDG_DATA_HOME": str(HERE / "data"), "XDG_RUNTIME_DIR": runtime_dir(),
        "PARDBG_HOST": HOST, "LANG": "C.UTF-8",
        "TORCH_LOGS_FORMAT": "short",  # torch's own follows links to where it is installed
    }  # fmt: skip


def runtime_dir() -> str:
    path = HERE / "runtime"
    path.mkdir(mode=0o700, exist_ok=True)
    return str(path)


# ----------------------------------------------------------------------------------- the README


def write_readme() -> None:
    parts = [HEAD.format(
        date=time.strftime("%Y-%m-%d"), pardbg=version("pardbg"), torch=version("torch"),
        python=platform.python_version(), number=len(ALL),
    )]  # fmt: skip
    for title, group in (("Every kind of parallelism", RECIPES), ("Every fault", FAULTS)):
        parts.append(f"## {title}\n")
        parts += [paragraph(wanted) for wanted in group]
    (SESSIONS / "README.md").write_text("\n".join(parts), encoding="utf-8")


def paragraph(wanted: Wanted) -> str:
    look = " ".join(wanted.look.split())
    return f"**[{wanted.file}]({wanted.file})** `pardbg demo {wanted.demo}`  \n{look}\n"


HEAD = """# Recorded sessions

{number} runs to look at without training anything: one of each recipe (but `dp`, which needs two
GPUs) and of each planted fault, a few steps each, four ranks (`3d`: eight) on one host with gloo.

    pardbg replay sessions/1f1b.mcap      the screens, with time travel; no torch needed
    pardbg report sessions/1f1b.mcap      the same as text

Recorded on {date} with pardbg {pardbg}, torch {torch}, Python {python}, on Linux with 2 cores.
Compute is paced (a block sleeps 5 ms in forward, twice that in backward, as a kernel on a device
of its own would), so four ranks on two cores show their schedule and not each other; every session
says so on screen. Times are of that machine, and so is what the findings say of them: a
schedule's excess, or communication that stands out, is two cores being shared.

`make sessions` records them anew, `python -m tests.sessions NAME` one of them. A file may have 300
KiB and all together 6 MiB; `tests/unit/session/test_recorded_sessions.py` holds invariants over
all of them. They say nothing of who recorded them: the host is called `node0` (PARDBG_HOST), paths
begin with `/tmp/pardbg-sessions`. Numbers in parentheses below are the screens' keys.
"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
