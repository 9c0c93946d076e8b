"""A pipeline's step by ticks: its grid, and one cell of it."""
