"""Finds how ranks and the job ended: the first failure, and the ends that followed from it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

import pardbg.analysis.findings.kinds.end_kinds as kinds
from pardbg.analysis.base.abort_text import abort_text
from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.base.run import rehearsed
from pardbg.analysis.findings import exits
from pardbg.analysis.findings.finding import Candidate, Evidence, Facts, GroupKey
from pardbg.analysis.findings.stalls.absences import destroyed, last_op, left_out, unsent
from pardbg.analysis.findings.stalls.misfits import misfit_messages, split_groups, thread_crossings
from pardbg.analysis.hangs.newest import newest_collectives
from pardbg.analysis.hangs.stacks import is_user, place, waits_in_op, whole_place
from pardbg.analysis.hangs.standstill import seen
from pardbg.analysis.hangs.waitgraph import PATIENCE_NS
from pardbg.analysis.pipeline.pipelines import states
from pardbg.events import fields
from pardbg.store.definitions import Cause, Failure

MAX_TEXT: Final = 240
SETTLED_NS: Final = 1_500_000_000
"""Time in which a lost connection may be reported before the end that caused it, in ns."""
_KEPT_STEPS: Final = 1
"""Steps that a rank may end after an exception that a future keeps, for later waits to count as its
consequence."""
_BEFORE_END_NS: Final = 500_000_000
"""Age of the hub's reports on a process, in ns."""
ABORT_NS: Final = 700_000_000
FOLLOWS_NS: Final = 60_000_000_000
"""Time within which a bad end of a rank counts as a consequence of another rank's, in ns."""
_SAVES: Final = re.compile(
    r"/torch/distributed/checkpoint/(state_dict_saver|staging|_async_\w+)\.py"
)
_OF_WORKER: Final = re.compile(r"\bOn WorkerInfo\(id=(\d{1,6}), ")
"""RPC worker named in an exception raised in its caller; the last match raised it first."""
_REFUSED: Final = re.compile(r"connectFullMesh failed.*onnection refused")
"""Failed connection to a stale address: the store gave gloo the address of an earlier life."""
_SIGTERM, _SIGABRT, _SIGKILL = -15, -6, -9


def ends(view: View) -> Iterator[Candidate]:
    """Find the first failure and, beside it, the ends that followed and the job's exit code.

    Ends are seen some 25 ms late: within TOGETHER_NS the order of two is not known.
    """
    bad, run_end = exits.bad_ends(view), view.run_end
    well = run_end is not None and run_end[1] == 0
    hidden = well and _all_failed(view, bad)
    if well and not hidden:
        yield from (_harmless(view, end) for end in bad if end.how != "code")
        return
    if not bad and run_end is None:
        return
    asked, own, roots, only_victims = _judged(view)
    yield from _roots_found(view, roots, only_victims)
    if own and not roots and (run_end is not None or view.t_ns - bad[0].t_ns >= SETTLED_NS):
        yield _nobody_failed(view, bad)
    if asked is not None:
        yield Candidate(
            kind="interrupted",
            ranks=_ranks(bad),
            t_ns=asked.t_ns,
            facts=kinds.Interrupted(asked.by),
        )
    followed = [end for end in bad if end not in roots]
    if followed and roots:
        yield from _followed(view, followed, roots, only_victims)
    if run_end is not None and (hidden or run_end[1]):
        yield Candidate(
            kind="exit-code", t_ns=run_end[0],
            facts=kinds.HiddenEnd() if hidden else kinds.ExitCode(run_end[1], _outlived(view)),
            evidence=Evidence(run_end[0], None, "output"),
        )  # fmt: skip


def _outlived(view: View) -> tuple[int, ...]:
    """Return the ranks that still ran when the job's first process ended."""
    ends = ((rank, view.proc_end(process)) for rank, process in view.ranks.items())
    return tuple(rank for rank, end in ends if end is not None and end[1] == "alive")


def _all_failed(view: View, bad: Sequence[exits.BadEnd]) -> bool:
    """Return whether every rank ended badly, and at least one in a known way: os._exit(0) of a
    program that skips its cleanup may look like a kill if the exit code was not seen."""
    known = any(end.how == "exception" or view.ranks[end.rank].exit_code for end in bad)
    return known and len(_ranks(bad)) == len(view.ranks)


def thread_failures(view: View) -> Iterable[Candidate]:
    """Find threads of the program that an exception ended while the main thread went on; of those
    that failed alike on a rank, the first. Exceptions that futures keep are only causes of others,
    except those of saving a checkpoint."""
    for rank, process in view.ranks.items():
        alike = {
            (of.thread, of.task_of, of.text, of.frames): of for of in reversed(process.failures)
        }
        for failed in reversed(alike.values()):
            if failed.thread == "MainThread" or failed.t_ns > view.now_ns:
                continue
            lost = exits.lost_peer(failed)
            if lost and exits.bad_ends(view):
                continue  # a consequence of a rank's end
            steps = _steps_since(view, rank, failed)
            unwritten = not lost and _saves(failed)
            if unwritten and any(of.type == failed.type for of in view.fatal(process)):
                continue  # the program asked for it
            if (failed.kept and not unwritten) and (
                steps > _KEPT_STEPS or lost or _keep_alike(view, rank, failed)
            ):
                continue
            awaited = steps <= kinds.THREAD_STEPS and not lost
            idle_ns = _idle_ns(view, rank, failed) if awaited and not failed.kept else 0
            yield Candidate(
                kind="thread-exception", ranks=(rank,), t_ns=failed.t_ns,
                culprits=_parts(view, rank, failed) if unwritten else (rank,),
                where=whole_place(failed.origin), settled=unwritten or not failed.kept,
                facts=kinds.ThreadRaised(
                    failed.thread, failed.text, steps, idle_ns, kept=failed.kept,
                    cause=_cause(failed), also=_also(failed),
                    unwritten=failed.step if unwritten else None, task_of=failed.task_of,
                ),
            )  # fmt: skip


def _saves(failed: Failure) -> bool:
    """Return whether the future's exception is from writing a torch checkpoint."""
    return failed.kept and any(_SAVES.search(file) for file, _, _ in failed.frames)


def _parts(view: View, rank: int, failed: Failure) -> tuple[int, ...]:
    """Return the ranks on which a checkpoint failed; if none is named, the reporting rank."""
    named = _ranks_of(failed)
    return named if named and set(named) < set(view.ranks) else (rank,)


def _keep_alike(view: View, rank: int, failed: Failure) -> bool:
    """Return whether another rank's futures keep exceptions of about that step (lost connections
    aside), or the rank's own kept one like it before: the program copes with them."""
    for other, process in view.ranks.items():
        kept = (of for of in process.failures if of.kept and not exits.lost_peer(of))
        for of in kept:
            if of.t_ns > view.now_ns:
                break
            if other != rank and abs(of.step - failed.step) <= _KEPT_STEPS:
                return True
            if other == rank and of.type == failed.type and of.step < failed.step - _KEPT_STEPS:
                return True
    return False


def _steps_since(view: View, rank: int, failed: Failure) -> int:
    table, visible = view.rows(view.ranks[rank], "step")
    return int(np.count_nonzero(table.col("t1_ns")[:visible] > failed.t_ns))


def _idle_ns(view: View, rank: int, failed: Failure) -> int:
    """Return the time, in ns, since which a rank has been idle after a thread's failure, until its
    own end if it ended; 0 if it works, is in an op, or is idle for less than PATIENCE_NS."""
    process = view.ranks[rank]
    end = view.proc_end(process)
    then = view if end is None else View(view.store, end[0] - _BEFORE_END_NS)
    if then.ranks.get(rank) is not process:
        return 0  # the process had just begun: an earlier life is visible
    now, state = seen(then, rank), states(then).get(process.proc, {})
    if now.held or state.get("open") or not (now.idle and now.os_state == "S"):
        return 0
    idle_ns = then.t_ns - max(now.moved_ns, failed.t_ns)
    return idle_ns if idle_ns >= PATIENCE_NS else 0


def _ranks(ends: Iterable[exits.BadEnd]) -> tuple[int, ...]:
    return tuple(sorted({end.rank for end in ends}))


@per_view
def _judged(
    view: View,
) -> tuple[exits.TerminationRequest | None, list[exits.BadEnd], list[exits.BadEnd], bool]:
    """Return (request that the job end, bad ends that do not follow from it, first failures among
    them, whether these ranks only waited for a rank that ended in good order)."""
    bad = exits.bad_ends(view)
    asked = exits.termination(view, bad)
    own = [
        end for end in bad
        if (asked is None or not asked.precedes(end)) and not exits.interrupted(view, end)
    ]  # fmt: skip
    return asked, own, *_roots(view, own)


def ended_by_launcher(view: View, explained: bool) -> frozenset[int]:
    """Return ranks that a launcher killed after another rank's failure or on request, and that did
    nothing wrong. ``explained``: a hang or a disagreement of ranks is known to be the cause."""
    bad = exits.bad_ends(view)
    if not bad:
        return frozenset()
    asked, _, roots, only_victims = _judged(view)
    roots = [] if explained and only_victims else roots
    if asked is None and not roots and explained:  # the hang ended some ranks in an op
        roots = [end for end in bad if not exits.sent_away(view, end)]
    if asked is None and not roots:
        return frozenset()
    own = {end.rank for end in roots if end.how != "exception"}
    own |= {end.rank for end in bad if asked is None and exits.by_itself(view, end, bad[0])}
    over = ((rank, view.proc_end(process)) for rank, process in view.ranks.items())
    killed = {rank: end[0] for rank, end in over if end and end[1] in ("killed", "lost")}
    if asked is None:  # ends at the very moment of the first failure are no launcher's
        first = min(end.t_ns for end in roots)
        killed = {rank: t_ns for rank, t_ns in killed.items() if t_ns > first}
    return frozenset(killed.keys() - own)


def _roots(view: View, bad: Sequence[exits.BadEnd]) -> tuple[list[exits.BadEnd], bool]:
    """Return (first failures, whether their ranks only waited for ranks that ended in good order).
    Left out are ranks that waited for another one, lost a connection over it, or were told to end
    after it. ``bad``: without ends by the user's interrupt."""
    victims = exits.left_waiting(view)
    first_hand = [end for end in bad if not _follows(view, end, bad[0])]
    own = [end for end in first_hand if end.rank not in victims] or first_hand
    roots = [
        end
        for end in own
        if end.t_ns - own[0].t_ns <= exits.TOGETHER_NS
        or end.t_ns - own[0].t_ns > FOLLOWS_NS
        or _alike(view, own[0], end)
        or (end.t_ns - own[0].t_ns <= exits.SEEN_LATE_NS and exits.crashed(view, end))
    ]
    return roots, bool(own) and own[0].rank in victims


def _nobody_failed(view: View, bad: Sequence[exits.BadEnd]) -> Candidate:
    """Return the candidate for bad ends none of which came first: other ranks left in good order or
    destroyed their group; else the cause is unknown."""
    lost = [e for e in bad if e.how == "exception" and exits.lost_peer(exits.failure(view, e.rank))]
    awaited = _awaited(view, {end.rank for end in lost}, {end.rank for end in bad})
    left = _left_early(view, bad, lost, awaited)
    gone = {r: at for r, key in awaited.items() if (at := destroyed(view, r, key)) is not None}
    return _went_early(view, left, bad, gone) if left or gone else _cut_off(view, bad)


def _awaited(view: View, waiting: set[int], over: set[int]) -> dict[int, GroupKey]:
    """Return rank -> the group of a collective that it has not come to and one of ``waiting`` has,
    or of a message that it has not sent, of the ranks that are not ``over``."""
    rows = (row for row in newest_collectives(view) if row.verdict == "missing rank")
    rows = (row for row in rows if not waiting.isdisjoint(row.issued))
    found = {row.src: row.key for row in unsent(view, waiting)}
    found |= {rank: row.key for row in rows for rank in row.missing}
    return {rank: found[rank] for rank in found.keys() & view.ranks.keys() - over}


def _left_early(
    view: View,
    bad: Sequence[exits.BadEnd],
    lost: Sequence[exits.BadEnd],
    awaited: Mapping[int, object],
) -> tuple[int, ...]:
    """Return ranks that left in good order before other ranks lost the connection to them; only
    those that an op misses, if there are any."""
    if not lost:
        return ()  # ranks were told to end or interrupted: leaving in good order is fine
    until = lost[0].t_ns + exits.SEEN_LATE_NS
    names = {end.rank for end in bad}
    left = {rank: exits.left_ns(view, rank) for rank in view.ranks if rank not in names}
    early = [rank for rank, t_ns in left.items() if t_ns is not None and t_ns <= until]
    return tuple(rank for rank in early if rank in awaited) or tuple(early)


def _went_early(
    view: View, left: tuple[int, ...], bad: Sequence[exits.BadEnd], destroyed_at: Mapping[int, str]
) -> Candidate:
    """Return the candidate for ranks that left early, else for those that destroyed a group."""
    went = left or tuple(destroyed_at)
    abrupt = bool(left) and all(view.ranks[rank].leaving_ns is None for rank in left)
    times = [t for r in left if (t := exits.left_ns(view, r)) is not None]
    messages = unsent(view, _ranks(bad))
    return Candidate(
        kind="missing-rank", ranks=_ranks(bad), culprits=went, last_resort=True,
        t_ns=min(times, default=bad[0].t_ns),
        where=None if left else destroyed_at[went[0]] or None,
        facts=kinds.LeftEarly(
            abrupt, *last_op(view, went[0]), destroyed=not left,
            normal=all(view.ranks[rank].exit_code == 0 for rank in left),
            left_out=left_out(view, went[0]) if len(went) == 1 else None,
            unsent=next(((m.dst, m.order) for m in messages if (m.src,) == left), None),
        ),
    )  # fmt: skip


def _cut_off(view: View, bad: Sequence[exits.BadEnd]) -> Candidate:
    """Return the candidate for lost connections where no rank is known to have ended first, so far
    or for good."""
    process = view.ranks[bad[0].rank]
    failures = [f for f in process.failures if f.thread == "MainThread"]
    over = view.run_end is not None and any(exits.lost_peer(f) for f in failures)
    restarted = fields.integer(process.facts, "epoch", 0) > 0
    stale = restarted and any(_REFUSED.search(f.text) for f in failures)
    return Candidate(
        kind="cut-off", ranks=_ranks(bad), t_ns=bad[0].t_ns, last_resort=True,
        where=whole_place(failures[0].frames) if failures else None,
        facts=kinds.CutOff(brief(failures[0].text) if failures else "", over, stale),
    )  # fmt: skip


def brief(error: str) -> str:
    """Return an exception's text without source locations of the backend and its generic hints."""
    text = re.sub(r"\[[^\]]*\.(cc|cpp|h|hpp):\d+\] ?", "", error)
    for end in (". This is typically", ". Check the logs", " GLHF"):
        text = text.partition(end)[0]
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def _follows(view: View, end: exits.BadEnd, earliest: exits.BadEnd) -> bool:
    """Return whether this failure is a consequence of an earlier one, judged by itself."""
    if end.how == "exception":
        failed = exits.failure(view, end.rank)
        if exits.lost_peer(failed):
            return True
        return _disagrees(view, end.rank) and waits_in_op(failed.origin, "")
    code = exits.exit_code(view, end.rank)
    if code == _SIGKILL and exits.terminated_before(view, end.t_ns):
        return True  # a launcher kills ranks that SIGTERM did not end
    if code is None and end.how == "killed" and end != earliest:
        in_exit = (exits.left_ns(view, end.rank) or end.t_ns) < end.t_ns
        if in_exit or end.t_ns - earliest.t_ns > exits.TOGETHER_NS:
            return True  # a launcher ended and reaped it before the hub could look
    if exits.gave_up(view, end.rank):
        return True
    if code == _SIGTERM:
        return not exits.told_alone(view, end)
    return code in (_SIGABRT, None) and _disagrees(view, end.rank)


def _disagrees(view: View, rank: int) -> bool:
    """Return whether group splits or threads' ops disagree, a message of this rank does not fit, or
    its last op has a dtype mismatch: a backend may abort over that."""
    misfit = {of for message in misfit_messages(view) for of in message.ranks}
    rows = [row for row in newest_collectives(view) if rank in row.issued]
    last = max(rows, key=lambda row: row.issued[rank], default=None)
    dtypes = last is not None and last.verdict == "dtype mismatch"
    return bool(split_groups(view) or thread_crossings(view)) or rank in misfit or dtypes


def _alike(view: View, one: exits.BadEnd, other: exits.BadEnd) -> bool:
    """Return whether both ranks raised the same exception at the same line, or left with the same
    exit code after the same op: a bug of all."""
    if one.how == other.how == "exception":
        a, b = exits.failure(view, one.rank), exits.failure(view, other.rank)
        return (a.type, a.frames, a.origin) == (b.type, b.frames, b.origin)
    codes = {exits.exit_code(view, end.rank) for end in (one, other)}
    last = last_op(view, one.rank)
    left = one.how == other.how == "code" and len(codes) == 1 and bool(last[0])
    return left and last == last_op(view, other.rank)


def _roots_found(
    view: View, roots: Sequence[exits.BadEnd], only_victims: bool
) -> Iterator[Candidate]:
    """Yield one candidate for each way to end; ranks that failed alike share one."""
    alike: dict[tuple[object, ...], list[exits.BadEnd]] = {}
    for end in roots:
        key: tuple[object, ...]
        if end.how != "exception":
            code = exits.exit_code(view, end.rank)
            key = end.how, code, *(() if end.how == "code" else exits.crash_place(view, end))
        else:
            failed = exits.failure(view, end.rank)
            key = end.how, failed.type, failed.frames, failed.origin
        alike.setdefault(key, []).append(end)
    for ends in alike.values():
        first, ranks = ends[0], _ranks(ends)
        kind, facts = _first_failure(view, ends, ranks)
        beside = (e.rank for e in roots if abs(e.t_ns - first.t_ns) <= exits.SEEN_LATE_NS)
        if isinstance(facts, kinds.Raised | kinds.Lost):
            facts = replace(facts, beside=tuple(sorted({*beside}.difference(ranks))))
        culprits, where = ranks, exits.crash_place(view, first)[0]
        if first.how == "exception":
            failed = exits.failure(view, first.rank)
            culprits, where = _named(failed, ranks), whole_place(failed.origin)
            if worker := _of_worker(view, failed.text):  # the place is its caller's
                assert isinstance(facts, kinds.Raised)
                facts = replace(facts, called_at=where or "")
                culprits, where = worker, None
        yield Candidate(
            kind=kind, ranks=ranks, culprits=culprits, where=where, t_ns=first.t_ns, facts=facts,
            last_resort=only_victims, settled=not any(_may_follow(view, end) for end in ends),
        )  # fmt: skip


def _may_follow(view: View, end: exits.BadEnd) -> bool:
    """Return whether a rank has just aborted, as a backend does over an op that does not fit, or
    ended in an unknown way: the other ranks' records of that op may still come."""
    aborted = end.how == "killed" and exits.exit_code(view, end.rank) in (_SIGABRT, None)
    return aborted and view.run_end is None and view.t_ns - end.t_ns < ABORT_NS


def _first_failure(
    view: View, ends: Sequence[exits.BadEnd], ranks: tuple[int, ...]
) -> tuple[str, Facts]:
    first = ends[0]
    rank, code = first.rank, exits.exit_code(view, first.rank)
    over = {e.rank for e in exits.bad_ends(view)} | {r for r in view.ranks if exits.ended(view, r)}
    left = exits.left_waiting(view).items()
    waiting = tuple(other for other, gone in left if {*ranks} & {*gone} and other not in over)
    if first.how == "code":
        abrupt = all(view.ranks[r].leaving_ns is None for r in ranks)
        return "rank-exited", kinds.Exited(code, waiting, abrupt, *last_op(view, rank))
    if first.how != "exception":
        texts = {abort_text(view, end.rank, end.t_ns) if code == _SIGABRT else "" for end in ends}
        printed = texts.pop() if len(texts) == 1 else ""
        last, (_, crashed) = last_op(view, rank), exits.crash_place(view, first)
        return "rank-lost", kinds.Lost(
            first.how == "killed", code, waiting, *last, printed, crashed
        )
    failed = exits.failure(view, rank)
    made_up = rehearsed(view) and bool(failed.origin) and is_user(failed.origin[-1])
    error, cause, also = brief(failed.text), _cause(failed), _also(failed)
    return "exception", kinds.Raised(
        error, failed.step, rank, made_up, waiting, cause=cause, also=also,
        everywhere=len(ranks) > 1 and {*ranks} == view.ranks.keys(),
    )  # fmt: skip


def _cause(failed: Failure) -> Cause | None:
    return failed.cause and replace(failed.cause, text=brief(failed.cause.text))


def _also(failed: Failure) -> tuple[kinds.Held, ...]:
    return tuple(kinds.Held(brief(of.text), place(of.frames) or "", of.ranks) for of in failed.also)


def _of_worker(view: View, error: str) -> tuple[int, ...]:
    """Return the rank of the RPC worker whose exception its caller raised; empty: none is named."""
    return tuple(rank for n in _OF_WORKER.findall(error)[-1:] if (rank := int(n)) in view.ranks)


def _named(failed: Failure, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return the ranks named in an exception of ``ranks`` if they are fewer; else ``ranks``."""
    named = _ranks_of(failed)
    return named if named and set(named) < set(ranks) else ranks


def _ranks_of(failed: Failure) -> tuple[int, ...]:
    return tuple(sorted({rank for of in failed.causes for rank in of.ranks}))


def _harmless(view: View, end: exits.BadEnd) -> Candidate:
    raised = end.how == "exception"
    return Candidate(
        kind="exception" if raised else "rank-lost", ranks=(end.rank,), t_ns=end.t_ns,
        facts=kinds.Harmless(raised, end.how == "killed", view.ranks[end.rank].exit_code),
    )  # fmt: skip


def _followed(
    view: View, followed: Sequence[exits.BadEnd], roots: Sequence[exits.BadEnd], only_victims: bool
) -> Iterator[Candidate]:
    """Yield a candidate for each way in which ranks ended after other ranks' ends."""
    victims, alike = exits.left_waiting(view), dict[tuple[int | None, str], list[exits.BadEnd]]()
    for end in followed:
        alike.setdefault(_way(view, end, roots[0]), []).append(end)
    for (code, error), ends in alike.items():
        ranks = _ranks(ends)
        known = ranks if victims.keys() >= set(ranks) else ()
        gone = {one for rank in known for one in victims[rank]}.difference(ranks)
        yield Candidate(
            kind="rank-lost", ranks=ranks, t_ns=ends[0].t_ns, last_resort=only_victims,
            facts=kinds.Followed(_ranks(roots), tuple(sorted(gone)), code, error),
        )  # fmt: skip


def _way(view: View, end: exits.BadEnd, first: exits.BadEnd) -> tuple[int | None, str]:
    """Return (signal as a code < 0, exception) of an end that no launcher and no lost connection
    caused, as far as known; (None, ""): one of these may have."""
    if end.how == "exception":
        failed = exits.failure(view, end.rank)
        own = not exits.lost_peer(failed) and not waits_in_op(failed.origin, "")
        return None, brief(failed.text) if own else ""
    return exits.exit_code(view, end.rank) if exits.by_itself(view, end, first) else None, ""
