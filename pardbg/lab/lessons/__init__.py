"""The lessons of ``pardbg learn``: a table, and its numbers out of real runs."""
