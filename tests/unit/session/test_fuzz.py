"""A file that was cut off has exactly what is whole of it."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.cases import cut_places, run_cut
from tests.fuzz.mutate import small_session


def test_a_file_cut_anywhere_loads_what_is_whole(tmp_path: Path) -> None:
    data = small_session(tmp_path / "s.mcap").read_bytes()
    for place in cut_places(data, 40):
        outcome = run_cut(data, place)
        assert outcome.kind != "bad", (place, outcome.text)
