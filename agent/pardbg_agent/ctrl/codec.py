"""Frozen dataclasses to plain values (maps, lists, numbers, text) and back, by their annotations.

One bounded reader per annotation: a value of another type, a list or map that is too long and a
number of more than 64 bits are ``Malformed``; text that is too long is cut. Unknown
keys are skipped, and fields with their default values are not written. A union of dataclasses is
told apart by ``t``, the ``TAG`` of each. Maps whose keys are tuples travel as lists of pairs.

Standard library only: msgpack packs what ``encode`` returns.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Final, TypeVar

MAX_TEXT: Final = 10_000
"""Maximum characters of a text without a limit of its own."""
MAX_ITEMS: Final = 1 << 17
"""Maximum items of one list or map."""
MIN_NUMBER: Final = -(1 << 63)
MAX_NUMBER: Final = (1 << 64) - 1
"""Largest number that msgpack carries; hashes are unsigned and take all 64 bits."""
MAX_DEPTH: Final = 64
"""Maximum levels of lists and maps in a value that is annotated as ``object``."""

Word = Annotated[str, 64]
"""Name or identifier, of 64 characters at most."""
Line = Annotated[str, 500]
"""Line for a user, of 500 characters at most."""

Read = Callable[[Any], Any]
T = TypeVar("T")


class Message:
    """Message with a ``TAG`` that tells it apart from others of its union."""

    __slots__ = ()
    TAG: ClassVar[str]

    def __init_subclass__(cls, tag: str = "") -> None:
        if tag:  # ``slots=True`` makes the class a second time, without it
            cls.TAG = tag


class Malformed(ValueError):
    """Input that does not follow the layout; counted by its catcher."""


def encode(value: Any, whole: bool = False) -> Any:
    """Return the plain value of a message or field; ``whole``: with fields of default values."""
    if dataclasses.is_dataclass(value):
        tag = getattr(value, "TAG", None)
        plain = {} if tag is None else {"t": tag}
        for name, default in _defaults(typing.cast(Any, type(value))):
            found = getattr(value, name)
            if whole or found != default:
                plain[name] = encode(found, whole)
        return plain
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        if any(isinstance(key, tuple) for key in value):
            return [[encode(key), encode(of, whole)] for key, of in value.items()]
        return {encode(key): encode(of, whole) for key, of in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item, whole) for item in value]
    return value


def decode(kind: type[T], plain: object) -> T:
    """Return the message of class ``kind``. Raises Malformed."""
    return typing.cast(T, reader(typing.cast(Any, kind))(plain))


@cache
def reader(hint: Any) -> Read:
    """Return the function that reads a plain value according to an annotation."""
    if dataclasses.is_dataclass(hint):
        return _dataclass_reader(typing.cast(type, hint))
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _text(args[1])
    if origin in (typing.Union, types.UnionType):
        return _union(args)
    if origin is tuple:
        return _list(args[0]) if args[-1] is ... else _row(args)
    if origin is not None and issubclass(origin, Mapping):
        return _map(*args)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _enum(hint)
    return _SCALARS[hint]


@cache
def _defaults(kind: type) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (f.name, f.default_factory() if callable(f.default_factory) else f.default)
        for f in dataclasses.fields(kind)
    )


def _dataclass_reader(kind: type) -> Read:
    hints = typing.get_type_hints(kind, include_extras=True)
    parts = tuple(
        (name, reader(hints[name]), default is dataclasses.MISSING)
        for name, default in _defaults(kind)
    )

    def read(plain: Any) -> Any:
        if not isinstance(plain, dict):
            raise Malformed(f"{kind.__name__}: not a map")
        found = {}
        for name, read_field, needed in parts:
            if name in plain:
                try:
                    found[name] = read_field(plain[name])
                except Malformed as error:
                    raise Malformed(f"{kind.__name__}.{name}: {error}") from None
            elif needed:
                raise Malformed(f"{kind.__name__}.{name} is missing")
        return kind(**found)

    return read


def _union(kinds: tuple[Any, ...]) -> Read:
    tagged = {kind.TAG: reader(kind) for kind in kinds if hasattr(kind, "TAG")}
    others = [
        reader(kind) for kind in kinds if kind is not types.NoneType and not hasattr(kind, "TAG")
    ]
    may_be_none = types.NoneType in kinds

    def read(plain: Any) -> Any:
        if plain is None and may_be_none:
            return None
        if not tagged:
            return others[0](plain)
        tag = plain.get("t") if isinstance(plain, dict) else None
        if not isinstance(tag, str) or tag not in tagged:
            raise Malformed(f"no message {tag!r:.40}")
        return tagged[tag](plain)

    return read


def _list(item: Any) -> Read:
    read_item = reader(item)
    return lambda plain: tuple(map(read_item, _items(plain)))


def _row(kinds: tuple[Any, ...]) -> Read:
    readers = tuple(map(reader, kinds))

    def read(plain: Any) -> Any:
        if len(items := _items(plain)) != len(readers):
            raise Malformed("length")
        return tuple(read_item(item) for read_item, item in zip(readers, items, strict=True))

    return read


def _items(plain: Any) -> Any:
    if not isinstance(plain, (list, tuple)) or len(plain) > MAX_ITEMS:
        raise Malformed("not a list, or a long one")
    return plain


def _map(key: Any, of: Any) -> Read:
    read_key, read_value = _key if key is int else reader(key), reader(of)
    pair = _row((key, of)) if typing.get_origin(key) is tuple else None

    def read(plain: Any) -> Any:
        if pair is not None and plain != {}:  # `encode` cannot see what keys an empty map has
            return dict(map(pair, _items(plain)))
        if not isinstance(plain, dict) or len(plain) > MAX_ITEMS:
            raise Malformed("not a map, or a long one")
        return {read_key(name): read_value(value) for name, value in plain.items()}

    return read


def _enum(kind: type[enum.Enum]) -> Read:
    def read(plain: Any) -> Any:
        try:
            return kind(plain)
        except ValueError:
            raise Malformed(f"no {kind.__name__}") from None

    return read


def _text(limit: int) -> Read:
    def read(plain: Any) -> str:
        if not isinstance(plain, str):
            raise Malformed("not text")
        return plain[:limit]

    return read


def _int(plain: Any) -> int:
    if type(plain) is not int or not MIN_NUMBER <= plain <= MAX_NUMBER:
        raise Malformed("not a number")
    return plain


def _key(plain: Any) -> int:
    """Return a rank or number used as the key of a map, which is text in JSON."""
    if isinstance(plain, str) and plain.isascii() and plain.isdigit() and len(plain) < 19:
        return int(plain)
    return _int(plain)


def _float(plain: Any) -> float:
    if isinstance(plain, bool) or not isinstance(plain, (int, float)):
        raise Malformed("not a number")
    return float(plain)


def _bool(plain: Any) -> bool:
    if not isinstance(plain, bool):
        raise Malformed("not true or false")
    return plain


def _bytes(plain: Any) -> bytes:
    if not isinstance(plain, bytes):
        raise Malformed("not bytes")
    return plain


_NESTED: Final = dict, list, tuple


def _any(plain: Any, depth: int = 0) -> Any:
    """Return a plain value of any shape; the size of the whole message bounds it."""
    if depth > MAX_DEPTH:
        raise Malformed("too deep")
    if not isinstance(plain, _NESTED):
        return plain
    for item in plain.values() if isinstance(plain, dict) else plain:
        if isinstance(item, _NESTED):
            _any(item, depth + 1)
    return plain


_SCALARS: Final[dict[Any, Read]] = {
    int: _int, float: _float, bool: _bool, str: _text(MAX_TEXT), bytes: _bytes, object: _any,
}  # fmt: skip
