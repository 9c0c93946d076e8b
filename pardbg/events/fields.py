"""Typed reads of decoded maps: a field of the wrong type or size reads as its default.

The limits here bound what hostile or broken input can cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pardbg_agent.wire import BLOCKED, START_UP

MAX_PAYLOAD_BYTES: Final = 64 << 20
"""Bytes of the longest message; a longer one is counted as malformed."""
MAX_MAP_BYTES: Final = 16 << 20
"""Bytes of the longest message that is a map."""
MAX_CONTAINERS: Final = 1 << 19
"""Maximum number of maps and lists in a message: an empty one takes a byte, and 100 in memory."""
MAX_RECORDS_PER_BATCH: Final = 1 << 20
MAX_STRING_BYTES: Final = 1 << 16
MAX_MAP_ITEMS: Final = 1 << 17
MAX_PROC_ID: Final = 256
MAX_PROCS: Final = 1 << 14
MAX_ABOVE: Final = 12
MAX_NAMES_PER_PROC: Final = 1 << 18
MAX_GROUPS: Final = 1 << 14
MAX_GROUP_RANKS: Final = 1 << 16
MAX_NUMBER: Final = 1 << 62
"""Times and sizes beyond this are nonsense (292 years in ns is 2^63)."""


def weight(value: Any) -> int:
    """Return about how many bytes of memory a decoded value takes."""
    if isinstance(value, (str, bytes)):
        return 56 + len(value)
    if isinstance(value, Mapping):
        return 64 + sum(50 + weight(key) + weight(of) for key, of in value.items())
    if isinstance(value, (list, tuple)):
        return 64 + 8 * len(value) + sum(map(weight, value))
    return 32


def integer(fields: Mapping[Any, Any], key: str, default: int) -> int:
    """Return a whole number below MAX_NUMBER; for other values ``default``."""
    found = integer_or_none(fields, key)
    return default if found is None else found


def integer_or_none(fields: Mapping[Any, Any], key: str) -> int | None:
    """Return a whole number below MAX_NUMBER, also from a float without a fraction; else None."""
    value = fields.get(key)
    if type(value) is int and -MAX_NUMBER < value < MAX_NUMBER:
        return value  # as nearly all: thousands are asked for in a frame
    if isinstance(value, float) and value.is_integer() and abs(value) < MAX_NUMBER:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < MAX_NUMBER:
        return value
    return None


def within(fields: Mapping[Any, Any]) -> tuple[str, ...]:
    """Return the processes above a rank's process, as its PROCESS definition names them; if they
    are ranks only by their environment, they are launchers. Empty: the process is no rank."""
    names = fields.get("within")
    if not isinstance(names, (list, tuple)) or integer(fields, "rank", -1) < 0:
        return ()
    return tuple(
        name for name in names[:MAX_ABOVE]
        if isinstance(name, str) and len(name) <= MAX_PROC_ID and name.count(".") == 2
    )  # fmt: skip


def of_nobody(name: str) -> bool:
    """Return whether a process without a rank may have this name, too: it starts up, or waits."""
    return name == START_UP or name.startswith(BLOCKED)


def text(fields: Mapping[Any, Any], key: str, default: str = "") -> str:
    """Return text of MAX_STRING_BYTES at most, else ``default``."""
    value = fields.get(key)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return value[:MAX_STRING_BYTES] if isinstance(value, str) else default


def text_or_none(fields: Mapping[Any, Any], key: str) -> str | None:
    """Return text of MAX_STRING_BYTES at most; None: anything else."""
    return text(fields, key) if isinstance(fields.get(key), (str, bytes)) else None


def integers(fields: Mapping[Any, Any], key: str) -> tuple[int, ...]:
    """Return the whole numbers of a list; empty: not a list, or longer than the largest group."""
    value = fields.get(key)
    if not isinstance(value, (list, tuple)) or len(value) > MAX_GROUP_RANKS:
        return ()
    if set(map(type, value)) <= {int} and max(map(abs, value), default=0) < MAX_NUMBER:
        return tuple(value)  # as nearly all are, and some are the ranks of a large job
    return tuple(v for v in value if isinstance(v, int) and abs(v) < MAX_NUMBER)


def texts(fields: Mapping[Any, Any], key: str) -> tuple[str, ...]:
    """Return a list's values as text; empty: not a list, or of more than 65,536 values."""
    value = fields.get(key)
    if not isinstance(value, (list, tuple)) or len(value) > 1 << 16:
        return ()
    return tuple(str(v)[:MAX_STRING_BYTES] for v in value)


def mapping(fields: Mapping[Any, Any], key: str) -> dict[Any, Any]:
    """Return a dict; empty: anything else."""
    value = fields.get(key)
    return value if isinstance(value, dict) else {}
