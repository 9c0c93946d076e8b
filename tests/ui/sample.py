"""Realistic hand-made snapshots: a 4-rank 1F1B run and a DDP run with a straggler.

The 1F1B step is made by running the plan with fixed durations (forward 10 ms, backward 20 ms,
transfer 1 ms), so its figures can be worked out by hand.
"""

from __future__ import annotations

from dataclasses import replace

from pardbg.analysis.answers.device_mesh import Axis, Mesh
from pardbg.analysis.answers.ranks import Activity, RankNow
from pardbg.analysis.answers.snapshot import Snapshot
from pardbg.analysis.answers.timeline import LaneSpan
from pardbg.analysis.base.control import ControlView
from pardbg.analysis.base.run import OutputLine, RunInfo
from pardbg.analysis.base.steps import StepRow
from pardbg.analysis.comm.op_rows import Arrival, CollectiveRow, P2PRow
from pardbg.analysis.comm.traffic import Edge, GroupView, TrafficView
from pardbg.analysis.findings.finding import Evidence, Finding
from pardbg.analysis.memory.breakdown import MemoryRow
from pardbg.analysis.pipeline.values import (
    CAUSES,
    ActionSpan,
    Cause,
    Idle,
    PipelineRank,
    PipelineStep,
    PipelineView,
)
from pardbg.analysis.same.comparison import Row, Sameness
from pardbg.analysis.same.module_flow import Place
from pardbg.analysis.same.module_rows import Numbers, numbers_of
from pardbg.events.control_codes import Mode, Verb
from pardbg.events.control_events import ControlEvent
from pardbg.events.control_facts import Asked, Cut

MS = 1_000_000
S = 1_000_000_000
MIB = 1 << 20
T0 = 1_000 * S
WALL = 1_790_000_000 * S


def plan_1f1b(p: int, m: int) -> dict[int, list[str]]:
    """Each rank's compute order: p - 1 - rank warm-up forwards, then one forward one backward."""
    order: dict[int, list[str]] = {}
    for rank in range(p):
        warm = min(p - 1 - rank, m)
        row = [f"{rank}F{i}" for i in range(warm)]
        for i in range(m - warm):
            row += [f"{rank}F{warm + i}", f"{rank}B{i}"]
        row += [f"{rank}B{i}" for i in range(m - warm, m)]
        order[rank] = row
    return order


def run_plan(p: int, m: int, forward: int, backward: int, transfer: int, slow: dict[int, float]
             ) -> dict[str, tuple[int, int]]:  # fmt: skip
    """Begin and end (ns) of each action: in order per rank, after its producer and the transfer."""
    order = plan_1f1b(p, m)
    ended: dict[str, tuple[int, int]] = {}
    free = dict.fromkeys(order, 0)
    at = dict.fromkeys(order, 0)
    while any(at[r] < len(order[r]) for r in order):
        for rank, row in order.items():
            while at[rank] < len(row):
                text = row[at[rank]]
                kind, mb = ("F" if "F" in text else "B"), int(text[2:] if rank < 10 else text[3:])
                source = rank - 1 if kind == "F" else rank + 1
                need = f"{source}{kind}{mb}" if 0 <= source < p else None
                if need and need not in ended:
                    break
                begin = max(free[rank], ended[need][1] + transfer if need else 0)
                length = int((forward if kind == "F" else backward) * slow.get(rank, 1.0))
                ended[text] = (begin, begin + length)
                free[rank] = begin + length
                at[rank] += 1
    return ended


def pipeline_step(step: int, t0: int, until: int | None = None, p: int = 4, m: int = 8,
                  slow: dict[int, float] | None = None) -> PipelineStep:  # fmt: skip
    """One step at ``t0``; ``until`` (ns after t0) cuts it as a cursor would."""
    times = run_plan(p, m, 10 * MS, 20 * MS, 1 * MS, slow or {})
    last = max(end for _, end in times.values())
    stop = last if until is None else until
    first = min(begin for begin, _ in times.values())
    ranks = tuple(_pipeline_rank(r, p, m, times, t0, min(stop, last)) for r in range(p))
    window = min(stop, last) - first
    bubble = 1 - sum(r.busy_ns for r in ranks) / (p * window) if window else 0.0
    bound = (p - 1) / (m + p - 1)
    return PipelineStep(step, stop >= last, t0, t0 + min(stop, last), bubble, bound, bound, ranks)


def _pipeline_rank(rank: int, p: int, m: int, times: dict[str, tuple[int, int]], t0: int,
                   stop: int) -> PipelineRank:  # fmt: skip
    plan = plan_1f1b(p, m)[rank]
    shown = [(text, *times[text]) for text in plan if times[text][0] < stop]
    actions = tuple(_action(rank, text, t0, a, b, stop) for text, a, b in shown)
    idles: list[Idle] = []
    before = 0
    for at, (text, begin, _) in enumerate(shown):
        if begin > before:
            idles += _idle(rank, p, text, before, begin, t0, at == 0)
        before = min(times[text][1], stop)
    if stop > before:
        more = len(shown) < len(plan)
        cause: Cause = "dependency" if more else "cooldown"
        text = plan[len(shown)] if more else None
        kind = "F" if text and "F" in text else "B"
        source = rank - 1 if kind == "F" else rank + 1
        producer = f"{source}{kind}{text.split(kind)[1]}" if text else None
        if not shown:
            cause = "warmup"
        idles.append(Idle(rank, t0 + before, t0 + stop, cause, producer, source if text else None))
    idle_ns = {c: sum(i.t1_ns - i.t0_ns for i in idles if i.cause == c) for c in CAUSES}
    forwards = sum(1 for text, _, b in shown if "F" in text and b <= stop)
    backwards = sum(1 for text, _, b in shown if "B" in text and b <= stop)
    bound = min(p - rank, m)
    return PipelineRank(
        rank, (rank,), tuple(plan), actions, tuple(idles),
        sum(min(b, stop) - a for _, a, b in shown), idle_ns, forwards - backwards, bound, bound,
        (forwards - backwards) * 9 * MIB + 600_000, plan[len(shown)] if len(shown) < len(plan)
        else None,
    )  # fmt: skip


def _action(rank: int, text: str, t0: int, a: int, b: int, stop: int) -> ActionSpan:
    kind = "F" if "F" in text else "B"
    return ActionSpan(rank, rank, kind, int(text.split(kind)[1]), t0 + a,
                      t0 + b if b <= stop else None)  # fmt: skip


def _idle(rank: int, p: int, text: str, a: int, b: int, t0: int, first: bool) -> list[Idle]:
    kind = "F" if "F" in text else "B"
    source = rank - 1 if kind == "F" else rank + 1
    if not 0 <= source < p:
        return [Idle(rank, t0 + a, t0 + b, "host", None, None)]
    producer = f"{source}{kind}{text.split(kind)[1]}"
    if first:
        return [Idle(rank, t0 + a, t0 + b, "warmup", producer, source)]
    arrived = max(a, b - 1 * MS)
    made: list[Idle] = []
    if arrived > a:
        made.append(Idle(rank, t0 + a, t0 + arrived, "dependency", producer, source))
    made.append(Idle(rank, t0 + arrived, t0 + b, "communication", producer, source))
    return made


def _run(name: str, t0: int) -> RunInfo:
    return RunInfo(name, "r-1f1b-7c2a", ("torchrun", "--standalone", "train.py"), t0, WALL, None,
                   1, "gloo", False)  # fmt: skip


def _rank_rows(p: int, t: int, pipelined: bool) -> tuple[RankNow, ...]:
    rows = []
    for rank in range(p):
        state, now = "running", Activity("in", f"{rank}F5" if pipelined else "backward")
        since = t - (7 + rank * 3) * MS
        if rank % 4 == 2:
            state = "held" if pipelined else "running"
            now = Activity("held before", f"{rank}F4") if pipelined else Activity("in", "forward")
        if rank % 4 == 3:
            state = "waiting"
            now = Activity("in", f"recv F4 from r{rank - 1}" if pipelined else "all_reduce dp #43")
            since = t - 1200 * MS
        steps = tuple((408 + (rank * 7 + i * i * 3) % 13) * MS for i in range(24))
        history = tuple((280 + 4 * min(i, 20) + rank * 9 + (i * 5) % 7) * MIB for i in range(32))
        rows.append(RankNow(
            rank, f"0.n0.{4100 + rank}", f"n{rank // 4}", 4100 + rank,
            (rank,) if pipelined else (), state, now, since, 128, steps,  # type: ignore[arg-type]
            0.62 + 0.02 * rank % 0.1, 0.28, 0.08, history[-1], history, (7 + rank) * MS,
            0, 0.004, 0))  # fmt: skip
    return tuple(rows)


def _steps(number: int, loss: bool = True) -> tuple[StepRow, ...]:
    return tuple(
        StepRow(s, (405 + s * 7 % 11) * MS, 4.2 * 0.985 ** s if loss else None,
                {"data": 3 * MS, "forward": 120 * MS, "backward": 230 * MS, "optimizer": 18 * MS})
        for s in range(128 - number, 128))  # fmt: skip


def _memory(p: int) -> tuple[MemoryRow, ...]:
    return tuple(
        MemoryRow(r, 12 * MIB, 12 * MIB, 24 * MIB, (4 - r % 4) * 9 * MIB, (4 - r % 4) * 9 * MIB,
                  310 * MIB, (394 - r % 4 * 9) * MIB, "rss", 48 * MIB,
                  tuple((T0 + i * S, (300 + 3 * min(i, 30) + (i * 7) % 5) * MIB)
                        for i in range(64)))
        for r in range(p))  # fmt: skip


def _control() -> ControlView:
    return ControlView(Mode.RUNNING)


def snapshot_1f1b(until: int | None = 218 * MS, p: int = 4, m: int = 8) -> Snapshot:
    """A live 1F1B run in the middle of step 128."""
    done = pipeline_step(127, T0 + 52 * S, None, p, m, slow={2: 1.12})
    t0 = T0 + 52 * S + 460 * MS
    now = pipeline_step(128, t0, until, p, m, slow={2: 1.12})
    t = t0 + (until or 0)
    history = tuple(
        (s, 0.279 + 0.004 * (s * 13 % 3) + (0.03 if s > 113 else 0)) for s in range(65, 128)
    )
    view = PipelineView("Schedule1F1B", "pp", p, p, m, 1, True, now, done, history)
    edges = []
    for r in range(p - 1):
        edges.append(Edge(r, r + 1, 128 * m * 262_144, 12.4e6 - r * 3e5, "observed", 1024, r == 1))
        edges.append(Edge(r + 1, r, 127 * m * 262_144, 11.8e6 - r * 2e5, "observed", 1016, False))
    traffic = TrafficView(
        2 * S, tuple(edges),
        (GroupView("g1", "pp", "pp", tuple(range(p)), "gloo", 2040, 534 * MIB),),
        (("pp", "send", 1024, 268 * MIB, 1.9), ("pp", "recv", 1016, 266 * MIB, 1.9)))  # fmt: skip
    p2p = tuple(
        P2PRow("pp", src, dst, 128 * m + i, 0, 262_144, f"F{i}",
               t0 + (src * 11 + i * 10 + 10) * MS, t0 + (src * 11 + i * 10 + 2) * MS,
               t0 + (src * 11 + i * 10 + 11) * MS if i < 3 else None,
               "matched" if i < 3 else "incomplete")
        for i in range(4) for src, dst in [(r, r + 1) for r in range(p - 1)])  # fmt: skip
    finding = Finding(
        kind="slow-stage", severity="warning", ranks=(2,), culprits=(2,), where="train.py:88",
        t_ns=t - 4 * S, text="Stage 2 runs 12% over the other stages' median since step 114; it "
        "adds 3.9% to the bubble.", steps=("Move a layer from stage 2 to stage 3.",),
        cost_ns_per_step=16 * MS, evidence=Evidence(t - 4 * S, 2, "pipeline"))  # fmt: skip
    return Snapshot(
        7, True, t, T0, t, _run("gpt-1f1b", T0), 128, 412 * MS, 0.6071,
        tuple((s, 4.2 * 0.985**s) for s in range(128)), _rank_rows(p, t, True), view, _steps(64),
        (), p2p, traffic, _memory(p), (finding,), _control(), 0, 0)  # fmt: skip


def held(snapshot: Snapshot) -> Snapshot:
    """The same run, held at a cut by this viewer."""
    step = snapshot.pipeline.step if snapshot.pipeline else None
    nexts = {r.rank: r.next_action or "STEP" for r in step.ranks} if step else {}
    base = snapshot.t_ns - 3 * S
    log = (
        ControlEvent(Asked(Verb.PAUSE), None, "view-3f", 1, base),
        ControlEvent(Cut(), None, "", 2, base + 60 * MS),
        ControlEvent(Asked(Verb.TICK), None, "view-3f", 3, base + 2 * S),
    )
    control = ControlView(Mode.HELD, "view-3f", 9 * S, held=nexts, log=log)
    ranks = tuple(
        replace(r, state="held", now=Activity("held before", nexts.get(r.rank, "STEP")),
                since_ns=snapshot.t_ns - 2 * S)
        for r in snapshot.ranks)  # fmt: skip
    return replace(snapshot, control=control, ranks=ranks)


def snapshot_ddp(p: int = 4) -> Snapshot:
    """A DDP run; rank 2 comes late to every all_reduce and misses the last one."""
    t = T0 + 53 * S
    rows = []
    for i in range(40):
        issue = t - (40 - i) * 60 * MS
        late = (81 - i % 9) * MS if i % 3 else 2 * MS
        last = i == 39
        arrivals = tuple(
            Arrival(r, None if last and r == 2 else issue + (late if r == 2 else r * MS),
                    None if last else issue + late + (1300 + r * 10) * 1000,
                    "" if last else "completed")
            for r in range(p))  # fmt: skip
        rows.append(CollectiveRow(
            "dp", "dp", i + 4, ("all_reduce", "broadcast")[i % 7 == 6], "float32",
            262_144 * (1 + i % 4), 120 + i // 4, arrivals, None if last else late,
            None if last else 2, None if last else late * (p - 1), None if last else 1_300_000,
            None if last else 0.3 + 0.01 * i, "missing rank" if last else "matched",
            (2,) if last else (),
            "rank 2 missing for 4.1 s" if last else f"rank 2 last by {late // MS} ms"))  # fmt: skip
    edges = tuple(
        Edge(r, (r + 1) % p, 900 * MIB, 12.4e6 - 1e5 * r, "modelled", 128, r == 0)
        for r in range(p))  # fmt: skip
    traffic = TrafficView(
        2 * S, edges, (GroupView("g0", "dp", "dp", tuple(range(p)), "gloo", 128, 900 * MIB),),
        (("dp", "all_reduce", 120, 890 * MIB, 0.31),
         ("dp", "broadcast", 8, 10 * MIB, 0.28)))  # fmt: skip
    base = snapshot_1f1b()
    finding = replace(base.findings[0], kind="straggler", severity="error", where="train.py:61",
                      text="Rank 2 has not issued all_reduce dp #43; 3 ranks wait in it "
                           "since 4.1 s. It is in next(loader).",
                      steps=("Look at its data loader.",),
                      evidence=Evidence(t - 4 * S, 2, "collectives"))  # fmt: skip
    return replace(
        base, run=replace(base.run, name="ddp", backend="gloo"), t_ns=t, t_end_ns=t, pipeline=None,
        ranks=_rank_rows(p, t, False), collectives=tuple(rows), p2p=(), traffic=traffic,
        memory=_memory(p), findings=(finding,), mesh=Mesh((Axis("dp", p),)))  # fmt: skip


def lanes(t0: int, t1: int, ranks: int = 4, spans: int = 60
          ) -> dict[int, dict[str, tuple[LaneSpan, ...]]]:  # fmt: skip
    """A timeline window with phases, compute, communication and waits for each rank."""
    made: dict[int, dict[str, tuple[LaneSpan, ...]]] = {}
    each = (t1 - t0) // spans
    for rank in range(ranks):
        phases, compute, comm, wait = [], [], [], []
        for i in range(spans):
            a = t0 + i * each
            name = ("forward", "forward", "backward", "backward", "backward", "optimizer")[i % 6]
            phases.append(LaneSpan(a, a + each, name, f"phase.{name}"))
            kind = "F" if i % 6 < 2 else "B"
            if name != "optimizer":
                compute.append(LaneSpan(a + each // 20 * rank, a + each * 8 // 10,
                                        f"{kind}{i % 8}", f"action.{kind}"))  # fmt: skip
            comm.append(LaneSpan(a + each * 6 // 10, a + each * 9 // 10, "all_reduce",
                                 "comm.all_reduce"))  # fmt: skip
            wait.append(LaneSpan(a + each * 8 // 10, a + each, "wait", "wait"))
        made[rank] = {"phase": tuple(phases), "compute": tuple(compute), "comm": tuple(comm),
                      "wait": tuple(wait)}  # fmt: skip
    return made


def output(number: int = 40) -> tuple[OutputLine, ...]:
    """The job's output, with an escape sequence that must not reach the terminal."""
    made = [OutputLine(T0 + i * S, i % 4, "stdout", f"step {i} loss {4.2 * 0.985**i:.4f}")
            for i in range(number)]  # fmt: skip
    made.append(OutputLine(T0 + number * S, 2, "stderr", "\x1b[31mUserWarning: slow loader\x1b[0m"))
    made.append(OutputLine(T0 + number * S, None, "stdout", "torchrun: all ranks are up"))
    return tuple(made)


def sameness() -> Numbers:
    """A reference beside which the second block puts out something else."""
    names = ("embed", "blocks.0.mlp", "blocks.0", "blocks.1.mlp", "blocks.1", "head")
    rows = tuple(
        Row(0, "out", name, 0.1 * (at > 2), 1e4 if at > 2 else 0.5, "red" if at > 2 else "green")
        for at, name in enumerate(names)
    )
    place = Place("out", names[3], "Mlp", "", "", None)
    return numbers_of(Sameness("differs", 0, "out", names[3], None, place, rows=rows))
