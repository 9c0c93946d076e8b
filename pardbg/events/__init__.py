"""Decoding of untrusted bytes from outside: checked and turned into columns and maps."""
