"""State of a run: columns per process and kind, definitions, histories. One writer."""

from pardbg.store.store import Store
from pardbg.store.table import Limits

__all__ = ["Limits", "Store"]
