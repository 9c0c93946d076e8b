"""Both distributions as a user gets them: built, installed in a clean environment, started."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import pardbg
from tests.packaging.build import CONTENTS, ROOT, build

pytestmark = pytest.mark.timeout(180)
VERSION = pardbg.__version__


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("dist")
    for distribution in CONTENTS:
        build(distribution, folder)
    return folder


@pytest.fixture(scope="module")
def clean(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the two wheels, and the dependencies of this one behind them."""
    home = tmp_path_factory.mktemp("clean")
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps",
         "--no-index", "--disable-pip-version-check", *map(str, dist.glob("*.whl"))],
        check=True, timeout=120,
    )  # fmt: skip
    # A path line adds the folder alone: the .pth files in it, editable installs too, stay unread.
    (site(home) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home


def site(home: Path) -> Path:
    return Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))


def run(home: Path, *argv: str) -> str:
    done = subprocess.run(
        [str(home / "bin" / argv[0]), *argv[1:]], capture_output=True, text=True, timeout=60,
        cwd=home, env={"PATH": "/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def product_files(folder: Path) -> set[str]:
    """Files that belong in a wheel, relative to the tree's parent."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder.parent).as_posix()
        for path in paths
        if "__pycache__" not in path.parts and path.name != "README.md"
    }


def test_each_distribution_has_a_source_archive_and_a_wheel(dist: Path) -> None:
    names = {path.name for path in dist.iterdir()}
    assert names == {
        f"pardbg-{VERSION}.tar.gz", f"pardbg-{VERSION}-py3-none-any.whl",
        f"pardbg_agent-{VERSION}.tar.gz", f"pardbg_agent-{VERSION}-py3-none-any.whl",
    }  # fmt: skip


@pytest.mark.parametrize("folder", ["pardbg", "agent/pardbg_agent"])
def test_a_wheel_has_every_file_of_its_package(dist: Path, folder: str) -> None:
    path = ROOT / folder
    with zipfile.ZipFile(dist / f"{path.name}-{VERSION}-py3-none-any.whl") as wheel:
        names = set(wheel.namelist())
    assert product_files(path) <= names
    assert f"{path.name}/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_agents_source_archive_has_the_file_that_starts_it(dist: Path) -> None:
    with tarfile.open(dist / f"pardbg_agent-{VERSION}.tar.gz") as archive:
        assert f"pardbg_agent-{VERSION}/pardbg.pth" in archive.getnames()


def test_the_wheels_import_from_the_clean_environment(clean: Path) -> None:
    code = "import pardbg, pardbg_agent as a; print(pardbg.__file__, a.__file__, a.__version__)"
    here = site(clean)
    out = run(clean, "python", "-I", "-c", code).split()
    assert out == [
        str(here / "pardbg/__init__.py"),
        str(here / "pardbg_agent/__init__.py"),
        VERSION,
    ]


def test_the_command_starts_and_the_agent_is_switched_on_by_its_pth(clean: Path) -> None:
    assert "Usage: pardbg" in run(clean, "pardbg", "--help")
    checks = {
        check["name"]: check["status"]
        for check in json.loads(run(clean, "pardbg", "doctor", "--json"))
    }
    assert checks["start (.pth)"] == checks["start (path)"] == checks["agent"] == "ok"


def test_a_page_of_a_report_finds_the_files_it_is_made_of(clean: Path) -> None:
    session = str(ROOT / "sessions" / "1f1b.mcap")
    run(clean, "pardbg", "report", session, "--html", "page.html")
    assert "<svg" in (clean / "page.html").read_text("utf-8")


def test_the_viewer_needs_the_agent_of_the_same_version(dist: Path) -> None:
    with zipfile.ZipFile(dist / f"pardbg-{VERSION}-py3-none-any.whl") as wheel:
        metadata = wheel.read(f"pardbg-{VERSION}.dist-info/METADATA").decode()
    assert f"Requires-Dist: pardbg-agent=={VERSION}" in metadata
