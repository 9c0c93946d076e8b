"""A session for other tools: a trace for Perfetto, tables for pandas and its kin."""
