"""Ranks from outside: their rings, stacks, questions to them, post-mortem."""
