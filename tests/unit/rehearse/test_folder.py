"""The run directory of a rehearsal: gone afterwards; what a killed one left goes with the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from pardbg.cli.rehearse import _folder, _held
from pardbg.hub.run import config as files


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(files, "shm_root", lambda: tmp_path / "shm")
    monkeypatch.setattr("signal.signal", lambda *_: None)
    return tmp_path / "shm"


def left_by_a_killed_one(root: Path) -> Path:
    with _folder() as folder:
        kept = root / "kept"
        folder.rename(kept)  # so it is not found when this one ends
    kept.rename(folder)
    for name in ("plan", "imports.learnt", "out.3", "rings/0.rehearsal.17.ring"):
        (folder / name).write_text("x")
    return folder


def test_nothing_stays(root: Path) -> None:
    with _folder() as folder:
        assert (folder / "rings").is_dir() and folder.stat().st_mode & 0o777 == 0o700
        (folder / "err.0").write_text("said")
    assert list(root.iterdir()) == []


def test_the_next_one_removes_what_a_killed_one_left(root: Path) -> None:
    old = left_by_a_killed_one(root)
    with _folder():
        assert not old.exists()


def test_a_folder_that_is_in_use_or_not_ours_stays(root: Path, tmp_path: Path) -> None:
    old = left_by_a_killed_one(root)
    other, link = root / "rehearsal-mine", root / "rehearsal-link"
    other.mkdir()
    (other / "thesis.tex").write_text("x")
    link.symlink_to(tmp_path)
    with _held(old), _folder():
        assert (old / "out.3").exists()
    with _folder():
        assert not old.exists()
    assert (other / "thesis.tex").exists() and link.is_symlink()


def test_a_stranger_in_the_folder_stays(root: Path) -> None:
    old = left_by_a_killed_one(root)
    (old / "checkpoint.pt").write_text("x")
    with _folder():
        assert (old / "checkpoint.pt").exists()
