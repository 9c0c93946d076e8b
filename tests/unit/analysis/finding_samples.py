"""One candidate or more for each kind of finding: of one rank, of several, and what is over."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pardbg.analysis.findings.kinds.data_kinds as data
import pardbg.analysis.findings.kinds.device_kinds as devices
import pardbg.analysis.findings.kinds.end_kinds as ends
import pardbg.analysis.findings.kinds.memory_kinds as memory
import pardbg.analysis.findings.kinds.mismatch_kinds as disagreements
import pardbg.analysis.findings.kinds.recording_kinds as recording
import pardbg.analysis.findings.kinds.speed_kinds as speed
import pardbg.analysis.findings.kinds.stall_kinds as waits
import pardbg.analysis.findings.kinds.value_kinds as state
from pardbg.analysis.findings.finding import Candidate, Facts, Label
from pardbg.analysis.findings.kinds.absence import Absence, Doing, LeftOut
from pardbg.analysis.hangs.blocking_calls import Blocking, Call
from pardbg.analysis.hangs.partings import Parting
from pardbg.analysis.same.hypotheses import Hypothesis
from pardbg.events.log_facts import LogSays
from pardbg.store.definitions import Cause

MS, S, MIB = 1_000_000, 1_000_000_000, 1 << 20
AT = "model.py:12 in forward"
CAUSES: Final = tuple(
    Cause("KeyError", "KeyError: 'b'", (), implicit) for implicit in (False, True)
)

HELD: Final = ends.Held("OSError: disk", AT, ()), ends.Held("OSError: disk", "", (0, 2))


def one(
    kind: str, facts: Facts, ranks: tuple[int, ...] = (), culprits: tuple[int, ...] = (),
    where: str | None = None,
) -> Candidate:  # fmt: skip
    return Candidate(kind=kind, facts=facts, t_ns=60 * S, ranks=ranks, culprits=culprits,
                     group="world", seq=7, where=where)  # fmt: skip


def waiting(*ranks: int, op: str = "all_reduce world #7") -> tuple[waits.Waiting, ...]:
    return tuple(waits.Waiting(rank, Label(op), 57 * S) for rank in ranks)


def missing(
    *absences: Absence, culprits: tuple[int, ...] = (2,), over: bool = False, early: bool = False,
    more: tuple[waits.Waiting, ...] = (), victims: tuple[int, ...] = (0, 1),
) -> Candidate:  # fmt: skip
    facts = waits.MissingRank(
        blamed=culprits, never_made=False, over=over, absences=absences, until_ns=60 * S,
        waits=(*waiting(0, 1), *more), victims=victims, gave_up=over, early=early,
    )  # fmt: skip
    direct, indirect = facts.waiting(culprits)
    return one(absences[0].kind, facts, (*direct, *indirect), culprits, absences[0].place)


PLAIN: Final[tuple[Doing, ...]] = (
    "unknown", "left", "lost", "kernel", "compiling", "importing", "checkpoint", "loading",
    "torch.distributed", "forward", "backward", "optimizer", "pipeline", "start-up", "code",
)  # fmt: skip
ABSENCES: Final = (
    *(Absence(doing, AT if doing not in ("unknown", "left", "lost") else None) for doing in PLAIN),
    Absence("killed", code=-9), Absence("killed"), Absence("ended"), Absence("ended", code=3),
    Absence("stopped", AT, pid=4711), Absence("traced", AT), Absence("pdb", AT),
    Absence("prompt", AT), Absence("cut off", name="n2"), Absence("gil", AT, silent_ns=2 * S),
    Absence("gil", AT, asleep=True), Absence("gil", name="0F5", during="action"),
    Absence("gil", during="start-up"), Absence("destroyed", AT), Absence("destroyed", AT, name=AT),
    Absence("gil", last=Label("barrier dp #7"), last_at=AT), Absence("action", name="0F5"),
    Absence("device", name="forward", step=8, silent_ns=9 * S), Absence("runs", AT, caller="f"),
    Absence("loading", AT, asleep=True, caller="step (train.py:88)", thread="thread feed",
            threads=(("thread writer", "log.py:3 in run"),),
            lock="feed waits for self.lock; thread writer is inside it at log.py:3 in run"),
)  # fmt: skip


CALLS: Final[tuple[Call, ...]] = (
    "sleep", "lock", "child", "file", "socket", "pipe", "terminal", "poll", "full pipe",
    "full terminal", "device",
)  # fmt: skip
BLOCKED: Final = (
    *(Blocking(call) for call in CALLS), Blocking("file", "/data/x"),
    Blocking("file", "/data/x", 0, "fifo"), Blocking("poll", "", 0, "task"),
    Blocking("socket", "10.0.0.1:80"),
    Blocking("file lock", "/data/x", 9), Blocking("file lock", "/data/x", 9, "", 1),
    *(Blocking("lock", "", 0, does) for does in ("queue", "full queue")),
    Blocking("lock file", "/x/lock"), Blocking("lock file", "/x/lock", 0, "held"),
    *(Blocking("worker", "", 9, does) for does in
      ("sleep", "running", "socket", "stopped", "lock", "idle")),
    Blocking("pipe", "/data/fifo"), Blocking("full pipe", "/data/fifo"),
)  # fmt: skip


def _waits() -> list[Candidate]:
    blocked = [Absence("code", AT, pid=4711, blocking=one) for one in BLOCKED]
    found = [missing(replace(absence, rank=2)) for absence in (*ABSENCES, *blocked)]
    found += [missing(absence, absence, culprits=(2, 3)) for absence in ABSENCES]
    found += [missing(absence, over=True) for absence in ABSENCES]
    progress, unknown = Absence("forward", progresses=True), Absence("unknown", progresses=True)
    found += [
        missing(progress, early=True), missing(Absence("runs", AT), early=True),
        missing(unknown, unknown, culprits=(2, 3), early=True),
        missing(unknown, progress, culprits=(2, 3), over=True, victims=(0, 1, 4)),
        missing(unknown, more=(*waiting(5, op="send to r2"), *waiting(6, 7, op="barrier tp #1"),
                               *waiting(8, op="barrier dp #1"))),
        _deadlock("deadlock", odd=(1,)), _deadlock("p2p-cycle", odd=(1,)),
        *(_deadlock(of) for of in ("deadlock", "p2p-cycle", "p2p-tag-mismatch")),
        _deadlock("unpaired-send"), _deadlock("unpaired-recv"), _deadlock("deadlock", over=True),
        _deadlock("unpaired-send", over=True),
        _deadlock("deadlock", keys=("ready",)), _deadlock("deadlock", calls=True),
        _deadlock("deadlock", named=(1,)),
        _deadlock("deadlock", locks=((0, "a waits for LOCK; thread b is inside it at c.py:3"),)),
    ]  # fmt: skip
    for send in (True, False):
        wait = waits.Waiting(0, Label("send to r2" if send else "recv from r2"), 57 * S)
        facts = waits.Misaddressed((2,), False, False, wait, send, 1, ((0, AT), (1, AT)))
        found.append(one(f"unpaired-{'send' if send else 'recv'}", facts, (0, 1), (0,)))
    op = Label("barrier world #7")
    for absence in (None, Absence("stopped", AT)):
        stuck = waits.StuckOp((), False, False, op, 6 * S, absence is not None, absence)
        found.append(one("stuck-op", stuck, (0, 1), () if absence is None else (2,)))
    meets = waits.StuckOp((), False, False, op, 6 * S, True, None, meets="10.0.0.1:0")
    found.append(one("stuck-op", meets, (0, 1)))
    stuck = waits.StuckOp((), False, False, op, 6 * S, False, None, False)
    found.append(one("stuck-op", stuck, (0, 1), ()))
    for at_store in ("unknown", "absent", "came"):
        unseen = waits.UnseenRank((), False, False, op, 6 * S, (2, 3), at_store)
        found.append(one("unseen-rank", unseen, (0, 1), (3,) if at_store == "absent" else ()))
    for call, idle in (("exit", True), ("destroy_process_group", True), ("torch.save", False)):
        lasting = waits.StuckCall(call, Label(call), 6 * S, idle, False, (("thread writer", AT),))
        found.append(one("stuck-call", lasting, (2,), (2,), AT))
    key = waits.StuckCall("Store.get", Label("Store.get(ready)"), 6 * S, True, True, ())
    late = Label("all_reduce world #7")
    return [
        *found, one("stuck-call", key, (2,), (2,)),
        one("stuck-call", waits.StuckRemote(Label("rpc_sync(ok → worker1)"), 12 * S, 0), (0,), (1,),
            AT),
        one("stuck-call", waits.StuckLock("/x/lock", 12 * S), (0, 1), (), AT),
        one("stuck-call", waits.StuckBehind((0, 1), Blocking("sleep"), 12 * S, 2, 77), (2,), (2,),
            AT),
        one("late-rank", waits.LateRank(5 * S, late, Absence("loading", AT)), (0, 1), (2,)),
        one("late-rank", waits.LateRank(5 * S, late, Absence("unknown")), (0, 1), (2,)),
    ]  # fmt: skip


def _deadlock(
    of: waits.Cycle,
    keys: tuple[str, ...] = (),
    calls: bool = False,
    odd: tuple[int, ...] = (),
    over: bool = False,
    named: tuple[int, ...] = (0, 1),
    locks: tuple[tuple[int, str], ...] = (),
) -> Candidate:
    facts = waits.Deadlock(
        blamed=(0, 1), never_made=False, over=over, of=of, sure=True, tags=(7, 9), others=(2, 3),
        waits=(*waiting(0, op="send to r1"), *waiting(1)), keys=keys, calls=calls,
        places=tuple((rank, AT) for rank in named), named=named, odd=odd, locks=locks,
    )  # fmt: skip
    return one(of, facts, (0, 1, 2, 3), (0, 1), AT)


def _disagreements() -> list[Candidate]:
    world, found = Label("world"), list[Candidate]()
    for verdict in ("op mismatch", "size mismatch", "dtype mismatch", "root mismatch"):
        detail = "rank 2: broadcast; ranks 0,1: all_reduce"
        sure = disagreements.Mismatch(verdict, world, detail, 3, False, 0, ())
        found.append(one(verdict.replace(" ", "-"), sure, (0, 1, 2), (2,)))
    differs = disagreements.Mismatch("op mismatch", world, "rank 0: a; rank 1: b", 1, False, 3,
                                     ((1, AT), (0, AT)))  # fmt: skip
    tie = disagreements.Mismatch("op mismatch", world, "rank 0: a; rank 1: b", 1, False, 0,
                                 ((0, AT), (1, AT)))  # fmt: skip
    call = disagreements.Mismatch("op mismatch", Label("calls"), "…", 1, True, 0, ())
    address = replace(call, verdict="address mismatch")
    first = disagreements.Mismatch("op mismatch", world, "rank 0: a; rank 1: b", 1, False, 0, (),
                                   ((1, AT), (0, AT)))  # fmt: skip
    parted = replace(differs, parted=Parting("forward", (1, 0), (3, 4), ((1, ("layers.2",)),)))
    found += [one("op-mismatch", differs, (0, 1), (1,)), one("op-mismatch", tie, (0, 1)),
              one("op-mismatch", parted, (0, 1), (1,)),
              one("op-mismatch", first, (0, 1), (1,)),
              replace(one("op-mismatch", first, (0, 1), (1,)), handled=(("KeyError: 'b'", (1,)),)),
              one("call-mismatch", call, (0, 1), (1,)),
              one("call-mismatch", address, (0, 1), (1,))]  # fmt: skip
    calls = disagreements.Mismatch("size mismatch", world, "rank 0: 1 kB; rank 1: 2 kB", 1, False,
                                   0, ((1, AT), (0, "save.py:7")))  # fmt: skip
    found.append(one("size-mismatch", calls, (0, 1), (1,)))
    for of, received in (("size", (104, "float32")), ("dtype", (100, "int32"))):
        misfit = disagreements.MessageMismatch(
            "size" if of == "size" else "dtype", 0, 1, (100, "float32"), received,
            of == "size", 2, ((0, AT), (1, AT)),
        )  # fmt: skip
        found.append(one(f"p2p-{of}-mismatch", misfit, (0, 1), (1,) if of == "size" else (0, 1)))
    split = disagreements.MessageMismatch("size", 0, 1, (104, ""), (100, ""), False, 1, ((0, AT),),
                                          "all_to_all world #7")  # fmt: skip
    found.append(one("size-mismatch", split, (0, 1), (0,), AT))
    threads = disagreements.ThreadOrder(
        world, ("metrics",), (("broadcast", True, (0, 2)), ("all_reduce", False, (1,))),
        (("metrics", AT),),
    )  # fmt: skip
    found.append(one("thread-order", threads, (0, 1, 2), (0, 1, 2)))
    for name in disagreements.ORDER_KINDS:
        order = disagreements.RehearsedOrder(name, "barrier", "rank 1 leaves out barrier")
        found.append(one(name, order, (1, 2), (1, 2), AT))
    return found


def _ends() -> list[Candidate]:
    raised = ends.Raised("ValueError: no labels", 5, 2, False, (0,))
    taken = ends.Raised("DistNetworkError: port: 2950, name: EADDRINUSE", -1, 0, False, (1,))
    full = ends.Raised("RuntimeError: . unexpected pos 704 vs 598", 5, 0, False, ())
    made_up = ends.Raised("AssertionError", -1, 1, True, ())
    called = ends.Raised("TypeError: On WorkerInfo(id=0, name=ps): no model", 5, 1, False, (), AT)
    last = Label("all_reduce world #7"), AT
    left, left_all = ends.Exited(3, (0, 1), True, *last), ends.Exited(3, (), False)
    found = [
        one("exception", raised, (2,), (2,), AT), one("exception", made_up, (0, 1), (0, 1), AT),
        one("exception", called, (1,), (0,)), one("exception", taken, (0,), (0,), AT),
        one("exception", full, (1,), (1,), AT),
        *(one("exception", replace(raised, cause=of), (2,), (2,), AT) for of in CAUSES),
        one("exception", replace(raised, cause=CAUSES[0], also=HELD[:1]), (2,), (2,), AT),
        one("exception", replace(raised, cause=replace(CAUSES[0], ranks=(1,)), also=HELD[1:]),
            (0, 1, 2), (1, 2), AT),
        one("rank-exited", left, (2,), (2,)), one("rank-exited", left_all, (1, 2), (1, 2)),
        one("rank-lost", ends.Lost(False, None, ()), (2,), (2,)),
        one("exception", ends.Harmless(True, False, None), (2,)),
        one("rank-lost", ends.Harmless(False, True, -15), (2,)),
        *(one("rank-lost", ends.Followed((2,), *of), (0, 1)) for of in
          (((),), ((2,),), ((2,), -6), ((), -9), ((2,), None, "KeyError: 'x'"))),
        one("rank-lost", ends.Lost(True, -6, (0,), *last, "44 vs 24. Sizes differ?"), (2,), (2,)),
        one("rank-lost", ends.Lost(True, -11, (), beside=(0, 1)), (2,), (2,)),
        one("rank-lost", ends.Lost(True, -11, (0,), *last), (1, 2), (1, 2), AT),
        one("exception", replace(raised, beside=(0, 1)), (2,), (2,), AT),
        one("missing-rank", ends.LeftEarly(), (0, 1), (2,)),
        one("missing-rank", ends.LeftEarly(normal=True), (0, 1), (2,)),
        one("missing-rank", ends.LeftEarly(True, *last), (0, 1), (2,)),
        one("missing-rank", ends.LeftEarly(unsent=(1, 39)), (1,), (2,)),
        one("missing-rank", ends.LeftEarly(left_out=LeftOut(Label("dp"), 99, 100)), (0, 1), (2,)),
        one("cut-off", ends.CutOff("RuntimeError: Connection closed", False), (0, 1)),
        one("missing-rank", ends.LeftEarly(destroyed=True), (0, 1), (2,), AT),
        one("cut-off", ends.CutOff("RuntimeError: refused", True, stale=True), (0, 1), (), AT),
        one("cut-off", ends.CutOff("", True), (0,)), one("exit-code", ends.ExitCode(1)),
        one("exit-code", ends.ExitCode(137, (0, 2))),
        one("exit-code", ends.HiddenEnd()),
        one("interrupted", ends.Interrupted("Ctrl-C (SIGINT)"), (0, 1)),
        one("interrupted", ends.Interrupted("SIGTERM")),
        one("thread-exception", ends.ThreadRaised("writer", "OSError: disk"), (0,), (0,), AT),
        *(one("thread-exception", ends.ThreadRaised("writer", "OSError: disk", *of), (0,), (0,), AT)
          for of in ((3, 0, (1, 2), AT), (3, 12 * S), (0, 0, (1, 2), AT, True))),
        one("thread-exception", ends.ThreadRaised("writer", "E", cause=CAUSES[0]), (0,), (0,), AT),
        one("thread-exception", ends.ThreadRaised("saver_0", "E", kept=True, cause=CAUSES[0],
                                                  unwritten=53), (0, 1, 2), (1,), AT),
        one("thread-exception", ends.ThreadRaised(
            "saver_0", "E", kept=True, cause=replace(CAUSES[0], ranks=(1,)), also=HELD[1:],
            unwritten=53), (0, 1, 2), (1, 2), AT),
        *(one(f"log-{kind}", ends.LogSaid(LogSays(kind, "Rank 1 is late.", "Look.", True)))
          for kind in ends.LOGGED),
    ]  # fmt: skip
    return (
        found
        + [
            one("rank-lost", ends.Lost(True, code, (0,), *last), (2,), (2,))
            for code in (-9, -11, -6, -7, -15)
        ]
        + [
            one(
                "rank-lost", ends.Lost(True, code, (0,), *last, "", here), (2,), (2,), "t.py:7 in f"
            )
            for code, here in ((-11, True), (-6, False), (None, True))
        ]
    )


def _recording() -> list[Candidate]:
    lives = (
        recording.LifeEnd(1, 1, "ValueError: no labels", AT, None),
        recording.LifeEnd(2, 0, "", None, -9, beside=(1,)), recording.LifeEnd(3, 0, "", None, 4),
        recording.LifeEnd(4, None, "", None, None),
    )  # fmt: skip
    found = [
        one("records-dropped", recording.RecordsDropped(12_345), (2,)),
        one("records-dropped", recording.RecordsDropped(1)),
        one("records-missing", recording.RecordsMissing(90), (1, 2)),
        one("limit-reached", recording.LimitReached((("groups", 3), ("processes", 12_345)))),
        one("lives-forgotten", recording.LivesForgotten(1200)),
        one("unseen-rank", recording.RankUnrecorded(), (2,)),
        one("unseen-rank", recording.RankUnrecorded(), (2, 3)),
        one("unknown-group", recording.UnknownGroup(), (1,)),
        one("hook-error", recording.HookError("c10d.send", "KeyError: 3"), (1,)),
        one("unknown-data", recording.UnknownData(7)), one("truncated", recording.Truncated()),
        one("recorder-lost", recording.RecorderLost((("the hub", 1), ("the launcher", 2)))),
        one("recorder-limit", recording.RecorderLimit("processes", 32_768, 5)),
        one("recorder-limit", recording.RecorderLimit("definitions", 64 * MIB, 1)),
        one("restarted", recording.Restarted(1, ())),
        one("restarted", recording.Restarted(3, lives), (0, 1)),
        one("node-lost", recording.NodeLost((1,)), (2, 3), (2, 3)),
        one("node-lost", recording.NodeLost((1, 2, 3, 4))),
        one("several-jobs", recording.SeveralJobs(("a:29500", "b:29501")), (0,)),
        one("several-jobs", recording.SeveralJobs(()), (0, 1)),
        one("rpc", recording.RemoteCalls(), (0, 1)),
        one("clock-uncertain", recording.ClockUnaligned(), (1,)),
        one("clock-uncertain", recording.ClockUnaligned(), (1, 2)),
        one("clock-uncertain", recording.ClockImprecise(3 * MS), (1,)),
        one("clock-uncertain", recording.ClockJump(-60 * S, 2 * MS, 0), (1,)),
        one("clock-uncertain", recording.ClockJump(60 * S, 2 * MS, 2), (1,)),
    ]  # fmt: skip
    return found + [
        one("no-ranks", recording.NoRanks(output)) for output in ("", "no space", "raised")
    ]


def straggler(cause: speed.Lateness, late: tuple[int, ...]) -> speed.Straggler:
    """Late by 30 ms of steps of 100."""
    return speed.Straggler(
        label=Label("world"), num_late=12, num_steps=12, by_ns=30 * MS, cause=cause,
        cause_ns=31 * MS,
        phases=("metrics",) if cause == "thread"
        else ("forward", "backward") if cause in ("compute", "idle", "launch") else (),
        own_ns=30 * MS, step_ns=100 * MS, timed=False, recurring=True, rank=late[0],
        whole_host="n1" if len(late) > 1 else "", late=late,
        in_turn=(5,) if cause == "communication" else (),
    )  # fmt: skip


def _speed() -> list[Candidate]:
    causes: tuple[speed.Lateness, ...] = (
        "data", "compute", "idle", "launch", "communication", "core", "host", "thread", "unknown"
    )  # fmt: skip
    found = [
        one("straggler", straggler(cause, late), (0, 1, 5), late)
        for cause in causes for late in ((2,), (2, 3))
    ]  # fmt: skip
    asleep: tuple[speed.Lateness, ...] = ("data", "launch", "blocked")
    found += [
        one("straggler", replace(straggler(cause, (2,)), blocking=Blocking("sleep")), (0, 1), (2,),
            "train.py:88")
        for cause in asleep
    ]  # fmt: skip
    host = straggler("host", (2,))
    busy = replace(host, blocking=Blocking("busy"))
    found.append(one("straggler", replace(host, call="torch.save"), (0, 1), (2,)))
    found.append(one("straggler", busy, (0, 1), (2,), AT))
    for every, of, same in ((5, (2,), True), (5, (0, 2), False), (None, (), True)):
        slow = speed.SlowSteps(every, 8, 40, 300 * MS, 100 * MS, (39, 44), 200 * MS, "in forward",
                               every is None, bool(of), same)  # fmt: skip
        found.append(one("slow-steps", slow, (0, 1), of))
    found.append(one("slow-steps", replace(slow, call=Blocking("sleep")), (0, 1), (2,), AT))
    for cause in ("communication", "host", "launch", "dependency", "warmup", "cooldown"):
        excess = speed.ScheduleExcess(0.23, 0.2, cause, 0.14, 1, 40 * MS, False)
        found.append(one("schedule-excess", excess, (0, 1)))
    short = speed.ScheduleExcess(0.23, 0.2, "host", 0.14, 1, 40 * MS, False, action_ns=0.3 * MS,
                                 gap_ns=0.2 * MS)  # fmt: skip
    found.append(one("schedule-excess", short, (0, 1)))
    exposed = speed.ExposedCommunication(60 * MS, 0.6, 40 * MS, 0.4, "all_gather", MIB, 60 * MS)
    return [
        *found,
        one("stage-imbalance", speed.StageImbalance((1, 5), 0.5, 30 * MS, 130 * MS), (0, 1), (1,)),
        one("stage-imbalance", speed.StageImbalance((1,), 0.5, None, 0), (0, 1), (1,)),
        one("stage-imbalance", speed.StageImbalance((1,), 0.5, None, 0, True, 0.8), (0, 1), (1,)),
        one("too-few-microbatches", speed.TooFewMicrobatches(2, 1 / 3, 1 / 3, 8, 1 / 9), (0, 1)),
        one("input-bound", speed.InputBound(50 * MS, 100 * MS, None), (0, 1)),
        one("input-bound", speed.InputBound(50 * MS, 100 * MS, 0.97), (0, 1)),
        one("exposed-communication", exposed, (0, 1)),
        one("small-messages", speed.SmallMessages("all_reduce", 64, 6400, 20 * MS, 100 * MS)),
        one("slow-link", speed.SlowGroup("all_reduce", 1e6, 30 * MS, 5 * MS, 3), (1, 5), (1, 5)),
        one("slow-link", speed.SlowGroup("all_reduce", 1e6, 30 * MS, 5 * MS, 3), (1, 2, 3)),
        one("slow-link", speed.SlowLink(1, 2, 1000, 10 * MS, MS), (1, 2), (1, 2)),
        one("host-overloaded", speed.HostOverloaded("n0", 4, 2, 10.0, 0.0), (0, 1, 2, 3)),
        one("host-overloaded", speed.HostOverloaded("n0", 1, 0, 0.0, 0.12, True), (0,)),
    ]  # fmt: skip


def _state() -> list[Candidate]:
    diverged = state.ReplicaDivergence(("b", "c"), 10, 0, None, False, True, (1,), (41, 42))
    again = state.ReplicaDivergence((), 10, None, 20, False, False, (), (0, 0))
    first = state.ReplicaDivergence(("b",), 0, None, None, False, False, (), (0, 0))
    averaged = state.ReplicaDivergence(("b",), 10, None, None, True, False, (), (0, 0))
    return [
        one("memory-creep",
            memory.MemoryCreep(4 * MIB, 10, 39, 456 * MIB, "rss", 9 * MIB, 100 * MS), (1,), (1,)),
        one("memory-imbalance", memory.MemoryImbalance(2, 600 * MIB, 300 * MIB, "rss", "", 0),
            (0, 1, 2), (2,)),
        one("memory-imbalance",
            memory.MemoryImbalance(2, 600 * MIB, 300 * MIB, "allocated", "optimizer", 300 * MIB),
            (0, 1, 2), (2,)),
        one("memory-near-limit", memory.MemoryNearLimit(950 * MIB, 1000 * MIB, "", 1, 950 * MIB),
            (1,), (1,)),
        one("memory-near-limit", memory.MemoryNearLimit(950 * MIB, 1000 * MIB, "n0", 1, 500 * MIB),
            (0, 1)),
        one("nan", state.NotFinite("loss", 5, "head.weight", (0, 1, 2), True, False, spoilt=(2,)),
            (0, 2), (2,)),
        one("nan", state.NotFinite("loss", 5, "head.weight", (), True, True, spoilt=(1,)), (0, 1)),
        one("nan", state.NotFinite("input to a collective of world, #5", 5, "head.weight", (0, 2),
                                   True, False), (0, 2), (2,)),
        one("nan", state.NotFinite("input to send to r1", 5, "", (), False, False), (0,), (0,)),
        one("nan", state.NotFinite("loss", 5, "", (), True, True), (0, 1)),
        one("nan", state.NotFinite("loss", 5, "", (), True, True, mixed=True), (0, 1)),
        one("nan", state.NotFinite("loss", 0, "", (), True, True, mixed=True), (0, 1)),
        one("nan", state.NotFinite("loss", 5, "", (), False, False, False, (5, 9)), (1,), (1,)),
        one("nan", state.NotFinite("loss", 5, "", (), True, True, True), (1,)),
        one("nan", state.NotFinite("loss", 5, "", (), True, True, unseen=True), (0, 1)),
        one("nan", state.NotFinite("loss", 5, "", (), True, False, before=(0,)), (1,), (1,)),
        one("diverges",
            state.Diverges(0, "out", "a.mlp", Hypothesis("sum", ranks=(0, 1)), True, ""), (0, 1)),
        one("diverges", state.Diverges(0, "d_out", "blocks.1.norm2", None, True, "blocks.1.mlp.up"),
            (0, 1)),
        one("diverges", state.Diverges(1, "grad", "head.weight",
            Hypothesis("replicas", ranks=(0, 1, 2), odd_ranks=(1,)), False, ""), (0, 1, 2), (1,)),
        one("replica-divergence", diverged, (0, 1, 2), (1,)),
        one("replica-divergence", state.NotAveraged(("b", "c"), 10, False), (0, 1, 2)),
        one("replica-divergence", again, (0, 1)), one("replica-divergence", averaged, (0, 1)),
        one("replica-divergence", replace(first, rates=((0, 0.1), (1, 0.3), (2, 0.1)),
            settings=(1,)), (0, 1, 2), (1,)),
        one("replica-divergence", replace(first, settings=(1,)), (0, 1, 2), (1,)),
        one("replica-divergence", replace(first, settings=(0, 1)), (0, 1)),
        one("replica-divergence", replace(first, unfinished=14), (0, 1, 2)),
        one("no-gradient-exchange", state.NoGradientExchange(MIB, 1000), (0, 1)),
        one("no-gradient-exchange", state.Unaveraged(MIB, 1000), (0, 1)),
        one("unequal-start", state.UnequalStart(), (0, 1, 2), (1,)),
        one("unequal-mode", state.UnequalMode(((0, 7), (1, 0), (2, 7)), 7, 10), (0, 1, 2), (1,)),
        one("unequal-mode", state.UnequalMode(((0, 7), (1, 0)), 7, 10), (0, 1)),
        one("unequal-mode", state.UnequalMode(((1, 0),), 7, 10, (0, 2)), (0, 1, 2), (1,)),
        one("same-data", data.SameData(20), (0, 1, 2)),
        one("same-data", data.SameTargets(8), (0, 1)),
        one("same-data", data.SameParts(0, 4), (0, 1)),
        one("unlike-data", data.UnlikeData(20, 5), (0, 1, 2), (1,)),
        *(one("skipped-batch", data.SkippedBatch(20, 30, what), (0, 1, 2), (1,))
          for what in ("data", "backward", "cleared again")),
        one("gradients-kept", state.GradientsKept(10, 3, 4, True), (0, 1, 2), (1,)),
        one("gradients-kept", state.GradientsKept(10, 1, 4, False), (0, 1, 2), (1,)),
        one("gradients-kept", state.GradientsAdded(0, 6, 6), (0, 1, 2)),
        one("unequal-accumulation", state.UnequalAccumulation(((0, 4), (1, 3), (2, 4)), 8),
            (0, 1, 2), (1,)),
        one("unequal-scale",
            state.UnequalScale(0, 5, 5, ((0, 0.25), (1, 1.0), (2, 0.25))), (0, 1, 2), (1,)),
        one("unequal-averaging", state.UnequalAveraging(((0, 4), (1, 5), (2, 4)), 40, 50),
            (0, 1, 2), (1,)),
        one("unequal-settings",
            state.UnequalSettings(10, 3, 4, ((0, 0.1), (1, 1.0), (2, 0.1)), (1,)),
            (0, 1, 2), (1,)),
        one("unequal-settings", state.UnequalSettings(10, 3, 4, (), (0, 1)), (0, 1)),
        one("unequal-settings", state.UnequalComputation("modules",
            ((0, "Dropout(p=0.1)"), (1, "Dropout(p=0.5)"), (2, "Dropout(p=0.1)")), 0),
            (0, 1, 2), (1,)),
        one("unequal-settings", state.ClipsParts(0, "shards"), (0, 1)),
        one("same-order", data.SameOrder(0, 3), (0, 1)),
        one("unequal-settings", state.UnequalComputation("modules",
            ((0, ""), (1, "Dropout(p=0.5)")), 0), (0, 1)),
        one("unequal-settings", state.UnequalComputation("loss",
            ((0, "AddmmBackward0"), (1, "ToCopyBackward0"), (2, "AddmmBackward0")), 0),
            (0, 1, 2), (1,)),
        one("step-order", state.StepOrder(Label("all_gather world"), 4096, (1,), (0, 2), 8),
            (0, 1, 2), (1,)),
        *(one("step-drift", state.StepDrift(Label("dp"), how, numbers, 12), (0, 1, 2), (1,))
          for how, numbers in (("rate", ((0, 4), (1, 3), (2, 4))),
                               ("skips", ((0, 40), (1, 36), (2, 40))),
                               ("once", ((0, 4), (1, 3), (2, 4))))),
        one("step-drift", state.StepDrift(Label("dp"), "messages", ((0, 4), (1, 3)), 12), (0, 1),
            (1,)),
        one("step-drift", state.StepDrift(Label("dp"), "rate", ((0, 4), (1, 3)), 0), (0, 1)),
        one("stale-parameters", state.StaleParameters(4096), (0, 1, 2)),
        one("late-average", state.LateAverage(), (0, 1, 2)),
        one("late-average", state.LateAverage(), (1,), (1,)),
        one("summed-twice", state.SummedTwice(4096), (0, 1, 2)),
        one("no-gradient", state.NoGradient("SGD"), (0,)),
        one("no-gradient", state.NoGradient("SGD"), (0, 1)),
        one("no-gradient", state.OnlyZeros(10, 5, 6), (0, 1, 2), (1,)),
        one("no-gradient", state.OnlyZeros(10, 5, 6), (0, 1, 2), (0, 2)),
    ]  # fmt: skip


def _devices() -> list[Candidate]:
    parts = (("parameters", 10 * MIB), ("gradients", 10 * MIB), ("optimizer", 20 * MIB),
             ("activations", 50 * MIB))  # fmt: skip

    def out(
        cause: devices.Cause, fatal: bool = True, asked: int | None = 8 * MIB, more: str = ""
    ) -> Candidate:
        facts = devices.OutOfMemory(
            cause, fatal, asked, 100 * MIB, 90 * MIB, 8 * MIB, 30 * MIB, parts, "2F5", 4, 60 * MIB,
            more, 2 * MIB,
        )  # fmt: skip
        return one("out-of-memory", facts, (2,), (2,), AT)

    return [
        out("request", asked=200 * MIB), out("fragmentation"), out("others"), out("growth"),
        out("imbalance", more="parameters"), out("activations", fatal=False), out("optimizer"),
        out("parameters", asked=None),
        one("device-throttled", devices.DeviceThrottled("n0", 3, ("hot",), 1005, 1980, 91), (3,)),
        one("device-shared", devices.DeviceShared("n0"), (0, 1)),
        one("device-error", devices.DeviceError("n0", 3, 2, 0), (3,)),
        one("device-error", devices.DeviceError("n0", 3, 0, 79)),
        one("nccl-warning", devices.NcclWarned("NET/IB : status=12", 3), (0, 1)),
        one("nccl-status", devices.RasReport((("0xab", "AllReduce", (2,), True),)), (2,)),
        one("nccl-status", devices.RasReport((("0xab", "dead", (1, 2), False),))),
    ]  # fmt: skip


SAMPLES: Final = (
    *_waits(), *_disagreements(), *_ends(), *_recording(), *_speed(), *_state(), *_devices()
)  # fmt: skip
