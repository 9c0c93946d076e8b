"""All kinds of findings, and the table of docs/findings.md that is made from them:
``python -m pardbg.analysis.findings.kinds.kinds_table docs/findings.md`` writes it anew."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pardbg.analysis.findings.kinds.data_kinds as data
import pardbg.analysis.findings.kinds.device_kinds as devices
import pardbg.analysis.findings.kinds.end_kinds as ends
import pardbg.analysis.findings.kinds.memory_kinds as memory
import pardbg.analysis.findings.kinds.mismatch_kinds as mismatches
import pardbg.analysis.findings.kinds.recording_kinds as recording
import pardbg.analysis.findings.kinds.speed_kinds as speed
import pardbg.analysis.findings.kinds.stall_kinds as stalls
import pardbg.analysis.findings.kinds.value_kinds as values
from pardbg.analysis.findings.kinds.kind import Kind

ROWS: Final[tuple[Kind, ...]] = (
    *stalls.KINDS, *mismatches.KINDS, *ends.KINDS, *recording.KINDS, *speed.KINDS, *memory.KINDS,
    *values.KINDS, *data.KINDS, *devices.KINDS,
)  # fmt: skip
KINDS: Final[dict[str, Kind]] = {name: row for row in ROWS for name in row.names}
"""Identifier -> row of the table"""
_HEAD: Final = "| kind | means | needs | try |\n|---|---|---|---|\n"


def table() -> str:
    """Return the table of docs/findings.md."""
    return _HEAD + "".join(
        f"| {', '.join(f'`{name}`' for name in row.names)} | {row.means} | {row.needs} | "
        f"{row.attempt} |\n"
        for row in ROWS
    )


def with_table(page: str) -> str:
    """Return the page with its table replaced by the current one."""
    before, _, rest = page.partition(_HEAD)
    after = rest[rest.index("\n\n") :] if "\n\n" in rest else ""
    return f"{before}{table()}{after.removeprefix(chr(10))}"


def main(arguments: Sequence[str]) -> None:
    """Update the table in the given pages."""
    for path in map(Path, arguments):
        path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
