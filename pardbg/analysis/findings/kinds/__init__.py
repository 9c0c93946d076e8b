"""The table of kinds: identifier, severity, words and documentation of every finding.

A theme per module. ``kinds.kinds_table`` has all rows.
"""
