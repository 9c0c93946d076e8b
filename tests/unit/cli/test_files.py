"""The commands that read sessions, in this process: exit codes, files written, one-line errors."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from pardbg.cli import main
from pardbg.session.export import trace
from pardbg.session.reader import load
from tests.unit.session.test_reader import write

DATA = Path(__file__).parents[2] / "data" / "imported"


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The two-rank pipeline with its bubble of 40 %; other runs of this user are not looked at."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("pardbg.hub.run.runs.list_runs", list)
    return write(tmp_path / "s.mcap")


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    assert isinstance(end.value.code, int)
    return end.value.code


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 1, said
    return said.err


def test_check_tells_ci(session: Path, capsys: pytest.CaptureFixture[str]) -> None:
    junit = session.with_name("j.xml")
    assert run("check", session, "bubble<50%", "no-mismatch", "--junit", junit) == 0
    assert junit.read_text().count("<testcase") == 2
    assert run("check", session, "bubble<30%", "no-mismatch") == 1
    assert "FAIL  bubble<30%   measured 40.00% (p50 of 1 steps)" in capsys.readouterr().out
    assert run("check", session, "bubble<30") == 2
    assert "needs a unit" in one_line(capsys)
    assert run("check", session) == 2 and "give a session and checks" in one_line(capsys)


def test_nothing_is_replaced_unasked(session: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = session.with_name("out.json.gz")
    assert run("export", session, "--to", "perfetto", "-o", out) == 0
    before, _ = out.read_bytes(), capsys.readouterr()
    assert run("export", session, "--to", "perfetto", "-o", out) == 2
    assert "exists: choose another path, or --force" in one_line(capsys)
    for command in ("repair", "import"):
        assert run(command, session, "-o", out) == 2 and "exists" in one_line(capsys)
    assert run("report", session, "--html", out) == 2 and "exists" in one_line(capsys)
    assert out.read_bytes() == before
    assert run("report", session, "--html", out, "--force") == 0
    assert out.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("no/such/dir/x.json", "no such directory"),
        (".", "is a directory"),
        ("s.mcap/x", "no such directory"),
    ],
)
def test_where_nothing_can_be_written(
    session: Path, capsys: pytest.CaptureFixture[str], target: str, says: str
) -> None:
    out = session.parent / target
    assert run("export", session, "--to", "perfetto", "-o", out) == 2
    assert says in one_line(capsys)


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_folder_is_no_file_and_force_is_no_advice(
    session: Path, force: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    (out := session.parent / "out").mkdir()
    assert run("report", session, "--html", out, *force) == 2
    assert "--force" not in one_line(capsys) and not any(out.iterdir())


def test_a_full_disk_leaves_nothing_behind(
    session: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(store: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(trace, "write_trace", full)
    before = sorted(session.parent.iterdir())
    assert run("export", session, "--to", "perfetto", "-o", session.with_name("t.gz")) == 2
    assert "No space left on device; nothing was written" in one_line(capsys)
    assert sorted(session.parent.iterdir()) == before


def test_tables_go_into_a_folder(session: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = session.with_name("tables")
    assert run("export", session, "--to", "csv", "-o", out) == 0
    assert (out / "action.csv").read_text().startswith("epoch,rank,host,pid,step,t0_ns")
    assert "action 8" in capsys.readouterr().err
    assert run("export", session, "--to", "csv", "-o", session, "--force") == 2
    assert "is a file, and this format writes a folder" in one_line(capsys)


def test_two_exports_never_become_one_table(
    session: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = session.with_name("tables")
    assert run("export", session, "--to", "parquet", "-o", out) == 0
    assert run("export", session, "--to", "parquet", "-o", out) == 2
    assert run("export", session, "--to", "parquet", "-o", out, "--force") == 0
    capsys.readouterr()
    more = out / "action" / "ranks-64-127.parquet"
    more.write_bytes(b"of a larger job")
    written = sorted((path, path.stat().st_ino) for path in out.rglob("*"))
    assert run("export", session, "--to", "parquet", "-o", out, "--force") == 2
    assert "action has files of another export: choose another path" in one_line(capsys)
    assert sorted((path, path.stat().st_ino) for path in out.rglob("*")) == written


def test_diff_repair_and_import(session: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("diff", session, session, "--json", "--skip", "0") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["outcome"] for row in rows} <= {"same", "few"}
    fixed = session.with_name("fixed.mcap")
    session.write_bytes(session.read_bytes()[:-200])
    assert run("repair", session, "-o", fixed) == 0
    assert "lost" in capsys.readouterr().err and len(load(fixed).output) == 20
    made = session.with_name("made.mcap")
    assert run("import", DATA / "fr_rank_0", DATA / "fr_rank_1", "-o", made) == 0
    assert "missing: completion times" in capsys.readouterr().err
    assert run("report", made) == 0
    assert "default_pg  all_reduce" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ("export", "{}", "--to", "csv", "-o", "x"),
        ("check", "{}", "no-mismatch"),
        ("diff", "{}", "{}"),
        ("repair", "{}", "-o", "x"),
        ("import", "{}", "-o", "x"),
        ("report", "{}"),
    ],
)
def test_what_is_no_session(
    session: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    odd = session.with_name("odd.txt")
    odd.write_text("hello, this is no session\n")
    assert run(*(word.format(odd) for word in words)) == 2
    assert "odd.txt" in one_line(capsys)
