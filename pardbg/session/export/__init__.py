"""Export of a session for other tools: a trace for Perfetto, tables for pandas and the like."""
