"""What is printed or written to a file: reports, diffs, checks, replies."""
