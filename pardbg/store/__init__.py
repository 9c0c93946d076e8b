"""State of a run: columns per process and kind, definitions, histories. One writer."""

from pardbg.store.store import Limits, Store

__all__ = ["Limits", "Store"]
