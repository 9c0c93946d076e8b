"""A second user on the machine: what is planted where everybody may write, and who knocks at a run.

The victim (uid 0 without its capabilities) runs pardbg in a sticky directory, where another one has
put links, files, directories, runs and modules under the names that pardbg and Python use. Whatever
is there, the command works or says in one line why not; nothing of the victim's is changed, nothing
of the other one's is run or written to. Needs root, to be both.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from pardbg.hub.run.run_files import read_job, read_launch
from tests.harness import Found, Tried, campaign
from tests.processes import comes_true, rank_env

VICTIM, OTHER = 0, 65533
LIMIT_S = 60.0
SHADOWS = ("sitecustomize", "usercustomize", "zmq", "msgpack", "numpy", "json", "torch", "mcap",
           "click", "psutil", "pardbg", "pardbg_agent", "select", "textual", "startup")  # fmt: skip
JOB = ["sh", "-c", "echo 5; exit 3"]
KNOCKS = """
cd /; ls -l "$1"; cat "$1"/run.json "$1"/keys.json; : >"$1"/kill; rm -rf "$1"; kill -9 $2 $3
cat "$4"/*; rm -rf "$4"
/usr/bin/env python3 -I -c 'import socket, sys
for name in ("ctrl", "data", "pub"):
    s = socket.socket(socket.AF_UNIX)
    try:
        s.connect(sys.argv[1] + "/" + name)
        print("connected to", name)
    except PermissionError:
        pass' "$1"
"""


class Place:
    """The sticky directory, the victim's home, and what the other one planted."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.rng = rng
        self.tmp, self.home, self.others = folder / "tmp", folder / "home", folder / "others"
        self.seen = folder / "seen"
        for path, owner, mode in (
            (self.tmp, 0, 0o1777), (self.home, VICTIM, 0o700), (self.others, OTHER, 0o777),
        ):  # fmt: skip
            path.mkdir()
            path.chmod(mode)
            os.chown(path, owner, owner)
        for name in ("run.json", "thesis.tex", "empty"):
            self._put(self.home / name, VICTIM, "{}" if name == "run.json" else name)
        (self.home / "empty").write_text("")
        self._put(self.others / "theirs", OTHER, "theirs")
        os.utime(self.home, (1, 1))

    def _put(self, path: Path, owner: int, text: str, mode: int = 0o644) -> None:
        path.write_text(text)
        path.chmod(mode)
        os.chown(path, owner, owner)

    def link(self, at: Path, to: Path) -> None:
        at.symlink_to(to)
        os.lchown(at, OTHER, OTHER)

    def plant(self, at: Path) -> str:
        """Something of the other one's at a name that pardbg will use; what it is."""
        ways: dict[str, Callable[[], object]] = {
            "nothing": lambda: None,
            "link to home": lambda: self.link(at, self.home),
            "link to a file": lambda: self.link(at, self.home / "thesis.tex"),
            "link to nothing": lambda: self.link(at, self.others / "new"),
            "link to theirs": lambda: self.link(at, self.others),
            "file": lambda: self._put(at, OTHER, "x", 0o666),
            "pipe": lambda: (os.mkfifo(at), os.chown(at, OTHER, OTHER)),
            "directory": lambda: self._run(at, 0o777),
            "private directory": lambda: self._run(at, 0o700),
        }
        name = self.rng.choice(list(ways))
        ways[name]()
        return name

    def _run(self, at: Path, mode: int) -> None:
        """A directory with a run whose fields name what is the victim's."""
        run = at / "train-00000000"
        run.mkdir(parents=True)
        said = {"v": 1, "run": run.name, "name": "train", "argv": ["x"], "cwd": "/",
                "data": f"ipc://{run}/data", "pub": f"ipc://{run}/pub", "ctrl": f"ipc://{run}/ctrl",
                "session": str(self.home / "thesis.tex"), "ring_dir": str(self.home), "t_ns": 1,
                "wall_ns": 1, "host": "h", "boot_id": "b"}  # fmt: skip
        self._put(run / "run.json", OTHER, json.dumps(said))
        self._put(run / ".pardbg-run", OTHER, run.name)
        self._put(run / "launch.json", OTHER, json.dumps({"launcher": {"pid": 1, "start": "1"}}))
        for path in (at, run):
            os.chown(path, OTHER, OTHER)
            path.chmod(mode)
            os.utime(path, (1, 1))

    def shadows(self) -> str:
        """Modules under names that somebody imports, in the directory that commands are run in."""
        names = self.rng.sample(SHADOWS, self.rng.randrange(5))
        for name in names:
            text = f"open({str(self.seen)!r}, 'a').write({name + ' '!r})\n"
            self._put(self.tmp / f"{name}.py", OTHER, text)
        self._put(self.tmp / ".pardbgrc", OTHER, "kill\n")
        return "+".join(names)

    def contents(self) -> dict[str, tuple[str, float]]:
        """Of what must stay: the victim's files but those that pardbg makes; all of the other's."""
        found = {}
        for root in (self.home, self.others):
            for path in sorted(root.rglob("*")):
                if path.is_file() and "/.local/" not in str(path):
                    found[str(path)] = (path.read_text(errors="replace"), path.stat().st_mtime)
        return found

    def start(self, *words: str) -> subprocess.Popen[str]:
        """pardbg as the victim has it."""
        env = {**rank_env(), "HOME": str(self.home), "TMPDIR": str(self.tmp),
               "PYTHONSTARTUP": str(self.tmp / "startup.py")}  # fmt: skip
        env.pop("XDG_RUNTIME_DIR", None)
        argv = [str(Path(sys.executable).with_name("pardbg")), *words]
        return subprocess.Popen(
            as_user(VICTIM, argv), env=env, cwd=self.tmp, stdin=subprocess.DEVNULL, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip


def as_user(uid: int, argv: list[str]) -> list[str]:
    no_caps = ["--bounding-set=-all", "--inh-caps=-all"]
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *no_caps, *argv]


def case(folder: Path, rng: random.Random) -> list[str]:
    """What is wrong, with how it came."""
    place = Place(folder, rng)
    root = place.plant(place.tmp / f"pardbg-{VICTIM}")
    target = place.plant(place.tmp / "s.mcap")
    shadows = place.shadows()
    before = place.contents()
    words = rng.choice((
        ["run", "-o", "s.mcap", "--", *JOB], ["run", "-o", "s.mcap", "--", *JOB],
        ["run", "--", *JOB], ["run", "--", *JOB], ["ls"], ["ls", "--dead"], ["doctor"],
        ["ctl", "status"], ["report", "s.mcap"], ["watch", f"pardbg-{VICTIM}/train-00000000"],
        ["ctl", f"pardbg-{VICTIM}/train-00000000", "status"], ["repair", "s.mcap", "-o", "t.mcap"],
        ["postmortem", f"pardbg-{VICTIM}/train-00000000", "-o", "p.mcap"], ["import", "."],
    ))  # fmt: skip
    process = place.start(*words)
    bad = []
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        bad.append("hangs")
    ours = [line for line in err.splitlines() if line]
    if "Traceback" in err:
        bad.append(f"a traceback: {ours[-1]}")
    ran = process.returncode == 3 and out == "5\n"
    if words[0] == "run" and not ran and not (process.returncode == 2 and len(ours) == 1):
        bad.append(f"exit code {process.returncode}: {err[:300]!r}")
    if place.contents() != before:
        changed = set(place.contents().items()) ^ set(before.items())
        bad.append(f"changed: {sorted(path for path, _ in changed)[:3]}")
    if place.seen.exists():
        bad.append(f"imported: {place.seen.read_text()}")
    how = f"`{' '.join(words)}` with root: {root}, target: {target}, modules: {shadows}"
    return [f"{how}: {one}" for one in bad]


def knocks(folder: Path, rng: random.Random) -> list[str]:
    """The other one at a live run: it is neither seen, nor read, nor ended."""
    place = Place(folder, rng)
    go = folder / "go"
    job = ["sh", "-c", f"until test -e {go}; do sleep 0.05; done; exit 3"]
    process = place.start("run", "-o", str(place.home / "s.mcap"), "--", *job)
    try:
        root = place.tmp / f"pardbg-{VICTIM}"
        if not comes_true(
            lambda: any(read_job(path.parent) for path in root.glob("*/launch.json")), 20
        ):
            return [f"no run: {process.poll()}"]
        run_dir = next(root.iterdir())
        launch = read_launch(run_dir)
        assert launch is not None and launch.launcher is not None
        ring_dir = json.loads((run_dir / "run.json").read_text())["ring_dir"]
        argv = ["sh", "-c", KNOCKS, "sh", str(run_dir), str(launch.launcher.pid), str(process.pid),
                ring_dir]  # fmt: skip
        found = subprocess.run(
            as_user(OTHER, argv), capture_output=True, text=True, timeout=LIMIT_S, check=False,
            env={"PATH": "/usr/bin:/bin"}, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        go.touch()
        err = process.communicate(timeout=LIMIT_S)[1]
    finally:
        go.touch()
        process.kill()
        process.wait()
    bad = [f"a run that others knock at: exit code {process.returncode}: {err[:200]!r}"]
    said = found.stdout != "" or "connect" in found.stderr
    return bad[process.returncode == 3 :] + ([f"others got in: {found.stdout!r}"] if said else [])


def run(seed: int, cases: int) -> Found:
    """Try what another user planted, and one of ten times another user at a live run."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return 0, ["needs root and setpriv: one who is both users"], 0.0

    def one(number: int, rng: random.Random, folder: Path) -> Tried:
        folder.chmod(0o755)
        return Tried((knocks if number % 10 == 0 else case)(folder, rng))

    return campaign("users", one, range(seed, seed + cases))
