"""The hot path in C++: found only where it is whole, ours and for this torch; built or one line."""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from pardbg_agent import native, wire
from pardbg_agent.native import __main__ as build
from tests.hook_ways import NATIVE, needs_native


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of built ones."""
    monkeypatch.setenv("PARDBG_NATIVE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(mode=0o700)
    return tmp_path / "cache"


def why_not() -> str:
    with pytest.raises(native.Unusable) as told:
        native.state()
    assert "\n" not in str(told.value)
    return str(told.value)


def put(cache: Path, data: bytes) -> Path:
    path = Path(native.path_of(native.torch_folder()))
    assert path.parent == cache
    path.write_bytes(data)
    build.seal(str(path))
    return path


def test_without_one_it_is_said_how_to_build_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "pardbg native build" in why_not()
    monkeypatch.setenv("PARDBG_NATIVE", "off")
    assert why_not() == "off (PARDBG_NATIVE=off)"


def test_a_damaged_one_and_one_that_others_may_write_are_not_loaded(cache: Path) -> None:
    path = put(cache, b"\x7fELF and so on")
    assert native.state() == str(path)
    assert path.stat().st_mode & 0o777 == 0o755  # root's in an image, which another user runs
    path.chmod(0o722)
    assert "writable by others" in why_not()
    path.chmod(0o700)
    path.write_bytes(path.read_bytes()[:-1])
    assert "damaged" in why_not()
    path.write_bytes(b"")
    assert "damaged" in why_not()


def test_a_file_that_is_no_module_is_a_line(cache: Path) -> None:
    path = put(cache, b"\x7fELF and so on")
    with pytest.raises(native.Unusable, match="ImportError"):
        native.loaded(str(path))


def test_another_torch_or_source_has_another_name(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "version.py").write_text(f"__version__ = '2.13.0+{name}'\n")
    assert native.tag(str(tmp_path / "a")) != native.tag(str(tmp_path / "b"))


def test_what_cannot_be_built_is_a_line_and_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """No compiler, one that fails, no headers, a cache that cannot be made."""
    said = []

    def run() -> None:
        assert build.main() == 1
        said.append(capsys.readouterr().out)

    monkeypatch.delenv("CXX", raising=False)
    with monkeypatch.context() as patch:
        patch.setattr(build.shutil, "which", lambda name: None)
        run()
    monkeypatch.setenv("CXX", "false")
    run()
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "version.py").write_text("__version__ = '9'\n")
    monkeypatch.setattr(native, "torch_folder", lambda: str(torch))
    run()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PARDBG_NATIVE", str(tmp_path / "file" / "cache"))
    run()
    for text, word in zip(
        said, ("no C++ compiler", "false failed", "no headers", "file"), strict=True
    ):
        assert text.startswith("not built: ") and word in text and text.count("\n") == 1
    assert list(cache.iterdir()) == []


def test_a_build_in_the_background_fails_once_and_leaves_its_reason(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def refused() -> None:
        ran.append("build")
        raise native.Unusable("c++ failed: error: no such header")

    monkeypatch.setattr(build, "build", refused)
    monkeypatch.setattr(build, "free_bytes", lambda: build.BACKGROUND_BYTES)
    monkeypatch.setattr(build.os, "nice", lambda by: None)
    monkeypatch.setattr(build.os, "sched_setscheduler", lambda *to: None)
    monkeypatch.setenv("CXX", "false")
    build.build_in_background()
    build.build_in_background()
    assert ran == ["build"]
    assert why_not() == "c++ failed: error: no such header (pardbg native build)"


@pytest.mark.parametrize("reason", ["short of memory", "no compiler", "built elsewhere"])
def test_no_build_in_the_background(
    cache: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setattr(build, "build", lambda: pytest.fail("it was built"))
    short = build.BACKGROUND_BYTES - (reason == "short of memory")
    monkeypatch.setattr(build, "free_bytes", lambda: short)
    monkeypatch.setattr(build.os, "nice", lambda by: None)
    monkeypatch.setattr(build.os, "sched_setscheduler", lambda *to: None)
    found = None if reason == "no compiler" else "c++"
    monkeypatch.setattr(build, "find_compiler", lambda: found)
    with open(native.path_of(native.torch_folder()) + ".lock", "w") as lock:
        if reason == "built elsewhere":
            fcntl.flock(lock, fcntl.LOCK_EX)
        build.build_in_background()


def test_a_run_never_loads_what_was_built_since_it_began(cache: Path) -> None:
    path = put(cache, b"\x7fELF and so on")
    run_file = cache / "run.json"
    os.utime(path, ns=(2_000, 2_000))
    for wall_ns, usable in ((1_999, False), (2_000, True)):
        run_file.write_text(json.dumps({"wall_ns": wall_ns}))
        if usable:
            native.check_age(str(path), str(run_file))
        else:
            with pytest.raises(native.Unusable):
                native.check_age(str(path), str(run_file))
    native.check_age(str(path), str(cache / "none"))


def test_a_job_with_a_broken_one_takes_pythons_way(cache: Path) -> None:
    put(cache, b"\x7fELF and so on")
    code = "from pardbg_agent.hooks import installed; print(installed.choose().name)"
    env = {**os.environ, "PARDBG_HOOKS": "native"}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=50
    )
    assert ran.stdout.strip() == "dispatcher", ran.stderr
    (line,) = ran.stderr.strip().splitlines()
    assert line.startswith("pardbg: PARDBG_HOOKS=native: ") and "ImportError" in line


@needs_native
def test_records_of_both_sides_lie_in_one_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which they were written, in wire's layout; what does not fit is made to."""
    from pardbg_agent.hooks.ops import native_way
    from pardbg_agent.ring import Ring, RingReader

    monkeypatch.setenv("PARDBG_NATIVE", NATIVE)
    ring = Ring.anonymous()
    ring.header(start_ns=1, wall_ns=1, rank=0, world_size=1, pid=1, epoch=0)
    ring.record(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14)
    table = native_way.module().Table(ring.buffer, *native_way.OFFSETS, ring.capacity, ring.record)
    record = table.adopt(ring)
    widest = (
        2, 3, 0xFFFF, 2**32 - 1, -(2**63), 2**63 - 1, 7, 8, 0xFFFF, -1, -(2**15), 2**15 - 1, -1, 0,
    )  # fmt: skip
    record(*widest)
    ring.record_f(8, 7, 1, 4, 5, 6, 7, 8, 9, -1, -1, -1, 0.5, 14)
    ring.span_ended(1, 2, 0, 4, 5, 6, 7, 1, 3, 800, 9)  # phase 9 goes on from there
    assert wire.STATUS_NOW.unpack_from(ring.buffer, 1024) == (7, 9, 0, -1, -1, 0, 6)
    ring.status.now(8, 1, 2, 3, 4, 10)
    assert wire.STATUS_NOW.unpack_from(ring.buffer, 1024) == (8, 1, 2, 3, 4, 0, 10)
    record(300, 3, 0, 4, 5, 6, 7, -8, 9, None, 99_999, 1, 2**70, 0)
    found = RingReader(ring.buffer).read()
    assert found is not None and found[0] == 0
    rows = list(struct.iter_unpack(wire.RECORD.format, found[1]))
    assert rows[0] == (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 1)
    assert rows[1] == (*widest, 2)
    assert wire.RECORD_F.unpack(found[1][128:192])[12:] == (0.5, 14, 3)
    assert rows[3] == (1, 2, 0, 4, 5, 6, 7, 0, 0xFFFF, 1, 3, -1, 800, 0, 4)
    assert rows[4] == (255, 3, 0, 4, 5, 6, 7, 0, 9, 0, 2**15 - 1, 1, 2**63 - 1, 0, 5)


@needs_native
def test_shared_state_has_the_same_fields_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    from pardbg_agent.hooks import context
    from pardbg_agent.hooks.ops import native_way

    monkeypatch.setenv("PARDBG_NATIVE", NATIVE)
    native_way.module()
    for ours, theirs in zip(context.IN_PYTHON, native_way.NativeWay().types, strict=True):
        names = [field.name for field in fields(ours)]
        assert set(names) == {name for name in vars(theirs) if not name.startswith("_")}
        for name in names:
            if name != "names":
                assert getattr(theirs(), name) == getattr(ours(), name)


def test_looks_at_inputs_have_the_same_limits_on_both_sides() -> None:
    from pardbg_agent.hooks.ops import late_inputs
    from pardbg_agent.hooks.watch import probes

    source = "".join(Path(native.HERE, name).read_text() for name in ("scan.hpp", "looks.hpp"))
    found = dict(re.findall(r"(k[A-Z]\w+) = ([0-9.']+)", source))
    limits = {name: float(number.replace("'", "")) for name, number in found.items()}
    assert limits == {
        "kLeastBytes": probes.LEAST_BYTES, "kFewBytes": probes.FEW_BYTES,
        "kFreeNs": probes.FREE_NS, "kShare": probes.SHARE, "kSampled": probes.SAMPLED,
        "kEvery": probes.EVERY, "kLateShare": late_inputs.SHARE,
        "kMaxSends": late_inputs.MAX_SENDS, "kMaxEvery": late_inputs.MAX_EVERY,
    }  # fmt: skip
