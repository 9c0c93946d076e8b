"""Pipelines of training frameworks: an adapter each, put in place when the program imports the
framework's module. An adapter imports nothing of the framework; what it does not find it leaves
alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Final

from pardbg_agent.hooks.frameworks import colossalai, deepspeed, megatron, nanotron, picotron
from pardbg_agent.hooks.patching import Patches
from pardbg_agent.late_imports import LateImports

Adapter = Callable[[Patches, ModuleType], None]
ADAPTERS: Final[dict[str, Adapter]] = {
    **megatron.MODULES,
    **deepspeed.MODULES,
    **nanotron.MODULES,
    **picotron.MODULES,
    **colossalai.MODULES,
}
"""Module of a framework -> what hooks it."""


def install(patches: Patches, late: LateImports) -> None:
    """Wait for the frameworks' modules."""
    for module, adapter in ADAPTERS.items():
        late.when_imported(module, functools.partial(adapter, patches))
