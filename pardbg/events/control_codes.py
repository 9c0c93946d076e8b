"""Names of control that travel: verbs, modes, and the codes of reasons."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Verb(str, Enum):
    """What viewers ask for; ``control.language.manual`` says what each does."""

    PAUSE = "pause"
    CONTINUE = "continue"
    STEP = "step"
    TICK = "tick"
    NEXT = "next"
    OP = "op"
    WHERE = "where"
    BREAK = "break"
    TBREAK = "tbreak"
    UNTIL = "until"
    CONDITION = "condition"
    IGNORE = "ignore"
    ENABLE = "enable"
    DISABLE = "disable"
    DELETE = "delete"
    BREAKS = "breaks"
    WATCH = "watch"
    INSPECT = "inspect"
    DELAY = "delay"
    RANKS = "ranks"
    STATUS = "status"
    MARK = "mark"
    LEVEL = "level"
    KILL = "kill"


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
    IN_DEBUGGER = "in_debugger"
    """A debugger has ``ranks``: its client moves them."""
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
    """The viewer, or its key, may only watch."""
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
