"""Findings held to the truth: each planted fault, live, against what pardbg says of it."""
