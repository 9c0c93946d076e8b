"""Zero-code start: by .pth, by PYTHONPATH, by both; and nothing at all without PARDBG.

A package named torch stands in for the real one; the hooks are a stub that says when it was
called and whether ``import torch`` had ended by then.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
AGENT = ROOT / "agent"
BOOT = AGENT / "pardbg_agent" / "boot"

PROGRAM = """
import sys, types
hooks = types.ModuleType("pardbg_agent.hooks")
hooks.calls = []
hooks.install = lambda: hooks.calls.append(getattr(sys.modules.get("torch"), "ended", None))
sys.modules["pardbg_agent.hooks"] = hooks
try:
    import pardbg_agent
    pardbg_agent.hooks = hooks
except ImportError:
    pass
{body}
"""


@pytest.fixture
def site(run_dir: Path) -> Path:
    """A directory with a torch that sets ``ended`` in its last line."""
    (run_dir / "torch").mkdir()
    (run_dir / "torch" / "__init__.py").write_text("import torch.library\nended = True\n")
    (run_dir / "torch" / "library.py").write_text(
        "import torch\nassert not hasattr(torch, 'ended')\n"
    )
    return run_dir


def python(body: str, *paths: Path, watched: bool = True, flags: tuple[str, ...] = ()) -> str:
    """stdout of a fresh interpreter; its stderr must be empty."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PARDBG"))}
    env["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    if watched:
        env["PARDBG"] = "/nonexistent"
    done = subprocess.run(
        [sys.executable, *flags, "-c", PROGRAM.format(body=body)],
        env=env, capture_output=True, text=True, timeout=30, cwd="/",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.mark.parametrize(("flags", "want"), [((), b"a line\n"), (("-u",), b"a line\nno end")])
def test_a_job_prints_whole_lines_at_once(flags: tuple[str, ...], want: bytes) -> None:
    """As on a terminal; buffered, they came when the rank ends. Who asks for no buffer has none."""
    env = {**os.environ, "PARDBG": "/nonexistent", "PYTHONPATH": str(BOOT), "PARDBG_LINES": "1"}
    env.pop("PYTHONUNBUFFERED", None)
    code = "import os; print('a line'); print('no end', end=''); os._exit(0)"
    done = subprocess.run(
        [sys.executable, *flags, "-c", code], env=env, stdout=subprocess.PIPE, timeout=60
    )
    assert done.stdout == want


def test_hooks_are_installed_when_import_torch_has_ended(site: Path) -> None:
    body = "assert hooks.calls == []\nimport torch\nprint(hooks.calls)"
    assert python(body, BOOT, site) == "[True]"


def test_a_broken_installation_costs_the_agent_not_the_program(site: Path) -> None:
    body = (
        "import io\nsys.modules['pardbg_agent.core'] = None\nsys.stderr = io.StringIO()\n"
        "import torch\n"
        "print(torch.ended, sys.stderr.getvalue().count('agent is off'), hooks.calls)"
    )
    assert python(body, BOOT, site) == "True 1 []"


def test_both_ways_together_install_once(site: Path) -> None:
    body = (
        "import pardbg_agent.autostart as a; a.start(); import torch; a.start(); print(hooks.calls)"
    )
    assert python(body, BOOT, site) == "[True]"
    body = "import sys; print(sum('LateImports' in repr(f) for f in sys.meta_path))"
    assert python("import pardbg_agent.autostart as a; a.start()\n" + body, BOOT, AGENT) == "1"


def test_without_pardbg_nothing_of_the_agent_is_loaded(site: Path) -> None:
    body = (
        "import torch\n"
        "print(hooks.calls, 'pardbg_agent.autostart' in sys.modules,"
        " any('Torch' in repr(f) for f in sys.meta_path))"
    )
    assert python(body, BOOT, site, watched=False) == "[] False False"


def test_the_next_sitecustomize_runs_too(site: Path) -> None:
    (site / "sitecustomize.py").write_text("import sys\nsys.chained = __file__\n")
    body = "import torch, sitecustomize\nprint(hooks.calls, sys.chained, sitecustomize.__file__)"
    theirs = site / "sitecustomize.py"
    assert python(body, BOOT, site) == f"[True] {theirs} {theirs}"
    assert python("print(sys.chained)", BOOT, site, watched=False) == str(theirs)


def test_the_next_sitecustomize_may_import_torch(site: Path) -> None:
    (site / "sitecustomize.py").write_text("import sys\nimport torch\n")
    body = "import torch; print('pardbg_agent.core' in sys.modules)"
    env_paths = (BOOT, site)
    code = PROGRAM.format(body=body)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PARDBG"))}
    env |= {"PYTHONPATH": os.pathsep.join(map(str, env_paths)), "PARDBG": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, cwd="/"
    )
    # The stub comes too late here, so the real hooks meet a torch that is none: one line, no more.
    assert done.returncode == 0
    assert done.stdout.strip() == "True"
    assert done.stderr.count("\n") <= 1


def test_torch_looks_as_always_afterwards(site: Path) -> None:
    body = (
        "import torch\n"
        "print(type(torch.__loader__).__name__, torch.__spec__.loader is torch.__loader__,"
        " 'exec_module' in vars(torch.__loader__))"
    )
    assert python(body, BOOT, site) == "SourceFileLoader True False"


def test_looking_for_torch_does_not_use_the_finder_up(site: Path) -> None:
    body = (
        "import importlib.util as u\nassert u.find_spec('torch')\nimport torch\nprint(hooks.calls)"
    )
    assert python(body, BOOT, site) == "[True]"


def test_an_import_of_torch_that_fails_is_the_programs(site: Path) -> None:
    (site / "torch" / "__init__.py").write_text(
        "import sys\n"
        "sys.tries = getattr(sys, 'tries', 0) + 1\n"
        "if sys.tries == 1: raise ImportError('libcuda')\n"
        "ended = True\n"
    )
    body = (
        "try:\n    import torch\nexcept ImportError as e: print(e)\n"
        "import torch\nprint(hooks.calls)"
    )
    assert python(body, BOOT, site).split("\n") == ["libcuda", "[True]"]


def test_hooks_that_fail_leave_the_program_alone(site: Path) -> None:
    body = (
        "def broken(): raise RuntimeError('no dispatcher')\n"
        "hooks.install = broken\n"
        "import torch, io\n"
        "print(torch.ended)"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PARDBG"))}
    env |= {"PYTHONPATH": f"{BOOT}{os.pathsep}{site}", "PARDBG": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body=body)],
        env=env, capture_output=True, text=True, timeout=30, cwd="/",
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "True")
    assert done.stderr == "pardbg: agent is off: RuntimeError: no dispatcher\n"


def test_the_pth_line_starts_the_agent_and_costs_nothing_without_pardbg(site: Path) -> None:
    """site.py runs a .pth line that begins with ``import``; here the same line, by addsitedir."""
    (site / "pardbg.pth").write_text((AGENT / "pardbg.pth").read_text())
    load = f"import site; site.addsitedir({str(site)!r})\n"
    seen = "print('pardbg_agent.autostart' in sys.modules, 'pardbg_agent.core' in sys.modules)"
    assert python(load + seen, AGENT) == "True False"
    assert python(load + seen, AGENT, watched=False) == "False False"


def test_the_pth_line_of_an_agent_that_is_gone_says_nothing(site: Path) -> None:
    (site / "pardbg.pth").write_text((AGENT / "pardbg.pth").read_text())
    hide = "sys.modules['pardbg_agent'] = None\n"
    load = f"import site; site.addsitedir({str(site)!r})\nprint('ran')"
    assert python(hide + load, site) == "ran"


def test_the_pth_is_one_import_line() -> None:
    line = (AGENT / "pardbg.pth").read_text()
    assert line.startswith("import os; ")
    assert line.count("\n") == 1


def test_pythonpath_opens_nothing_but_the_agent_to_imports(run_dir: Path, site: Path) -> None:
    """With -S no site-packages: pardbg_agent comes from where the sitecustomize lies, and its
    neighbours there do not become importable."""
    body = (
        "import importlib.util as u\n"
        "print(pardbg_agent.__file__, u.find_spec('start'), u.find_spec('autostart'))"
    )
    found = python("import sitecustomize\nimport pardbg_agent\n" + body, BOOT, flags=("-S",))
    assert found == f"{AGENT / 'pardbg_agent' / '__init__.py'} None None"
