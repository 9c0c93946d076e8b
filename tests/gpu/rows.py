"""The rows: each runs ranks, and compares what they print and record with the truth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from pardbg_agent.wire import Flag, Kind, Lane
from tests.distributed.programs.watched import Rank, run_watched
from tests.forked import Job, run_jobs
from tests.gpu.table import Checks, Row, Skip
from tests.gpu.trained_rows import PARDBG, kineto, long_pause, own_env, same
from tests.processes import torchrun_argv

RANKS: Final = "tests.gpu.programs.ranks"
SLACK_NS: Final = 20_000
"""Of the truth's own clock, and a kernel's launch."""
SHARE: Final = 0.02
ANY, CUDA = ("sim", "cuda"), ("cuda",)
US, MS, SPOILT = 1000, 1_000_000, 4
RECIPES: Final = {"ddp": 2, "zero3": 2, "1f1b": 4, "tp": 2}


@cache
def num_devices(device: str) -> int:
    """Return how many there are; asked in a process of its own, since this one forks ranks."""
    if device == "sim":
        return 16
    code = "import torch; print(torch.cuda.device_count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    return int(done.stdout.strip() or 0)


def ran(
    device: str, case: str, ranks: int = 1, watched: bool = True, **env: str
) -> tuple[list[dict[str, Any]], dict[int, Rank]]:
    """Run a case; what its ranks printed, and what was recorded of them."""
    kept = ("PARDBG_SIM", "PARDBG_HOOKS", "PARDBG_NATIVE")
    own = {name: os.environ[name] for name in kept if name in os.environ}
    job = Job("job", ranks, (RANKS, device, case), env=own | env)
    if watched:
        ended, rings = run_watched([job])["job"]
    else:
        ended, rings = run_jobs([job])["job"], {}
    if any(ended.codes):
        raise RuntimeError(ended.whole.err.strip()[-300:] or f"exit codes {ended.codes}")
    errors = [error["text"][-200:] for rank in rings.values() for error in rank.defined("error")]
    if errors:
        raise RuntimeError(f"{len(errors)} hooks failed: {errors[0]}")
    return [json.loads(out.strip().splitlines()[-1]) for out in ended.out], rings


# -- the clock


def spans(device: str, checks: Checks) -> None:
    [told], _ = ran(device, "spans", watched=False)
    ours, truth = told["spans"], told["truth"]
    checks.that(len(ours) == len(truth) > 100, f"{len(ours)} spans, {len(truth)} kernels")
    first, base = ours[0][0], truth[0][0]
    worst = 0.0
    for (begin, end, error), (t0, t1) in zip(ours, truth, strict=False):
        within = max(SLACK_NS, SHARE * (t1 - t0)) + error
        checks.near(end - begin, t1 - t0, within, "length of a span, ns")
        checks.near(begin - first, t0 - base, within + SLACK_NS, "begin of a span, ns")
        worst = max(worst, abs((end - begin) - (t1 - t0)))
    checks.that(told["left_out"] == 0, f"{told['left_out']} spans have no times")
    checks.figure = f"{len(ours)} spans, worst length off by {worst / US:.1f} us"


def anchors(device: str, checks: Checks) -> None:
    seconds = os.environ.get("GPU_SECONDS", "60")
    [told], _ = ran(device, "anchors", watched=False, GPU_SECONDS=seconds)
    for before, after, said, error in told["seen"]:
        inside = before - error <= said <= after + error
        checks.that(inside, f"{said} is not in {before}..{after} ± {error} ns")
    checks.some(told["seen"], 10, "moments")
    worst = max(error for *_, error in told["seen"])
    checks.figure = f"{seconds} s, {len(told['seen'])} moments, largest stated error {worst} ns"


def streams(device: str, checks: Checks) -> None:
    [told], _ = ran(device, "streams", watched=False)
    ours, truth = told["spans"], told["truth"]
    checks.that(len(ours) == len(truth) == 32, f"{len(ours)} spans, {len(truth)} kernels")
    ends, true_ends = sorted(end for _, end, _ in ours), sorted(t1 for _, t1 in truth)
    within = 2 * max(error for *_, error in ours) + 5 * SLACK_NS
    for end, t1 in zip(ends, true_ends, strict=False):
        checks.near(end - ends[0], t1 - true_ends[0], within, "an end, ns after the first")
    checks.figure = f"32 streams, each end within {within / US:.0f} us of its kernel's"


def beside(device: str, checks: Checks) -> None:
    """Streams share queues of the hardware: a wait of ours in the program's would hold it up."""
    [told], _ = ran(device, "beside", watched=False)
    checks.that(told["ms"] < 1000, f"kernels of 10 ms took {told['ms']:.0f} behind waits of ours")
    checks.figure = f"kernels of 10 ms took {told['ms']:.1f} beside waits of 16 streams for 2 s"


def graphs(device: str, checks: Checks) -> None:
    [told], _ = ran(device, "graphs", watched=False)
    checks.that(told["span"], "a span was recorded into a captured graph")
    checks.that(told["captured"] == 1, f"{told['captured']} gaps, not 1")
    checks.near(told["value"], 2, 0, "value after one replay")
    checks.near(told["beside_ms"], 800, 200, "ms of a kernel beside the capture")
    checks.figure = "captured while the agent read and took anchors, counted as a gap, replayed"


# -- ops


def ops(device: str, checks: Checks, ranks: int) -> None:
    told, rings = ran(device, "ops", ranks)
    for number, rank in rings.items():
        checks.that(told[number]["on_device"], f"rank {number} has no device clock")
        issued = rank.of(Kind.OP_ISSUE, "all_reduce")
        timed = [r for r in rank.of(Kind.DEVICE) if r.lane == Lane.COMM]
        done = rank.of(Kind.OP_DONE, "all_reduce")
        checks.some(issued, 8, "ops")
        checks.some(timed, 8, "ops with times of the device")
        for r in timed:
            checks.that(r.t0 <= r.t1, "an op ended before it arrived")
        polled = sum(bool(r.flags & Flag.DONE_POLLED) for r in done)
        checks.that(polled == 0, f"{polled} completions were polled")
    checks.that(len(rings) == ranks, f"{len(rings)} ranks were recorded, not {ranks}")
    checks.figure = f"{ranks} rank(s){shared(device, ranks)}"


def stands(device: str, checks: Checks) -> None:
    """Rank 0's stream stands until rank 1 has come and the op is over; rank 1's hardly ever."""
    told, rings = ran(device, "stands", 2)
    worst = 0.0
    for number, rank in rings.items():
        truth = told[number]["stood"]
        waits = [r for r in rank.of(Kind.DEVICE, "all_reduce") if r.lane == Lane.WAIT]
        checks.some(waits, len(truth), f"waits of rank {number}")
        ours = sorted(waits, key=lambda r: r.t0)[-len(truth) :]
        for wait, stood in zip(ours, truth, strict=True):
            length = wait.t1 - wait.t0
            within = max(SLACK_NS, SHARE * stood) + 2 * wait.b
            checks.near(length, stood, within, f"rank {number}'s stream stood, ns")
            worst = max(worst, abs(length - stood))
    stood = [ns for ns in told[0]["stood"] if ns > 50 * MS]
    checks.some(stood, len(told[0]["stood"]), "waits for rank 1 of 50 ms or more")
    checks.figure = (
        f"{len(stood)} waits of {sum(stood) / MS / max(1, len(stood)):.0f} ms for a late rank, "
        f"off by {worst / US:.1f} us at most{shared(device, 2)}"
    )


def numbers(device: str, checks: Checks) -> None:
    """Nothing waits for them, and none is read before the device has it."""
    (told,), _ = ran(device, "numbers", 1)
    checks.that(told["right"], "other numbers were read")
    checks.that(told["early"] == 0, f"{told['early']} numbers were read before they were computed")
    checks.that(told["syncs"] in (0, None), f"{told['syncs']} synchronizing calls")
    checks.that(told["asked_ms"] < told["ahead_ms"], f"asking took {told['asked_ms']:.0f} ms")
    checks.figure = (
        f"{told['number']} asked for in {told['asked_ms']:.1f} ms, while the device was busy for "
        f"{told['ahead_ms']} ms"
    )


def inputs(device: str, checks: Checks) -> None:
    """A sum whose input is NaN is told, and no other."""
    (told,), rings = ran(device, "inputs", 1, GPU_SPOILT=str(SPOILT))
    bad = [r.step for r in rings[0].of(Kind.PROBE, "nan")]
    checks.that(bad == [SPOILT], f"NaN was seen in steps {bad}, not in {SPOILT}")
    checks.that(told["syncs"] in (0, None), f"{told['syncs']} synchronizing calls")
    (until,) = rings[0].of(Kind.PROBE, "inputs finite") or (None,)
    checks.that(until is not None and until.a == SPOILT - 1, "no word on the steps before")
    checks.figure = f"the sum of step {SPOILT} of 6"


def graph_ops(device: str, checks: Checks) -> None:
    """They are over with their calls: when they run nobody knows, and no Work may be asked."""
    told, rings = ran(device, "graph_ops", 2)
    for number, rank in rings.items():
        checks.near(told[number]["value"], 16, 0, "value after two replays of two sums")
        ends = rank.of(Kind.OP_DONE, "all_reduce")
        checks.that(len(ends) == 4, f"{len(ends)} ops have ended, not 4")
        timed = [bool(r.flags & (Flag.DONE_DEVICE | Flag.DONE_POLLED)) for r in ends]
        checks.that(sum(timed) == 2, f"they have times: {timed}")
    checks.figure = "captured without and with a Work, replayed"


def shared(device: str, ranks: int) -> str:
    return "" if num_devices(device) >= ranks else " on one device, through sockets"


def contexts(device: str, checks: Checks) -> None:
    """The agent's thread begins on device 0, as every thread does."""
    if num_devices(device) < 2:
        raise Skip("needs two devices: with one there is no other's to be on")
    told, _ = ran(device, "contexts", 2)
    for number, rank in enumerate(told):
        checks.that(rank["all"] == [rank["own"]] == [number], f"rank {number}: {rank['all']}")
    checks.figure = f"{len(told)} ranks, each on its own device alone"


def on_gloo(device: str, checks: Checks) -> None:
    """Gloo's ops end on the host: the device has no times of them, and none are made up."""
    told, rings = ran(device, "ops", 2, GPU_BACKEND="cpu:gloo,cuda:gloo")
    for number, rank in rings.items():
        checks.that(told[number]["on_device"], f"rank {number} has no device clock")
        checks.some(rank.of(Kind.OP_DONE, "all_reduce"), 8, "ops that ended")
        timed = [r for r in rank.of(Kind.DEVICE) if r.lane == Lane.COMM]
        checks.that(not timed, f"{len(timed)} ops have times of the device")
    checks.some(rings, 2, "recorded ranks")
    checks.figure = "ended by the host, as they do"


def hang(device: str, checks: Checks) -> None:
    told, rings = ran(device, "hang", 2)
    began = {n: [r.t0 for r in rank.of(Kind.DEVICE_BEGIN) if r.t0 >= told[n]["at"] - MS]
             for n, rank in rings.items()}  # fmt: skip
    first = min(began.get(0, [0]), default=0)
    checks.that(bool(first), "the rank that has arrived is not recorded as arrived")
    early = [t0 for t0 in began.get(1, []) if t0 < first + 500 * MS]
    checks.that(not early, "the rank whose device is busy is recorded as arrived")
    checks.figure = "rank 0 arrived, rank 1 did not"


def hang_named(device: str, checks: Checks) -> None:
    """The same under ``pardbg run``: who is told of it, and whom it names."""
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        told = Path(folder, "told")
        launch = torchrun_argv("-m", "tests.gpu.programs.late", device, nproc=2)
        argv = [*PARDBG, "run", "-o", str(Path(folder, "s.mcap")), "--on-hang", "bundle",
                "--after", "2s", "--notify", f"tee {told}", "--", *launch]  # fmt: skip
        done = subprocess.run(argv, capture_output=True, text=True, timeout=200, env=own_env(),
                              stdin=subprocess.DEVNULL)  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip()[-300:]}")
        checks.that(told.exists(), f"nobody was told: {done.stderr.strip()[-200:]}")
        finding = json.loads(told.read_text())["finding"] if told.exists() else {}
    checks.that(finding.get("culprits") == [1], f"it names {finding.get('culprits')}")
    checks.figure = f"{finding.get('kind')}: {finding.get('text')}"


# -- training


def losses(device: str, checks: Checks, **env: str) -> None:
    watched, rings = ran(device, "train", 2, **env)
    plain, _ = ran(device, "train", 2, watched=False, **env)
    for one, other in zip(watched, plain, strict=True):
        checks.some(one["losses"], 2, "losses")
        checks.that(one["losses"] == other["losses"], "losses differ from those without pardbg")
    checks.some(rings, 2, "recorded ranks")
    checks.figure = f"{len(plain[0]['losses'])} losses of {len(plain)} ranks, equal to the bit"


def no_syncs(device: str, checks: Checks) -> None:
    watched, _ = ran(device, "train", 2)
    plain, _ = ran(device, "train", 2, watched=False)
    if plain[0]["syncs"] is None:
        raise Skip("synchronizing calls are counted on the simulated accelerator alone")
    for one, other in zip(watched, plain, strict=True):
        checks.near(one["syncs"], other["syncs"], 0, "synchronizing calls")
    checks.figure = f"{watched[0]['syncs']} with pardbg, {plain[0]['syncs']} without"


def sync_debug(device: str, checks: Checks) -> None:
    """torch's own check: with it set, a call that would wait for the device raises."""
    told, rings = ran(device, "train", 2, GPU_SYNC_DEBUG="1", GPU_STEPS="20")
    for number, rank in rings.items():
        checks.some(told[number]["losses"], 20, "losses")
        checks.some(rank.of(Kind.STEP), 15, "steps")
    checks.figure = f"{len(told[0]['losses'])} steps under set_sync_debug_mode('error')"


def overhead(device: str, checks: Checks) -> None:
    pairs = []
    on_cuda = device == "cuda"
    env = {"GPU_SYNC_STEPS": "1", "GPU_WIDTH": "4096" if on_cuda else "256"}
    env |= {"GPU_STEPS": "100"} if on_cuda else {}
    ranks = num_devices(device) if on_cuda else 2
    for _ in range(int(os.environ.get("GPU_PAIRS", "5"))):
        on, rings = ran(device, "train", ranks, **env)
        off, _ = ran(device, "train", ranks, watched=False, **env)
        pairs.append(on[0]["ns"] / off[0]["ns"] - 1)
        steps = [r for rank in rings.values() for r in rank.of(Kind.STEP)][2:]
        checks.some(steps, 2, "steps")
        # a: time inside hooks. Wall times of shared machines differ by more than the agent costs.
        share = median(r.a / max(1, r.t1 - r.t0) for r in steps)
        checks.that(share > 0, "the steps have no cost")
        # On the simulated accelerator the host computes what a kernel does: no share of a step.
        limit = 0.01 if device == "cuda" else 1.0
        step_ms = off[0]["ns"] / MS
        checks.that(share <= limit, f"hooks take {share:.1%} of a step of {step_ms:.1f} ms")
    checks.figure = (
        f"a step of {off[0]['ns'] / MS:.2f} ms, {len(pairs)} pairs: median {median(pairs):+.1%} "
        f"({min(pairs):+.1%} to {max(pairs):+.1%}), in hooks {share:.1%}"
    )


# -- memory


def memory(device: str, checks: Checks) -> None:
    told, rings = ran(device, "train", 2)
    for number, rank in rings.items():
        for kind, value in told[number]["memory"].items():
            seen = [r.a for r in rank.of(Kind.MEMORY, kind)]
            checks.some(seen, 1, f"readings of {kind}")
            checks.that(0 < max(seen, default=0) <= 4 * value, f"{kind}: {seen}, of {value}")
        parameters = [r.a for r in rank.of(Kind.MEMORY, "parameters")]
        whole = 2 * 4 * (256 * 256 + 256)
        checks.that(parameters[-1:] == [whole], f"parameters {parameters[-1:]}, not {whole}")
        limits = rank.of(Kind.MEMORY, "limit")
        checks.some(limits, 1, "limits")
    checks.figure = f"allocated {told[0]['memory']['allocated'] >> 10} KiB, parameters exact"


def oom(device: str, checks: Checks) -> None:
    [told], rings = ran(device, "oom")
    requests = rings[0].defined("out_of_memory")
    checks.that(told["raised"], "the request did not fail")
    checks.that(told["again"] == 1 << 20, "the device was of no use afterwards")
    checks.some(requests, 1, "reports of it")
    for request in requests[:1]:
        checks.that(request["asked"] >= told["asked"], f"asked {request['asked']}")
        checks.that(request["limit"] > 0 and request["allocated"] >= 0, f"{request}")
        place = [frame[2] for frame in request["frames"]]
        checks.that("oom" in place, f"it was made in {place}")
    checks.figure = f"a request of {told['asked'] >> 40} TiB reported with its place"


# -- recipes


def recipe(device: str, checks: Checks, name: str) -> None:
    """A recipe under ``pardbg run``, and its report."""
    ranks = RECIPES[name]
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        session = str(Path(folder, "s.mcap"))
        argv = [*PARDBG, "demo", name, "--device", device, "--nproc", str(ranks), "--steps", "6",
                "-o", session]  # fmt: skip
        done = subprocess.run(argv, capture_output=True, text=True, timeout=400, env=own_env(),
                              stdin=subprocess.DEVNULL)  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip()[-300:]}")
        said = subprocess.run([*PARDBG, "report", session, "--json"], capture_output=True,
                              text=True, timeout=200, env=own_env())  # fmt: skip
        report = json.loads(said.stdout)
    checks.that(len(report["ranks"]) == ranks, f"{len(report['ranks'])} ranks")
    checks.that(len(report["steps"]) >= 5, f"{len(report['steps'])} steps")
    checks.some([s for s in report["steps"] if s["loss"] is not None], 5, "losses")
    errors = [f["text"] for f in report["findings"] if f["severity"] == "error"]
    checks.that(not errors, f"it finds {errors}")
    checks.that(report["run"]["times"] == "device", f"times of the {report['run']['times']}")
    ops = [*report["collectives"], *report["p2p"]]
    unmatched = [op for op in ops if op["verdict"] != "matched"]
    checks.that(len(ops) > 10 and not unmatched, f"{len(unmatched)} of {len(ops)} ops do not match")
    checks.that(not report["run"]["unknown_records"], f"{report['run']['unknown_records']} records "
                "cannot be read")  # fmt: skip
    pipeline = report["pipeline"]
    bubble = f", bubble {pipeline['bubble_fraction']:.1%}" if pipeline else ""
    hooks = report["run"]["hooks"]
    checks.figure = f"{len(report['steps'])} steps by {hooks} hooks, times of the device{bubble}"


ROWS: Final[tuple[Row, ...]] = (
    Row("spans", "spans are the kernels' times", ANY, spans),
    Row("anchors", "the device's clock on the host's, over minutes", ANY, anchors),
    Row("streams", "no end is late on 32 streams", ANY, streams),
    Row("beside", "waits of pardbg hold up no kernel", ANY, beside),
    Row("graphs", "a captured graph is a marked gap", CUDA, graphs),
    Row("graph-ops", "ops in a captured graph have no times", CUDA, graph_ops),
    Row("no-syncs", "pardbg adds no synchronizing call", ANY, no_syncs),
    Row("sync-debug", "no call of pardbg waits for the device", CUDA, sync_debug),
    Row("alone", "ops of NCCL in a world of one", CUDA, partial(ops, ranks=1)),
    Row("ops", "ops end by the device's clock", ANY, partial(ops, ranks=2)),
    Row("numbers", "losses and sums are read without a wait", ANY, numbers),
    Row("inputs", "NaN in a sum is seen without a wait", ANY, inputs),
    Row("stands", "how long a stream stands in waits for ops", ANY, stands),
    Row("contexts", "no rank is on another's device", ANY, contexts),
    Row("gloo", "gloo's ops have no times of the device", CUDA, on_gloo),
    Row("hang", "which rank's device has not arrived", ANY, hang),
    Row("hang-named", "who is named, whose device has not arrived", ANY, hang_named),
    Row("losses", "losses are those without pardbg", ANY, losses),
    Row("compile", "losses of a compiled model, too", CUDA, partial(losses, GPU_COMPILE="1")),
    Row("memory", "memory is the allocator's", ANY, memory),
    Row("oom", "a failed request is reported", ANY, oom),
    Row("overhead", "cost of a step", ANY, overhead),
    *(Row(name, "a recipe, watched", ANY, partial(recipe, name=name)) for name in RECIPES),
    Row("kineto", "actions of 1F1B are Kineto's", CUDA, kineto),
    Row("same", "layouts on a device are one computation", CUDA, same),
    Row("long-pause", "a pause of twice the groups' timeout", CUDA, long_pause),
)
