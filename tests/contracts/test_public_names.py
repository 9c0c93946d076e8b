"""What users' programs and scripts may rely on."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from pardbg.cli import cli, main

COMMANDS = {
    "demo", "watch", "run", "replay", "report", "ctl", "learn", "ls", "doctor", "native", "explain",
    "export", "check", "diff", "postmortem", "repair", "import", "whatif", "help", "schedule",
    "rehearse", "attach", "same", "mcp", "skill", "serve",
}  # fmt: skip
OPTIONS = {
    "demo": {"--nproc", "--steps", "--output", "--list", "--keep"},
    "run": {"--output", "--metrics"},
    "rehearse": {"--world-size", "--ranks", "--steps", "--transport", "--output", "--json"},
    "report": {"--json", "--html"},
    "export": {"--to", "--output", "--force"},
    "check": {"--junit", "--skip", "--list"},
    "diff": {"--json", "--skip"},
    "same": {"--json", "--floor"},
    "postmortem": {"--output", "--force"},
    "repair": {"--output", "--force"},
    "import": {"--output", "--force"},
    "learn": {"--list"},
    "ls": {"--json", "--dead"},
    "ctl": {"--json"},
    "mcp": {"--control"},
    "explain": {"--output", "--show", "--json"},
    "attach": {"--launcher", "--user", "--slurm", "--json"},
}


def explained(*words: str) -> str:
    """What ``--help`` says, asked in this process: a new one takes a second of CPU."""
    done = CliRunner().invoke(cli, [*words, "--help"], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.output


def options(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])(--?[a-z][\w-]*)", text))


def test_the_agents_public_names() -> None:
    import pardbg_agent

    public = {
        "action", "attach", "breakpoint", "detach", "layout", "log", "plan", "span", "step",
    }  # fmt: skip
    assert set(pardbg_agent.__all__) == public, "a name comes or goes on purpose: say it here"
    for name in public:
        assert callable(getattr(pardbg_agent, name))


def test_the_commands() -> None:
    done = explained()
    start = done.index("Start here:")
    listed = re.findall(r"^  ([a-z]+)\b", done[start:], flags=re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS), "a command comes or goes on purpose: say it here"


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_command_explains_itself(command: str) -> None:
    done = explained(command)
    assert options(done) >= OPTIONS.get(command, set()), done


@pytest.mark.parametrize(
    "words",
    [
        ("demo", "no-such-recipe"),
        ("no-such-command",),
        ("replay", "/no/such/file.mcap"),
        ("export", "--to", "csv", "-o", "x", "/no/such/file.mcap"),
        ("export", "--to", "csv", "-o", "x", "/"),
        ("check", "/no/such/file.mcap", "bubble<12"),
        ("diff", "/no/such/a.mcap", "/no/such/a.mcap"),
        ("same", "/no/such/a.mcap"),
        ("postmortem", "-o", "x.mcap", "no-such-run"),
        ("repair", "-o", "x.mcap", "/no/such/file.mcap"),
        ("import", "-o", "x.mcap", "/no/such/file.json"),
        ("demo", "1f1b", "--nproc", "9"),
    ],
    ids=" ".join,
)
def test_a_users_mistake_is_one_line_and_exit_2(
    words: tuple[str, ...], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process; ``tests/distributed/test_cli.py`` asks new ones."""
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:  # any other exception would be a traceback
        main(list(words))
    out, err = capfd.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert len(err.strip().splitlines()) == 1 and words[-1] in err, err


def test_the_recipes_are_listed_without_torch() -> None:
    code = (
        "import json, sys; sys.modules['torch'] = None\n"
        "from pardbg.lab.recipes.catalogue import RECIPES; print(json.dumps(list(RECIPES)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=280, check=True
    )
    assert {"ddp", "gpipe", "1f1b", "interleaved"} <= set(json.loads(done.stdout))
