"""Ranks from outside: their rings, their stacks, questions to them."""
