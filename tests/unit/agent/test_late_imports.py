"""Functions that run when a module has been imported."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
import zipfile
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pardbg_agent.life.late_imports import LateImports


def test_two_that_wait_for_one_module_both_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As DeepSpeed's ZeRO is waited for by its memory and by its steps: the first was forgotten."""
    (tmp_path / "late_module_of_two.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    said: list[str] = []
    late = LateImports(said.append)
    for word in ("memory", "steps"):
        late.when_imported("late_module_of_two", lambda m, w=word: said.append(w))  # type: ignore[misc]
    importlib.import_module("late_module_of_two")
    assert said == ["memory", "steps"]


def test_a_loader_that_serves_many_modules_runs_it_for_the_right_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """zipimport's: the module that is waited for imports others from the same archive, and is
    looked for before it is imported."""
    archive = tmp_path / "late.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("late_other.py", "")
        file.writestr("late_wanted.py", "import late_inner\nready = True\n")
        file.writestr("late_inner.py", "")
    monkeypatch.syspath_prepend(archive)
    said: list[Any] = []
    late = LateImports(said.append)
    late.when_imported("late_wanted", lambda m: said.append((m.__name__, m.ready)))
    late.when_imported("late_inner", lambda m: said.append(m.__name__))
    spec = importlib.util.find_spec("late_wanted")
    assert spec is not None and isinstance(spec.loader, type(sys.path_importer_cache[str(archive)]))
    other = importlib.import_module("late_other")
    assert said == []
    wanted = importlib.import_module("late_wanted")
    assert said == ["late_inner", ("late_wanted", True)]
    assert wanted.__loader__ is other.__loader__ is wanted.__spec__.loader  # type: ignore[union-attr]
    assert "exec_module" not in vars(other.__loader__)


class Shared:
    """A loader of the program's, of all modules whose names begin so; and its finder."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name.startswith("late_made_") else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        self.last = spec.name

    def exec_module(self, module: ModuleType) -> None:
        assert module.__name__ == self.last  # its own state
        self.made.append(module.__name__)


class Old:
    """A loader of before Python 3.4."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == "late_old" else None  # type: ignore[arg-type]

    def load_module(self, name: str) -> ModuleType:
        sys.modules[name] = ModuleType(name)
        return sys.modules[name]


def test_the_programs_own_loaders_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared()
    monkeypatch.setattr(sys, "meta_path", [shared, Old(), *sys.meta_path])
    said: list[str] = []
    late = LateImports(said.append)
    for name in ("late_made_b", "late_old"):
        late.when_imported(name, lambda m: said.append(m.__name__))
    for name in ("late_made_a", "late_made_b", "late_made_c"):
        assert importlib.import_module(name).__loader__ is shared
    assert (said, shared.made) == (["late_made_b"], ["late_made_a", "late_made_b", "late_made_c"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importlib's, of such loaders
        assert importlib.import_module("late_old").__name__ == "late_old"


def test_a_module_that_warns_its_importer_names_the_importer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late_warns.py").write_text(
        "import warnings\nwarnings.warn('old', DeprecationWarning, stacklevel=2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    LateImports(print).when_imported("late_warns", lambda m: None)
    with pytest.warns(DeprecationWarning) as told:
        import late_warns  # type: ignore[import-not-found]  # noqa: F401
    assert told[0].filename == __file__
