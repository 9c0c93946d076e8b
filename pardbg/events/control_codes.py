"""Names of control that travel: verbs, modes, and the codes of reasons."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Verb(str, Enum):
    PAUSE = "pause"
    """Stop every rank at its next gate and settle to a consistent cut."""
    CONTINUE = "continue"
    """Open every gate."""
    STEP = "step"
    """Each chosen rank passes one gate: one action (compute, send, receive, collective)."""
    TICK = "tick"
    """Each pipeline rank whose input has arrived runs one compute action; sends flow."""
    NEXT = "next"
    """Run one training step."""
    OP = "op"
    """Run to the next collective, or to the end of the step if it has no more."""
    WHERE = "where"
    """Return all ranks' stacks."""
    BREAK = "break"
    """Stop where a condition is true: ``expr`` (control.language.expr); on the chosen ranks."""
    TBREAK = "tbreak"
    """As BREAK, for one hit."""
    UNTIL = "until"
    """``tbreak`` and continue; answers once stopped."""
    CONDITION = "condition"
    """Change the ``expr`` of breakpoint ``number``."""
    IGNORE = "ignore"
    """Skip the next ``count`` matches of breakpoint ``number`` on each rank."""
    DELETE = "delete"
    """Delete breakpoints ``numbers``; if empty, all."""
    BREAKS = "breaks"
    """List breakpoints and watches with their hit counts."""
    WATCH = "watch"
    """Stop where something goes wrong: ``expr`` (control.language.watch_expr); on the chosen ranks.
    In one table with the breakpoints."""
    INSPECT = "inspect"
    """Inspect held ranks: ``kind`` (pardbg_agent.control.evaluate.KINDS), ``expr``, ``frame``."""
    DELAY = "delay"
    """Delay the chosen ranks by ``ns`` in each step: a planted straggler; 0 ends it."""
    RANKS = "ranks"
    """Return where each rank is."""
    STATUS = "status"
    """Report the controller, the lease and pending ops."""
    MARK = "mark"
    """A bookmark in the recording: ``at_ns`` (now where not given) and ``text``. Changes nothing
    in the run, so it needs no control."""
    LEVEL = "level"
    """Set the chosen ranks' sampling ``level``: off, summary or full; for ``for_s`` seconds, if
    given. Needs no control, as no rank is held."""
    KILL = "kill"
    """End the job: SIGTERM, then SIGKILL to what is left. Needs ``confirm=True``."""


class Mode(str, Enum):
    """State of the whole run."""

    RUNNING = "running"
    """-> PAUSING by pause."""
    PAUSING = "pausing"
    """-> HELD at the cut; -> RUNNING by continue, leave, a lapsed lease or the last rank's end."""
    HELD = "held"
    """-> STEPPING by step, tick, next, op; -> PAUSING when a rank joins; -> RUNNING as above."""
    STEPPING = "stepping"
    """-> HELD at the new cut; -> RUNNING as above."""


class Gone(str, Enum):
    """How a process is known to be gone."""

    ENDED = "ended"
    GONE = "gone"
    LOST = "lost"


class NotHeld(str, Enum):
    """Why a rank is not held at its uncaught exception."""

    OFF = "off"
    """Exceptions are not held in this run."""
    FOLLOWS = "follows"
    """Another rank was let die before: this follows from it."""


class NodeChange(str, Enum):
    """What became of a node."""

    JOINED = "joined"
    LOST = "lost"
    BACK = "back"
    NEW_RELAY = "new_relay"


class Why(str, Enum):
    """Why a command is refused, or answered before it has ended."""

    # by the control machine
    TAKEN = "taken"
    """Another viewer (``holder``) has control, for ``ns`` at least."""
    NO_SUCH_RANK = "no_such_rank"
    NO_RANK_YET = "no_rank_yet"
    NOTHING_HELD = "nothing_held"
    """``verb`` needs held ranks."""
    NOT_HELD = "not_held"
    """``ranks`` are not."""
    AT_EXCEPTION = "at_exception"
    """``ranks`` stopped at an exception: no step leads on."""
    QUEUE_FULL = "queue_full"
    """``number`` commands wait for a cut."""
    MANY_BREAKPOINTS = "many_breakpoints"
    """``number`` are set, the most that is possible."""
    NO_BREAKPOINT = "no_breakpoint"
    """None has ``number``; ``numbers`` are set."""
    NO_CUT_YET = "no_cut_yet"
    """``ranks`` are not at a gate; what was asked goes on."""
    NOT_TRUE_YET = "not_true_yet"
    """``text`` (of an ``until``) was not true; it goes on."""
    NO_CUT = "no_cut"
    """``verb`` ended without one, by ``cause``."""
    JOB_ENDED = "job_ended"
    """The job ended (before the condition of an ``until`` was true)."""
    # by the hub
    INVALID = "invalid"
    """``text`` says what is wrong with the request."""
    BAD_LEVEL = "bad_level"
    VIEW_ONLY = "view_only"
    """The key permits viewing only."""
    UNCONFIRMED = "unconfirmed"
    """``kill`` needs confirmation."""
    REPEATED = "repeated"
    """Request ``number`` came again."""
    MANY_VIEWERS = "many_viewers"
    """``number`` viewers are connected, the most that is possible."""
    MALFORMED = "malformed"
    """The hub does not understand the request: another version."""
    # at the viewer's end
    RECORDING = "recording"
    """There is no live run to control."""
    NO_BOOKMARK = "no_bookmark"
    """There is no hub to keep the bookmark."""
    SAY_YES = "say_yes"
    """``kill`` has to be confirmed by ``:kill yes``."""
    CLOSED = "closed"
    RUN_ENDED = "run_ended"
    """The run ``text`` has ended."""
    NO_ANSWER = "no_answer"
    """The hub was silent for ``ns``."""
    FAILED = "failed"
    """The viewer's own end failed: ``text``."""


USAGE: Final = (Why.INVALID, Why.BAD_LEVEL, Why.MALFORMED)

"""The request itself makes no sense (a script ends with 2)."""
