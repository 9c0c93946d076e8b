"""Printed and written output: reports, diffs, checks, replies."""
