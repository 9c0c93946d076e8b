"""When somebody looks into ranks that stand still: after the time that was asked for, once a hang,
rarely where waits turn out to be healthy; never while ranks are held."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from pardbg.hub.run.config import HANG_FILE, OnHang, RunConfig, load, make, write_json
from pardbg.hub.serve.state_feed import HangWatch, Standstill
from tests.processes import wait_until
from tests.unit.hub.test_stacks_on_stall import S, in_op, row


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("pardbg.hub.run.config.shm_root", lambda: tmp_path / "no-shm" / "pardbg")
    how = OnHang(True, ("cp", "-v"), True, 3.0, "tee")
    made = make(["true"], name="x", session=tmp_path / "s.mcap", on_hang=how)
    assert load(made.dir).on_hang == how
    return made


def ended(watch: HangWatch, now: int) -> tuple[str, ...] | None:
    wait_until(lambda: not watch.busy(), what="the look")
    return watch.took(now)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What each look writes into HANG_FILE, in order; empty: it finds nothing."""
    texts: list[str] = []
    script = """printf '%s' "$1" > "$2/hang.json" """
    monkeypatch.setattr(
        "pardbg.hub.serve.state_feed.own_process",
        lambda _, folder, when, since: [
            "sh",
            "-c",
            script if texts[0] else ":",
            "sh",
            texts.pop(0),
            folder,
        ],
    )
    yield texts


def test_a_hang_is_looked_into_once(config: RunConfig, answers: list[str]) -> None:
    watch = HangWatch(config)
    assert not watch.due(2 * S, 2 * S) and watch.due(3 * S, 3 * S)
    answers.append('{"culprits": ["0.h.7"]}')
    watch.start("hang", 3 * S)
    assert not watch.due(4 * S, 4 * S)
    assert ended(watch, 4 * S) == ("0.h.7",) and watch.took(4 * S) is None
    assert not watch.due(500 * S, 500 * S)
    assert not watch.due(0, 501 * S) and watch.due(3 * S, 504 * S)  # ranks went on: another one


def test_after_looks_in_vain_the_next_are_ever_later(config: RunConfig, answers: list[str]) -> None:
    """A server that waits for an hour: looks take a second each."""
    watch, now, times = HangWatch(config), 3 * S, []
    answers.extend([""] * 9)
    while answers:
        while not watch.due(3600 * S, now):
            now += S
        times.append(now // S)
        watch.start("hang", now)
        now += S
        assert ended(watch, now) is None
    between = [later - before for before, later in pairwise(times)]
    assert between == [4, 7, 13, 25, 49, 97, 101, 101]


def test_a_machine_without_processes_is_asked_once_a_hang(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pardbg.hub.serve.state_feed.own_process", lambda *_: ["/no/such/program"])
    watch = HangWatch(config)
    watch.start("hang", 0)
    assert not watch.busy() and watch.took(0) is None and not watch.due(9 * S, 0)
    assert not watch.due(0, 0) and watch.due(3 * S, 3 * S)


def test_nothing_is_looked_at_unasked(config: RunConfig) -> None:
    object.__setattr__(config, "on_hang", OnHang(after_s=3.0))
    assert not HangWatch(config).due(500 * S, 500 * S)


def test_who_is_held_or_traced_does_not_stand_still() -> None:
    def stood(*rows: dict[str, object]) -> int:
        still, named = Standstill(), {str(n): one for n, one in enumerate(rows)}
        still.due(named, 0)
        still.due(named, 9 * S)
        return still.stood_ns

    assert stood(in_op(0), row(1)) == 9 * S
    assert stood(in_op(0), row(1, os="T")) == 9 * S
    assert stood(row(0), row(1)) == 0
    assert stood(in_op(0), row(1, held=4)) == stood(in_op(0), row(1, os="t")) == 0
    assert stood(in_op(0, os="T"), row(1, os="T")) == 0  # the whole job is stopped


def test_time_under_a_hold_is_no_part_of_a_standstill(
    config: RunConfig, answers: list[str]
) -> None:
    """A rank that waits since 0 s; another one is held from 4 s to 60 s."""
    watch = HangWatch(config)
    assert watch.due(3 * S, 3 * S)
    assert not watch.due(0, 4 * S) and not watch.due(0, 60 * S)
    assert not watch.due(60 * S, 60 * S + 1) and not watch.due(62 * S, 62 * S)
    assert watch.due(63 * S, 63 * S)


@pytest.mark.parametrize("found", [False, True])
def test_a_hold_ends_a_look_that_has_found_nothing_yet(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, found: bool
) -> None:
    monkeypatch.setattr("pardbg.hub.serve.state_feed.own_process", lambda *_: ["sleep", "1000"])
    watch = HangWatch(config)
    watch.due(3 * S, 3 * S)
    watch.start("hang", 3 * S)
    assert watch._process is not None
    if found:  # and acts already
        write_json(config.dir / HANG_FILE, {"culprits": ["0.h.7"]})
    try:
        assert not watch.due(4 * S, 4 * S) and watch.stands
        assert watch._process.poll() is None
        assert not watch.due(0, 5 * S) and not watch.stands
        if found:
            with pytest.raises(subprocess.TimeoutExpired):
                watch._process.wait(0.5)
        else:
            assert watch._process.wait(10) == -signal.SIGKILL and watch.took(6 * S) is None
    finally:
        if watch._process is not None:
            watch._process.kill()
            watch._process.wait()


def test_a_look_is_told_since_when_ranks_stand(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes until it reads: what begins later is none of it."""
    told: list[str] = []
    monkeypatch.setattr(
        "pardbg.hub.serve.state_feed.own_process", lambda _, *words: told.extend(words) or ["true"]
    )
    for after_s, since_ns in ((1.0, 9.5), (60.0, -48.5)):
        object.__setattr__(config, "on_hang", OnHang(True, after_s=after_s))
        watch = HangWatch(config)
        watch.start("hang", 10 * S)
        wait_until(lambda watch=watch: not watch.busy(), what="the look")  # type: ignore[misc]
        assert told[-2:] == ["hang", str(int(since_ns * S))]
