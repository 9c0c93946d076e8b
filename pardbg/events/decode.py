"""Records payloads to numpy, msgpack payloads to maps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgpack
import numpy as np
from numpy.typing import NDArray

from pardbg.events import fields
from pardbg_agent import wire
from pardbg_agent.ctrl import codec

RECORD_DTYPE: Final = np.dtype([(name, code) for name, code in wire.RECORD_FIELDS])
assert RECORD_DTYPE.itemsize == wire.RECORD_BYTES
_WHOLE: Final = np.dtype((np.void, wire.RECORD_BYTES))

KNOWN_KINDS: Final = frozenset(int(kind) for kind in wire.Kind)


Malformed = codec.Malformed


class Newer(Malformed):
    """A layout version this reader does not know."""


class Full(Malformed):
    """Valid input for which there is no room: the limit of this name is reached."""


@dataclass(frozen=True, slots=True)
class Head:
    """A records payload's checked FRAME."""

    count: int
    first: int
    """Index of the first record."""
    dropped: int
    """Records the rank has lost so far."""
    flags: int = 0
    """wire.FRAME_…"""


def split_key(key: bytes) -> tuple[bytes, str]:
    """Split a message key into (wire.Key byte, process id or "")."""
    if not key or len(key) > fields.MAX_PROC_ID:
        raise Malformed("key")
    try:
        return key[:1], key[1:].decode("ascii")
    except UnicodeDecodeError as error:
        raise Malformed("key") from error


def frame_head(payload: bytes) -> Head:
    """Check a records payload's FRAME, without reading its records."""
    if not wire.FRAME.size <= len(payload) <= fields.MAX_PAYLOAD_BYTES:
        raise Malformed("records payload size")
    version, flags, count, first, dropped, _sent_ns = wire.FRAME.unpack_from(payload)
    if version != wire.PROTOCOL_VERSION:
        raise Newer(f"records version {version}")
    if count > fields.MAX_RECORDS_PER_BATCH:
        raise Malformed("records count")
    if len(payload) != wire.FRAME.size + count * wire.RECORD_BYTES:
        raise Malformed("records count does not match size")
    if first + count > fields.MAX_NUMBER or dropped > fields.MAX_NUMBER:
        raise Malformed("records index")
    return Head(count, first, dropped, flags)


def records_from(body: bytes | bytearray) -> NDArray[Any]:
    """Return records as a structured array over ``body`` (whole records, no FRAME); no copy."""
    return np.frombuffer(body, dtype=RECORD_DTYPE)


def taken(records: NDArray[Any], rows: NDArray[np.intp]) -> NDArray[Any]:
    """Return ``records[rows]``, each record taken as one block of bytes: numpy would copy field by
    field, which takes twenty times as long."""
    whole = np.ascontiguousarray(records).view(_WHOLE)
    return whole.take(rows).view(RECORD_DTYPE)


def usable(records: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of the records that were committed, in order, with times a clock can show."""
    limit = np.int64(fields.MAX_NUMBER)
    t0, t1 = records["t0_ns"], records["t1_ns"]
    ok: NDArray[np.bool_] = (records["mark"] != 0) & (t0 >= 0) & (t1 >= t0) & (t1 < limit)
    return ok


def _bounds(payload: bytes) -> dict[str, object]:
    """Return msgpack's options that bound what a message becomes. Raises Malformed."""
    if len(payload) > fields.MAX_MAP_BYTES:
        raise Malformed("message size")
    counted = _counter(payload)
    return {
        "object_hook": counted, "list_hook": counted, "strict_map_key": False,
        "max_array_len": fields.MAX_MAP_ITEMS, "max_map_len": fields.MAX_MAP_ITEMS,
        "max_ext_len": 0, "unicode_errors": "replace",
    }  # fmt: skip


def _counter(payload: bytes) -> Callable[[Any], Any] | None:
    """Return a hook that counts a message's maps and lists while it is decoded; None: the message
    is too short to have too many of them."""
    if len(payload) <= fields.MAX_CONTAINERS:
        return None
    left = fields.MAX_CONTAINERS

    def counted(container: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueError("a message of too many maps and lists")
        return container

    return counted


def decode_map(payload: bytes) -> dict[str, Any]:
    """Decode one msgpack map with text keys, of bounded size. Raises Malformed."""
    bounds = _bounds(payload)
    max_str_len = max(fields.MAX_STRING_BYTES, min(len(payload), 1 << 22))
    try:
        value = msgpack.unpackb(
            payload, max_str_len=max_str_len, max_bin_len=len(payload), **bounds
        )
    # msgpack raises a family of its own and, for odd input, plain ValueError subclasses.
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise Malformed("msgpack") from error
    if not isinstance(value, dict):
        raise Malformed("not a map")
    return value


def leading(payload: bytes, last: str) -> dict[str, Any]:
    """Return the first values of a map with text keys, up to that of ``last`` (or all of a map
    without this key): the rest, as a thousand ranks' rows, is not decoded. Raises Malformed."""
    bounds, size = _bounds(payload), max(len(payload), 1)
    reader = msgpack.Unpacker(max_buffer_size=size, max_str_len=fields.MAX_STRING_BYTES, **bounds)
    found: dict[str, Any] = {}
    try:
        reader.feed(payload)
        for _ in range(reader.read_map_header()):
            key = reader.unpack()
            found[str(key)] = reader.unpack()
            if key == last:
                break
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise Malformed("msgpack") from error
    return found
