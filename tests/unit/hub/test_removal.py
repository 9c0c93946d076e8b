"""Looking never deletes: what is not ours, or not known to be, stays as it is."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pardbg.cli import main
from pardbg.hub.removal import MARK_FILE, marked, refusal, remove_rings, remove_run
from pardbg.hub.run import config as files
from pardbg.hub.run import runs
from pardbg.hub.run.config import RunConfig

OLD_S = 7200.0


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Short enough for sockets, whatever pytest's own are called."""
    with tempfile.TemporaryDirectory(prefix="pardbg-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An own root for runs; rings go into the run's directory."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(files, "shm_root", lambda: tmp_path / "no-shm" / "pardbg")
    yield tmp_path / f"pardbg-{os.getuid()}"


def age(path: Path, seconds: float = OLD_S) -> None:
    """As if nothing in it had been touched for that long."""
    then = time.time() - seconds
    for each in (*path.rglob("*"), path):
        os.utime(each, (then, then), follow_symlinks=False)


def pardbg(*argv: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(argv))
    return ended.value.code if isinstance(ended.value.code, int) else 1


def contents(path: Path) -> dict[str, str]:
    return {str(p.relative_to(path)): p.read_text() if p.is_file() else "" for p in path.rglob("*")}


def dead_run(root: Path) -> RunConfig:
    return files.make(["job"], name="dead", session=root / "s.mcap")


@pytest.mark.parametrize(
    "argv",
    [["ctl", "{}", "status"], ["ctl", "{}", "ranks"], ["watch", "{}"], ["report", "{}"],
     ["postmortem", "{}", "-o", "{}/../p.mcap"], ["ls"], ["doctor"]],
)  # fmt: skip
def test_an_experiment_with_a_run_json_stays(argv: list[str], tmp_path: Path, root: Path) -> None:
    exp = tmp_path / "exp1"
    (exp / "ckpt").mkdir(parents=True)
    (exp / "run.json").write_text('{"lr":0.1,"v":3}')
    (exp / "model.pt").write_text("x")
    age(exp)
    before = contents(exp)
    pardbg(*(part.format(exp) for part in argv))
    assert contents(exp) == before


def test_a_copied_black_box_stays(tmp_path: Path, root: Path) -> None:
    config = dead_run(tmp_path)
    copied = tmp_path / "copied"
    config.dir.rename(copied)
    age(copied)
    before = contents(copied)
    for argv in (["ctl", str(copied), "status"], ["watch", str(copied)], ["ls"]):
        pardbg(*argv)
    assert contents(copied) == before
    assert not remove_run(copied), "its name is not the run's"


def test_a_root_that_is_a_link_is_not_followed(
    tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    (home / "thesis").mkdir(parents=True)
    (home / "thesis" / "run.json").write_text("{}")
    age(home)
    root.symlink_to(home)
    before = contents(home)
    pardbg("ls")
    assert "TMPDIR or XDG_RUNTIME_DIR" in capsys.readouterr().err
    for argv in (["report", "x.mcap"], ["ctl", "status"], ["watch"]):
        pardbg(*argv)
    assert contents(home) == before
    with pytest.raises(files.ConfigError, match="is a symbolic link"):
        dead_run(tmp_path)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_another_users_root_is_refused_in_one_line(
    tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root.mkdir(mode=0o700)
    (root / "thing").mkdir()
    os.chown(root, 12345, 12345)
    assert "another user (uid 12345)" in refusal(root)
    with pytest.raises(files.ConfigError, match="TMPDIR or XDG_RUNTIME_DIR") as caught:
        dead_run(tmp_path)
    assert "\n" not in str(caught.value)
    assert pardbg("ctl", "status") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "another user" in line
    assert (root / "thing").is_dir()


def test_a_run_json_names_no_ring_directory(tmp_path: Path, root: Path) -> None:
    """A foreign run.json in a marked directory cannot point the removal elsewhere."""
    config = dead_run(tmp_path)
    target = tmp_path / "precious"
    target.mkdir()
    (target / "a.ring").write_text("x")
    text = (config.dir / "run.json").read_text()
    (config.dir / "run.json").write_text(text.replace(str(config.ring_dir), str(target)))
    assert files.load(config.dir).ring_dir == config.dir / "rings"
    age(config.dir)
    runs.tidy()
    assert not config.dir.exists()
    assert (target / "a.ring").read_text() == "x"


def test_a_dead_run_goes_and_what_is_not_ours_in_it_stays(tmp_path: Path, root: Path) -> None:
    kept, gone = dead_run(tmp_path), dead_run(tmp_path)
    (kept.dir / "notes.txt").write_text("mine")
    (kept.dir / "link.json").symlink_to(tmp_path / "elsewhere")
    for config in (kept, gone):
        (config.dir / "job.out").write_text("out")
        age(config.dir)
    runs.list_runs()
    runs.list_run_rings()
    assert gone.dir.exists(), "only looked at"
    runs.tidy()
    assert not gone.dir.exists()
    assert sorted(p.name for p in kept.dir.iterdir()) == [MARK_FILE, "link.json", "notes.txt"]


def test_a_young_one_and_one_without_our_mark_stay(tmp_path: Path, root: Path) -> None:
    young, foreign = dead_run(tmp_path), dead_run(tmp_path)
    (foreign.dir / MARK_FILE).unlink()
    age(foreign.dir)
    runs.tidy()
    assert young.dir.exists() and foreign.dir.exists()


def test_a_link_among_the_runs_is_not_followed(tmp_path: Path, root: Path) -> None:
    config = dead_run(tmp_path)
    moved = tmp_path / config.run
    config.dir.rename(moved)
    config.dir.symlink_to(moved)
    age(moved)
    runs.tidy()
    assert (moved / "run.json").exists()
    assert marked(config.dir) == "" and not remove_run(config.dir)


def test_rings_behind_a_link_stay(tmp_path: Path, root: Path) -> None:
    config = dead_run(tmp_path)
    (config.dir / "rings" / MARK_FILE).unlink()
    (config.dir / "rings").rmdir()
    target = tmp_path / "precious"
    target.mkdir()
    (target / MARK_FILE).write_text(config.run)
    (target / "a.ring").write_text("x")
    (config.dir / "rings").symlink_to(target)
    age(config.dir)
    assert not remove_rings(config.dir / "rings", config.run)
    runs.tidy()
    assert (target / "a.ring").exists()


def test_a_root_open_to_others_is_not_cleaned(tmp_path: Path, root: Path) -> None:
    config = dead_run(tmp_path)
    age(config.dir)
    root.chmod(0o770)
    assert not remove_run(config.dir)
    runs.tidy()
    assert (config.dir / "run.json").exists()


@pytest.mark.parametrize("run", ["../../precious", "a/b", "", "x" * 65, 7])
def test_a_runs_id_is_no_path(run: object, tmp_path: Path, root: Path) -> None:
    config = dead_run(tmp_path)
    fields = json.loads((config.dir / "run.json").read_text())
    (config.dir / "run.json").write_text(json.dumps({**fields, "run": run}))
    with pytest.raises(files.ConfigError, match="damaged"):
        files.load(config.dir)


def test_rings_lie_in_the_runs_directory_where_both_would_have_one_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TMPDIR=/dev/shm, say in a container where only that can be written to."""
    monkeypatch.setattr(files, "roots", lambda: [tmp_path / "pardbg-0"])
    monkeypatch.setattr(files, "shm_root", lambda: tmp_path / "pardbg-0")
    config = files.make(["job"], name="one", session=tmp_path / "s.mcap")
    assert config.ring_dir == config.dir / "rings" and config.ring_dir.is_dir()
    assert remove_run(config.dir) and not config.dir.exists()
