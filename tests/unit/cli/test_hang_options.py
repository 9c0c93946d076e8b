"""``--on-hang``, ``--after`` and ``--notify`` as they are written, and as they are refused."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from pardbg.cli.options import hang_options, recording, recording_options
from pardbg.hub.run.config import OnHang


def read(*words: str) -> OnHang:
    found: list[OnHang] = []

    @click.command()
    @recording_options
    @hang_options
    def command(**how: object) -> None:
        found.append(recording(**how).on_hang)  # type: ignore[arg-type]

    done = CliRunner().invoke(command, words, standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return found[0]


@pytest.mark.parametrize(("words", "meant"), [
    ((), OnHang()),
    (("--on-hang", "bundle"), OnHang(bundle=True)),
    (("--on-hang", "bundle,abort", "--after", "5m"), OnHang(True, (), True, 300.0)),
    (("--on-hang", "bundle,exec a 'b c' d,e"), OnHang(True, ("a", "b c", "d,e"))),
    (("--on-hang", "bundle,exec a,abort"), OnHang(True, ("a",), True)),
    (("--notify", "curl -sd @- https://x"), OnHang(notify="curl -sd @- https://x")),
    (("--notify", " https://x/y"), OnHang(notify="https://x/y")),
    (("--notify", "https://x/y", "--after", "2s"), OnHang(after_s=2.0, notify="https://x/y")),
])  # fmt: skip
def test_what_is_meant(words: tuple[str, ...], meant: OnHang) -> None:
    assert read(*words) == meant


@pytest.mark.parametrize("words", [
    ("--on-hang", "abort"), ("--on-hang", "bundle,exec"),
    ("--on-hang", "bundle,run x"), ("--on-hang", "bundle,exec 'x"), ("--on-hang", ""),
    ("--on-hang", "bundle,abort,exec x"), ("--after", "60s"),
    ("--on-hang", "bundle", "--after", "500ms"),
    ("--notify", ""), ("--notify", " "), ("--notify", "mail 'me"), ("--notify", "ftp://x/y"),
])  # fmt: skip
def test_what_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(click.UsageError):
        read(*words)
