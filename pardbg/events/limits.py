"""How much of anything from outside is taken: hostile or broken input costs a bounded amount."""

from __future__ import annotations

from typing import Final

MAX_PAYLOAD_BYTES: Final = 64 << 20
"""Longest message; a longer one is counted as malformed."""
MAX_RECORDS_PER_BATCH: Final = 1 << 20
MAX_STRING_BYTES: Final = 1 << 16
MAX_MAP_ITEMS: Final = 1 << 17
MAX_PROC_ID: Final = 256
MAX_PROCS: Final = 8192
MAX_NAMES_PER_PROC: Final = 1 << 18
MAX_GROUPS: Final = 1 << 14
MAX_GROUP_RANKS: Final = 1 << 16
MAX_NUMBER: Final = 1 << 62
"""Times and sizes beyond this are nonsense (292 years in ns is 2^63)."""
