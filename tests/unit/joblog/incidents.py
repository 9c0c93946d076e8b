"""Logs of jobs that failed, made from seeds: what happened, the lines it leaves, in every style."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass
class Incident:
    """Lines of ranks in the order of their times, and what is to be found."""

    kind: str
    culprits: tuple[int, ...]
    lines: list[tuple[int | None, str]] = field(default_factory=list)
    """(rank, text); None: the launcher's."""

    def add(self, rank: int | None, *texts: str) -> None:
        self.lines += [(rank, text) for text in texts]


OPS = ("ALLREDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE", "BROADCAST")


def timeout(rank: int, seq: int, op: str, numel: int, world: int) -> str:
    out = numel * world if op == "_ALLGATHER_BASE" else numel
    return (
        f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, "
        f"OpType={op}, NumelIn={numel}, NumelOut={out}, Timeout(ms)=600000) ran for 600061 "
        "milliseconds before timing out."
    )


def counts(rng: random.Random, rank: int, seq: int, enqueued: int, done: int) -> str:
    return rng.choice(
        (
            f"[PG 0 (default_pg) Rank {rank}] Timeout at NCCL work: {seq}, last enqueued NCCL "
            f"work: {enqueued}, last completed NCCL work: {done}.",
            f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at work "
            f"sequence id: {seq} PG status: last enqueued work: {enqueued}, last completed work: "
            f"{done}",
            f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}] Exception (either an error or timeout) "
            f"detected by watchdog at work: {seq}, last enqueued NCCL work: {enqueued}, last "
            f"completed NCCL work: {done}.",
        )
    )


def dumped(rank: int, enqueued: int) -> str:
    return (
        f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}] Received a dump signal due to a collective "
        "timeout from  rank 0 and we will try our best to dump the debug info. Last enqueued NCCL "
        f"work: {enqueued}, last completed NCCL work: {enqueued}.This is most likely caused by "
        "incorrect usages of collectives, e.g., wrong sizes used across ranks"
    )


def traceback_(rng: random.Random, error: str) -> list[str]:
    return [
        "Traceback (most recent call last):",
        f'  File "/home/u/train.py", line {rng.randrange(1, 400)}, in main',
        "    loss = step(batch)",
        '  File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 9, in f',
        "    return forward(*args)",
        error,
    ]


def missing(rng: random.Random, world: int) -> Incident:
    gone, seq, op = rng.randrange(world), rng.randrange(2, 9000), rng.choice(OPS)
    made = Incident("missing-rank", (gone,))
    for rank in rng.sample(range(world), world):
        if rank == gone:
            made.add(rank, dumped(rank, seq - 1))
        else:
            lead = rng.randrange(12)
            made.add(rank, timeout(rank, seq, op, 4096, world),
                     counts(rng, rank, seq, seq + lead, seq - 1))  # fmt: skip
    return made


def silent(rng: random.Random, world: int) -> Incident:
    gone, seq = rng.randrange(world - 1), rng.randrange(2, 9000)
    made = Incident("absent-ranks", (gone,))
    for rank in range(world):
        if rank != gone:
            made.add(rank, timeout(rank, seq, "_ALLGATHER_BASE", 512, world),
                     counts(rng, rank, seq, seq + 1, seq - 1))  # fmt: skip
    return made


def disagree(rng: random.Random, world: int) -> Incident:
    odd, seq = rng.randrange(world), rng.randrange(2, 9000)
    made = Incident("mismatch", (odd,))
    sizes = rng.random() < 0.5
    for rank in range(world):
        op = "BROADCAST" if rank == odd and not sizes else "ALLREDUCE"
        numel = 1000 if rank == odd and sizes else 4096
        made.add(rank, timeout(rank, seq, op, numel, world), counts(rng, rank, seq, seq, seq - 1))
    return made


def stuck(rng: random.Random, world: int) -> Incident:
    seq = rng.randrange(2, 9000)
    made = Incident("stuck-op", ())
    for rank in range(world):
        made.add(rank, timeout(rank, seq, "ALLREDUCE", 4096, world),
                 counts(rng, rank, seq, seq + 3, seq - 1))  # fmt: skip
    return made


def raised(rng: random.Random, world: int) -> Incident:
    bad = rng.randrange(world)
    made = Incident("exception", (bad,))
    made.add(bad, *traceback_(rng, "ValueError: batch 17 has no labels"))
    for rank in range(world):
        if rank != bad:
            error = rng.choice((
                "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection "
                "closed by peer [10.0.0.3]:2231",
                "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 2.",
            ))  # fmt: skip
            made.add(rank, *traceback_(rng, error))
    made.add(None, f"failed (exitcode: 1) local_rank: {bad} (pid: 311) of binary: /usr/bin/python")
    return made


def memory(rng: random.Random, world: int) -> Incident:
    bad = rng.randrange(world)
    made = Incident("out-of-memory", (bad,))
    error = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
        "capacity of 79.10 GiB of which 1.02 GiB is free."
    )
    made.add(bad, *traceback_(rng, error))
    return made


def killed(rng: random.Random, world: int) -> Incident:
    bad = rng.randrange(world)
    made = Incident("process-ended", (bad,))
    for rank in range(world):
        if rank != bad:
            made.add(rank, *traceback_(rng, "RuntimeError: Connection reset by peer"))
    made.add(
        None, "Root Cause (first observed failure):", f"[{bad}]:",
        "  time      : 2026-11-25_03:53:18", "  host      : node7",
        f"  rank      : {bad} (local_rank: {bad})", "  exitcode  : -9 (pid: 4410)",
        "  error_file: <N/A>", "  traceback : Signal 9 (SIGKILL) received by PID 4410",
    )  # fmt: skip
    return made


def device(rng: random.Random, world: int) -> Incident:
    made = Incident("device-fault", ())
    made.add(None, "NVRM: Xid (PCI:0000:3b:00): 79, pid=99, GPU has fallen off the bus.")
    made.add(rng.randrange(world), *traceback_(rng, "RuntimeError: CUDA error: unspecified launch"))
    return made


def joining(rng: random.Random, world: int) -> Incident:
    came = rng.randrange(1, world)
    made = Incident("ranks-not-joined", ())
    error = "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. "
    made.add(0, *traceback_(rng, f"{error}{came}/{world} clients joined."))
    return made


def starting(rng: random.Random, world: int) -> Incident:
    gone = rng.randrange(world)
    made = Incident("init-not-complete", (gone,))
    for rank in range(world):
        if rank != gone:
            made.add(
                rank, f"h:12:34 [{rank}] NCCL INFO ncclCommInitRankConfig comm 0x55d0{rank} rank "
                f"{rank} nranks {world} cudaDev {rank} busId 1000 commId 0xabc - Init START",
            )  # fmt: skip
    return made


def cancelled(rng: random.Random, world: int) -> Incident:
    made = Incident("told-to-end", ())
    made.add(None, "slurmstepd: error: *** STEP 8812.0 ON node1 CANCELLED AT 2026-11-25T03:00:00 "
             "DUE TO TIME LIMIT ***")  # fmt: skip
    return made


def barrier(rng: random.Random, world: int) -> Incident:
    gone = rng.randrange(1, world)
    made = Incident("missing-rank", (gone,))
    made.add(0, f"[Rank 0]: Rank {gone} failed to pass monitoredBarrier in 2000 ms")
    for rank in range(1, world):
        if rank != gone:
            made.add(rank, *traceback_(rng, f"RuntimeError: Rank {rank} successfully reached "
                     "monitoredBarrier, but received errors while waiting"))  # fmt: skip
    return made


def unreachable(rng: random.Random, world: int) -> Incident:
    """NCCL's last error stands some lines below."""
    bad = rng.randrange(world)
    made = Incident("exception", (bad,))
    made.add(
        bad, *traceback_(rng, "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/"
        "distributed/c10d/ProcessGroupNCCL.cpp:1331, unhandled system error (run with NCCL_DEBUG="
        "INFO for details), NCCL version 2.18.5"),
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed. ",
        "Last error:", "socketStartConnect: Connect to 10.1.2.3<5069> failed : No route to host",
    )  # fmt: skip
    return made


def thrown(rng: random.Random, world: int) -> Incident:
    bad = rng.randrange(world)
    made = Incident("exception", (bad,))
    made.add(bad, "terminate called after throwing an instance of 'c10::Error'",
             "  what():  CUDA error: an illegal memory access was encountered")  # fmt: skip
    return made


def asynchronous(rng: random.Random, world: int) -> Incident:
    bad = rng.randrange(world)
    made = Incident("exception", (bad,))
    made.add(
        bad,
        f"[Rank {bad}] Collective WorkNCCL(SeqNum=8, OpType=ALLREDUCE, NumelIn=1, NumelOut"
        "=1, Timeout(ms)=600000) raised the following async exception: NCCL error: unhandled "
        "cuda error, NCCL version 2.20.5",
        "Last error:",
        "Cuda failure 'misaligned address'",
    )
    return made  # fmt: skip


def twice(rng: random.Random, world: int) -> Incident:
    made = Incident("rank-twice", ())
    made.add(0, "n1:12:34 [0] bootstrap.cc:131 NCCL WARN Bootstrap Root : rank 1 of "
             f"{world} ranks has already checked in")  # fmt: skip
    return made


def shared(rng: random.Random, world: int) -> Incident:
    one, other = sorted(rng.sample(range(world), 2))
    made = Incident("device-twice", (one, other))
    made.add(one, f"n1:12:34 [0] init.cc:80 NCCL WARN Duplicate GPU detected : rank "
             f"{other} and rank {one} both on CUDA device 1b000")  # fmt: skip
    return made


def blocked(rng: random.Random, world: int) -> Incident:
    made = Incident("watchdog-stuck", ())
    for rank in range(world):
        made.add(
            rank, f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}] ProcessGroupNCCL's watchdog got "
            "stuck for 480 seconds without making progress in monitoring enqueued collectives. "
            "This typically indicates a NCCL/CUDA API hang blocking the watchdog",
        )  # fmt: skip
    return made


def unlabelled(rng: random.Random, world: int) -> Incident:
    """One rank's line names the group of the op that all wait in."""
    seq, named = rng.randrange(2, 9000), rng.randrange(world)
    made = Incident("stuck-op", ())
    for rank in range(world):
        made.add(rank, timeout(rank, seq, "ALLREDUCE", 4096, world))
    made.add(named, f"[PG 1 Rank {named}] Timeout at NCCL work: {seq}, last enqueued NCCL work: "
             f"{seq + 2}, last completed NCCL work: {seq - 1}.")  # fmt: skip
    return made


ALL: Sequence[Callable[[random.Random, int], Incident]] = (
    missing, silent, disagree, stuck, raised, memory, killed, device, joining, starting, cancelled,
    barrier, unreachable, thrown, asynchronous, twice, shared, blocked, unlabelled,
)  # fmt: skip


def _torch(rank: int | None, text: str, moment: int) -> str:
    if rank is None:
        return text
    native = "Watchdog" in text or "[PG" in text
    stamp = f"[E1125 03:{moment // 60:02d}:{moment % 60:02d}.123456 ProcessGroupNCCL.cpp:607] "
    return f"[rank{rank}]:{stamp if native else ' '}{text}"


def _broken(rank: int | None, text: str, moment: int) -> str:
    """As a viewer shows it that breaks long lines, in the middle of words."""
    line = _torch(rank, text, moment)
    if "ProcessGroupNCCL.cpp" not in line:
        return line
    return "\n".join(line[at : at + 110] for at in range(0, len(line), 110))


STYLES: dict[str, Callable[[int | None, str, int], str]] = {
    "torch": _torch,
    "torchrun": lambda r, text, at: text if r is None else f"[default{r}]:" + _torch(r, text, at),
    "slurm": lambda r, text, at: text if r is None else f"{r}: {text}",
    "ray": lambda r, text, at: text if r is None else (
        f"\x1b[36m(RayTrainWorker rank={r} pid={4000 + r}, ip=10.0.0.{r})\x1b[0m {text}"
        + (" [repeated 3x across cluster]" if at % 7 == 0 else "")),
    "kubernetes": lambda r, text, at:
        f"2026-11-25T03:{at // 60:02d}:{at % 60:02d}.5Z stderr F {_torch(r, text, at)}",
    "journald": lambda r, text, at:
        f"Nov 25 03:{at // 60:02d}:{at % 60:02d} node4 slurmd[77]: {_torch(r, text, at)}",
    "broken": _broken,
    "streams": lambda r, text, at: f"gpu-{r or 0}.c4 [stderr] {_torch(r, text, at)}",
    "clocked": lambda r, text, at: f"18:11:{at % 60:02d}.680 {_torch(r, text, at)}"
        if r is not None else text,
    "accelerate": lambda r, text, at: f"stderr: {_torch(r, text, at)}",
}  # fmt: skip


def written(made: Incident, style: str, rng: random.Random) -> str:
    """Return the log: ranks interleaved line by line, healthy lines between."""
    queues: dict[int | None, list[str]] = {}
    for rank, text in made.lines:
        queues.setdefault(rank, []).append(text)
    first = made.lines[0][0]
    out, moment = [], 0
    for rank, text in [(first, text) for text in queues.pop(first)]:
        out.append(STYLES[style](rank, text, moment))
    while queues:
        rank = rng.choice([one for one in queues if one is not None] or [None])
        moment += 1
        out.append(STYLES[style](rank, queues[rank].pop(0), moment))
        if not queues[rank]:
            del queues[rank]
        if rng.random() < 0.3:
            out.append(STYLES[style](rng.randrange(3), f"step {moment} loss 2.31 lr 3e-4", moment))
    return "\n".join(out) + "\n"
