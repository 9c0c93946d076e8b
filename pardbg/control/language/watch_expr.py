"""What to watch for, as text: ``nan``, ``mismatch``, ``diverge``, ``slow>5``, ``skew>20ms``,
``memory>2GiB``. The agents look (pardbg_agent.control.watches); units are those of checks."""

from __future__ import annotations

import re
from typing import Final

from pardbg.control.language.expr import ExprError
from pardbg_agent.wire import WATCH_KINDS

WATCH_USAGE: Final = "nan|mismatch|diverge|slow>K|skew>T|memory>X [on RANKS]"
_EXAMPLES: Final = "nan, mismatch, diverge, slow>5, skew>20ms, memory>2GiB"
_TIMES: Final = {"": 1.0, "x": 1.0, "×": 1.0, "xmedian": 1.0, "×median": 1.0}
_TEXT: Final = re.compile(
    r"(?P<kind>[a-z]+)\s*(?:(?P<op>[<>=]+)\s*(?P<number>\d+\.?\d*|\.\d+)?\s*(?P<unit>\S*))?"
)
_MOST: Final = 1e18


def _units() -> dict[str, dict[str, float]]:
    """Kinds that have a limit: unit -> what the number is multiplied by."""
    from pardbg.analysis.answers.checks import UNITS  # it imports numpy; `pardbg ctl` starts light

    return {"slow": _TIMES, "skew": UNITS["time"], "memory": UNITS["bytes"]}


def parse_watch(text: str) -> tuple[str, float]:
    """Return (kind, limit in the kind's unit: times, ns, bytes). Raises ExprError, one line."""
    said = text.strip()
    match = _TEXT.fullmatch(said)
    if match is None or match["kind"] not in WATCH_KINDS:
        raise ExprError(f"cannot watch {said[:30]!r}: {_EXAMPLES}" if said else
                        f"watch what? {_EXAMPLES}")  # fmt: skip
    kind = match["kind"]
    units = _units().get(kind)
    if units is None:
        if match["op"]:
            raise ExprError(f"{kind} has no limit: watch {kind}")
        return kind, 0.0
    if match["op"] != ">" or match["number"] is None:
        example = next(word for word in _EXAMPLES.split(", ") if word.startswith(kind))
        raise ExprError(f"{kind} needs a limit, as in `watch {example}`")
    if match["unit"] not in units:
        fits = ", ".join(filter(None, units))
        what = f"no unit {match['unit'][:12]!r}" if match["unit"] else "a unit is missing"
        raise ExprError(f"{what} in {said[:30]!r}: {fits}")
    limit = float(match["number"]) * units[match["unit"]]
    if not limit < _MOST:
        raise ExprError(f"{said[:30]!r} is out of range")
    return kind, limit
