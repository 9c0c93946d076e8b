"""Beside the debugger: programs to learn from, schedules as things one makes, rehearsals."""
