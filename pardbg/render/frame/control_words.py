"""Sentences of control: facts, outcomes of verbs, refusals and the audit trail. Every screen,
``pardbg ctl`` and the job's terminal take their sentences from here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pardbg.analysis.pipeline.dependencies import parse
from pardbg.events import control_facts as facts
from pardbg.events.commands import (
    Answers,
    HubFacts,
    Joined,
    LevelAsked,
    Marked,
    RankRows,
    Reply,
    WhereFound,
)
from pardbg.events.control_codes import Gone, Mode, NodeChange, NotHeld, Verb, Why
from pardbg.events.control_events import ControlEvent
from pardbg.events.device_facts import DeviceNews
from pardbg.sentences import filled, sections
from pardbg.words import (
    MAX_TERMS,
    WHY_SILENT,
    binary_size,
    countdown,
    duration,
    message,
    plural,
    rank_set,
    ranks_text,
    silent_nodes,
    viewer,
)  # fmt: skip
from pardbg_agent.ctrl.agent_messages import Evaluated, NoAnswer, OpenOp
from pardbg_agent.wire import LEVELS

Words = list[tuple[str, str]]
"""(text, style token) in order."""
_MOST: Final = 4
"""Maximum number of actions that are listed of a rank."""
_MAX_WHY: Final = 3
_TEXTS: Final = sections("pardbg.render.frame", "control.txt")

# -- outcomes: ``tick 7 ran r1 B0 · r2 F2; r0 waits for 2B0; next r1 F3``


def outcome_text(done: facts.Outcome) -> str:
    """Return the outcome of a verb as one line."""
    where = f" ({done.time} of {done.times})" if done.times > 1 else ""
    head = done.verb.value + where
    places = _places(done)
    if done.steps is not None:
        unnamed = " (no actions are named)" if done.verb is Verb.TICK else ""
        return f"{head} {_steps(*done.steps)}{unnamed}; now {places}"
    if done.passed:
        return f"{head} passed {grouped(done.passed)}; now {places}"
    if not done.ran:
        return f"{head} ran no action; now {places}"
    if done.tick is not None:
        head = f"tick {done.tick}{where}"
    words = did(head, done.ran, done.waits, done.coming, done.many_stages)
    text = "".join(text for text, _ in words)
    planned = done.tick is not None or done.waits or done.coming
    return text if planned else f"{text}; now {places}"


def did(
    head: str,
    ran: Mapping[int, Sequence[str]] | None,
    waits: Mapping[int, str],
    coming: Mapping[int, str],
    many_stages: bool,
) -> Words:
    """Return ``tick 7 ran r1 B0 · r2 F2; r0 waits for 1B0; next r1 F3 · r2 B1``.

    ``ran``: None if there was nothing to run yet; ``waits``: rank -> the action that must run first
    on another rank; ``coming``: rank -> action of its next tick.
    """
    parts: Words = [(head, "strong")]
    if ran is not None:
        parts += [(" ran ", "dim"), *(_list(ran, many_stages, "strong") or [("nothing", "warn")])]
    if waits:
        parts += [("; ", "dim"), (grouped(waits, "waits for "), "warn")]
    if coming:
        parts += [("; next ", "dim")]
        parts += _list({rank: [action] for rank, action in coming.items()}, many_stages, "accent")
    return parts


def short(action: str, many_stages: bool) -> str:
    """Return ``B5`` if ranks have one stage each, else ``2B5``; other words do not change."""
    parsed = parse(action)
    if parsed is None or many_stages:
        return action
    return action[len(str(parsed.stage)) :]


def _list(actions: Mapping[int, Sequence[str]], many_stages: bool, style: str) -> Words:
    """Merge ranks that do the same: ``r0,4 F3``."""
    same: dict[str, list[int]] = {}
    for rank, row in sorted(actions.items()):
        if row:
            few = row if len(row) <= _MOST else [row[0], "…", row[-1]]
            text = " ".join(short(action, many_stages) for action in few)
            same.setdefault(text, []).append(rank)
    found: Words = []
    for text, ranks in same.items():
        found += [(" · ", "faint")] * bool(found)
        found += [(f"r{rank_set(ranks)} ", "dim"), (text, style)]
    return found


def grouped(texts: Mapping[int, str], before: str = "") -> str:
    """Return text such as ``r0–3 before 0F0 · r4 before recv``"""
    same: dict[str, list[int]] = {}
    for rank, text in sorted(texts.items()):
        same.setdefault(text, []).append(rank)
    return " · ".join(f"r{rank_set(ranks)} {before}{text}" for text, ranks in same.items())


def _places(done: facts.Outcome) -> str:
    text = grouped(done.places, "before ")
    moving = f"{ranks_text(done.moving)} running" if done.moving else ""
    return "; ".join(filter(None, [text, moving]))


def _steps(old: int, new: int) -> str:
    if new <= old:
        return "ended no step"
    return f"ran step {old}" if new == old + 1 else f"ran steps {old} to {new - 1}"


# -- facts


def op_text(op: OpenOp) -> str:
    """Return text such as ``all_reduce dp #42``, ``recv from r2``."""
    if op.peer is None:
        return f"{op.op} {op.group} #{op.seq}"
    return message(op.op, op.send, op.peer)


def waits_text(waits: facts.Waits) -> str:
    """Return the op that a rank waits in, with the rank, held by a viewer, that it waits for."""
    return f"waits in {op_text(waits.op)} for rank {waits.for_rank}"


def breakpoint_name(number: int, watch: bool) -> str:
    return f"{'watch' if watch else 'breakpoint'} {number}"


def why_text(reasons: Sequence[facts.Fact]) -> str:
    """Return the reasons why ranks are held, as one line; empty: a viewer asked for it."""
    more = [f"and {len(reasons) - _MAX_WHY} more"] if len(reasons) > _MAX_WHY else []
    return "; ".join([*(fact_text(fact) for fact in reasons[:_MAX_WHY]), *more])


def fact_text(fact: facts.Fact) -> str:
    """Return a fact as one line, without the viewer that caused it; empty if its name is enough."""
    words = _FACTS.get(type(fact))
    if words is not None:
        return words(fact)
    return filled(_TEXTS["facts"].get(type(fact).__name__, ""), fact)


def _asked(fact: facts.Asked) -> str:
    times = f"x{fact.times}" if fact.times > 1 else ""
    text = " ".join(filter(None, (fact.verb.value, fact.expr, fact.ranks, times)))
    return f"{text} ({fact.time} of {fact.times})" if fact.time > 1 else text


def _runs_on(fact: facts.RunsOn) -> str:
    if fact.no_rank_left:
        return "no rank is left"
    return "no rank is at an exception any more" if fact.no_exception_left else ""


def _left(fact: facts.Left) -> str:
    if not fact.was_held:
        return ""
    return (
        f"{viewer(fact.viewer)} {'disconnected' if fact.disconnected else 'left'}: all ranks run on"
    )


def _in_debugger(fact: facts.InDebugger) -> str:
    return (
        f"rank {fact.rank} is led by a debugger"
        if fact.came
        else f"rank {fact.rank}: the debugger is gone"
    )


def _detached(fact: facts.Detached) -> str:
    words = {Gone.ENDED: "ended", Gone.GONE: "is gone", Gone.LOST: "is lost"}
    return f"rank {fact.rank} {words[fact.how]}"


def _raised(fact: facts.Raised) -> str:
    if fact.not_held is NotHeld.OFF:
        return f"rank {fact.rank}: not held, exceptions are not held in this run"
    if fact.not_held is NotHeld.FOLLOWS:
        return f"rank {fact.rank}: not held, another rank was let die before"
    return f"rank {fact.rank} raised {fact.error}: continue lets it die"


def _hit(fact: facts.Hit) -> str:
    """Return where the rank stopped, and the value that a watch found."""
    name = breakpoint_name(fact.number, fact.watch)
    if not fact.watch:
        return f"{name}: rank {fact.rank} before {fact.next} ({fact.condition})"
    found = f"{fact.condition}: {fact.found}" if fact.found else fact.condition
    return f"{name}: rank {fact.rank} step {fact.step}, {found}; before {fact.next}"


def _stray(fact: facts.Stray) -> str:
    text = f"rank {fact.rank} was held by a hub that is gone"
    if fact.number is not None:
        text = f"rank {fact.rank} before {fact.next} hit {fact.number}, which is set no more"
    return f"{text}: {'it runs on' if fact.runs else 'held with the others'}"


def _released(fact: facts.Released) -> str:
    what = "an op"
    if fact.waits is not None:
        what = f"rank {fact.waits.rank} {waits_text(fact.waits)} and"
    return f"{ranks_text(fact.ranks)} let go: {what} times out in {countdown(fact.left_ns)}"


def _edited(fact: facts.Edited) -> str:
    names = ", ".join(breakpoint_name(one.number, bool(one.kind)) for one in fact.breakpoints)
    if fact.viewer_gone:
        return f"{names}: {fact.viewer_gone} is gone"
    if fact.verb is Verb.DELETE:
        return f"{names} deleted" if names else "none is set"
    if fact.verb in (Verb.ENABLE, Verb.DISABLE):
        return f"{names} {fact.verb.value}d" if names else "none is set"
    one = fact.breakpoints[0]
    if fact.verb is Verb.IGNORE:
        return f"{names}: skips the next {one.ignore} matches"
    where = (
        f" on {ranks_text(one.on)}"
        if one.on is not None and fact.verb is not Verb.CONDITION
        else ""
    )
    return f"{names}: {one.condition}{where}"


def _delayed(fact: facts.Delayed) -> str:
    who = ranks_text(fact.ranks)
    return f"{who} delayed by {duration(fact.ns)} in each step" if fact.ns else f"{who} not delayed"


def _level(fact: facts.Level) -> str:
    if fact.back:
        return f"back to {fact.level}"
    time = f" for {duration(fact.for_ns)}" if fact.for_ns else ""
    reason = f": {fact.reason}" if fact.reason else ""
    return f"{fact.level}{time} on {plural(fact.num_ranks, 'rank')}{reason}"


def _restarted(fact: facts.HubRestarted) -> str:
    parts = [f"hub {fact.hub} was lost; its {binary_size(fact.bytes)} gave "
             + plural(fact.messages, "message")]  # fmt: skip
    parts += ["the ranks that it held run on"] * fact.were_held
    parts += [f"breakpoint {', '.join(map(str, fact.set_again))} set again"] * bool(fact.set_again)
    parts += [f"breakpoint {', '.join(map(str, fact.not_set))} is lost"] * bool(fact.not_set)
    return "; ".join(parts)


def _node(fact: facts.Node) -> str:
    if fact.change is NodeChange.JOINED:
        return f"node {fact.node} ({fact.host}) has joined"
    if fact.change is NodeChange.NEW_RELAY:
        return f"node {fact.node} ({fact.host}) has a new relay"
    ranks = f", {ranks_text(fact.ranks)}" if fact.ranks else ""
    name, time = f"node {fact.node} ({fact.host}{ranks})", duration(fact.silent_ns)
    if fact.change is NodeChange.LOST:
        return f"{name} is silent for {time}: {WHY_SILENT}"
    return f"{name} is back after {time}"


def nodes_text(changes: Sequence[facts.Node]) -> str:
    """Return one line for several nodes that were lost, or are back."""
    if len(changes) == 1:
        return _node(changes[0])
    numbers = {fact.node for fact in changes}
    if changes[0].change is NodeChange.LOST:
        return silent_nodes(numbers, (rank for fact in changes for rank in fact.ranks))
    return f"nodes {rank_set(numbers, most=MAX_TERMS)} are back"


def _device(fact: DeviceNews) -> str:
    """Return the text for a change of a device's state."""
    what = f"throttled ({', '.join(fact.reasons)})" if fact.reasons else "at its full clocks"
    errors = f", {plural(fact.ecc_errors, 'ECC error')}" if fact.ecc_errors else ""
    xid = f", Xid {fact.xid}" if fact.xid else ""
    return f"device {fact.index} of {fact.host} is {what}{errors}{xid}"


def _stall(fact: facts.Stall) -> str:
    ranks = sorted({*fact.source, *(rank for part in fact.stacks for rank in part.ranks)})
    return f"no progress for 2 s; stacks of {ranks_text(ranks)}"


_FACTS: Final[dict[type, Callable[[Any], str]]] = {
    facts.Asked: _asked,
    facts.Cut: lambda fact: outcome_text(fact.outcome) if fact.outcome is not None else "",
    facts.RunsOn: _runs_on,
    facts.Left: _left,
    facts.Taken: lambda fact: f"taken over from {viewer(fact.before)}" if fact.before else "taken",
    facts.InDebugger: _in_debugger,
    facts.Detached: _detached,
    facts.Raised: _raised,
    facts.Hit: _hit,
    facts.Stray: _stray,
    facts.Released: _released,
    facts.Stuck: lambda fact: (
        f"rank {fact.rank} is in {op_text(fact.op)}, and rank {fact.gone} is gone"
    ),
    facts.Edited: _edited,
    facts.Delayed: _delayed,
    facts.Refused: lambda fact: ": ".join(filter(None, (fact.verb, refusal_text(fact.refusal)))),
    facts.Level: _level,
    facts.HubRestarted: _restarted,
    facts.Node: _node,
    DeviceNews: _device,
    facts.Stall: _stall,
}
"""Functions for facts whose text is more than one sentence of ``control.txt``."""


# -- refusals


def refusal_text(refusal: facts.Refusal, you: str = "") -> str:
    """Return one line with the reason why a command of ``you`` was refused, and what to do."""
    words, key = _REFUSALS.get(refusal.why), refusal.why.value
    if refusal.why is Why.TAKEN and you and viewer(refusal.holder) == viewer(you):
        key = "taken_here"
    return words(refusal) if words else filled(_TEXTS["refusals"][key], refusal)


def _no_breakpoint(refusal: facts.Refusal) -> str:
    there = ", ".join(map(str, refusal.numbers)) or "none is set"
    return f"no breakpoint {refusal.number}; there are: {there}"


def _no_cut(refusal: facts.Refusal) -> str:
    cause = fact_text(refusal.cause) if refusal.cause is not None else ""
    return f"{refusal.verb} ended without a cut: {cause or 'the ranks run on'}"


_REFUSALS: Final[dict[Why, Callable[[facts.Refusal], str]]] = {
    Why.NOTHING_HELD: lambda r: (
        f"nothing is held: pause {f'before {r.verb}' if r.verb else 'first'}"
    ),
    Why.NO_BREAKPOINT: _no_breakpoint,
    Why.NO_CUT: _no_cut,
    Why.BAD_LEVEL: lambda r: f"a level is {', '.join(LEVELS)}",
}


def no_answer_text(answer: Evaluated) -> str:
    """Return the reason why a rank did not evaluate; empty: the rank did."""
    if answer.refusal is None:
        return ""
    if answer.refusal is NoAnswer.NO_FRAME:
        return f"no such frame: there are 0 to {answer.frames - 1}, 0 the innermost"
    return filled(_TEXTS["no answer"][answer.refusal.value], answer)


def error_text(reply: Reply, you: str = "") -> str:
    """Return the reason why a command of ``you`` was refused; empty: it was not refused."""
    return refusal_text(reply.refusal, you) if reply.refusal is not None else ""


def done_text(reply: Reply) -> str:
    """Return the effect of a verb; empty if it has no text."""
    answer = reply.answer
    if answer is None or isinstance(answer, (Answers, HubFacts, Joined, RankRows, WhereFound)):
        return ""
    if isinstance(answer, LevelAsked):
        return f"{plural(answer.asked, 'rank')} asked for level {answer.level}"
    if isinstance(answer, Marked):
        return "bookmark kept"
    if isinstance(answer, facts.Cut) and reply.status is not None:
        return "; ".join(filter(None, (why_text(reply.status.why), fact_text(answer))))
    return fact_text(answer)


# -- the job's terminal


def notice(event: ControlEvent, run: str) -> str:
    """Return an event as one line for the user of a job without a screen; empty if not of
    interest."""
    fact, status = event.fact, event.status
    if (
        isinstance(fact, (facts.Raised, facts.Hit))
        and status is not None
        and status.mode is not Mode.RUNNING
    ):
        left = f" (unattended: in {countdown(status.lease_ns)})" if status.lease_ns else ""
        how = f"`pardbg ctl {run} where`, `continue`, or `pardbg watch {run}`"
        return f"{fact_text(fact)}{left}; {how}"
    return fact_text(fact) if isinstance(fact, (facts.Lapsed, facts.Released)) else ""


def breakpoints_text(breaks: Sequence[facts.Breakpoint]) -> list[str]:
    """Return a line per breakpoint: number, condition, ranks, matches."""
    lines = []
    for one in breaks:
        ranks = "all" if one.on is None else rank_set(one.on, "-")
        parts = [f"{one.number:>3}  {'watch ' if one.kind else ''}{one.condition}", f"rank {ranks}"]
        parts += [f"matched {one.hits} ×" if one.hits else "not matched yet"]
        parts += ["disabled"] * (not one.enabled)
        parts += ["once"] * one.once + [f"the next {one.ignore} pass"] * bool(one.ignore)
        lines.append(" · ".join(parts))
    return lines or ["no breakpoint is set: break action==B and mb==3"]
