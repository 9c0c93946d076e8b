"""The version of pardbg."""

__version__ = "0.1.0"
