"""``same --map``: rules that give a run's tensors the names of its reference."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click import ClickException
from click.testing import CliRunner

from pardbg.analysis.same.comparison import compare
from pardbg.analysis.same.names import parse, rename
from pardbg.cli import cli
from tests.unit.analysis.same.captured import Run, changed, run

RULES = r"""
# the generator's names
^generator\. =>
^h\.(\d+)\.  => blocks.\1.
"""


def foreign(made: Run) -> Run:
    """The same run by another program's names, which its initial values do not tell."""
    made.values = {
        (step, what, "generator." + re.sub("^blocks", "h", name)): value
        for (step, what, name), value in made.values.items()
        if what != "init"
    }
    return made


def test_by_the_rules_names_are_the_references() -> None:
    other = foreign(run(seed=2)).store()
    assert rename(other, parse(RULES)) == 6
    told = {tensor.name for process in other.procs.values() for tensor in process.tensors}
    assert {"embed.weight", "blocks.0.weight", "blocks.1.norm", "head.weight"} <= told
    assert compare(run().store(), other).exit_code == 0


def test_a_mistake_has_the_references_name() -> None:
    other = foreign(changed(run(seed=2), lambda grad: 2 * grad, "blocks.1.weight")).store()
    rename(other, parse(RULES))
    found = compare(run().store(), other)
    assert (found.exit_code, found.name) == (1, "blocks.1.weight")


@pytest.mark.parametrize("text", ["no arrow", "( => x", r"a => \2", " => x"])
def test_a_line_that_is_no_rule_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"^line 2: "):
        parse(f"# first\n{text}\n")


def test_two_names_are_not_made_one() -> None:
    with pytest.raises(ValueError, match=r"blocks\.0\.\w+ and blocks\.1\.\w+"):
        rename(run().store(), parse(r"blocks\.\d => blocks"))


def test_as_a_command(tmp_path: Path) -> None:
    a, b = run().file(tmp_path / "a.mcap"), foreign(run(seed=2)).file(tmp_path / "b.mcap")
    rules = tmp_path / "rules"
    rules.write_text(RULES)
    words = ["same", str(a), str(b), "--json"]
    done = CliRunner().invoke(cli, [*words, "--map", str(rules)], standalone_mode=False)
    assert json.loads(done.output)["exit_code"] == 0
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert json.loads(done.output)["exit_code"] == 2  # no names in common
    rules.write_text("nothing => else\n")
    done = CliRunner().invoke(cli, [*words, "--map", str(rules)], standalone_mode=False)
    assert isinstance(done.exception, ClickException) and done.exception.exit_code == 2
