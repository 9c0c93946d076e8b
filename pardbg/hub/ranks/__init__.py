"""Access to ranks from outside: their rings, their stacks, questions to them."""
