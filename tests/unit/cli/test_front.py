"""What ``pardbg`` alone says, where a job's command begins, completion, help on topics."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner

from pardbg.cli import cli, here
from pardbg.cli.front import FIRST, MORE
from pardbg.control.language import arguments
from pardbg.errors import UserError
from pardbg.events.control_codes import Verb
from pardbg.hub.run import runs
from pardbg.hub.run.runs import Run
from tests.contracts.trees import parsed


def pardbg(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pardbg.cli", *words], capture_output=True, text=True, timeout=30,
        env={**os.environ, "COLUMNS": "100", **env},
    )  # fmt: skip


def test_alone_it_shows_what_one_starts_with_and_then_the_rest() -> None:
    done = pardbg()
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    start, then = lines.index(["Start", "here:"]), lines.index(["More", "commands:"])
    assert [line[0] for line in lines[start + 1 : then] if line] == list(FIRST)
    assert {line[0] for line in lines[then + 1 :] if line} == cli.commands.keys() - FIRST.keys()
    assert FIRST.keys() | MORE.keys() <= cli.commands.keys()
    assert not any(line[-1].endswith("...") for line in lines[start:] if line), "nothing is cut"


@pytest.mark.parametrize("cells", [60, 80, 100])
@pytest.mark.parametrize("words", [("ctl", "watch", "-h"), ("help", "break"), ("help", "words")])
def test_help_fits_the_terminal(words: tuple[str, ...], cells: int) -> None:
    lines = pardbg(*words, COLUMNS=str(cells)).stdout.splitlines()
    assert cells - 22 < max(map(len, lines)) <= cells - 2


def test_the_help_of_ctl_names_every_verb() -> None:
    shown = set(re.findall(r"[a-z]+", pardbg("ctl", "--help").stdout))
    verbs = {verb.value for verb in Verb} - {"inspect"}
    assert verbs | set(arguments.INSPECT) | {arguments.COMPARE} <= shown


@pytest.mark.parametrize(
    ("words", "job"),
    [
        (["watch", "python", "train.py"], 1),
        (["watch", "-o", "x.mcap", "--level", "full", "sh", "-o", "y"], 5),
        (["run", "python", "-c", "pass"], 1),
        (["run", "-o", "x.mcap", "./job.sh"], 3),
        (["run", "python", "train.py", "--", "--lr", "3"], 1),  # that `--` is the job's
        (["run", "-o", "x.mcap", "--", "python", "--", "-x"], 3),
        (["watch", "--", "python", "--", "-x"], 1),
        (["watch"], None),
        (["watch", "-o", "x.mcap"], None),
        (["watch", "no-such-run-or-program"], None),
        (["watch", "no-such-run-or-program", "--force"], None),
        (["watch", "no-such-program", "--nproc-per-node", "2", "train.py"], 1),
        (["watch", "sleep", "1"], None),
        (["watch", "sleep"], None),  # a live run of that name is meant, see below
        (["demo", "python"], None),
        (["ctl", "python", "pause"], None),
    ],
)
def test_where_a_jobs_command_begins(
    words: list[str], job: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Run("sleep-1234", "sleep", Path("/r"), ("sleep",), Path("/s.mcap"), 0, True)
    monkeypatch.setattr(runs, "list_runs", lambda: [live])
    assert cli.job_start(words) == job


def test_a_script_is_no_program() -> None:
    with pytest.raises(UserError, match=r"`pardbg watch python train\.py`"):
        cli.job_start(["watch", "train.py"])


def test_several_live_runs_are_listed_and_none_is_guessed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pardbg.cli import here

    def made(name: str) -> Run:
        return Run(f"{name}-1", name, Path("/r"), ("python", name), Path("/s"), 0, True)

    monkeypatch.setattr(runs, "list_runs", lambda: [made("one"), made("two")])
    with pytest.raises(UserError, match="2 runs are live"):
        here.find_live(None)
    assert [line.split()[0] for line in capsys.readouterr().err.splitlines()] == ["one-1", "two-1"]
    assert here.find_live("two").run == "two-1"


def completed(line: str, env: dict[str, str] | None = None) -> list[str]:
    """What click answers the shell for the last word of ``line``."""
    words = line.split(" ")
    done = pardbg(
        _PARDBG_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1),
        **(env or {}),
    )  # fmt: skip
    return [row.partition(",")[2] for row in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("pardbg re", {"replay", "report", "repair"}),
        ("pardbg demo zero", {"zero1", "zero2", "zero3"}),
        ("pardbg ctl st", {"step", "status"}),
        ("pardbg ctl step st", {"stage="}),
        ("pardbg help te", {"tensor"}),
    ],
)
def test_tab_completes(line: str, some: set[str]) -> None:
    assert set(completed(line)) >= some


def test_help_explains_commands_verbs_and_topics() -> None:
    for topic, text in (
        ("check", "Usage: pardbg check"),
        ("break", "break EXPR [on RANKS]"),
        ("watch", "Usage: pardbg watch"),
        ("keys", "Bookmark this moment"),
        ("ranks", "stage=2"),
        ("expr", "2B3"),
    ):
        done = CliRunner().invoke(cli, ["help", topic], prog_name="pardbg")
        assert done.exit_code == 0 and text in done.output, (topic, done.output)
    wrong = pardbg("help", "nonsense")
    assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1


def _signs() -> set[str]:
    """Every sign that is not ASCII in a string of the product."""
    import ast

    import pardbg as package

    found: set[str] = set()
    for path in Path(package.__file__).parent.rglob("*.py"):
        if "recipes" in path.parts:
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= {sign for sign in node.value if not sign.isascii()}
    return found


def test_each_sign_has_a_stand_in_of_one_cell() -> None:
    from pardbg.render.draw.signs import ERRORS, TABLE, ascii_of

    assert _signs() <= TABLE.keys()
    assert ascii_of("▶ 350 µs → r0–3 ✓") == "> 350 us > r0-3 +"
    text = "┌─ Zürich 日本 ─┐"
    assert ascii_of(text) == "+- Zurich ?? -+"
    assert text.encode("ascii", ERRORS).decode() == ascii_of(text)
    assert "350 µs ▶".encode("latin-1", ERRORS) == b"350 \xb5s >"


@pytest.mark.parametrize(
    ("env", "utf8"),
    [
        ({"LC_ALL": "C"}, False),
        ({"LC_ALL": "", "LC_CTYPE": "", "LANG": "en_US.ISO-8859-1"}, False),
        ({"LC_ALL": "", "LC_CTYPE": "", "LANG": "de_DE.utf8"}, True),
        ({"LC_ALL": "", "LC_CTYPE": "C.UTF-8", "LANG": "C"}, True),
    ],
)
def test_what_the_locale_says(
    env: dict[str, str], utf8: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pardbg.render.draw.signs import has_utf8

    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert has_utf8() is utf8


def test_output_that_the_locale_cannot_say_is_no_traceback() -> None:
    """Latin-1 has µ and no arrow."""
    session = Path(__file__).parents[3] / "sessions" / "fault-unpaired-send.mcap"
    done = subprocess.run(
        [sys.executable, "-m", "pardbg.cli", "report", str(session)], capture_output=True,
        timeout=50, env={**os.environ, "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "µs" in done.stdout.decode("latin-1") or " ms" in done.stdout.decode("latin-1")
    plain = pardbg("report", str(session), PYTHONUTF8="1").stdout
    assert not plain.isascii() and len(plain) == len(done.stdout.decode("latin-1"))


@pytest.mark.parametrize(
    ("before", "words", "said"),
    [
        ("exec > /dev/full", "--help", "no space left on the output device"),
        ("mkdir gone; cd gone; rmdir ../gone", "report none.mcap",
         "the current directory no longer exists: cd to another one"),
        ("ln -s none.mcap none.mcap", "report none.mcap",
         "cannot read none.mcap: Too many levels of symbolic links"),
        ("exec <&- >&-", "report none.mcap", "no such file: none.mcap"),
    ],
)  # fmt: skip
def test_what_the_machine_lacks_gets_one_line(
    tmp_path: Path, before: str, words: str, said: str
) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{before}; exec {sys.executable} -m pardbg.cli {words}"], cwd=tmp_path,
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, f"pardbg: {said}\n")


@pytest.mark.parametrize(("check", "code"), [("'bubble<99%'", 0), ("'bubble<1%'", 1)])
def test_whose_reader_went_away_has_the_commands_exit_code(check: str, code: int) -> None:
    session = Path(__file__).parents[3] / "sessions" / "1f1b.mcap"
    line = f"{sys.executable} -m pardbg.cli check {session} {check} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stderr) == (code, "")


def test_a_log_from_a_closed_stdin_is_empty() -> None:
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m pardbg.cli explain - <&-"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_doctor_goes_on_where_no_file_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a read-only root: what it could not check is named, with the way out."""

    def nowhere() -> NoReturn:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/proc/none")
    monkeypatch.setenv("TMPDIR", "/proc/none")
    checks = [check for check in here.CHECKS if check.__name__ in ("_pth", "_run_directory")]
    monkeypatch.setattr(here, "CHECKS", checks)
    monkeypatch.setattr(here, "DEVICE_CHECKS", ())
    said = CliRunner().invoke(cli, ["doctor", "--json"], standalone_mode=False)
    assert said.return_value == 1, said
    start, place = json.loads(said.stdout)
    assert start["status"] == place["status"] == "bad"
    assert "TMPDIR" in start["text"] and "current directory" not in start["text"]
    assert "/proc/none" in place["text"] and "XDG_RUNTIME_DIR" in place["text"]
