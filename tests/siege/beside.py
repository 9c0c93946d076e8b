"""The same program with and without pardbg: exit code, stdout and stderr, byte for byte."""

from __future__ import annotations

import math
import random
import re
import subprocess
import sys
import time
from pathlib import Path

from pardbg.lab.recipes import catalogue
from tests.distributed.owned import PARDBG
from tests.harness import Found, Tried, campaign
from tests.processes import rank_env

LIMIT_S = 120.0
_OURS = re.compile(rb"(?m)^pardbg: .*\n")
_VARIES = re.compile(
    rb"\b\d+(?:\.\d+)?(?= (?:ms|s)\b)|(?i:\bpids?|process(?:es)?|line \d+)[ :=(\[]*\d+"
    rb"|0x[0-9a-f]+|\d{4}-\d\d-\d\dT?[ \d:.]*|(?:/tmp/|port |:)\S*\d\S*|[WEI]\d{4} [\d:.]+ \d+"
)
"""Times, pids, ports and addresses: they differ from run to run."""

RAISES = "def f():\n    raise ValueError('\\u00e9 bad')\nprint('before')\nf()\n"
MIXED = (
    "import sys\nfor n in range(300):\n    print('out', n)\n    print('err', n, file=sys.stderr)\n"
    "sys.stdout.write('no newline \\x00\\xff')\nsys.exit(300 % 256)\n"
)
TORCH = (
    "import torch\ntorch.manual_seed(0)\nmodel = torch.nn.Linear(4, 4)\n"
    "opt = torch.optim.SGD(model.parameters(), lr=.1)\nfor _ in range(5):\n"
    "    loss = model(torch.ones(2, 4)).square().sum(); loss.backward(); opt.step()\n"
    "    print(loss.item())\nraise RuntimeError('end')\n"
)


def programs() -> dict[str, list[str]]:
    one = {name: [sys.executable, "-c", code]
           for name, code in (("raises", RAISES), ("mixed", MIXED), ("torch", TORCH))}  # fmt: skip
    shell = {"shell": ["sh", "-c", "echo a; echo b >&2; kill -SEGV $$"],
             "big": ["sh", "-c", "yes x | head -c 5000000; exit 7"]}  # fmt: skip
    many = {name: catalogue.command(name, 2, 24, (), 1) for name in ("ddp", "fault:exception")}
    return {**one, **shell, **many}


def outcome(argv: list[str]) -> tuple[int, bytes, bytes, float]:
    """(exit code, stdout, stderr without what is ours or varies, s)"""
    begun = time.monotonic()
    done = subprocess.run(argv, capture_output=True, env=rank_env(), timeout=LIMIT_S, check=False,
                          stdin=subprocess.DEVNULL)  # fmt: skip
    took = time.monotonic() - begun
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    return code, _same(done.stdout), _same(done.stderr), took


def _same(said: bytes) -> bytes:
    lines = _VARIES.sub(b"#", _OURS.sub(b"", said)).splitlines()
    # Ranks share the streams: which of them comes first is nobody's promise.
    return b"\n".join(sorted(lines)) if b"rank" in said else b"\n".join(lines)


def run(seed: int, cases: int, seconds: float = math.inf) -> Found:
    """Try pairs; the slowest by how much longer it took; none is begun after ``seconds``."""
    every = programs()
    order = list(every)
    random.Random(seed).shuffle(order)

    def one(number: int, _: random.Random, folder: Path) -> Tried:
        name = order[(number - seed) % len(order)]
        plain = outcome(every[name])
        ours = outcome([*PARDBG, "run", "-o", str(folder / "s.mcap"), "--", *every[name]])
        pairs = zip(("exit code", "stdout", "stderr"), plain, ours, strict=False)
        bad = [f"{what}: {_difference(a, b)}" for what, a, b in pairs if a != b]
        return Tried(bad, name, took_s=ours[3] - plain[3])

    return campaign("beside", one, range(seed, seed + cases), seconds)


def _difference(a: object, b: object) -> str:
    if not isinstance(a, bytes) or not isinstance(b, bytes):
        return f"{a} and {b}"
    left, right = a.splitlines(), b.splitlines()
    odd = [line for line in right if line not in left][:3]
    gone = [line for line in left if line not in right][:3]
    return f"{len(left)} and {len(right)} lines; more: {odd}; less: {gone}"[:400]
