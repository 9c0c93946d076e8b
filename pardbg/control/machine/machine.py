"""The control state machine: commands and agents' states in, permits, answers and events out.

No I/O and no clock of its own: every input carries ``now`` (hub monotonic ns), every output waits
in ``drain()``. A command is answered when its new cut is reached, or when it is clear that the
ranks run on.
"""

from __future__ import annotations

from collections.abc import Mapping

from pardbg.control.language.verbs import Verb
from pardbg.control.machine.breakpoints import EDITS
from pardbg.control.machine.command_rules import CommandRules, words_of
from pardbg.control.machine.cut import AgentState, View
from pardbg.control.machine.delivery import Outbox
from pardbg.control.machine.holding import RUN
from pardbg.control.machine.moves import Moves, Settling
from pardbg.control.machine.permits import HOLD, PASS
from pardbg.control.machine.state import Ack, Command, ControlState, Effect, Mode
from pardbg_agent.wire import Gate

RENEW_NS = 2_000_000_000


class Machine:
    """One run's control. Call ``tick`` often (20 ms while ``active``)."""

    def __init__(self, first_id: int = 1) -> None:
        self.control = ControlState()
        """What the hub reads; only the machine changes it."""
        self._outbox = Outbox(self.control, first_id)
        self._moves = Moves(self.control, self._outbox)
        self._commands = CommandRules(self.control, self._outbox, self._moves)
        self._settling = Settling(self.control, self._outbox, self._moves, self._commands.advance)

    def drain(self) -> list[Effect]:
        """Return everything to be done since the last call, in order."""
        return self._outbox.drain()

    def acked(self, proc: str, number: int) -> None:
        """Note that a process answered the message of that number."""
        self._outbox.deliveries.acked(proc, number)

    def learned(
        self,
        groups: dict[str, tuple[int, ...]],
        timeouts: dict[str, int],
        pipelines: dict[str, tuple[int, ...]],
    ) -> None:
        """Take members and timeouts (ns) of groups and ranks of pipelines from definitions."""
        control = self.control
        control.groups, control.timeouts, control.pipelines = groups, timeouts, pipelines

    # -- agents

    def joined(self, proc: str, rank: int, now: int) -> None:
        """Add a process that said hello (again), or whose rank became known."""
        known = self.control.views.get(proc)
        if known is not None:
            self._rank_known(known, rank)
            return
        self.control.views[proc] = View(proc, rank)
        self.control.departed.discard(rank)
        # A hub before this one may have told it others.
        if self.control.breakpoints or self.control.restored:
            self._outbox.tell_breaks([self.control.views[proc]])
        if self.control.mode is Mode.RUNNING:
            return
        if self.control.free:
            self.control.free.add(proc)
            self._outbox.permit(self.control.views[proc], PASS, now)
            return
        self._outbox.permit(self.control.views[proc], HOLD, now)
        if self.control.mode is Mode.HELD:
            self._moves.enter(Mode.PAUSING, now)
        self.control.reason = f"rank {rank} joined"
        text = f"{self.control.reason} while held: it stops at its next gate"
        self._outbox.event("attach", now, text=text)

    def gone(self, proc: str, now: int, why: str = "ended") -> None:
        """Remove a process that ended, was lost or killed."""
        view = self.control.views.pop(proc, None)
        if view is None:
            return
        self.control.departed.add(view.rank)
        self._outbox.deliveries.gone(proc)
        self.control.raised.let_die(proc, now)
        if self.control.mode is not Mode.RUNNING:
            self._outbox.event("detach", now, text=f"rank {view.rank} {why}")
            if not self.control.views:
                self._moves.run_on("running", "no rank is left", now)
            elif self.control.lease.holder == RUN and not self.control.raised.procs:
                self._moves.run_on("running", "nobody is at an exception any more", now)
        if not self.control.views:
            self._commands.end_until("the job ended before it was true", now)
        self.tick(now)

    def state(self, state: AgentState, now: int) -> None:
        """Take an agent's STATE, unless a newer one is known. What follows of it comes with
        the next ``tick``, once for all states that came by then."""
        view = self.control.views.get(state.proc)
        if view is None or (view.state is not None and state.serial <= view.state.serial):
            return
        view.state, view.heard_ns = state, now
        self._outbox.deliveries.state(state.proc, state.reply_to)
        if state.rank >= 0:
            self._rank_known(view, state.rank)
        self.control.breakpoints.count(state.proc, state.hits)
        if state.hit is not None and state.held:
            self._moves.at_breakpoint(view, state, state.hit, now)
        elif state.held & Gate.EXCEPTION:
            self._moves.at_exception(view, state, now)
        elif state.held and view.fresh and self.control.mode is Mode.RUNNING:
            self._moves.stray(view, f"rank {view.rank} was held by a hub that is gone", now)

    # -- viewers

    def command(self, command: Command, now: int, *, keep: bool = False, lease_ns: int = 0) -> None:
        """Start a control verb. The answer comes through ``drain``, now or later."""
        refusal = self._commands.refusal(command, now)
        if refusal is None and command.verb in EDITS:
            refusal = self._commands.edit(command, now, keep, lease_ns)
            if refusal is None:
                return
        if refusal is not None:
            self._outbox.ack(command, refusal)
            text = f"{command.verb.value}: {refusal}"
            self._outbox.event("refused", now, by=command.by, text=text)
            return
        self.control.lease.grant(command.by, now, keep=keep, period_ns=lease_ns)
        self._outbox.pass_lease_on(now)
        text = words_of(command)
        if command.verb is Verb.CONTINUE:
            self._outbox.event("continue", now, by=command.by, text=text)
            self._commands.continue_(command, now)
        else:  # told with the mode it leads to
            self._commands.begin(command, now)
            self._outbox.event(command.verb.value, now, by=command.by, text=text)
        self.tick(now)

    def take(self, viewer: str, re: int, now: int) -> None:
        """Control changes hands; ranks stay as they are."""
        before = self.control.lease.holder
        self.control.lease.grant(viewer, now)
        self._outbox.pass_lease_on(now)
        text = f"taken over from {before}" if before not in (None, viewer) else "taken"
        self._outbox.event("take", now, by=viewer, text=text)
        self._outbox.put(Ack(viewer, re, True, data=self.control.status(now)))

    def leave(self, viewer: str, now: int, text: str = "left: all ranks run on") -> None:
        """Free control, as its holder leaves (or is unreachable): all ranks run on."""
        if self.control.lease.holder != viewer:
            return
        self.control.lease.drop()
        held = self.control.mode is not Mode.RUNNING
        self._moves.run_on("leave", f"{viewer} {text}" if held else "", now, by=viewer)

    def forget(self, viewer: str, now: int) -> None:
        """Delete the breakpoints of a viewer that is gone."""
        gone = self.control.breakpoints.forget(viewer)
        if gone:
            self._outbox.tell_breaks(self.control.views.values())
            text = f"breakpoint {', '.join(map(str, gone))}: {viewer} is gone"
            self._outbox.event("delete", now, by=viewer, text=text)

    def renew(self, viewer: str, now: int) -> bool:
        """Renew the lease for its holder; or for any viewer, while the run itself holds a rank."""
        if not self.control.lease.renew(RUN if self.control.lease.holder == RUN else viewer, now):
            return False
        self._outbox.pass_lease_on(now)
        return True

    # -- time

    def tick(self, now: int, computing: Mapping[str, int] | None = None) -> None:
        """Time passed, or something changed: settle, answer, renew, lapse."""
        if computing is not None:
            for view in self.control.views.values():
                view.computing_since_ns = computing.get(view.proc, 0)
        if self.control.lease.lapsed(now):
            text = f"the lease of {self.control.lease.holder} lapsed: all ranks run on"
            self.control.lease.drop()
            if self.control.mode is not Mode.RUNNING:
                self._moves.run_on("lapsed", text, now)
        self._commands.answer_leaving(now)
        self._moves.hold_loose(now)
        if self.control.settling:
            self._settling.settle(now)
        elif self.control.mode is Mode.HELD:
            self._settling.watch_held(now)
        if self.control.mode is not Mode.RUNNING and now - self.control.renewed >= RENEW_NS:
            self._outbox.pass_lease_on(now)
            self._outbox.event("", now)  # no event: what is left of the lease and of the timeouts
        self._outbox.tell_again(now)
        self._moves.miss_silent(now)
        self._commands.expire(now)

    def _rank_known(self, view: View, rank: int) -> None:
        """A process says which rank it is, now or anew: other breakpoints may be its."""
        if view.rank != rank:
            view.rank = rank
            if self.control.breakpoints:
                self._outbox.tell_breaks([view])
