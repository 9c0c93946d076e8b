"""Command lines without secrets: they are recorded, and shown to all viewers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

HIDDEN: Final = "***"
_NAMES: Final = frozenset((
    "password", "passwd", "passphrase", "pwd", "pass", "secret", "secrets", "credential",
    "credentials", "apikey", "accesskey", "secretkey", "privatekey", "authkey", "authorization",
    "bearer",
))  # fmt: skip
"""Parts of names whose value is a secret."""
_LAST: Final = frozenset(("token", "key", "auth", "sas", "dsn"))
"""Last parts of names whose value is a secret."""
_PLAIN: Final = frozenset((
    "pad", "eos", "bos", "unk", "mask", "sep", "cls", "image", "audio", "video", "special",
    "stop", "start", "end", "first", "last", "next", "sort", "group", "cache", "primary",
    "partition", "foreign", "dict", "data", "batch", "label", "query", "target", "input",
    "output", "random", "state", "column", "map",
))  # fmt: skip
"""Parts before ``token`` and ``key`` that make a name harmless: ``--pad-token``, ``--sort-key``."""
_PART: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_PAIR: Final = re.compile(r"""([A-Za-z_][\w.-]*)["']?\s*[:=]\s*["']?""")
_OPTION: Final = re.compile(r"""(?<!\S)(--?[A-Za-z][\w.-]*)\s+(?!-)["']?""")
_VALUE: Final = re.compile(r"""[^\s"',;&}]+""")
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)(\s+)([\w.~+/=-]{8,})")
_USER: Final = re.compile(r"([A-Za-z][\w+.-]*://)[^\s/@]+@")
_SHAPES: Final = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|[sr]k[-_][A-Za-z0-9_-]{16,}|(?:AKIA|ASIA)[A-Z0-9]{12,}"
    r"|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{12,}|xox[a-z]-[\w-]{10,}"
    r"|AIza[\w-]{30,}|nvapi-[\w-]{16,}|wandb_v\d_\w{16,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
"""Shapes of services' secrets, whatever stands before them."""


def without_secrets(argv: Iterable[str]) -> list[str]:
    """Return the words, with ``***`` for a value whose option or variable has a secret's name
    (``--api-key X``, ``FOO_TOKEN=X``), or that looks like one (``hf_…``, ``https://me:x@…``)."""
    out: list[str] = []
    before = ""
    for word in argv:
        is_value = before.startswith("-") and "=" not in before and not word.startswith("--")
        out.append(HIDDEN if is_value and word and names_secret(before) else _cleaned(word))
        before = word
    return out


def names_secret(name: str) -> bool:
    parts = [part.lower() for part in _PART.findall(name)]
    if _NAMES.intersection(parts):
        return True
    return bool(parts) and parts[-1] in _LAST and not _PLAIN.intersection(parts[:-1])


def _cleaned(word: str) -> str:
    """Return one word without secrets; a shell script, or JSON, has pairs inside."""
    word = _USER.sub(rf"\1{HIDDEN}@", word)
    word = _BEARER.sub(rf"\1\2{HIDDEN}", word)
    return _SHAPES.sub(HIDDEN, _without_values(_OPTION, _without_values(_PAIR, word)))


def _without_values(names: re.Pattern[str], word: str) -> str:
    """Hide the values behind names that ``names`` finds and that are a secret's."""
    out, at = "", 0
    for found in names.finditer(word):
        value = _VALUE.match(word, found.end()) if names_secret(found[1]) else None
        if value is not None and found.start() >= at:
            out += word[at : value.start()] + HIDDEN
            at = value.end()
    return out + word[at:]
