"""How much a store keeps of each thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pardbg.events.fields import MAX_PROCS

FEW: Final = 32
"""Processes of a live run that each keep all they may."""
LEAST_ROWS: Final = 4096
KEEP_NS: Final = 900_000_000_000
"""A quarter of an hour: within it a live viewer fills up, whatever the pace of the job."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a store keeps. What goes beyond is dropped oldest first and counted."""

    rows_per_kind: int | None
    """Records per process and kind, of few processes: see ``rows``."""
    records: int
    """Records in all; later ones are refused and counted in ``Store.over_limit``."""
    output_lines: int
    states: int
    controls: int
    processes: int = MAX_PROCS
    """Beyond so many, lives that have ended are forgotten, oldest first."""
    keep_ns: int | None = None
    """What is older goes before that, but for LEAST_ROWS of a kind (of lines, states and control
    events: a fifth); None: nothing is too old."""

    @staticmethod
    def live() -> Limits:
        """Return the limits for a live viewer, which may run for days: about 40 MiB per process
        (54 bytes a record, ten kinds that fill up), of more than 512 some 2.6 MiB; of a slow job
        a quarter of an hour."""
        return Limits(1 << 16, 1 << 62, 50_000, 20_000, 20_000, 2048, KEEP_NS)

    def rows(self, num_processes: int) -> int | None:
        """Return records per kind that each of so many processes keeps: beyond FEW half as many
        whenever they are twice as many, but LEAST_ROWS."""
        if self.rows_per_kind is None:
            return None
        halved = (max(0, num_processes - 1) // FEW).bit_length()
        return max(min(LEAST_ROWS, self.rows_per_kind), self.rows_per_kind >> halved)

    @staticmethod
    def file() -> Limits:
        """Return the limits for a file: kept whole up to 50 M records (about 3 GiB)."""
        return Limits(None, 50_000_000, 2_000_000, 500_000, 500_000)
