"""Hooks into memory: bytes by use, limits, tensors saved for backward."""
