"""Actions, the command line and its completion, history and start-up files."""
