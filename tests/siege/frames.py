"""DATA and CTRL frames with odd fields, against a hub in this process."""

from __future__ import annotations

import contextlib
import io
import random
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import zmq

from pardbg.events.commands import FromViewer
from pardbg.events.control_codes import Verb
from pardbg.session.reader import load
from pardbg_agent.wire import DefKind
from tests.harness import Found
from tests.siege.limited import here
from tests.siege.values import mutated_map, mutated_records
from tests.unit.hub.hub_rig import FakeAgent, Rig, frame

TURN = 40
"""Messages between the hub's turns."""
ENOUGH = 20
"""Bugs after which it is enough."""


def hellos(rank: int) -> dict[str, Any]:
    proc = f"0.n0.{4_000_000 + rank}"
    process = {"proc": proc, "rank": rank, "world_size": 2, "host": "n0",
               "pid": 4_000_000 + rank, "epoch": 0, "boot_id": "b"}  # fmt: skip
    return {"t": "hello", "process": process, "ring": "r"}


def state(rng: random.Random, rank: int) -> dict[str, Any]:
    return {
        "t": "state", "serial": rng.randrange(1 << 20), "reply_to": rng.randrange(9), "rank": rank,
        "held": rng.choice((0, 1, 2, 4, 64)), "next": "all_reduce dp #0", "step": 3,
        "plan": ["0F0"],
        "open": [{"group": "dp", "op": "all_reduce", "seq": 3, "since_ns": 1}], "issued": {"dp": 4},
        "p2p": [[["pp", 1, 0, True], 3]], "done": ["0F0"], "closed": True, "held_since_ns": 5,
        "hit": 1, "hit_text": "2B3", "hits": {"1": 3},
    }  # fmt: skip


def from_agent(rng: random.Random, rank: int) -> dict[str, Any]:
    kind = rng.randrange(6)
    if kind == 0:
        return hellos(rank)
    if kind == 1:
        return {"t": "pong", "re": rng.randrange(9), "t_ns": time.monotonic_ns()}
    if kind == 2:
        threads = [{"thread": "Main", "frames": [["a.py", 3, "f"]]}]
        kind_of = rng.choice(("done", "stacks", "evaluated"))
        return {"t": kind_of, "re": rng.randrange(40), "threads": threads, "text": "2.5"}
    if kind == 3 and rng.random() < 0.05:
        return {"t": "bye", "last_index": 9, "dropped": 0}
    return state(rng, rank)


ARGS = {
    "confirm": True, "count": 2, "text": "2B3", "at_ns": 5, "expr": "mb==3", "level": "full",
    "for_s": 3, "ns": 1000, "number": 1, "frame": 0, "hold": True, "kind": "nan",
}  # fmt: skip


def from_viewer(rng: random.Random) -> dict[str, Any]:
    kind = rng.choice(FromViewer.__args__)
    verbs = [verb.value for verb in Verb if verb is not Verb.WHERE]
    chosen = "command" if rng.random() < 0.7 else kind.TAG
    return {
        "t": chosen, "id": rng.randrange(1, 99), "verb": rng.choice(verbs),
        "ranks": rng.choice((None, "0", "0-1", "held", "stage=0", "all")), "args": dict(ARGS),
        "lease_ns": 10**10, "timeout_s": 1.0, "lease_s": 10.0, "keep": False,
    }  # fmt: skip


DEFINITIONS: tuple[dict[str, Any], ...] = (
    {"k": "process", "proc": "0.n0.4000000", "rank": 0, "world_size": 2, "host": "n0", "epoch": 0,
     "pid": 4000000, "start_ns": 5, "wall_ns": 5, "boot_id": "b"},
    {"k": "group", "id": 1, "key": "dp", "name": "dp", "axis": "dp", "ranks": [0, 1],
     "backend": "gloo", "timeout_s": 1800.0},
    {"k": "name", "id": 1, "s": "forward"},
    {"k": "op", "id": 2, "op": "all_reduce", "dtype": "float32", "reduce": "sum", "root": -1,
     "tag": 0, "coalesced": False},
    {"k": "exception", "t_ns": 5, "type": "ValueError", "text": "bad", "thread": "MainThread",
     "frames": [["a.py", 3, "f"]], "step": 2},
    {"k": "plan", "schedule": "1F1B", "num_stages": 2, "num_microbatches": 4, "group": "pp",
     "actions": {"0": ["0F0", "0B0"], "1": ["1F0", "1B0"]}},
)  # fmt: skip


def one(rig: Rig, rng: random.Random, turn: bool) -> None:
    rank = rng.randrange(2)
    proc = f"0.n0.{4_000_000 + rank}".encode()
    way = rng.randrange(10)
    if way < 2:
        payload = mutated_records(frame(rng.randrange(99), rng.randrange(1, 5)), rng)
        rig.hub._collector._take([b"R" + proc, payload])
    elif way < 4:
        said = dict(rng.choice(DEFINITIONS))
        said["k"] = said["k"] if rng.random() < 0.5 else rng.choice(list(DefKind)).value
        rig.hub._collector._take([b"D" + proc, mutated_map(msgpack.packb(said), rng)])
    else:
        agent = way < 7
        message = from_agent(rng, rank) if agent else from_viewer(rng)
        raw = msgpack.packb(message)
        raw = mutated_map(raw, rng) if rng.random() < 0.8 else raw
        identity = proc if agent else b"view-%d" % rng.randrange(3)
        rig.hub._router._take([zmq.Frame(identity), zmq.Frame(raw)])
    if turn:
        rig.hub._turn()


def run(seed: int, count: int) -> Found:
    """Try frames, some with a turn of the hub; the session must load at the end."""
    rng, bad, slowest = random.Random(seed), [], 0.0
    with tempfile.TemporaryDirectory(prefix="pds-", dir="/tmp") as folder:
        rig = Rig(Path(folder))
        for rank in range(2):
            FakeAgent(rig, rank).hello()
        for number in range(count):
            with contextlib.redirect_stdout(io.StringIO()):
                outcome = here(partial(one, rig, rng, turn=number % TURN == 0))
            slowest = max(slowest, outcome.cpu_s)
            if outcome.text != "ok":
                bad.append(f"frame {number}: {outcome.text}")
                if len(bad) >= ENOUGH:
                    break
        rig.close()
        load(folder + "/s.mcap")
    return count, bad, slowest
