"""Ranks, meshes and microbatches that a pipeline cannot run: one line says what fits."""

from __future__ import annotations

from pathlib import Path

import pytest

from pardbg.lab.recipes.catalogue import RECIPES, RecipeError, command


@pytest.mark.parametrize(
    ("name", "nproc", "own", "says"),
    [
        # 16 sequences, cut evenly; 1F1B warms up with one per rank
        ("1f1b", 8, ["--microbatches", "4"], "take --microbatches 8 or 16"),
        ("gpipe", 4, ["--microbatches", "3"], "take --microbatches 1, 2, 4, 8 or 16"),
        # 16 // 3 = 5 rounds, which do not divide 16
        ("interleaved", 3, ["--microbatches", "16"], "take --microbatches 1, 2, 4 or 8"),
        ("zb", 3, ["--microbatches", "16"], "take --microbatches 1, 2, 4 or 8"),
        ("dualpipev", 4, ["--microbatches", "4"], "take --microbatches 8 or 16"),
        ("zbv", 5, [], "take 2 to 4 ranks"),  # 2 stages each of 8 blocks
        ("mp", 9, [], "take 2 to 8 ranks, not 9"),
        ("dp-pp", 3, [], "take 4, 6, … 16 ranks, not 3"),
        ("dp-pp", 4, ["--replicas", "3"], "take 1, 2, 4, 8, 16 of them, not 3"),
        ("dp-pp", 4, ["--microbatches", "1"], "take --microbatches 2, 4 or 8"),
        ("dp-pp", 32, ["--replicas", "16"], "too few: take fewer ranks"),  # 1 sequence, 2 stages
        ("3d", 6, [], "take 8, 12, … 32 ranks, not 6"),
        ("3d", 8, ["--tp", "3"], "take --tp 1, 2, 4, not 3"),
        ("3d", 8, ["--microbatches", "none"], "it needs a number of 1 or more"),
    ],
)
def test_what_does_not_fit_is_one_line_that_says_what_does(
    name: str, nproc: int, own: list[str], says: str
) -> None:
    with pytest.raises(RecipeError) as error:
        command(name, nproc, own=own)
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "nproc"),
    [
        *((name, n) for name in ("gpipe", "1f1b", "mp") for n in (2, 3, 4, 8)),
        *((name, n) for name in ("interleaved", "looped-bfs", "zb", "zbv", "dualpipev")
          for n in (2, 3, 4)),
        ("dp-pp", 4), ("dp-pp", 8), ("3d", 8),
    ],
)  # fmt: skip
def test_usual_sizes_fit_as_they_are(name: str, nproc: int) -> None:
    assert RECIPES[name].misfit(nproc) is None


@pytest.mark.parametrize(
    ("text", "nproc", "says"),
    [
        ("0F0,0B0\n1F0,1B0\n", 4, "has 2 rows: take --nproc 2"),
        ("0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n", 2, "3 microbatches, which do not"),
        ("0F0,8F0\n1F0,2F0,3F0,4F0,5F0,6F0,7F0\n", 2, "has 9 stages; the model has 8 blocks"),
        (None, 2, "cannot read"),
        ("0F0,0B0\n1F0,1B0\n", 2, None),
    ],
)
def test_a_schedules_file_has_to_fit(
    tmp_path: Path, text: str | None, nproc: int, says: str | None
) -> None:
    path = tmp_path / "s.csv"
    if text is not None:
        path.write_text(text)
    if says is None:
        assert str(path) in command("csv", nproc, own=["--file", str(path)])
        return
    with pytest.raises(RecipeError, match=says) as caught:
        command("csv", nproc, own=["--file", str(path)])
    assert "\n" not in str(caught.value)
