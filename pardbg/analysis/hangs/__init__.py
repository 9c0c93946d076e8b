"""Hangs: who waits for whom, ranks that stand still, and their stacks."""
