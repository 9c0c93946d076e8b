"""Training programs to learn from, editor and search of schedules, rehearsals: not the debugger."""
