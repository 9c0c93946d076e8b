"""Readings of devices, against a stub of the functions of nvidia-ml-py that are called.

No device is here: what these functions return on one is the library's documentation's word.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from types import SimpleNamespace as Values
from typing import Any

import pytest

from pardbg.hub.ranks.device_meters import SURE, DeviceMeters


class NVMLError(Exception):
    pass


@dataclass
class Nvml:
    """The library with one device; ``missing``: functions that this driver does not support."""

    NVMLError: type[Exception] = NVMLError
    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    nvmlEventTypeXidCriticalError = 8
    reasons: int = 0
    clock: int = 1980
    ecc: int = 5
    xids: list[int] = field(default_factory=list)
    missing: tuple[str, ...] = ()
    calls: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        values = {
            "nvmlInit": None, "nvmlShutdown": None, "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "handle", "nvmlDeviceGetName": b"H100",
            "nvmlDeviceGetUUID": "GPU-ab12",
            "nvmlDeviceGetUtilizationRates": Values(gpu=97, memory=40),
            "nvmlDeviceGetClockInfo": self.clock, "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetCurrentClocksEventReasons": self.reasons,
            "nvmlDeviceGetTemperature": 91, "nvmlDeviceGetPowerUsage": 690_000,
            "nvmlDeviceGetEnforcedPowerLimit": 700_000, "nvmlDeviceGetTotalEccErrors": self.ecc,
            "nvmlDeviceGetComputeRunningProcesses": [Values(pid=77), Values(pid=4)],
            "nvmlEventSetCreate": "set", "nvmlDeviceRegisterEvents": None, "nvmlDeviceGetIndex": 0,
        }  # fmt: skip
        if name not in values and name != "nvmlEventSetWait_v2":
            raise AttributeError(name)

        def function(*args: Any) -> Any:
            self.calls.append(name)
            if name in self.missing:
                raise NVMLError(name)
            if name == "nvmlEventSetWait_v2":
                if not self.xids:
                    raise NVMLError("timeout")
                return Values(device="handle", eventData=self.xids.pop())
            return values[name]

        return function


def meters(nvml: Nvml) -> DeviceMeters:
    made = DeviceMeters(nvml)
    made.ranks = {77: (3, "")}
    assert made.begin()
    return made


def test_the_first_reading_is_told_and_then_changes_alone() -> None:
    made = meters(Nvml())
    made.read()
    [first] = made.took()
    assert (first.name, first.ranks, first.percent, first.celsius) == ("H100", (3,), 97, 91)
    assert (first.milliwatts, first.limit_milliwatts, first.reasons) == (690_000, 700_000, ())
    made.read()
    assert made.took() == []


@pytest.mark.parametrize(
    ("ranks", "on_it"),
    [({5: (1, "ab12"), 77: (3, "cd34"), 8: (0, "ab12")}, (0, 1, 3)), ({77: (3, "")}, (3,)),
     ({5: (1, "ef56")}, ())],
)  # fmt: skip
def test_in_a_container_a_rank_is_on_the_device_that_torch_names(
    ranks: dict[int, tuple[int, str]], on_it: tuple[int, ...]
) -> None:
    """The driver's pids are the host's there. ``cd34`` is no whole device: a part of one."""
    made = meters(Nvml())
    made.ranks = ranks
    made.read()
    assert [one.ranks for one in made.took()] == [on_it]


@pytest.mark.parametrize(
    ("reasons", "clock", "told"),
    [(0x40, 1005, ("hot",)), (0x20 | 0x40, 1005, ("hot",)), (0x4, 1005, ("power limit",)),
     (0x4, 1800, ()), (0x1, 300, ()), (0x8, 990, ("hardware slowdown",))],
)  # fmt: skip
def test_lowered_clocks_are_told_once_they_last(
    reasons: int, clock: int, told: tuple[str, ...]
) -> None:
    """A device at its power limit is throttled only if that costs it a third of its clock; an idle
    one is not."""
    nvml = Nvml()
    made = meters(nvml)
    made.read()
    made.took()
    nvml.reasons, nvml.clock = reasons, clock
    for _ in range(SURE - 1):
        made.read()
    assert made.took() == []
    made.read()
    assert [one.reasons for one in made.took()] == ([told] if told else [])


def test_errors_are_those_since_the_run_began() -> None:
    nvml = Nvml()
    made = meters(nvml)
    made.read()
    assert [one.ecc_errors for one in made.took()] == [0]  # 5 were there before
    nvml.ecc, nvml.xids = 7, [79]
    made.read()
    assert [(one.ecc_errors, one.xid) for one in made.took()] == [(2, 79)]


def test_what_a_device_does_not_support_is_left_out() -> None:
    missing = (
        "nvmlDeviceGetTotalEccErrors", "nvmlEventSetCreate", "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetComputeRunningProcesses",
    )  # fmt: skip
    made = meters(Nvml(missing=missing))
    made.read()
    [news] = made.took()
    assert (news.ranks, news.percent, news.ecc_errors, news.clock_mhz) == ((), 0, 0, 1980)


def test_without_library_or_driver_nothing_is_read() -> None:
    assert not DeviceMeters(Nvml(missing=("nvmlInit",))).begin()
    assert not DeviceMeters(Values()).begin()


@pytest.mark.timeout(60)
def test_a_driver_that_takes_its_time_holds_nobody_up() -> None:
    answers = threading.Event()

    class Slow(Nvml):
        def nvmlInit(self) -> None:
            answers.wait()

    made = DeviceMeters(Slow())
    made.start()
    assert not made.active
    answers.set()
    while not (told := made.took()):
        time.sleep(0.01)
    assert told[0].name == "H100" and made.active
    made.close()
