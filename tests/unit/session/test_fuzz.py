"""A seeded part of ``python -m tests.fuzz``: damaged and hostile files never crash a reader."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.cases import cut_places, run_case, run_cut
from tests.fuzz.mutate import small_session


def test_a_file_cut_anywhere_loads_what_is_whole(tmp_path: Path) -> None:
    data = small_session(tmp_path / "s.mcap").read_bytes()
    for place in cut_places(data, 40):
        outcome = run_cut(data, place)
        assert outcome.kind != "bad", (place, outcome.text)


def test_mutations_load_or_are_refused_in_one_line(tmp_path: Path) -> None:
    data = small_session(tmp_path / "s.mcap").read_bytes()
    kinds = []
    for seed in range(120):
        outcome = run_case(data, seed)
        assert outcome.kind != "bad", (seed, outcome.text)
        kinds.append(outcome.kind)
    assert kinds.count("loaded") > 50  # the mutations do get past the first check
