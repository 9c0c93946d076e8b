"""Training programs to learn from, schedules to make and search, rehearsals: not the debugger."""
