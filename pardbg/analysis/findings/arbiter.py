"""Decides between candidates: which explain others, which merge, which are put into words.

``EXPLAINS`` is the whole relation; a detector knows of no other detector.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import pardbg.analysis.findings.kinds.data_kinds as data
import pardbg.analysis.findings.kinds.device_kinds as devices
import pardbg.analysis.findings.kinds.end_kinds as ends
import pardbg.analysis.findings.kinds.memory_kinds as memory
import pardbg.analysis.findings.kinds.recording_kinds as recording
import pardbg.analysis.findings.kinds.speed_kinds as speed
import pardbg.analysis.findings.kinds.stall_kinds as stalls
import pardbg.analysis.findings.kinds.value_kinds as values
from pardbg.analysis.findings.exits import is_transport
from pardbg.analysis.findings.finding import (
    MANY,
    STEP,
    Candidate,
    Evidence,
    Facts,
    Finding,
    Severity,
    kind_of_facts,
)
from pardbg.analysis.findings.kinds.absence import handled_text
from pardbg.analysis.findings.kinds.mismatch_kinds import (
    MessageMismatch,
    Mismatch,
    RehearsedOrder,
    ThreadOrder,
)
from pardbg.words import ranks_text

Effect = Literal["silent", "note", "nobody"]
"""silent: the effect is no finding; note: a note; nobody: a note without culprits."""
Families = tuple[type[Facts], ...]
When = Callable[[Candidate, Candidate], bool]
"""(cause, effect) -> whether the cause explains the effect"""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule by which candidates with certain facts explain candidates with others."""

    causes: Families
    effects: Families
    when: When
    effect: Effect = "silent"
    together: bool = False
    """Whether all causes with such facts count as one, with the culprits of all."""
    tells: bool = False
    """Whether the facts of the cause are extended by the effect."""


def _same_group(cause: Candidate, effect: Candidate) -> bool:
    return bool(cause.scope & effect.scope)


def _stops_group(cause: Candidate, effect: Candidate) -> bool:
    stops = isinstance(cause.facts, Mismatch) and cause.facts.stops
    return stops and bool(cause.scope & effect.scope)


def _split_calls(cause: Candidate, effect: Candidate) -> bool:
    """Return whether the effect's group was never made, as a rank made other groups instead, or
    waits in the call for its own."""
    of = effect.facts
    calls = isinstance(cause.facts, Mismatch) and cause.facts.call
    stands = isinstance(of, stalls.Deadlock) and of.calls
    inside = stands and set(cause.culprits or cause.ranks) <= set(effect.ranks)
    return calls and (inside or (isinstance(of, stalls.Stalled) and of.never_made))


def _other_groups(cause: Candidate, effect: Candidate) -> bool:
    """Return whether an op mismatch follows from ranks having made other groups before."""
    calls = isinstance(cause.facts, Mismatch) and cause.facts.call
    odd = set(cause.culprits or cause.ranks)
    of = isinstance(effect.facts, Mismatch) and not effect.facts.call and effect.group != "default"
    return calls and of and _before(cause, effect) and not odd.isdisjoint(effect.ranks)


def _after_shift(cause: Candidate, effect: Candidate) -> bool:
    """Return whether ranks that left out an op, or made one more, meet others in wrong ops since:
    nothing else is known against any rank there."""
    one, of, odd = cause.facts, effect.facts, set(cause.culprits)
    assert isinstance(one, Mismatch) and isinstance(of, Mismatch)
    shifts = bool(one.steps_before or one.verdict == "op mismatch") and not one.call
    later = _begun(cause) < _begun(effect) and not of.call
    named = set(effect.culprits) <= odd and not odd.isdisjoint(effect.ranks)
    return cause.settled and shifts and later and named


def _begun(one: Candidate) -> int:
    return one.t_ns if one.first_ns is None else one.first_ns


def _called_in(cause: Candidate, effect: Candidate) -> bool:
    """Return whether a call that does not end is of ranks with an op mismatch."""
    shifted = isinstance(cause.facts, Mismatch) and cause.facts.verdict == "op mismatch"
    return shifted and cause.settled and _about_ranks(cause, effect)


def _in_message(cause: Candidate, effect: Candidate) -> bool:
    blamed = effect.facts.blamed if isinstance(effect.facts, stalls.Stalled) else ()
    return not set(blamed).isdisjoint(cause.ranks)


def _fails_ranks(cause: Candidate, effect: Candidate) -> bool:
    """Return whether timeouts and aborts of a hang or disagreement ended the ranks."""
    error = cause.settled and cause.facts.severity() == "error"
    return error and effect.last_resort


def _same_op(cause: Candidate, effect: Candidate) -> bool:
    """Return whether parts of an all_to_all do not fit because ranks issued unlike ops there."""
    return cause.settled and cause.seq == effect.seq and bool(cause.scope & effect.scope)


def _stood_in_it(cause: Candidate, effect: Candidate) -> bool:
    """Return whether ranks were killed after they had stood in a deadlock or waited for a rank that
    cannot come: then somebody ended the job."""
    stood = set(cause.ranks)
    if not isinstance(cause.facts, stalls.Deadlock):
        stood -= set(cause.culprits)
    return _is_error(cause, effect) and cause.t_ns < effect.t_ns and stood >= set(effect.ranks)


def _exits(cause: Candidate, effect: Candidate) -> bool:
    """Return whether ranks wait for a rank that is exiting, whose exit code then became known, or
    wait for another one that has left with a code, too."""
    one, of = cause.facts, effect.facts
    assert isinstance(one, ends.Exited) and isinstance(of, stalls.MissingRank)
    leaves = all(absence.doing in ("left", "ended") for absence in of.absences)
    known = set(cause.culprits) >= set(effect.culprits) or set(one.waiting) >= set(effect.ranks)
    return leaves and bool(effect.culprits) and known


def _is_error(cause: Candidate, effect: Candidate) -> bool:
    return cause.settled and cause.facts.severity() == "error"


def _raised_it(cause: Candidate, effect: Candidate) -> bool:
    of = effect.facts
    raised = isinstance(of, ends.Raised) and (
        "OutOfMemoryError" in of.error
        or (of.cause is not None and of.cause.type == "OutOfMemoryError")
    )
    return raised and set(cause.culprits) >= set(effect.ranks)


def _no_own_cause(cause: Candidate, effect: Candidate) -> bool:
    """Return whether the load of these ranks' host may account for facts about speed."""
    here = set(effect.culprits or effect.ranks) & set(cause.ranks)
    return bool(here) and not effect.facts.beyond_load()


def _loads_longer(cause: Candidate, effect: Candidate) -> bool:
    facts = cause.facts
    return isinstance(facts, speed.Straggler) and facts.cause == "data" and _is_loud(cause)


def _loads_now_and_then(cause: Candidate, effect: Candidate) -> bool:
    """Return whether a loader's workers that finish together make every few steps slow."""
    slow, of = cause.facts, effect.facts
    assert isinstance(slow, speed.Straggler) and isinstance(of, speed.SlowSteps)
    alike = 0.8 <= of.by_ns / max(slow.by_ns, 1) <= 1.25
    return slow.cause == "data" and alike and cause.culprits == effect.culprits


def _is_last_to_load(cause: Candidate, effect: Candidate) -> bool:
    return isinstance(effect.facts, speed.Straggler) and effect.facts.cause == "data"


def _is_loud(one: Candidate) -> bool:
    return one.facts.severity() != "info"


def _for_want_of_core(cause: Candidate, effect: Candidate) -> bool:
    facts = effect.facts
    core = isinstance(facts, speed.Straggler) and facts.cause == "core"
    return core and _no_own_cause(cause, effect)


def _all_creep(cause: Candidate, effect: Candidate) -> bool:
    return set(cause.culprits) >= set(effect.culprits)


def _stands_without_thread(cause: Candidate, effect: Candidate) -> bool:
    """Return whether a rank stands because one of its threads ended a few steps before: it sleeps
    or waits within its process or in an op, and is not stopped or blocked on a socket."""
    thread, of = cause.facts, effect.facts
    if not isinstance(thread, ends.ThreadRaised) or thread.kept or is_transport(thread.error):
        return False
    if thread.steps_since > ends.THREAD_STEPS or not isinstance(of, stalls.Stalled):
        return False
    absences = of.absences if isinstance(of, stalls.MissingRank) else ()
    within = all(one.waits_within for one in absences)
    return within and set(cause.culprits) <= set(of.blamed)


def _left_out(cause: Candidate, effect: Candidate) -> bool:
    """Return whether a future's exception explains a task that only this rank left out."""
    of = cause.facts
    kept = isinstance(of, ends.ThreadRaised) and of.kept and of.unwritten is None
    absences = effect.facts.absences if isinstance(effect.facts, stalls.MissingRank) else ()
    within = effect.settled and all(one.waits_within for one in absences)
    return kept and within and set(cause.culprits) <= set(effect.culprits or effect.ranks)


def _about_ranks(cause: Candidate, effect: Candidate) -> bool:
    return set(cause.ranks) >= set(effect.ranks)


def _about_culprits(cause: Candidate, effect: Candidate) -> bool:
    return bool(effect.culprits) and set(cause.ranks) >= set(effect.culprits)


def _before(cause: Candidate, effect: Candidate) -> bool:
    return cause.t_ns <= effect.t_ns


def _of_one_op(cause: Candidate, effect: Candidate) -> bool:
    """Return whether the log and the recorded ops are about one op of one group."""
    one, other = cause.group or "", effect.group or ""
    same = one == other or {one, other} <= {"", "default", "default_pg"}
    return _is_error(cause, effect) and same and cause.seq == effect.seq


def _log_has_cause(cause: Candidate, effect: Candidate) -> bool:
    """Return whether, by the log, a rank failed that others wait for."""
    failed = isinstance(cause.facts, ends.LogSaid) and not cause.facts.said.stop
    named = set(effect.culprits)
    return failed and _is_error(cause, effect) and (not named or named <= set(cause.culprits))


def _same_replicas(cause: Candidate, effect: Candidate) -> bool:
    """Return whether checksums explain this difference of captured tensors as well."""
    of = effect.facts
    if not isinstance(of, values.Diverges) or of.reference or not _about_ranks(cause, effect):
        return False
    return of.what in ("init", "param") or cause.facts.severity() == "info"


def _of_gradients(cause: Candidate, effect: Candidate) -> bool:
    """Return whether parameters differ because gradients of these ranks do."""
    of = cause.facts
    unlike = isinstance(of, values.Diverges) and of.cause is not None and bool(of.cause.ranks)
    return unlike and set(cause.ranks) >= set(effect.ranks)


def _of_steps_left_out(cause: Candidate, effect: Candidate) -> bool:
    """Return whether checksums already explain why ranks step less often than others."""
    of = effect.facts
    skips = isinstance(of, values.StepDrift) and of.how == "skips"
    return skips and set(cause.ranks) >= set(effect.ranks)


def _adds_others(cause: Candidate, effect: Candidate) -> bool:
    """Return whether replicas differ or become non-finite because ranks reduce unlike steps."""
    of = cause.facts
    unlike = isinstance(of, values.StepDrift) and of.how != "skips"
    return unlike and not set(cause.ranks).isdisjoint(effect.culprits or effect.ranks)


def _spreads_to(cause: Candidate, effect: Candidate) -> bool:
    """Return whether several ranks raised one exception in the step of a value that is not finite
    and that stayed, or in the next one: the culprits among them."""
    bad, of, raised = cause.facts, effect.facts, set(effect.ranks)
    assert isinstance(bad, values.NotFinite) and isinstance(of, ends.Raised)
    then = bad.lasts and of.step in (bad.step, bad.step + 1) and _before(cause, effect)
    return then and len(raised) > 1 and raised >= {*cause.culprits, *bad.since}


def _always(cause: Candidate, effect: Candidate) -> bool:
    return True


STALLS: Final[Families] = (
    stalls.MissingRank, stalls.Deadlock, stalls.Misaddressed, stalls.StuckOp, stalls.UnseenRank,
)  # fmt: skip
CALLS: Final[Families] = (
    stalls.StuckCall, stalls.StuckRemote, stalls.StuckLock, stalls.StuckBehind,
)  # fmt: skip
DISAGREEMENTS: Final[Families] = (Mismatch, MessageMismatch, ThreadOrder, RehearsedOrder)
_STANDSTILLS: Final[Families] = (*STALLS, *CALLS, *DISAGREEMENTS)
_ROOTS: Final[Families] = (ends.Raised, ends.Exited, ends.Lost)
_LAST_RESORTS: Final[Families] = (*_ROOTS, ends.Followed, ends.LeftEarly, ends.CutOff)
_SPEED: Final[Families] = (
    speed.Straggler, speed.ExposedCommunication, speed.SmallMessages, speed.SlowLink,
    speed.SlowGroup, speed.ScheduleExcess, speed.StageImbalance, speed.InputBound,
)  # fmt: skip
EXPLAINS: Final[tuple[Rule, ...]] = (
    # A rehearsal knows all ops: that ranks do not meet, and wait, follows from their order.
    Rule(
        (RehearsedOrder,),
        (*STALLS, *CALLS, Mismatch, MessageMismatch, ThreadOrder, ends.ThreadRaised),
        _always,
    ),
    # Which thread comes first differs: so do the ops, and ranks wait in them.
    Rule((ThreadOrder,), (Mismatch,), _same_group),
    Rule((ThreadOrder,), STALLS, _same_group),
    # Ranks wait in an op that they disagree on, and in later ops.
    Rule((Mismatch,), STALLS, _stops_group),
    Rule((Mismatch,), STALLS, _split_calls),
    Rule((Mismatch,), CALLS, _called_in),
    Rule((Mismatch,), (MessageMismatch,), _same_op),
    Rule((MessageMismatch,), STALLS, _in_message),
    # Ranks that hang or disagree end in the end.
    Rule(_STANDSTILLS, _LAST_RESORTS, _fails_ranks),
    Rule((ends.Exited,), (stalls.MissingRank,), _exits),
    Rule((stalls.MissingRank, stalls.Deadlock), (ends.Lost,), _stood_in_it, "note"),
    # Last of these rules: a disagreement that follows from another still explains its waits.
    Rule((Mismatch,), (Mismatch,), _other_groups),
    Rule((Mismatch,), (Mismatch,), _after_shift),
    # A rank that ran out of memory raised that error, and later ends follow from it.
    Rule((devices.OutOfMemory,), (ends.Raised,), _raised_it, together=True),
    # Log and dumps read together: the log has the cause of an end, dumps have the others' waits.
    Rule((ends.LogSaid,), _STANDSTILLS, _log_has_cause, "note"),
    Rule(_STANDSTILLS, (ends.LogSaid,), _of_one_op, "note"),
    Rule((devices.OutOfMemory,), (ends.Interrupted,), _is_error),
    Rule((devices.OutOfMemory,), (ends.ExitCode,), _is_error),
    Rule(_ROOTS, (ends.Interrupted,), _always),
    Rule(_STANDSTILLS, (ends.ExitCode,), _is_error),
    Rule((*_ROOTS, ends.CutOff, ends.LeftEarly, ends.Interrupted), (ends.ExitCode,), _always),
    # A job that failed, or that somebody ended, before its first group.
    Rule((ends.ExitCode, ends.Interrupted), (recording.NoRanks,), _always, "note"),
    # One part of the samples is why ranks have equal losses, or targets.
    Rule((data.SameParts,), (data.SameData,), _about_ranks),
    # A device with lowered clocks is why its rank is late; NCCL warns when a peer is gone.
    Rule((devices.DeviceThrottled,), (speed.Straggler,), _about_culprits, "note"),
    Rule(_ROOTS, (devices.NcclWarned,), _before, "note"),
    # A rank waits for its thread that is gone.
    Rule(
        (ends.ThreadRaised,),
        (stalls.MissingRank, stalls.Deadlock),
        _stands_without_thread,
        "note",
        tells=True,
    ),
    Rule((ends.ThreadRaised,), (*STALLS, *DISAGREEMENTS), _left_out, "note", tells=True),
    # Ranks check their values, and end.
    Rule((values.NotFinite,), (ends.Raised,), _spreads_to, "note"),
    # A device that ran out of memory was near its limit before.
    Rule((devices.OutOfMemory,), (memory.MemoryNearLimit,), _about_ranks),
    # A rank that grows is above the others, too.
    Rule((memory.MemoryCreep,), (memory.MemoryImbalance,), _all_creep, together=True),
    # Checksums and captured tensors tell of the same replicas.
    Rule((values.ReplicaDivergence,), (values.Diverges,), _same_replicas),
    Rule((values.Diverges,), (values.ReplicaDivergence,), _of_gradients, "note"),
    Rule((values.LateAverage, values.NotAveraged), (values.ReplicaDivergence,), _about_ranks),
    # Ranks that reduce other things than they mean to, or that step less often.
    Rule((values.UnequalAccumulation, data.SkippedBatch), (values.StepDrift,), _about_ranks),
    Rule((values.ReplicaDivergence,), (values.StepDrift,), _of_steps_left_out),
    Rule((values.StepDrift,), (values.ReplicaDivergence, values.NotFinite), _adds_others, "note"),
    # Steps with one number differ: lateness in them says nothing.
    Rule((values.StepDrift,), (speed.Straggler, speed.SlowSteps), _about_culprits),
    # Where one loader is slower than the others it is that; where all are slow, one has to be last.
    Rule((speed.Straggler,), (speed.InputBound,), _loads_longer),
    Rule((speed.InputBound,), (speed.Straggler,), _is_last_to_load),
    Rule((speed.Straggler,), (speed.SlowSteps,), _loads_now_and_then),
    # Times depend on the overloaded host.
    Rule((speed.HostOverloaded,), (speed.Straggler,), _for_want_of_core, "nobody"),
    Rule((speed.HostOverloaded,), _SPEED, _no_own_cause, "note"),
    Rule((devices.DeviceShared,), _SPEED, _about_ranks, "note"),
)  # fmt: skip
"""Rules in the order in which they apply: a candidate that one rule silences is no cause in later
rules. Unsettled candidates are causes and never findings."""


def surviving(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates that no rule silences, merged, unsettled ones included."""
    return [one for one, _ in _judged(candidates)]


def decided(candidates: Iterable[Candidate]) -> tuple[Finding, ...]:
    """Return the settled findings, worst severity first, then newest."""
    found = [(one, severity) for one, severity in _judged(candidates) if one.settled]
    findings = (in_words(one, severity) for one, severity in _alike(found))
    return tuple(sorted(findings, key=lambda finding: finding.order))


Judged = tuple[Candidate, Severity]


def _judged(candidates: Iterable[Candidate]) -> list[Judged]:
    here = list(candidates)
    by_facts: dict[type[Facts], list[int]] = defaultdict(list)
    for at, one in enumerate(here):
        by_facts[type(one.facts)].append(at)
    silent: set[int] = set()
    notes: set[int] = set()
    for rule in EXPLAINS:
        effects = [at for family in rule.effects for at in by_facts.get(family, ())]
        of = [i for family in rule.causes for i in by_facts.get(family, ()) if i not in silent]
        causes = [here[at] for at in of]
        if not causes or not effects:
            continue
        if rule.together:
            causes = [_together(causes)]
        for at in effects:
            others = (cause for cause in causes if cause is not here[at])
            if at in silent or not any(rule.when(cause, here[at]) for cause in others):
                continue
            if rule.effect == "silent":
                silent.add(at)
                continue
            notes.add(at)
            for i in of if rule.tells else ():
                if rule.when(here[i], here[at]):
                    here[i] = _telling(here[i], here[at])
            if rule.effect == "nobody":
                here[at] = replace(here[at], culprits=())
    left = [
        (one, "info" if at in notes else one.facts.severity())
        for at, one in enumerate(here) if at not in silent
    ]  # fmt: skip
    return list(_subjects(left))


def _telling(cause: Candidate, effect: Candidate) -> Candidate:
    return replace(cause, facts=cause.facts.explaining(cause, effect), settled=True)


def _together(causes: Sequence[Candidate]) -> Candidate:
    culprits = {rank for cause in causes for rank in cause.culprits}
    return replace(causes[0], culprits=tuple(sorted(culprits)))


def _subjects(found: Sequence[Judged]) -> Iterator[Judged]:
    """Join candidates of one subject, in the order of the first of each."""
    for same in _groups(found, lambda one: one.facts.subject(one)):
        first, severity = same[0]
        joined = first.facts.joined([one for one, _ in same])
        yield from same if len(joined) == len(same) > 1 else [(one, severity) for one in joined]


def _alike(found: Sequence[Judged]) -> Iterator[Judged]:
    """Join candidates of one rank each, in one group, that differ in figures only, so that a
    thousand of them do not bury the rest."""
    if len(found) < MANY:
        yield from found
        return
    of = {id(one): severity for one, severity in found}

    def likeness(one: Candidate) -> object:
        if len(one.culprits or one.ranks) != 1:
            return None
        handled = tuple(what for what, _ in one.handled)
        of_facts = kind_of_facts(one.facts), one.facts.apart()
        return one.where, one.group, of[id(one)], handled, of_facts

    for same in _groups(found, likeness):
        yield from _likewise(same) if len(same) >= MANY else same


def _groups(found: Sequence[Judged], key: Callable[[Candidate], object]) -> Iterator[list[Judged]]:
    groups: dict[object, list[Judged]] = defaultdict(list)
    for one, severity in found:
        of = key(one)
        groups[object() if of is None else (one.kind, type(one.facts), of)].append((one, severity))
    yield from groups.values()


def _likewise(same: Sequence[Judged]) -> Sequence[Judged]:
    """Return one candidate for all, with the facts of the most expensive one."""
    of = {rank for one, _ in same for rank in one.culprits or one.ranks}
    if len(of) < MANY:
        return same
    worst = max((one for one, _ in same), key=lambda one: one.cost_ns_per_step or 0)
    ranks = tuple(dict.fromkeys(rank for one, _ in same for rank in one.ranks))
    culprits = tuple(sorted({rank for one, _ in same for rank in one.culprits}))
    return [(replace(worst, joined=(ranks, culprits)), same[0][1])]


def in_words(one: Candidate, severity: Severity) -> Finding:
    text, (ranks, culprits) = one.facts.text(one), one.joined or (one.ranks, one.culprits)
    if one.joined:
        others = set(culprits or ranks).difference(one.culprits or one.ranks)
        text += f" Likewise {ranks_text(others)}."
    text += handled_text(one.handled)
    evidence, screen = one.evidence, one.facts.screen
    if evidence is None and screen:
        first = (one.culprits or one.ranks * (screen == "timeline"))[:1]
        evidence = Evidence(one.t_ns, first[0] if first else None, screen)
    follows = severity == "info" and one.facts.severity() == "error"  # its cause has the advice
    steps = () if follows else tuple(filter(None, one.facts.advice().split(STEP)))
    return Finding(
        kind=one.kind, severity=severity, t_ns=one.t_ns, text=text, steps=steps,
        ranks=ranks, culprits=culprits, group=one.group, seq=one.seq, where=one.where,
        cost_ns_per_step=one.cost_ns_per_step, evidence=evidence, first_ns=one.first_ns,
        facts=one.facts, handled=one.handled,
    )  # fmt: skip
