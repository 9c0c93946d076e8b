"""Lessons of ``pardbg learn``: a table of texts, with numbers from real runs."""
