"""Foundations of the analysis: views at a cursor, intervals, steps, values."""
