"""Nothing from outside moves a cursor, sets a colour, hides a word or is a formula."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest

from pardbg.plain_text import plain, plain_cell, plain_lines
from pardbg.render.draw.svg import Svg
from pardbg.session.writer import RunFacts, SessionWriter
from pardbg_agent.wire import Key
from tests.harness import whole_messages

ROOT = Path(__file__).parents[2]
EVIL = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202e"  # title, colour, C1, right to left


def test_what_is_not_printable_is_a_dot() -> None:
    assert plain("loss 2.5 µs – ok") == "loss 2.5 µs – ok"
    assert plain("a\x1b[31mb") == "a·[31mb"
    assert plain("a\nb\r\x00\x9b\u202e\u200b") == "a·b····"
    assert plain_lines("a\x1b\nb\n") == "a·\nb\n"


def test_a_cell_is_no_formula() -> None:
    for text in ("=1+1", "+1", "-1", "@x"):
        assert plain_cell(text) == f"'{text}"
    assert plain_cell("all_reduce") == "all_reduce"


def test_a_picture() -> None:
    svg = Svg(10, 10, EVIL)
    svg.text(0, 0, EVIL)
    svg.rect(0, 0, 1, 1, "x", EVIL)
    assert svg.markup().isprintable() and "owned" in svg.markup()


def evil(value: object) -> object:
    """Every text in it but the kinds and ids that the store goes by."""
    if isinstance(value, dict):
        keep = ("k", "key", "proc", "stream", "event", "boot_id")
        return {k: v if k in keep else evil(v) for k, v in value.items()}
    if isinstance(value, list):
        return [evil(v) for v in value]
    return f"={EVIL}{value}" if isinstance(value, str) else value


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording whose every text has escape sequences in it."""
    path = tmp_path_factory.mktemp("evil") / "s.mcap"
    name = f"run{EVIL}"
    writer = SessionWriter(path, RunFacts("r", name, name, (name,), name, name, 1, 1 << 60))
    for message in whole_messages(ROOT / "sessions" / "fault-exception.mcap"):
        payload = message.payload
        if message.key[:1] in (Key.DEFINITION.value, Key.CONTROL.value, Key.OUTPUT.value):
            payload = msgpack.packb(evil(msgpack.unpackb(payload, strict_map_key=False)))
        writer.write(message.key, payload, message.received_ns)
    writer.close(1)
    return path


@pytest.mark.parametrize(
    "words",
    ["report {s}", "report {s} --html {out}.html", "diff {s} {s}", "check {s} no-findings:error",
     "export {s} --to csv -o {out}", "whatif {s}"],
)  # fmt: skip
def test_no_command_prints_or_writes_it(session: Path, tmp_path: Path, words: str) -> None:
    out = tmp_path / "out"
    argv = [word.format(s=session, out=out) for word in words.split()]
    done = subprocess.run([sys.executable, "-m", "pardbg.cli", *argv], capture_output=True,
                          text=True, timeout=50)  # fmt: skip
    assert done.returncode in (0, 1, 2) and "Traceback" not in done.stderr
    shown = done.stdout + done.stderr
    for file in [*out.glob("*.csv"), *tmp_path.glob("*.html")]:
        text = file.read_text()
        shown += text
        if file.suffix == ".csv":
            cells = [cell for row in csv.reader(text.splitlines()) for cell in row]
            assert not [cell for cell in cells if cell[:1] in ("=", "@", "+")]
    assert all(char.isprintable() or char == "\n" for char in shown)
    assert "owned" in shown or words.startswith(("whatif", "check"))
