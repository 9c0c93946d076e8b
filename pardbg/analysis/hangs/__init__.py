"""Hangs: the wait graph of ranks, ranks that stand still, and their stacks."""
