"""Reading back what the agent of each rank wrote: ring and definitions, as plain values."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgpack

from pardbg_agent import wire
from pardbg_agent.defs import read_file
from pardbg_agent.ring import RingReader
from pardbg_agent.wire import Flag, Kind
from tests.forked import Ended, Job, run_jobs

ROOT = Path(__file__).parents[3]
BOOT = ROOT / "agent" / "pardbg_agent" / "boot"


@dataclass(frozen=True)
class Record:
    kind: Kind
    flags: Flag
    name: str
    t0: int
    t1: int
    step: int
    seq: int
    group: str
    stage: int
    mb: int
    peer: int
    a: float
    b: int
    says: tuple[Any, ...] = ()
    """Of an op: reduction, dtype, root, tag, and whether several tensors are one op."""
    lane: wire.Lane = wire.Lane.STEP

    @property
    def text(self) -> str:
        """``2B5``"""
        return f"{self.stage}{self.name}{self.mb if self.mb >= 0 else ''}"


@dataclass
class Rank:
    """One process's ring and definitions."""

    rank: int
    records: list[Record] = field(default_factory=list)
    defs: list[dict[str, Any]] = field(default_factory=list)

    def of(self, kind: Kind, name: str | None = None) -> list[Record]:
        return [r for r in self.records if r.kind == kind and name in (None, r.name)]

    def defined(self, kind: str) -> list[dict[str, Any]]:
        """Definitions of a kind; of groups, those that torch has."""
        return [d for d in self.defs if d["k"] == kind and d.get("backend") != wire.CALLS]


def issued_ops(rank: Rank, steps: bool = True) -> list[tuple[Any, ...]]:
    """Every op of a rank by group and number: all that is the same on each way to see them.
    ``steps``: also its step, which is chance where another thread issues."""
    ended = {(r.group, r.flags & Flag.P2P, r.seq) for r in rank.of(Kind.OP_DONE)}
    return sorted(
        (r.group, int(r.flags & Flag.P2P), r.seq, r.name, int(r.flags), r.step if steps else 0,
         r.stage, r.mb, r.peer, int(r.a), r.b, (r.group, r.flags & Flag.P2P, r.seq) in ended,
         *r.says)
        for r in rank.of(Kind.OP_ISSUE)
    )  # fmt: skip


def assert_same_ops(cpp: Rank, python: Rank, steps: bool = True) -> None:
    """Both ways hold the same; Python's does not see the reduction of an op that C++ issues."""
    reduce = -5
    for op, same in zip(issued_ops(cpp, steps), issued_ops(python, steps), strict=True):
        unseen = not same[reduce]
        assert (*op[:reduce], "" if unseen else op[reduce], *op[reduce + 1 :]) == same


def make_run(run_dir: Path) -> dict[str, str]:
    """A run without a hub (the ring alone); the environment its ranks need."""
    ring_dir = run_dir / "rings"
    ring_dir.mkdir()
    run = {"v": 1, "run": "test", "ring_dir": str(ring_dir)}
    (run_dir / wire.RUN_FILE).write_text(json.dumps(run))
    path = os.pathsep.join([str(BOOT), str(ROOT / "agent"), str(ROOT)])
    return {"PARDBG": str(run_dir), "PYTHONPATH": path}


def read_run(run_dir: Path) -> dict[int, Rank]:
    """Every rank of a run that has ended."""
    ranks = [read_rank(path) for path in sorted((run_dir / "rings").glob("*.ring"))]
    return {rank.rank: rank for rank in ranks}


def run_watched(jobs: Sequence[Job]) -> dict[str, tuple[Ended, dict[int, Rank]]]:
    """Jobs forked from one process that has the agent's hooks, each with a run of its own: what
    each left behind and what its rings hold."""
    with tempfile.TemporaryDirectory(prefix="pdb-") as name:
        dirs = {job.name: Path(name) / job.name for job in jobs}
        for folder in dirs.values():
            folder.mkdir()
        envs = {job.name: make_run(dirs[job.name]) for job in jobs}
        own = [replace(job, env={**job.env, "PARDBG": envs[job.name]["PARDBG"]}) for job in jobs]
        ended = run_jobs(own, env=envs[jobs[0].name])
        return {job.name: (ended[job.name], read_run(dirs[job.name])) for job in jobs}


def read_rank(path: Path) -> Rank:
    """One ring file and the definitions beside it."""
    reader = RingReader.open(str(path))
    rank = Rank(reader.header.rank)
    rank.defs = [msgpack.unpackb(p) for p in read_file(str(path.with_suffix(".defs")))]
    names = {d["id"]: d for d in rank.defs if d["k"] in ("name", "op")}
    groups = {d["id"]: d["name"] for d in rank.defs if d["k"] == "group"}
    while (piece := reader.read(final=True)) is not None:
        for fields in wire.RECORD.iter_unpack(piece[1]):
            rank.records.append(_record(fields, names, groups))
    assert reader.lost == 0
    reader.close()
    return rank


def _record(fields: tuple[Any, ...], names: dict[int, Any], groups: dict[int, str]) -> Record:
    kind, lane, flags, name, t0, t1, step, seq, group, stage, mb, peer, a, b, _ = fields
    if flags & Flag.FLOAT:
        a = wire.RECORD_F.unpack(wire.RECORD.pack(*fields))[12]
    said = names.get(name, {})
    says = ("reduce", "dtype", "root", "tag", "coalesced") if said.get("k") == "op" else ()
    return Record(
        Kind(kind), Flag(flags), said.get("s", said.get("op", "")), t0, t1, step, seq,
        groups.get(group, ""), stage, mb, peer, a, b, tuple(said.get(key) for key in says),
        wire.Lane(lane),
    )  # fmt: skip
