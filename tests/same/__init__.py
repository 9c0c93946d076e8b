"""One small transformer in many layouts, and mistakes in them, for ``pardbg same``."""
