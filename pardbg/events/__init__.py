"""Bytes from outside, checked and turned into columns and maps. Nothing here trusts its input."""
