"""The job's output as of a cursor."""

from __future__ import annotations

from dataclasses import dataclass

from pardbg.store.store import Store


@dataclass(frozen=True, slots=True)
class OutputLine:
    t_ns: int
    rank: int | None
    stream: str
    text: str


def lines(
    store: Store,
    t_ns: int | None,
    limit: int,
    contains: str | None = None,
    rank: int | None = None,
) -> tuple[OutputLine, ...]:
    """The last ``limit`` lines up to ``t_ns`` (all for None), oldest first.

    ``contains`` keeps lines with that text, whatever its case; ``rank`` those known to be the
    rank's.
    """
    wanted = contains.lower() if contains else None
    found: list[OutputLine] = []
    for index in range(store.output.count(t_ns) - 1, -1, -1):
        if len(found) >= limit:
            break
        at, (said_rank, stream, text) = store.output.at(index)
        if rank is not None and said_rank != rank:
            continue
        if wanted is not None and wanted not in text.lower():
            continue
        found.append(OutputLine(at, said_rank, stream, text))
    return tuple(reversed(found))
