"""The console: what may come next, help, the lines kept, ``.pardbgrc`` files and their refusals."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from pardbg.cli import rc
from pardbg.cli.ctl import ctl
from pardbg.control.language.arguments import (
    COMPARE,
    INSPECT,
    PDB,
    ctl_words,
    inspect_words,
    verb_meant,
)
from pardbg.control.language.manual import MANUAL, manual
from pardbg.errors import UserError
from pardbg.events.commands import Reply
from pardbg.events.control_codes import Verb, Why
from pardbg.events.control_facts import Breakpoint, Edited, Refusal
from pardbg.render.frame.control_words import refusal_text
from pardbg.ui.commands.actions import ACTIONS, explain
from pardbg.ui.commands.command_line import complete, parse
from pardbg.ui.commands.startup import KEPT, History, Rc, RcLine, run_rc

# ---------------------------------------------------------------------------- completion


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("tb", ["tbreak "]),
        ("bre", ["break ", "breaks"]),
        ("break", ["break ", "breaks"]),
        ("break ac", ["break action"]),
        ("b mb==3 and st", ["b mb==3 and stage", "b mb==3 and step"]),
        ("break op==all_r", ["break op==all_reduce"]),
        ("break step>3 on h", ["break step>3 on held", "break step>3 on host="]),
        ("pause 1 ", ["pause 1 hold"]),
        ("step ", ["step all", "step held", "step waiting"]),
        ("delay 1,w", ["delay 1,waiting"]),
        ("level s", ["level summary"]),
        ("compare --hash gr", ["compare --hash grads"]),
        ("p loss on ", ["p loss on all"]),
        ("theme l", ["theme light"]),
        ("help tbr", ["help tbreak"]),
        ("condition 1 ste", ["condition 1 step"]),
        ("rank ", ["rank 0", "rank 1"]),
        ("p lo", []),
        ("nonsense x", []),
    ],
)
def test_what_may_come_next(text: str, first: list[str]) -> None:
    assert complete(text, True, (0, 1))[: len(first) or None] == first


def test_a_recording_offers_no_verbs() -> None:
    assert complete("pau", False) == [] and complete("rev", False) == ["reverse"]


# ---------------------------------------------------------------------------- words, help


def test_pdbs_abbreviations_mean_what_they_mean_there() -> None:
    meant = {"n": "next", "s": "step", "c": "continue", "b": "break", "p": "p", "w": "where",
             "u": "up", "d": "down", "l": "list", "q": "quit", "h": "help", "a": "args",
             "bt": "where", "cl": "delete", "unt": "until", "tbreak": "tbreak"}  # fmt: skip
    for short, word in meant.items():
        assert parse(short, live=True).action.command == word, short
    ran = parse("!x = 1", live=True)
    assert (ran.action.command, ran.argument) == ("exec", "x = 1")
    assert verb_meant(Verb.BREAK, []) is Verb.BREAKS, "break alone lists them"
    assert verb_meant(Verb.BREAK, ["mb==3"]) is Verb.BREAK
    assert inspect_words("list", "0-1") == ("0-1", {"kind": "list", "expr": ""})
    with pytest.raises(UserError, match="list"):
        inspect_words("list", "1 2")


def test_every_word_of_control_is_explained_and_nothing_else_is() -> None:
    words = {verb.value for verb in Verb if verb is not Verb.INSPECT} | {*INSPECT, COMPARE}
    words.remove("hash")  # compare --hash
    missing = words - MANUAL.keys()
    assert not missing
    known = {action.command for action in ACTIONS}
    assert MANUAL.keys() <= known | words
    assert {PDB.get(short, short) for short in PDB} <= known
    said = explain("b")
    assert said[0] == "break EXPR [on RANKS]" and any("action==B" in line for line in said)
    assert said[-1] == "pdb's abbreviation: b"
    assert manual("zoom") == () and explain("zoom")[0].startswith("zoom in|out|all")
    assert explain("nonsense") == []


@pytest.mark.parametrize("words", [["break", "--help"], ["help", "b"], ["some-run", "b", "-h"]])
def test_ctl_explains_a_verb(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert not ctl.main(words, standalone_mode=False)
    said = capsys.readouterr().out
    assert said.startswith("break EXPR [on RANKS]") and "axis==dp" in said


def test_ctl_words() -> None:
    assert ctl_words(("!x", "=", "1", "on", "0")) == (
        None, Verb.INSPECT, "0",
        {"kind": "exec", "expr": "x = 1", "frame": 0, "every_frame": False},
    )  # fmt: skip
    assert ctl_words(("run-1", "b")) == ("run-1", Verb.BREAKS, None, {})
    quoted = (None, Verb.TBREAK, "0", {"expr": "op==send and mb==3"})
    assert ctl_words(("tbreak op==send and mb==3 on 0",)) == quoted
    assert ctl_words(("tbreak", "op==send and mb==3", "on", "0")) == quoted
    assert ctl_words(("run-1", "args on 1"))[2] == "1"
    for typed, says in (
        ("u", "--frame"), ("q", "ends by itself"), ("dance", "not a verb"),
        ("frames all", "--all-frames"), ("up 2", "--frame"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=says):
            ctl_words(tuple(typed.split()))


# ---------------------------------------------------------------------------- history


def test_lines_are_kept_once_bounded_and_for_the_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "history"
    first = History(path)
    first.load()
    for text in ("pause", "step 0", "step 0", "continue"):
        if first.add(text):
            first.keep(text)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = History(path)
    again.load()
    assert again.lines == ["pause", "step 0", "continue"]
    path.write_text("".join(f"break step=={n}\n" for n in range(2 * KEPT + 1)))
    again.load()
    assert len(again.lines) == KEPT and again.lines[-1] == f"break step=={2 * KEPT}"
    assert len(path.read_text().splitlines()) == KEPT, "the file is cut, too"


def test_a_history_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file, not a folder")
    lost = History(tmp_path / "state" / "history")
    lost.load()
    assert lost.add("pause")
    lost.keep("pause")
    assert lost.lines == ["pause"]


# ---------------------------------------------------------------------------- .pardbgrc


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The user's rc file and ./.pardbgrc, not there yet; without a terminal."""
    for name in ("config/pardbg", "home", "here"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "config" / "pardbg" / "rc", tmp_path / "here" / ".pardbgrc"


class Asked:
    """A user at a terminal who answers the same each time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: bool) -> None:
        self.times, self.answer = 0, answer
        monkeypatch.setattr(rc, "has_terminal", lambda: True)
        monkeypatch.setattr("click.confirm", self._confirm)

    def _confirm(self, *_: Any, **__: Any) -> bool:
        self.times += 1
        return self.answer


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o644)


def test_the_users_own_runs_by_itself_and_the_one_that_lies_here_does_not(
    places: tuple[Path, Path],
) -> None:
    own, here = places
    write(own, "# mine\n\ntheme light\n")
    write(here, "!__import__('os').abort()\n")
    found = rc.viewer_rc(None, no_rc=False)
    assert found.lines == (RcLine(f"{own}:3", "theme light"),)
    assert len(found.problems) == 1  # not run
    assert rc.viewer_rc(None, no_rc=True).lines == ()


@pytest.mark.parametrize("answer", [True, False])
def test_the_user_is_asked_once_per_content(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, answer: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    _, here = places
    write(here, "break step==3\n  watch nan  \n")
    asked = Asked(monkeypatch, answer)
    lines = (RcLine(".pardbgrc:1", "break step==3"), RcLine(".pardbgrc:2", "watch nan"))
    for _ in range(2):
        found = rc.viewer_rc(None, no_rc=False)
        assert found.lines == (lines if answer else ()) and asked.times == 1
        assert len(found.problems) == (0 if answer else 1)
    assert "  watch nan  " in capsys.readouterr().out
    monkeypatch.setattr(rc, "has_terminal", lambda: False)
    assert rc.viewer_rc(None, no_rc=False) == found
    write(here, "break step==3\nkill\n")
    assert rc.viewer_rc(None, no_rc=False).lines == ()
    monkeypatch.setattr(rc, "has_terminal", lambda: True)
    rc.viewer_rc(None, no_rc=False)
    assert asked.times == 2


def test_a_directory_that_the_user_trusts_is_not_asked_about(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, here = places
    write(here, "watch nan\n")
    monkeypatch.setenv(rc.ENV_TRUST, f"/nowhere:{here.parent}")
    assert rc.viewer_rc(None, no_rc=False).lines == (RcLine(".pardbgrc:1", "watch nan"),)
    monkeypatch.setenv(rc.ENV_TRUST, f":{here.parent.parent}")
    assert rc.viewer_rc(None, no_rc=False).lines == ()


def test_a_file_that_others_may_write_to_is_refused(places: tuple[Path, Path]) -> None:
    _, here = places
    here.write_text("break step==3\n")
    here.chmod(0o664)
    refused = rc.viewer_rc(None, no_rc=False)
    assert refused.lines == ()
    assert refused.problems == (".pardbgrc: not read: writable by others (chmod go-w .pardbgrc)",)
    # Named by the user, it is the user's word.
    assert rc.named_rc(here).lines == (RcLine(f"{here}:1", "break step==3"),)


def test_somebody_elses_file_a_fifo_and_a_huge_one_are_refused(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, here = places
    os.mkfifo(here, 0o600)
    own.write_text("#" * (rc.MAX_RC_BYTES + 1))
    own.chmod(0o600)
    said = rc.viewer_rc(None, no_rc=False).problems
    assert said == (f"{own}: not read: larger than 64 KiB",
                    ".pardbgrc: not read: not a regular file")  # fmt: skip
    own.write_text("pause\n")
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    assert "owned by another user" in rc.viewer_rc(None, no_rc=False).problems[0]
    with pytest.raises(UserError, match="No such file"):
        rc.named_rc(Path("none"))


def test_errors_name_file_and_line_and_the_rest_goes_on() -> None:
    lines = ("break step==3", "braek mb==3", "break rnak==1", "theme light", "kill yes", "pause")
    found = tuple(RcLine(f".pardbgrc:{n}", text) for n, text in enumerate(lines, 1))
    asked: list[Any] = []
    done: list[str] = []
    said: list[tuple[str, bool]] = []

    def ask(verb: Verb, ranks: str | None, **args: Any) -> Reply:
        asked.append((verb.value, ranks, args))
        if verb is Verb.PAUSE:
            return Reply(refusal=Refusal(Why.NO_RANK_YET))
        return Reply(answer=Edited(Verb.BREAK, (Breakpoint(1, "step==3"),)))

    def perform(found: Any) -> str:
        done.append(f"{found.action.command} {found.argument}")
        return ""

    run_rc(Rc(found, ("refused",)), ask, perform, lambda text, bad: said.append((text, bad)))
    assert asked == [("break", None, {"expr": "step==3"}), ("pause", None, {})]
    assert done == ["theme light"]
    assert [bad for _, bad in said] == [True, False, True, True, False, True, True]
    texts = [text for text, _ in said]
    assert texts[:2] == ["refused", ".pardbgrc:1: break step==3: breakpoint 1: step==3"]
    assert texts[2].startswith(".pardbgrc:2: no command 'braek': did you mean 'break'?")
    assert texts[3].startswith(".pardbgrc:3:") and "did you mean 'rank'" in texts[3]
    assert texts[5:] == [".pardbgrc:5: kill cannot be a start command",
                         f".pardbgrc:6: {refusal_text(Refusal(Why.NO_RANK_YET))}"]  # fmt: skip
