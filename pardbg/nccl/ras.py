"""NCCL's RAS: the processes' knowledge of one another, as JSON (2.28.7 and newer).

RAS counts *launches* of collectives, not completions, has no all_to_all and no p2p, and answers for
ranks that it reaches. Different counts mean something only if they stay different (nccl's
docs/userguide/troubleshooting/ras.rst).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

PORT: Final = 28028
"""RAS's port on localhost, unless NCCL_RAS_ADDR is set."""
QUERY: Final = b"SET FORMAT json\nVERBOSE STATUS\n"
MAX_BYTES: Final = 64 << 20
_NO_COMMA: Final = re.compile(r'("nvml_dev": -?\d+)(\s*"status")')
"""Place at which 2.28.9 leaves out a comma."""


@dataclass(frozen=True, slots=True)
class RasRank:
    """A rank that answered. ``launches``: number of collectives so far, by NCCL's op names."""

    rank: int
    host: str
    pid: int
    failed: bool
    """Whether the rank has an asynchronous error, or its set-up failed."""
    aborted: bool
    launches: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RasMissing:
    """A rank that did not answer."""

    rank: int
    host: str
    pid: int
    unresponsive: bool
    dead: bool


@dataclass(frozen=True, slots=True)
class RasComm:
    """A communicator, with ranks numbered in it."""

    comm_id: str
    ranks: tuple[RasRank, ...]
    missing: tuple[RasMissing, ...]

    def members(self) -> Iterator[RasRank | RasMissing]:
        """Yield all ranks of the communicator, including those that did not answer."""
        yield from self.ranks
        yield from self.missing

    def behind(self) -> dict[str, tuple[int, ...]]:
        """Return op -> ranks that launched it less often than others."""
        found = {}
        for op in sorted({op for rank in self.ranks for op in rank.launches}):
            counts = {rank.rank: rank.launches.get(op, 0) for rank in self.ranks}
            most = max(counts.values())
            if late := tuple(rank for rank, count in sorted(counts.items()) if count < most):
                found[op] = late
        return found


@dataclass(frozen=True, slots=True)
class RasStatus:
    """An answer of RAS."""

    nccl_version: str
    comms: tuple[RasComm, ...]


def parse(text: str) -> RasStatus:
    """Parse an answer of RAS. Raises ValueError."""
    begin, end = text.find("{"), text.rfind("}")
    if begin < 0 or len(text) > MAX_BYTES:
        raise ValueError("no JSON of RAS (NCCL 2.28.7 or newer)")
    try:
        content = json.loads(_NO_COMMA.sub(r"\1,\2", text[begin : end + 1]))
        comms = tuple(map(_comm, content["communicators"]))
        return RasStatus(str(content["nccl_version"])[:32], comms)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not RAS's JSON: {error}") from None


def _comm(content: Mapping[str, Any]) -> RasComm:
    ranks = tuple(map(_rank, content["ranks"]))
    missing = tuple(map(_missing, content["missing_ranks"]))
    return RasComm(str(content["hash"])[:64], ranks, missing)


def _rank(content: Mapping[str, Any]) -> RasRank:
    status = content["status"]
    state = int(status["init_state"])
    in_progress = 7
    failed = state not in (0, in_progress) or int(status["async_error"]) not in (0, in_progress)
    counts = {str(op)[:64]: int(count) for op, count in content["collective_counts"].items()}
    return RasRank(
        int(content["rank"]), str(content["host"])[:200], int(content["pid"]), failed,
        bool(status["abort_flag"]), counts,
    )  # fmt: skip


def _missing(content: Mapping[str, Any]) -> RasMissing:
    status: Mapping[str, Any] = content["status"]
    return RasMissing(
        int(content["rank"]), str(content["host"])[:200], int(content["pid"]),
        bool(status["unresponsive"]), bool(status["considered_dead"]),
    )  # fmt: skip


def summary(status: RasStatus) -> Sequence[tuple[str, str, tuple[int, ...]]]:
    """Return anomalies as (communicator, what, its ranks): ``dead``, ``unresponsive``, ``failed``,
    or an op that these ranks launched less often than others."""
    found: list[tuple[str, str, tuple[int, ...]]] = []
    for comm in status.comms:
        rows = {
            "dead": [one.rank for one in comm.missing if one.dead],
            "unresponsive": [one.rank for one in comm.missing if one.unresponsive and not one.dead],
            "failed": [one.rank for one in comm.ranks if one.failed or one.aborted],
            **comm.behind(),
        }
        found += [(comm.comm_id, what, tuple(ranks)) for what, ranks in rows.items() if ranks]
    return found
