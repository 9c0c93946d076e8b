"""Files that `schedule edit` writes, and what `schedule show` prints and draws."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from pardbg.cli import cli
from pardbg.cli.schedule import saver, told
from pardbg.errors import UserError
from pardbg.lab.schedules.schedule_table import parse

ONE = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
SESSIONS = Path(__file__).parents[3] / "sessions"
TWO = "0F0,0B0\n1F0,1B0\n"


def test_a_table_is_saved_whole_and_never_over_what_somebody_else_wrote(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text(ONE)
    path.chmod(0o640)
    link = tmp_path / "link.csv"
    link.symlink_to(path)
    save = saver(link, ONE)
    assert save(parse(TWO), "") == "wrote one.csv"
    assert path.read_text() == TWO and path.stat().st_mode & 0o777 == 0o640 and link.is_symlink()
    assert save(parse(ONE), "") == "wrote one.csv"  # its own writing is no surprise
    path.write_text("0F0\n")
    with pytest.raises(UserError, match=r"one\.csv was changed by another program"):
        save(parse(TWO), "")
    assert path.read_text() == "0F0\n"
    (tmp_path / "there.csv").write_text("")
    with pytest.raises(UserError, match=r"there\.csv already exists"):
        save(parse(TWO), "there.csv")
    assert save(parse(TWO), "new.csv") == "wrote new.csv"
    with pytest.raises(UserError, match="no such directory"):
        save(parse(TWO), "no/where.csv")
    assert {file.name for file in tmp_path.iterdir()} == {
        "one.csv", "link.csv", "there.csv", "new.csv"
    }  # fmt: skip


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["schedule", *words])
    return done.exit_code, done.output


def test_without_a_terminal_show_prints_and_edit_says_so_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text(ONE)
    code, text = run("show", str(path))
    assert code == 0 and text.splitlines()[1] == "r0 0F0 0F1 ·   0B0 ·   0B1"
    code, text = run("edit", str(path))
    assert code == 2 and "needs a terminal" in text and text.count("\n") == 1
    path.write_text("0F0,0SEND_F0\n1RECV_F0,1F0\n")
    code, text = run("edit", str(path))
    assert code == 2 and "sends and receives written out" in text


def test_a_picture_has_every_action(tmp_path: Path) -> None:
    path, out = tmp_path / "one.csv", tmp_path / "one.svg"
    path.write_text(ONE)
    assert run("show", str(path), "--svg", str(out), "--costs", "F=10ms,B=20ms")[0] == 0
    text = out.read_text()
    assert text.count('class="F') == 4 and text.count('class="B') == 4
    assert "step 90.0 ms, bubble 33.3%" in text or "step 90 ms, bubble 33.3%" in text
    path.write_text("0B0,0F0\n1F0,1B0\n")
    assert run("show", str(path), "--svg", str(out), "--force")[0] == 0
    assert "cannot run" in out.read_text()


@pytest.mark.parametrize(
    ("text", "words", "says"),
    [
        ("0B0,0F0\n1F0,1B0\n", (), "would not run: row 1, column 1: order: 0B0 before 0F0"),
        ("0F0,0SEND_F0\n1RECV_F0,1F0\n", (), "sends and receives written out"),
        (ONE, ("ddp",), "--schedule is a recipe of its own"),
        (ONE, ("--from", "no.mcap"), "no.mcap"),
    ],
)
def test_demo_says_in_a_line_what_cannot_be_run(
    tmp_path: Path, text: str, words: tuple[str, ...], says: str
) -> None:
    path = tmp_path / "s.csv"
    path.write_text(text)
    done = CliRunner().invoke(cli, ["demo", *words, "--schedule", str(path)])
    assert done.exit_code == 2 and says in done.output and done.output.count("\n") == 1


def test_what_a_run_took_is_said_beside_what_was_predicted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From the kept recording of 1F1B: by another one's durations, and by its own."""
    told("300 ms/step by gpipe.mcap")(SESSIONS / "1f1b.mcap")
    out = capsys.readouterr().out
    assert out.startswith("predicted 300 ms/step by gpipe.mcap; took ")
    assert "median of" in out and "this run's own durations" in out


def test_a_byte_order_mark_is_no_part_of_the_first_action(tmp_path: Path) -> None:
    path = tmp_path / "S.csv"
    path.write_text(ONE, encoding="utf-8-sig")
    done = CliRunner().invoke(cli, ["schedule", "lint", str(path)])
    assert done.exit_code == 0 and "good: 2 ranks" in done.output
