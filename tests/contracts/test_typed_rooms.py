"""What crosses a room is a typed value: maps of anything are counted, and the number only falls; no
room reads another's sentences with a regular expression."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CEILING = {
    "agent/pardbg_agent/control": 0, "agent/pardbg_agent/sender": 1, "pardbg/control": 2,
    "pardbg/hub": 36, "pardbg/ui": 0, "pardbg/cli": 6, "pardbg/events": 8, "pardbg/render": 1,
}  # fmt: skip
"""Room -> most ``dict[str, Any]`` in it. Lower it when there are fewer; never raise it."""
ALL = 120
"""The same of the whole product."""
READS_WORDS = {
    "pardbg/hub/place.py": "ports and file names as users write them",
    "pardbg/hub/serve/job_output.py": "torchrun's prefix of a line that the job printed",
    "pardbg/hub/serve/collector.py": "the form of a process id on the wire",
    "pardbg/hub/ranks/boards.py": "the form of a process id as a file name",
    "pardbg/hub/target.py": "ssh:// addresses as users write them",
    "pardbg/hub/removal.py": "names of a run's files",
    "pardbg/hub/run/native_build.py": "the first line of a script",
    "pardbg/hub/run/config.py": "endpoints and run ids as users write them",
    "pardbg/control/language/expr.py": "tokens of the condition language",
    "pardbg/control/language/arguments.py": "arguments of verbs as users write them",
    "pardbg/analysis/answers/checks.py": "conditions of `pardbg check`",
    "pardbg/analysis/pipeline/dependencies.py": "the text form of an action: 2B5",
    "pardbg/analysis/hangs/stacks.py": "paths of libraries",
    "pardbg/analysis/findings/ends.py": "exceptions of torch in the job's output",
    "pardbg/analysis/findings/exits.py": "what torchrun prints of signals",
    "pardbg/analysis/base/printed.py": "the job's own output",
    "pardbg/analysis/same/names.py": "names of the program's modules, by its user's rules",
    "pardbg/ui/main/view_actions.py": "names of files, and SVG that textual writes",
    "pardbg/ui/commands/command_line.py": "the line that is being typed",
}
"""File of these rooms that imports ``re`` -> what it reads. Words of pardbg's own are not there."""
ROOMS = ("agent/pardbg_agent/control", "agent/pardbg_agent/sender", "pardbg/hub", "pardbg/control",
         "pardbg/analysis", "pardbg/ui")  # fmt: skip


def _files(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


def _maps(room: str) -> int:
    return sum(path.read_text().count("dict[str, Any]") for path in _files(room))


@pytest.mark.parametrize("room", CEILING)
def test_maps_of_anything_in_a_room(room: str) -> None:
    found = _maps(room)
    assert found <= CEILING[room], f"{found} dict[str, Any] in {room}: use a frozen value"


def test_maps_of_anything_in_the_product() -> None:
    assert _maps("pardbg") + _maps("agent/pardbg_agent") <= ALL


def test_no_room_reads_sentences() -> None:
    found = {
        str(path.relative_to(ROOT))
        for room in ROOMS for path in _files(room)
        if any(line.strip() == "import re" for line in path.read_text().splitlines())
    }  # fmt: skip
    assert found == set(READS_WORDS), "pass what it is about as a field instead"
