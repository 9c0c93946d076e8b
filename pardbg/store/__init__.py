"""State of a run: columns per process and kind, definitions, histories. One writer."""

from pardbg.store.limits import Limits
from pardbg.store.store import Store

__all__ = ["Limits", "Store"]
