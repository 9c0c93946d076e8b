"""Clocks, load, power, temperature and errors of the devices of a host, by NVML.

``pip install pardbg[nvml]`` brings the library; without it, or without NVIDIA's driver, nothing is
read. A thread of the hub reads once a second, never a rank.
"""

from __future__ import annotations

import contextlib
import importlib
import queue
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pardbg.events.device_facts import DeviceNews

EVERY_S: Final = 1.0
TELL_EVERY: Final = 60
"""Number of readings after which a device is reported without a change."""
SURE: Final = 3
"""Readings in a row that a change of reasons must last: clocks are lowered for moments, too."""
CAPPED: Final = 0.7
"""Share of the maximum clock below which a device at its power limit counts as throttled."""
MAX_DEVICES: Final = 64
_REASONS: Final = {0x20: "hot", 0x40: "hot", 0x80: "power brake", 0x8: "hardware slowdown"}
"""Bits of nvmlClocksEventReason…: software and hardware thermal slowdown, external power brake."""
_POWER_CAP: Final = 0x4


@dataclass(slots=True)
class _Device:
    """State of one device."""

    handle: Any
    news: DeviceNews
    uuid: str
    """As torch has it; empty: unknown."""
    ecc_before: int
    pending: tuple[str, ...] = ()
    num_pending: int = 0
    num_quiet: int = TELL_EVERY


class DeviceMeters:
    """Reader of this host's devices. ``nvml``: the library; a test passes its own."""

    def __init__(self, nvml: Any = None) -> None:
        self._nvml = nvml
        self._found: queue.SimpleQueue[DeviceNews] = queue.SimpleQueue()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._devices: list[_Device] = []
        self._xids: Any = None
        self.ranks: Mapping[int, tuple[int, str]] = {}
        """pid -> (rank on this host, its device's UUID or empty); replaced as a whole, by another
        thread."""

    @property
    def active(self) -> bool:
        """Return whether there are devices to read."""
        return bool(self._devices)

    def start(self) -> None:
        """Start reading, in a thread: the driver may take seconds until it answers."""
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
        self._thread.start()

    def begin(self) -> bool:
        """Find the devices; return whether there are any."""
        found: list[_Device] = []
        with contextlib.suppress(Exception):  # no library, no driver, another version of it
            self._nvml = self._nvml or importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            for index in range(min(MAX_DEVICES, self._nvml.nvmlDeviceGetCount())):
                found.append(self._device(index))
            self._register(found)
        self._devices = found
        return self.active

    def took(self) -> list[DeviceNews]:
        """Return the news since the last call."""
        return [self._found.get() for _ in range(self._found.qsize())]

    def close(self) -> None:
        """Stop reading."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(2 * EVERY_S)

    def read(self) -> None:
        """Read all devices once, and keep the news for ``took``."""
        ranks, xids = self.ranks, self._new_xids()
        for device in self._devices:
            news = self._reading(device, ranks, xids.get(device.news.index, 0))
            if self._is_news(device, news):
                device.news, device.num_quiet = news, 0
                self._found.put(news)

    def _run(self) -> None:
        if not self.begin():
            return
        while not self._over.wait(EVERY_S):
            try:
                self.read()
            except Exception:  # noqa: BLE001 - a device fell off the bus, say: nothing more to read
                break
        with contextlib.suppress(Exception):
            self._nvml.nvmlShutdown()

    def _device(self, index: int) -> _Device:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        name = nvml.nvmlDeviceGetName(handle)
        text = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
        news = DeviceNews(socket.gethostname(), index, text, ())
        uuid = self._of("nvmlDeviceGetUUID", handle) or ""
        uuid = uuid.decode("ascii", "replace") if isinstance(uuid, bytes) else str(uuid)
        return _Device(handle, news, uuid.removeprefix("GPU-"), self._ecc(handle))

    def _ranks(self, device: _Device, ranks: Mapping[int, tuple[int, str]]) -> tuple[int, ...]:
        """Return the ranks on a device: by its UUID where they know it, since in a container the
        driver's pids are the host's; else (also a part of a device, of MIG) by pid."""
        known = {one.uuid for one in self._devices}
        pids = self._of("nvmlDeviceGetComputeRunningProcesses", device.handle) or ()
        running = {one.pid for one in pids}
        return tuple(sorted(
            rank for pid, (rank, uuid) in ranks.items()
            if (uuid == device.uuid if uuid and uuid in known else pid in running)
        ))  # fmt: skip

    def _reading(
        self, device: _Device, ranks: Mapping[int, tuple[int, str]], xid: int
    ) -> DeviceNews:
        nvml, handle = self._nvml, device.handle
        clock = self._number("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM)
        most = self._number("nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM)
        load = self._of("nvmlDeviceGetUtilizationRates", handle)
        return replace(
            device.news,
            ranks=self._ranks(device, ranks),
            reasons=self._lasting(device, self._reasons(handle, clock, most)),
            clock_mhz=clock, max_clock_mhz=most,
            celsius=self._number("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
            percent=int(load.gpu) if load is not None else 0,
            milliwatts=self._number("nvmlDeviceGetPowerUsage", handle),
            limit_milliwatts=self._number("nvmlDeviceGetEnforcedPowerLimit", handle),
            ecc_errors=max(0, self._ecc(handle) - device.ecc_before),
            xid=xid or device.news.xid,
        )  # fmt: skip

    def _reasons(self, handle: Any, clock: int, most: int) -> tuple[str, ...]:
        bits = self._number("nvmlDeviceGetCurrentClocksEventReasons", handle) or self._number(
            "nvmlDeviceGetCurrentClocksThrottleReasons", handle
        )
        found = dict.fromkeys(text for bit, text in _REASONS.items() if bits & bit)
        if bits & _POWER_CAP and clock < CAPPED * most:
            found["power limit"] = None
        return tuple(found)

    def _lasting(self, device: _Device, reasons: tuple[str, ...]) -> tuple[str, ...]:
        """Return the reasons once they have lasted; until then the last reported ones."""
        same = reasons == device.pending
        device.pending, device.num_pending = reasons, device.num_pending + 1 if same else 1
        return reasons if device.num_pending >= SURE else device.news.reasons

    def _is_news(self, device: _Device, news: DeviceNews) -> bool:
        device.num_quiet += 1
        before = device.news
        changed = (news.reasons, news.ecc_errors, news.xid, news.ranks) != (
            before.reasons, before.ecc_errors, before.xid, before.ranks,
        )  # fmt: skip
        return changed or device.num_quiet > TELL_EVERY

    def _ecc(self, handle: Any) -> int:
        nvml = self._nvml
        kind, since = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        return self._number("nvmlDeviceGetTotalEccErrors", handle, kind, since)

    def _register(self, devices: list[_Device]) -> None:
        """Register for Xid events, if the driver reports them."""
        nvml = self._nvml
        self._xids = self._of("nvmlEventSetCreate")
        for device in devices if self._xids is not None else ():
            kind = nvml.nvmlEventTypeXidCriticalError
            self._of("nvmlDeviceRegisterEvents", device.handle, kind, self._xids)

    def _new_xids(self) -> dict[int, int]:
        """Return index -> newest Xid since the last call."""
        found: dict[int, int] = {}
        for _ in range(MAX_DEVICES):
            event = None if self._xids is None else self._of("nvmlEventSetWait_v2", self._xids, 0)
            index = None if event is None else self._of("nvmlDeviceGetIndex", event.device)
            if event is None or index is None:
                break
            found[int(index)] = int(event.eventData)
        return found

    def _number(self, name: str, *args: Any) -> int:
        return int(self._of(name, *args) or 0)

    def _of(self, name: str, *args: Any) -> Any:
        """Return a library call's result; None if this device or version does not support it."""
        function = getattr(self._nvml, name, None)
        if function is None:
            return None
        try:
            return function(*args)
        except self._nvml.NVMLError as error:
            lost = getattr(self._nvml, "NVMLError_GpuIsLost", None)
            if lost is not None and isinstance(error, lost):
                raise
            return None
