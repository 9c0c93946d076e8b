"""What a relay and its hub say to each other on CTRL, beside what they pass on.

Frames: [process, payload]; a relay's own messages have an empty process. The hub's ROUTER sees the
relay's identity before them, ``relay-NODE-…``.
"""

from __future__ import annotations

import enum
from typing import Final

RELAY: Final = b"relay-"
"""How a relay's identity begins."""
VERSION: Final = 1
PIECE_BYTES: Final = 1 << 20
"""Rescued records travel in pieces of about this size."""


class Node(str, enum.Enum):
    """``t`` of a message between a relay and its hub."""

    # relay -> hub
    ROWS = "rows"
    """{"version", "node", "nnodes", "host", "run", "link", "rows": STATE's of the processes here,
    "gone": {proc: [when, exit code]}, "ended": the job here has}. At each change, at least once a
    second. A new "link" says that what was under way may be lost."""
    RESCUED = "rescued"
    """{"proc", "definitions", "batches": [[index of the first, raw records]], "last", "dropped",
    "more": another piece follows}: answer to RESCUE."""
    LOOKED = "looked"
    """{"id", "proc", "found": threads, or why not}: answer to LOOK."""
    OUTPUT = "output"
    """{"lines": [[stream, rank, text]]}: of the job on that node."""

    # hub -> relay
    KNOWN = "known"
    """{"hub"}: answer to a relay that the hub did not know, or whose link is new."""
    REFUSED = "refused"
    """{"why"}: another node of that number is there, or another version."""
    RESCUE = "rescue"
    """{"proc", "start"}: what an ended process left in its ring, from record ``start`` on."""
    FORGET = "forget"
    """{"proc"}: everything of it is here; its ring may go."""
    LOOK = "look"
    """{"id", "proc", "pid"}: read its stacks from outside."""
    SIGNAL = "signal"
    """{"number"}: to the job on that node; None ends it."""
    NOTICE = "notice"
    """{"text"}: for who started the job there."""
    END = "end"
    """The hub is done; nothing more is taken."""
