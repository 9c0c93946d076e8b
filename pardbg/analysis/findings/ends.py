"""How ranks and the job ended: the first failure, and what followed from it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from pardbg.analysis.base.asof import View, per_view
from pardbg.analysis.base.run import rehearsed
from pardbg.analysis.findings.asked import TOGETHER_NS, Told, after, interrupted, told
from pardbg.analysis.findings.hangs import hangs
from pardbg.analysis.findings.mismatches import (
    crossed,
    messages,
    mismatches,
    mispaired,
    thread_order,
)
from pardbg.analysis.findings.reasons import killed_text
from pardbg.analysis.findings.shared import (
    BadEnd,
    Evidence,
    Finding,
    bad_ends,
    is_transport,
    left_ns,
    left_waiting,
    mismatched,
)
from pardbg.analysis.hangs.stacks import is_user, place, waits_in_op
from pardbg.store.definitions import Failure
from pardbg.words import agreed, ranks_text, waits_text

SEEN_LATE_NS: Final = 1_000_000_000
"""A process's sockets are closed before its end is seen."""
MAX_TEXT: Final = 240
SETTLED_NS: Final = 1_500_000_000
"""Before that, who lost a connection is told sooner than who went."""
FOLLOWS_NS: Final = 60_000_000_000
"""A rank that ends badly so soon after another one followed it."""
FIRM_NS: Final = 5_000_000_000
"""Minimum time that launchers wait between SIGTERM and SIGKILL."""
_OF_RANKS: Final = re.compile(r"^[\w.]*CheckpointException.* ranks:dict_keys\(\[([\d, ]+)\]\)")
"""All ranks raise what some of them raised in a checkpoint's plan, and say who that was."""
_SIGTERM, _SIGABRT, _SIGKILL = -15, -6, -9
_KILLED_ADVICE: Final = {
    -9: "SIGKILL comes from another process or the kernel: look for the out-of-memory killer in "
    "`dmesg`, and at the rank's memory on screen 6.",
    -11: "It crashed in C code: run it with PYTHONFAULTHANDLER=1 for the place.",
    -6: "C or C++ code called abort: the job's output has its last words.",
    -7: "Shared memory or a mapped file ran out (SIGBUS): look at /dev/shm and the disk.",
}
_ADVICE: Final = (
    "See what it did last in the timeline, and the job's output for a signal or an out-of-memory "
    "kill."
)


def ends(view: View) -> Iterable[Finding]:
    """The first failure as an error; those that followed, and the job's exit code, beside it.

    Ends are seen some 25 ms late: within TOGETHER_NS, which was first is not known.
    """
    bad = bad_ends(view)
    run_end = view.run_end
    if run_end is not None and run_end[1] == 0:
        yield from (_harmless(view, end) for end in bad if end[2] != "code")
        return
    if not bad and run_end is None:
        return
    asked, own, roots = _judged(view)
    yield from _merged(view, roots)
    explained = bool(roots) or _explained(view)
    if own and not explained and _settled(view, bad):
        left = _left_early(view, bad)
        yield _went_early(view, left, bad) if left else _cut_off(view, bad)
        explained = True
    if asked is not None and not roots:
        yield note(view, asked, bad)
        explained = True
    followed = [end for end in bad if end not in roots]
    if followed and roots:
        yield _followed(view, followed, roots)
    if run_end is not None and run_end[1]:
        culprits = tuple(sorted(end[0] for end in roots))
        yield _exit_code(run_end, culprits, explained)


@per_view
def _judged(view: View) -> tuple[Told | None, list[BadEnd], list[BadEnd]]:
    """(who told the job to end, bad ends that are not of that, the first failure among them)"""
    bad = bad_ends(view)
    asked = told(view, bad)
    own = [end for end in bad if not after(end, asked) and not interrupted(view, end)]
    return asked, own, _roots(view, own)


@per_view
def told_to_end(view: View) -> frozenset[int]:
    """Return ranks that were killed, but as a launcher does after another's failure or when it is
    told to end the job: nothing of theirs is wrong."""
    bad = bad_ends(view)
    asked, _, roots = _judged(view) if bad else (None, [], [])
    if asked is None and not roots:  # what was wrong ended some of them in an op
        roots = [end for end in bad if not _sent_away(view, end)] if _explained(view) else []
    if asked is None and not roots:
        return frozenset()
    own = {rank for rank, _, how in roots if how != "exception"}
    ends = ((rank, view.proc_end(process)) for rank, process in view.ranks.items())
    killed = {rank: end[0] for rank, end in ends if end and end[1] in ("killed", "lost")}
    if asked is None:  # what ends at the very moment of the first failure is no launcher's answer
        first = min(t_ns for _, t_ns, _ in roots)
        killed = {rank: t_ns for rank, t_ns in killed.items() if t_ns > first}
    return frozenset(killed.keys() - own)


def _sent_away(view: View, end: BadEnd) -> bool:
    """As a launcher ends ranks."""
    return end[2] != "exception" and view.ranks[end[0]].exit_code in (_SIGTERM, _SIGKILL)


def _settled(view: View, bad: Sequence[BadEnd]) -> bool:
    """Return whether what came first would be known by now."""
    return view.run_end is not None or view.t_ns - bad[0][1] >= SETTLED_NS


def _roots(view: View, bad: Sequence[BadEnd]) -> list[BadEnd]:
    """The first failure: not who waited for it, not who lost a connection over it, not who was
    told to end after it. ``bad``: without those that the user's interrupt ended."""
    victims = left_waiting(view)
    own = [end for end in bad if not _follows(view, end, bad[0]) and end[0] not in victims]
    if not own and not _explained(view):
        own = [end for end in bad if not _follows(view, end, bad[0])]
    if not own:
        return []
    first = own[0][1]
    return [
        end
        for end in own
        if end[1] - first <= TOGETHER_NS
        or end[1] - first > FOLLOWS_NS
        or _same_exception(view, own[0], end)
    ]


def _left_early(view: View, bad: Sequence[BadEnd]) -> list[int]:
    """Ranks that left as if all were done, while others then lost the connection to them."""
    lost = [e for e in bad if e[2] == "exception" and is_transport(_failure(view, e[0]).text)]
    if not lost:
        return []  # told to end, or interrupted: who left in good order did as it was told
    until = lost[0][1] + SEEN_LATE_NS
    names = {end[0] for end in bad}
    left = {rank: left_ns(view, rank) for rank in view.ranks if rank not in names}
    return [rank for rank, t_ns in left.items() if t_ns is not None and t_ns <= until]


def _went_early(view: View, left: Sequence[int], bad: Sequence[BadEnd]) -> Finding:
    others = tuple(sorted({end[0] for end in bad}))
    t_ns = min(t for r in left if (t := left_ns(view, r)) is not None)
    return Finding(
        kind="missing-rank", severity="error", ranks=others, culprits=tuple(left), t_ns=t_ns,
        text=f"{ranks_text(left)} {agreed('has', left)} exited normally; "
        f"{ranks_text(others)} then lost the connection.",
        advice="Have every rank stop at the same step: uneven data is the usual cause "
        "(torch.distributed.algorithms.join, or drop the rest).",
        evidence=Evidence(t_ns, left[0], "timeline"),
    )  # fmt: skip


def _cut_off(view: View, bad: Sequence[BadEnd]) -> Finding:
    """Connections are lost and nobody is known to have ended first: not yet, or never."""
    ranks = tuple(sorted({end[0] for end in bad}))
    rank, t_ns, _ = bad[0]
    failures = [f for f in view.ranks[rank].failures if f.thread == "MainThread"]
    said = f": {brief(failures[0].text)}" if failures else ""
    over = view.run_end is not None and any(is_transport(f.text) for f in failures)
    return Finding(
        kind="cut-off", severity="error" if over else "warning", ranks=ranks, t_ns=t_ns,
        where=place(failures[0].frames) if failures else None,
        text=f"{ranks_text(ranks)} ended: lost a connection, or told to end{said}.",
        advice="What came first is not known: look at ranks on other hosts, the network, and who "
        "ended the job.",
        evidence=Evidence(t_ns, rank, "timeline"),
    )  # fmt: skip


def brief(text: str) -> str:
    """Return an exception's last line without where in the backend's source it comes from."""
    said = re.sub(r"\[[^\]]*\.(cc|cpp|h|hpp):\d+\] ?", "", text)
    for end in (". This is typically", ". Check the logs", " GLHF"):
        said = said.partition(end)[0]
    return said if len(said) <= MAX_TEXT else f"{said[: MAX_TEXT - 1]}…"


@per_view
def _explained(view: View) -> bool:
    """Something else is the cause: a hang or a disagreement that ended in timeouts."""
    causes = (*hangs(view), *mismatches(view), *messages(view), *thread_order(view))
    return any(f.severity == "error" for f in causes)


def _follows(view: View, end: BadEnd, earliest: BadEnd) -> bool:
    """It says of itself that something else came first."""
    rank, t_ns, how = end
    if how == "exception":
        failed = _failure(view, rank)
        if is_transport(failed.text):
            return True
        return _disagrees(view, rank) and waits_in_op(failed.frames, "")
    code = view.ranks[rank].exit_code
    if code == _SIGKILL and _told_before(view, t_ns):
        return True  # a launcher ends so what SIGTERM did not end
    if code is None and how == "killed" and t_ns - earliest[1] > TOGETHER_NS:
        return True  # a launcher ended it, and saw to it before the hub could look
    return code == _SIGTERM or (code in (_SIGABRT, None) and _disagrees(view, rank))


def _disagrees(view: View, rank: int) -> bool:
    """Ops of ranks, or a message of this one, do not fit: a backend may give up over that."""
    return bool(mismatched(view) or crossed(view)) or rank in mispaired(view)


def _told_before(view: View, t_ns: int) -> bool:
    """Another rank ended by SIGTERM, long before."""
    told = (end[1] for end in bad_ends(view) if view.ranks[end[0]].exit_code == _SIGTERM)
    return any(end_ns < t_ns - FIRM_NS for end_ns in told)


def _failure(view: View, rank: int) -> Failure:
    return next(f for f in view.ranks[rank].failures if f.thread == "MainThread")


def _same_exception(view: View, one: BadEnd, other: BadEnd) -> bool:
    """The same line of the program failed on both: one bug, not one rank's."""
    if one[2] != "exception" or other[2] != "exception":
        return False
    a, b = _failure(view, one[0]), _failure(view, other[0])
    return (a.type, a.frames) == (b.type, b.frames)


def _merged(view: View, roots: Sequence[BadEnd]) -> Iterable[Finding]:
    """One finding per way to end; ranks that failed alike together."""
    alike: dict[tuple[object, ...], list[BadEnd]] = {}
    for end in roots:
        rank, _, how = end
        key: tuple[object, ...] = (how, view.ranks[rank].exit_code)
        if how == "exception":
            failed = _failure(view, rank)
            key = (how, failed.type, failed.frames)
        elif how != "code":
            key = (how, rank)
        alike.setdefault(key, []).append(end)
    for group in alike.values():
        make = {"exception": _exception, "code": _code}.get(group[0][2], _lost)
        yield make(view, tuple(sorted(end[0] for end in group)), group[0])


MADE_UP: Final = (
    ". A rehearsal makes up what comes from other ranks: if this line judges such values, a real"
    " job may not raise here"
)


def _exception(view: View, ranks: tuple[int, ...], first: BadEnd) -> Finding:
    rank, t_ns, _ = first
    failed = _failure(view, rank)
    where = place(failed.frames)
    text = f"{ranks_text(ranks)} raised {brief(failed.text)}"
    named = tuple(int(n) for n in re.findall(r"\d{1,6}", "".join(_OF_RANKS.findall(failed.text))))
    culprits = named if named and set(named) < set(ranks) else ranks
    if where:
        text += f" (at {where}, step {failed.step})" if failed.step >= 0 else f" (at {where})"
    if len(ranks) > 1:
        text += f"; rank {rank} was first"
    if rehearsed(view) and failed.frames and is_user(failed.frames[-1]):  # its own raise or assert
        text += MADE_UP
    return Finding(
        kind="exception", severity="error", ranks=ranks, culprits=culprits, where=where, t_ns=t_ns,
        text=f"{text}.{_waiting_for(view, ranks, rank)}",
        advice="This is the first failure; errors of other ranks follow from it.",
        evidence=Evidence(t_ns, rank, "timeline"),
    )  # fmt: skip


def _code(view: View, ranks: tuple[int, ...], first: BadEnd) -> Finding:
    code = view.ranks[first[0]].exit_code
    return Finding(
        kind="rank-exited", severity="error", ranks=ranks, culprits=ranks, t_ns=first[1],
        text=f"{ranks_text(ranks)} left with exit code {code}, without an exception."
        f"{_waiting_for(view, ranks, first[0])}",
        advice="Look for sys.exit or os._exit in the program, and at its last words in the output.",
        evidence=Evidence(first[1], first[0], "timeline"),
    )  # fmt: skip


def _lost(view: View, ranks: tuple[int, ...], first: BadEnd) -> Finding:
    rank, t_ns, how = first
    code = view.ranks[rank].exit_code
    said = killed_text(code) if how == "killed" else "ended without an error"
    return Finding(
        kind="rank-lost", severity="error", ranks=ranks, culprits=ranks, t_ns=t_ns,
        text=f"rank {rank} {said}; its last records are kept.{_waiting_for(view, ranks, rank)}",
        advice=_KILLED_ADVICE.get(code or 0, _ADVICE),
        evidence=Evidence(t_ns, rank, "timeline"),
    )  # fmt: skip


def _waiting_for(view: View, ranks: Sequence[int], rank: int) -> str:
    """`` Ranks 1,2 wait for it.``: who waits for the rank, which ended so with others."""
    waiting = [other for other, gone in left_waiting(view).items() if rank in gone]
    if not waiting:
        return ""
    return f" {ranks_text(waiting).capitalize()} {waits_text(waiting)} for {agreed('it', ranks)}."


def _harmless(view: View, end: BadEnd) -> Finding:
    rank, t_ns, how = end
    code = view.ranks[rank].exit_code
    said = {"killed": killed_text(code), "lost": "ended without an error"}.get(how, "raised")
    return Finding(
        kind="exception" if how == "exception" else "rank-lost", severity="info", ranks=(rank,),
        t_ns=t_ns, text=f"rank {rank} {said}; the job was not affected.",
        evidence=Evidence(t_ns, rank, "timeline"),
    )  # fmt: skip


def _followed(view: View, followed: Sequence[BadEnd], roots: Sequence[BadEnd]) -> Finding:
    """Everybody whose end follows from another's, in one line."""
    ranks = tuple(sorted({end[0] for end in followed}))
    after = f" after {ranks_text(end[0] for end in roots)}"
    victims = left_waiting(view)
    waited = tuple(r for r in ranks if r in victims)
    text = f"{ranks_text(ranks)} ended{after}: told to end, or lost a connection."
    if waited == ranks:
        for_whom = ranks_text({r for rank in waited for r in victims[rank]})
        text = f"{ranks_text(ranks)} ended while waiting for {for_whom}."
    return Finding(
        kind="rank-lost", severity="info", ranks=ranks, t_ns=followed[0][1], text=text,
        evidence=Evidence(followed[0][1], ranks[0], "timeline"),
    )  # fmt: skip


def _exit_code(end: tuple[int, int | None], culprits: tuple[int, ...], explained: bool) -> Finding:
    t_ns, code = end
    return Finding(
        kind="exit-code", severity="info" if explained else "error", culprits=culprits, t_ns=t_ns,
        text=f"the job ended with exit code {code}.", advice="The output has its last words.",
        evidence=Evidence(t_ns, None, "output"),
    )  # fmt: skip


def note(view: View, asked: Told, bad: Sequence[BadEnd]) -> Finding:
    """Report that the job was ended on purpose, as a fact and not a fault."""
    ranks = tuple(sorted({end[0] for end in bad}))
    ended = f"; {ranks_text(ranks)} ended with it" if ranks else ""
    return Finding(
        kind="interrupted", severity="info", ranks=ranks, t_ns=asked.t_ns,
        text=f"the run was ended by {asked.by}{ended}.",
        advice="It was ended on purpose; errors that ranks then reported follow from that.",
        evidence=Evidence(asked.t_ns, ranks[0] if ranks else None, "timeline"),
    )  # fmt: skip
