"""Names of control that travel: verbs, modes, and the codes of reasons."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Verb(str, Enum):
    """A verb that viewers send; ``control.language.manual`` describes each."""

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
    """Evidence that a process is gone."""

    ENDED = "ended"
    GONE = "gone"
    LOST = "lost"


class NotHeld(str, Enum):
    """Reason for which a rank is not held at its uncaught exception."""

    OFF = "off"
    """Exceptions are not held in this run."""
    FOLLOWS = "follows"
    """Another rank with an exception was not held before: this exception follows from that one."""


class NodeChange(str, Enum):
    """A change of a node's state."""

    JOINED = "joined"
    LOST = "lost"
    BACK = "back"
    NEW_RELAY = "new_relay"


class Why(str, Enum):
    """Reason for which a command is refused, or answered before it has ended."""

    # by the control machine
    TAKEN = "taken"
    """Another viewer (``holder``) has control, for ``ns`` at least."""
    NO_SUCH_RANK = "no_such_rank"
    NO_RANK_YET = "no_rank_yet"
    NOTHING_HELD = "nothing_held"
    """``verb`` needs held ranks."""
    NOT_HELD = "not_held"
    """``ranks`` are not held."""
    AT_EXCEPTION = "at_exception"
    """``ranks`` stopped at an exception: no step leads on."""
    IN_DEBUGGER = "in_debugger"
    """A debugger is attached to ``ranks``: its client moves them."""
    QUEUE_FULL = "queue_full"
    """``number`` commands wait for a cut."""
    MANY_BREAKPOINTS = "many_breakpoints"
    """``number`` breakpoints are set, the maximum."""
    NO_BREAKPOINT = "no_breakpoint"
    """No breakpoint has ``number``; ``numbers`` are set."""
    NO_CUT_YET = "no_cut_yet"
    """``ranks`` are not at a gate yet; the command continues."""
    NOT_TRUE_YET = "not_true_yet"
    """``text`` (of an ``until``) did not become true in time; the command continues."""
    NO_CUT = "no_cut"
    """``verb`` ended without a cut, because of ``cause``."""
    JOB_ENDED = "job_ended"
    """The job ended (before the condition of an ``until`` was true)."""
    # by the hub
    INVALID = "invalid"
    """The request is invalid for the reason in ``text``."""
    BAD_LEVEL = "bad_level"
    VIEW_ONLY = "view_only"
    """The viewer, or its key, is not allowed to control."""
    UNCONFIRMED = "unconfirmed"
    """``kill`` needs confirmation."""
    REPEATED = "repeated"
    """Request ``number`` came again."""
    MANY_VIEWERS = "many_viewers"
    """``number`` viewers are connected, the maximum."""
    MALFORMED = "malformed"
    """The hub does not understand the request: another version."""
    # at the viewer's end
    RECORDING = "recording"
    """The viewer shows a recording, so no live run can be controlled."""
    NO_BOOKMARK = "no_bookmark"
    """No hub is connected to keep the bookmark."""
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

"""Reasons for which the request itself is not valid (a script ends with 2)."""
