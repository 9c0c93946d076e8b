"""Who a process says it is."""

from __future__ import annotations

import re
import socket

import pytest

from pardbg_agent import identity
from pardbg_agent.identity import host_name


def test_a_host_goes_by_the_name_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its proc ids are "epoch.host.pid" and name files: no dots, slashes or spaces."""
    monkeypatch.setenv("PARDBG_HOST", "node 1/a.example.org")
    assert host_name() == "node-1-a"


def test_a_host_without_one_goes_by_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARDBG_HOST", "")
    own = socket.gethostname().split(".")[0]
    assert host_name() == re.sub(r"[^A-Za-z0-9_-]", "-", own)


@pytest.mark.parametrize(
    ("offsets", "same"),
    [("", True), ("monotonic           0         0\nboottime            0         0\n", True),
     ("monotonic           0  50000000\nboottime            0         0\n", False)],
    ids=["an old kernel", "the boot's clock", "50 ms ahead"],
)  # fmt: skip
def test_a_time_namespace_with_a_clock_of_its_own_is_another_clock(
    monkeypatch: pytest.MonkeyPatch, offsets: str, same: bool
) -> None:
    files = {"/proc/sys/kernel/random/boot_id": "b-1\n", "/proc/self/timens_offsets": offsets}
    monkeypatch.setattr(identity, "read_text", files.__getitem__)
    assert (identity.boot_id() == "b-1") is same
