"""What is wrong, in plain words: evidence, culprits (not victims), and what to do next."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from pardbg.analysis.asof import View
from pardbg.analysis.control import control_view
from pardbg.analysis.intervals import Interval
from pardbg.analysis.matching import collectives
from pardbg.analysis.model import CollectiveRow, Finding
from pardbg.analysis.p2p import p2p_rows
from pardbg.analysis.words import duration, ranks_text
from pardbg.store.process import Process

MISSING_NS: Final = 3_000_000_000
"""A rank that others wait for so long is worth a line; slow starts are shorter or rare."""
STRAGGLER_STEPS: Final = 32
"""Steps that are looked at."""
STRAGGLER_LEAST: Final = 6
STRAGGLER_SHARE: Final = 0.8
"""Last by a clear margin in so many of them: again and again."""
STRAGGLER_MARGIN_NS: Final = 5_000_000
STRAGGLER_OF_STEP: Final = 0.1
"""... and by so much of a step: less is the noise of a shared machine."""
_SEVERITY: Final = {"error": 0, "warning": 1, "info": 2}


def findings(view: View) -> tuple[Finding, ...]:
    """All findings at the cursor, the worst first, then the newest."""
    rows = collectives(view)
    found = [
        *_ends(view, rows),
        *_restarts(view),
        *_several_jobs(view),
        *_nothing_seen(view),
        *_mismatches(rows),
        *_missing(view, rows),
        *_missing_p2p(view),
        *_stragglers(view, rows),
        *_dropped(view),
        *_hook_errors(view),
        *_unreadable(view),
    ]
    return tuple(sorted(found, key=lambda f: (_SEVERITY[f.severity], -f.t_ns)))


def _ends(view: View, rows: Sequence[CollectiveRow]) -> Iterable[Finding]:
    lost = []
    for rank, process in view.ranks.items():
        ended = view.proc_end(process)
        if ended is not None and ended[1] in ("lost", "killed"):
            lost.append((rank, *ended))
    end = view.run_end
    ended_well = end is not None and end[1] == 0
    victims = _left_waiting(view, rows)
    for rank, t_ns, reason in lost:
        how = "was killed, or left by os._exit" if reason == "killed" else "ended without a word"
        text = (
            f"rank {rank} {how}; its last records are kept. See what it did in the timeline, and "
            f"the job's output for a signal or an out-of-memory kill."
        )
        if rank in victims:
            text = f"rank {rank} ended while it waited for {ranks_text(victims[rank])}."
        elif ended_well:
            text = f"rank {rank} {how}; the job took no harm."
        harmless = rank in victims or ended_well
        yield Finding(
            "rank lost", "info" if harmless else "error", (rank,), () if harmless else (rank,),
            None, None, None, t_ns, text,
        )  # fmt: skip
    if end is not None and end[1]:
        culprits = tuple(rank for rank, _, _ in lost if rank not in victims)
        yield Finding(
            "exit code", "error", (), culprits, None, None, None, end[0],
            f"the job ended with exit code {end[1]}. The output has its last words.",
        )  # fmt: skip


def _restarts(view: View) -> Iterable[Finding]:
    """torchelastic started the workers anew: what is shown is the newest round alone."""
    if view.epoch <= 0:
        return
    begun = [p.started_ns for p in view.ranks.values() if p.started_ns is not None]
    times = "once" if view.epoch == 1 else f"{view.epoch} times"
    yield Finding(
        "restarted", "warning", tuple(view.ranks), (), None, None, None, min(begun, default=0),
        f"the workers were restarted {times}: what is shown is since then. The output has what "
        f"ended them before.",
    )


def _left_waiting(view: View, rows: Sequence[CollectiveRow]) -> dict[int, tuple[int, ...]]:
    """Who waits for ranks that have ended: a launcher ends them next. Not a rank that is itself
    waited for so."""
    waits: dict[int, tuple[int, ...]] = {}
    for row in rows:
        gone = tuple(r for r in row.missing if _ended(view, r))
        if row.verdict == "missing rank" and gone:
            waits.update({a.rank: gone for a in row.arrivals if a.issued_ns is not None})
    awaited = {rank for gone in waits.values() for rank in gone}
    return {rank: gone for rank, gone in waits.items() if rank not in awaited}


def _ended(view: View, rank: int) -> bool:
    return rank in view.ranks and view.proc_end(view.ranks[rank]) is not None


def _several_jobs(view: View) -> Iterable[Finding]:
    """One rank number in two processes that issue ops at the same time."""
    twice = set()
    for process in view.store.procs.values():
        rank = process.rank
        shown = None if rank is None else view.ranks.get(rank)
        if rank is None or shown is None or shown is process or shown.epoch != process.epoch:
            continue
        (a, begun_a), (b, begun_b) = _active(view, shown), _active(view, process)
        if begun_a <= b and begun_b <= a:
            twice.add(rank)
    if twice:
        ranks = tuple(sorted(twice))
        yield Finding(
            "several jobs", "warning", ranks, (), None, None, None, view.t_ns,
            f"{ranks_text(ranks)} {'is' if len(ranks) == 1 else 'are'} more than one process at a "
            f"time: the command runs several jobs, and figures over ranks mix them. Give each job "
            f"a `pardbg run` of its own.",
        )  # fmt: skip


def _active(view: View, process: Process) -> tuple[int, int]:
    """(time of its last collective, its start); (-1, start) without any."""
    table, visible = view.rows(process, "issue")
    last = int(table.col("t0_ns")[visible - 1]) if visible else -1
    return last, process.started_ns or 0


def _nothing_seen(view: View) -> Iterable[Finding]:
    if view.run_end is not None and not view.ranks:
        yield Finding(
            "no ranks", "warning", (), (), None, None, None, view.run_end[0],
            "no rank was seen: no process of the job formed a torch.distributed group with the "
            "agent in it. `python -S` starts without it, and so do `-I` and `-E` where "
            "pardbg-agent is not installed in that Python; see `pardbg doctor`.",
        )  # fmt: skip


def _mismatches(rows: Sequence[CollectiveRow]) -> Iterable[Finding]:
    for row in rows:
        if not row.verdict.endswith("mismatch"):
            continue
        ranks = tuple(a.rank for a in row.arrivals if a.issued_ns is not None)
        yield Finding(
            row.verdict, "error", ranks, row.culprits, row.group, row.seq, None, _first(row),
            f"{row.verdict} in {row.group} #{row.seq}: {row.detail}. All ranks of a group must "
            f"call the same ops in the same order.",
        )  # fmt: skip


def _first(row: CollectiveRow) -> int:
    return min((a.issued_ns for a in row.arrivals if a.issued_ns is not None), default=0)


def _missing(view: View, rows: Sequence[CollectiveRow]) -> Iterable[Finding]:
    """Ranks that others wait for. Who is held by the debugger is not missing."""
    held = _held_ranks(view)
    for row in rows:
        missing = tuple(r for r in row.missing if r not in held)
        if row.verdict != "missing rank" or not missing or held:
            continue
        gone = tuple(r for r in missing if _ended(view, r))
        waited = _until(view, missing) - _first(row)
        ended_well = view.run_end is not None and not view.run_end[1]
        if ended_well or (waited < MISSING_NS and not gone):
            continue
        waiting = tuple(a.rank for a in row.arrivals if a.issued_ns is not None)
        done = "has ended" if gone else f"has not come for {duration(waited)}"
        if gone and waited >= MISSING_NS:
            done = f"had not come for {duration(waited)} when it ended"
        yield Finding(
            "missing rank", "error" if gone else "warning", waiting, missing, row.group, row.seq,
            None, _first(row),
            f"{ranks_text(waiting)} wait{'s' if len(waiting) == 1 else ''} in {row.op} "
            f"{row.group} #{row.seq} for {ranks_text(missing)}, which {done}. Look at what "
            f"{ranks_text(missing)} does instead.",
        )  # fmt: skip


def _until(view: View, ranks: Sequence[int]) -> int:
    """Until when these ranks could have come: their end, or the cursor."""
    ends = [view.proc_end(view.ranks[r]) for r in ranks if r in view.ranks]
    return max((end[0] if end is not None else view.t_ns for end in ends), default=view.t_ns)


def _missing_p2p(view: View) -> Iterable[Finding]:
    held = _held_ranks(view)
    if held or view.run_end is not None:
        return
    for row in p2p_rows(view):
        begun = row.send_ns if row.send_ns is not None else row.recv_ns
        if row.verdict != "missing rank" or begun is None or row.send_ns is None:
            continue  # a receive posted ahead waits for nobody yet
        if view.t_ns - begun < MISSING_NS:
            continue
        yield Finding(
            "missing rank", "warning", (row.src,), (row.dst,), row.group, row.order, None, begun,
            f"rank {row.src} has sent {row.label or 'a tensor'} to rank {row.dst} for "
            f"{duration(view.t_ns - begun)}, and rank {row.dst} has not posted the receive.",
        )


def _held_ranks(view: View) -> set[int]:
    return set(control_view(view).held)


def _stragglers(view: View, rows: Sequence[CollectiveRow]) -> Iterable[Finding]:
    by_group: dict[str, list[CollectiveRow]] = defaultdict(list)
    holds = _holds(view)
    for row in rows:
        if row.verdict == "matched" and len(row.arrivals) > 1 and not _held_during(row, holds):
            by_group[row.group].append(row)
    for group, matched in by_group.items():
        steps = _by_step(matched)[-STRAGGLER_STEPS:]
        if len(steps) < STRAGGLER_LEAST:
            continue
        rank, times, margin = _often_last(steps)
        if rank is None or times < STRAGGLER_SHARE * len(steps):
            continue
        newest = matched[-1]
        others = tuple(a.rank for a in newest.arrivals if a.rank != rank)
        yield Finding(
            "straggler", "warning", others, (rank,), group, newest.seq, None, _first(newest),
            f"rank {rank} came last to {group}'s collectives in {times} of the last {len(steps)} "
            f"steps, by {duration(margin)} on average; {ranks_text(others)} wait"
            f"{'s' if len(others) == 1 else ''} for it. Compare their phases in the timeline.",
        )  # fmt: skip


def _by_step(rows: Sequence[CollectiveRow]) -> list[CollectiveRow]:
    """The collective with the largest margin of each step: within a step, who is late once is
    late in all that follows. A program without steps gives all its collectives."""
    steps: dict[int | None, CollectiveRow] = {}
    for row in rows:
        known = steps.get(row.step)
        if known is None or _margin(row)[0] > _margin(known)[0]:
            steps[row.step] = row
    return list(steps.values()) if len(steps) > 1 else list(rows)


def _margin(row: CollectiveRow) -> tuple[int, int]:
    """(by how much the last one was later than the one before it, the last rank)."""
    arrived = sorted((a.issued_ns, a.rank) for a in row.arrivals if a.issued_ns is not None)
    return arrived[-1][0] - arrived[-2][0], arrived[-1][1]


def _often_last(rows: Sequence[CollectiveRow]) -> tuple[int | None, int, float]:
    """(rank last by a clear margin most often, how often, mean margin)."""
    firsts = sorted(_first(row) for row in rows)
    period = (firsts[-1] - firsts[0]) / max(1, len(firsts) - 1)
    clear = max(STRAGGLER_MARGIN_NS, STRAGGLER_OF_STEP * period)
    times: Counter[int] = Counter()
    margins: Counter[int] = Counter()
    for row in rows:
        margin, rank = _margin(row)
        if margin >= clear:
            times[rank] += 1
            margins[rank] += margin
    if not times:
        return None, 0, 0.0
    most, count = times.most_common(1)[0]
    return most, count, margins[most] / count


def _holds(view: View) -> list[Interval]:
    """When the debugger held ranks: arrivals then say nothing about the program."""
    found: list[Interval] = []
    for process in view.ranks.values():
        table, visible = view.rows(process, "held")
        tail = slice(max(0, visible - 512), visible)
        found += zip(
            table.col("t0_ns")[tail].tolist(), table.col("t1_ns")[tail].tolist(), strict=True
        )
    return sorted(found)


def _held_during(row: CollectiveRow, holds: Sequence[Interval]) -> bool:
    if not holds:
        return False
    arrived = [a.issued_ns for a in row.arrivals if a.issued_ns is not None]
    begin, end = min(arrived), max(arrived)
    return any(t0 <= end and t1 >= begin for t0, t1 in holds)


def _dropped(view: View) -> Iterable[Finding]:
    for rank, process in view.ranks.items():
        lost = process.lost(view.t_ns)
        if lost:
            yield Finding(
                "records dropped", "warning", (rank,), (), None, None, None, view.t_ns,
                f"{lost:,} records of rank {rank} were lost, so its figures have gaps. The hub was "
                f"away or too slow; training was not held up by it.",
            )  # fmt: skip
    if view.store.over_limit:
        yield Finding(
            "records dropped", "warning", (), (), None, None, None, view.t_ns,
            f"{view.store.over_limit:,} records beyond what is kept in memory were left out.",
        )  # fmt: skip


def _hook_errors(view: View) -> Iterable[Finding]:
    for rank, process in view.ranks.items():
        for t_ns, where, text in process.errors:
            if t_ns <= view.t_ns:
                yield Finding(
                    "hook error", "warning", (rank,), (), None, None, where or None, t_ns,
                    f"pardbg's hook {where} failed on rank {rank} and is off: {text}. Training "
                    f"goes on; what this hook shows is missing.",
                )  # fmt: skip


def _unreadable(view: View) -> Iterable[Finding]:
    unknown = view.store.unknown
    if unknown:
        yield Finding(
            "unknown data", "info", (), (), None, None, None, view.t_ns,
            f"{unknown:,} records or messages could not be read by this version; they are counted, "
            f"not shown.",
        )
    if view.store.truncated:
        yield Finding(
            "truncated", "info", (), (), None, None, None, view.t_ns,
            "the session file ends early: what was recorded up to its last whole chunk is here.",
        )
