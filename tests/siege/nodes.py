"""Nodes in network namespaces of their own: the network between them is cut, relays and the hub are
killed. The job's losses and exit codes are those without pardbg; what the rings held is recorded,
what they did not is counted. Needs root and ``ip``; says so where it cannot be tried.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgpack

from tests.distributed.runs import coverage
from tests.harness import Found, Tried, campaign, pardbg_run, whole_messages
from tests.processes import comes_true, end_tree

NODES, STEPS, ACTIONS = 4, 60, 6
ACTION_KINDS = ("cut", "cut", "relay", "relay", "hub")
LIMIT_S, MEET, HUB = 300.0, 29500, 29700


class Network:
    """A bridge, and a namespace a node; one number keeps several of them apart."""

    def __init__(self) -> None:
        self.number = os.getpid() % 200 + 20
        self._bridge = f"pdb{self.number}"

    def __enter__(self) -> Network:
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("link", "set", self._bridge, "up")
        for node in range(NODES):
            name, link = self.name(node), self._link(node)
            _ip("netns", "add", name)
            _ip("link", "add", link, "type", "veth", "peer", "name", "e0", "netns", name)
            _ip("link", "set", link, "master", self._bridge, "up")
            _ip("-n", name, "addr", "add", f"{self.address(node)}/24", "dev", "e0")
            for device in ("e0", "lo"):
                _ip("-n", name, "link", "set", device, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for node in range(NODES):
            _ip("netns", "del", self.name(node), check=False)
        _ip("link", "del", self._bridge, check=False)

    def name(self, node: int) -> str:
        return f"pdn{self.number}x{node}"

    def address(self, node: int) -> str:
        return f"10.99.{self.number}.{node + 1}"

    def _link(self, node: int) -> str:
        return f"pdv{self.number}x{node}"

    def cut(self, node: int, seconds: float) -> None:
        _ip("link", "set", self._link(node), "down")
        time.sleep(seconds)
        _ip("link", "set", self._link(node), "up")


def _ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=True, timeout=20)


class Case:
    """One job over the nodes, what is done meanwhile, and what is wrong afterwards."""

    def __init__(self, net: Network, folder: Path, seed: int) -> None:
        self._net, self._folder, self._rng = net, folder, random.Random(seed)
        self.done: list[str] = []
        self.bad: list[str] = []

    def start(self, node: int, watched: bool) -> subprocess.Popen[bytes]:
        own = self._folder / f"n{node}"
        own.mkdir(mode=0o700, exist_ok=True)
        env = {
            "RANK": str(node), "LOCAL_RANK": "0", "GROUP_RANK": str(node), "WORLD_SIZE": str(NODES),
            "MASTER_ADDR": self._net.address(0), "MASTER_PORT": str(MEET),
            "GLOO_SOCKET_IFNAME": "e0", "PARDBG_HOST": f"n{node}", "XDG_RUNTIME_DIR": str(own),
        }  # fmt: skip
        job = [sys.executable, "-m", "pardbg.lab.recipes.ddp", "--steps", str(STEPS)]
        hub = ["--hub", f"tcp://{self._net.address(0)}:{HUB}", "--key", str(self._folder / "key")]
        return pardbg_run(
            job, own, *hub, prefix=["ip", "netns", "exec", self._net.name(node)],
            session=self._folder / "s.mcap", env=env, watched=watched,
        )  # fmt: skip

    def job(self, watched: bool) -> tuple[list[int], list[str]]:
        """The nodes' exit codes, and node 0's losses."""
        (self._folder / "n0" / "out").unlink(missing_ok=True)
        processes = [self.start(node, watched) for node in reversed(range(NODES))]
        try:
            until = time.monotonic() + LIMIT_S
            for _ in range(ACTIONS if watched else 0):
                self._wait_steps(processes, until)
                self._act()
            codes = [p.wait(max(1.0, until - time.monotonic())) for p in processes]
        except subprocess.TimeoutExpired:
            self.bad.append("hangs")
            codes = []
        finally:
            for process in processes:
                if process.poll() is None:
                    end_tree(process.pid)
                    process.wait()
        return codes, self._losses()

    def _losses(self) -> list[str]:
        path = self._folder / "n0" / "out"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return [line for line in lines if "loss" in line]

    def _wait_steps(self, processes: list[subprocess.Popen[bytes]], until: float) -> None:
        """Until the job is a few steps further than at the last action."""
        wanted = len(self._losses()) + self._rng.randint(2, 8)
        comes_true(
            lambda: len(self._losses()) >= wanted or all(p.poll() is not None for p in processes),
            until - time.monotonic(),
        )

    def _act(self) -> None:
        what = self._rng.choice(ACTION_KINDS)
        node = 0 if what == "hub" else self._rng.randint(1, NODES - 1)
        self.done.append(what)
        if what == "cut":
            self._net.cut(node, self._rng.choice((1.0, 3.0, 7.0)))
            return
        for path in (self._folder / f"n{node}").glob("pardbg/*/hub.pid"):
            try:
                os.kill(int(json.loads(path.read_text())["pid"]), signal.SIGKILL)
            except (ProcessLookupError, ValueError):
                self.done[-1] = f"{what}, late"

    def judge(
        self, codes: list[int], losses: list[str], plain: tuple[list[int], list[str]]
    ) -> None:
        if codes != plain[0]:
            self.bad.append(f"exit codes {codes}, not {plain[0]}")
        if losses != plain[1]:
            self.bad.append(f"{len(losses)} of {len(plain[1])} losses as without pardbg")
        messages = list(whole_messages(self._folder / "s.mcap"))
        parts = coverage(messages)
        if len(parts) != NODES:
            self.bad.append(f"records of {len(parts)} of {NODES} nodes")
        counted: Counter[str] = Counter()
        for message in messages:
            fields: dict[str, Any] = {}
            if message.key == b"C":
                fields = msgpack.unpackb(message.payload, strict_map_key=False)
            if fields.get("event") == "gap":
                counted[str(fields["proc"])] += int(fields["num"])
        for proc, stretches in parts.items():
            missing = stretches[0][0] + sum(
                after[0] - before[1] for before, after in pairwise(stretches)
            )
            if missing != counted[proc]:
                self.bad.append(f"{proc}: {missing} records missing, {counted[proc]} counted")


def run(seed: int, cases: int) -> Found:
    """Try cut networks and kills, after the job without pardbg."""
    net = Network()
    try:
        net.__enter__()
    except (OSError, subprocess.SubprocessError) as error:
        net.__exit__()
        print(f"nodes: not tried, no network namespaces here: {error}", flush=True)
        return 0, [], 0.0
    try:
        with tempfile.TemporaryDirectory(prefix="pdn-", dir="/tmp") as folder:
            plain = Case(net, Path(folder), seed).job(watched=False)
        if plain[0] != [0] * NODES or len(plain[1]) != STEPS:
            return 0, [f"the plain job: exit codes {plain[0]}, {len(plain[1])} losses"], 0.0

        def one(number: int, _: random.Random, folder: Path) -> Tried:
            case = Case(net, folder, number)
            case.judge(*case.job(watched=True), plain)
            return Tried(case.bad, f"[{', '.join(case.done)}]", case.done)

        return campaign("nodes", one, range(seed, seed + cases))
    finally:
        net.__exit__()
