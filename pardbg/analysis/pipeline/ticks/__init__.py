"""A pipeline by ticks: its grid, and one cell of it."""
